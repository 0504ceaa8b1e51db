"""Chains that are not stored continue on another node or worker after their connection dropped."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

import aiohttp
import pytest

from tests.commands.test_cli import FAST as FAST_FLAGS
from tests.commands.test_cli import Process, launched
from tests.harness import FAST, PuppetEngine, Running, serve
from tests.nodes.pairs import node_of, pair
from tests.server.issuing import bearer
from tests.server.process.test_workers import health_by_pid
from tests.server.test_parking import TWO_TENANTS, chain, cut

ZERO_RETENTION = {"OpenAI-Beta": "slipring_zero_retention=v1"}
MOST_CONNECTIONS = 64
"""The kernel chooses the worker of a connection; this many hardly all reach the same one."""


async def parked_chain(node: Running, **options: Any) -> str:
    """The id of the last response of a chain whose connection dropped."""
    async with node.connect(abandoned=True, **options) as socket:
        tip = await chain(socket)
        await cut(node, socket)
    return tip


async def assert_not_found(node: Running, tip: str, **options: Any) -> None:
    async with node.connect(**options) as socket:
        error = await socket.error(input="x", store=False, previous_response_id=tip)
        assert (error["status"], error["error"]["code"]) == (400, "previous_response_not_found")


async def test_a_chain_continues_on_the_other_node(postgres_url: str) -> None:
    async with pair(postgres_url, reachable=True) as (here, there):
        tip = await parked_chain(here)
        async with there.connect() as socket:
            response = await socket.response(input="go on", store=False, previous_response_id=tip)
            assert node_of(response) == there.service.node_id
            again = await socket.response(input="more", store=False, previous_response_id=response["id"])
            assert again["usage"]["input_tokens"] > response["usage"]["input_tokens"]


async def test_the_other_node_gets_the_whole_history(postgres_url: str) -> None:
    engines = PuppetEngine(), PuppetEngine()
    async with pair(postgres_url, *engines, reachable=True) as (here, there):
        async with here.connect(abandoned=True) as socket:
            previous = None
            for store in (True, False, False):
                await socket.create(input="remember", store=store, previous_response_id=previous)
                performance = await engines[0].next()
                performance.say("I do")
                performance.finish()
                previous = (await socket.until("response.completed"))[-1]["response"]["id"]
            await cut(here, socket)
        async with there.connect() as socket:
            await socket.create(input="go on", store=True, previous_response_id=previous)
            performance = await engines[1].next()
            contents = [item.raw for item in performance.job.context()]
            expected = [b"remember", b"I do"] * 3 + [b"go on"]
            assert len(contents) == len(expected)
            assert all(text in raw for text, raw in zip(expected, contents, strict=True))
            performance.finish()
            stored = (await socket.until("response.completed"))[-1]["response"]
        # The response is stored now with its whole chain, so the first node can continue it over HTTP.
        answer = asyncio.create_task(here.post(input="back", previous_response_id=stored["id"]))
        performance = await engines[0].next()
        assert len(list(performance.job.context())) == 8
        performance.finish()
        assert (await answer)[0] == 200


async def test_a_chain_can_move_repeatedly(postgres_url: str) -> None:
    """Each time, the node that made the newest response has it parked."""
    async with pair(postgres_url, reachable=True) as nodes:
        tip = await parked_chain(nodes[0])
        for number in range(1, 5):
            node = nodes[number % 2]
            async with node.connect(abandoned=True) as socket:
                response = await socket.response(input="go on", store=False, previous_response_id=tip)
                await cut(node, socket)
            tip = response["id"]


async def test_another_tenant_cannot_continue_the_chain(postgres_url: str) -> None:
    async with pair(postgres_url, reachable=True, api_key=TWO_TENANTS) as (here, there):
        tip = await parked_chain(here, key="our-key")
        await assert_not_found(there, tip, key="their-key")
        async with there.connect(key="our-key") as socket:
            await socket.response(input="x", store=False, previous_response_id=tip)


async def test_http_requests_do_not_find_parked_chains(postgres_url: str) -> None:
    async with pair(postgres_url, reachable=True) as (here, there):
        tip = await parked_chain(here)
        status, error = await there.post(input="x", previous_response_id=tip)
        assert (status, error["error"]["code"]) == (400, "previous_response_not_found")


async def test_nodes_without_a_node_url_do_not_fetch_from_each_other(postgres_url: str) -> None:
    async with pair(postgres_url) as (here, there):
        tip = await parked_chain(here)
        await assert_not_found(there, tip)
        async with here.connect() as socket:
            await socket.response(input="x", store=False, previous_response_id=tip)


async def test_zero_retention_parks_nothing(postgres_url: str) -> None:
    async with pair(postgres_url, reachable=True) as (here, there):
        tip = await parked_chain(here, headers=ZERO_RETENTION)
        await assert_not_found(there, tip)


async def test_parked_chains_of_a_stopped_node_are_lost(postgres_url: str) -> None:
    async with pair(postgres_url, reachable=True) as (here, there):
        tip = await parked_chain(here)
        await here.server.stop()
        await assert_not_found(there, tip)


async def test_parked_chains_of_a_killed_node_are_lost(postgres_url: str) -> None:
    """It is still announced in the store, but does not answer."""
    async with pair(postgres_url, reachable=True) as (_, there):
        async with launched(*FAST_FLAGS, "--store", postgres_url, "--node-url", "http://127.0.0.1:1") as dead:
            async with aiohttp.ClientSession() as http:
                ws = await http.ws_connect(f"{dead.url}/responses")
                tip = await unstored_response(ws, None)
            dead.process.kill()
        await assert_not_found(there, tip["id"])


class TurnFailed(Exception):
    """The server sent an error instead of a completed response."""


async def unstored_response(ws: aiohttp.ClientWebSocketResponse, previous: str | None) -> dict[str, Any]:
    """Make one more response that is not stored."""
    create = {"type": "response.create", "input": "x", "store": False, "previous_response_id": previous}
    await ws.send_json(create)
    while True:
        event = await ws.receive_json(timeout=300)
        if event["type"] in ("error", "response.failed"):
            raise TurnFailed(event)
        if event["type"] == "response.completed":
            response: dict[str, Any] = event["response"]
            return response


def reset(ws: aiohttp.ClientWebSocketResponse) -> None:
    """Drop a connection without a close frame."""
    ws.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    transport = ws._conn.transport
    assert transport is not None
    transport.abort()


@asynccontextmanager
async def two_workers(directory: Path) -> AsyncIterator[tuple[Process, aiohttp.ClientSession]]:
    store = f"sqlite:{directory / 'slipring.db'}"
    keys = [argument for key in TWO_TENANTS for argument in ("--api-key", key)]
    async with (
        launched(*FAST_FLAGS, "--store", store, "--workers", "2", *keys) as server,
        aiohttp.ClientSession() as http,
    ):
        yield server, http


async def parked_at_a_worker(server: Process, http: aiohttp.ClientSession, **headers: str) -> dict[str, Any]:
    """The last response of a chain whose connection dropped, after both workers have noticed."""
    ws = await http.ws_connect(f"{server.url}/responses", headers={**bearer("our-key"), **headers})
    tip = await unstored_response(ws, (await unstored_response(ws, None))["id"])
    reset(ws)
    await health_by_pid(
        server.url, lambda answers: len(answers) == 2 and not any(map(is_connected, answers.values()))
    )
    return tip


def is_connected(health: dict[str, Any]) -> bool:
    return bool(health["connections"])


async def test_a_chain_continues_on_another_worker(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as (server, http):
        tip = await parked_at_a_worker(server, http)
        makers = set()
        for _ in range(MOST_CONNECTIONS):
            async with http.ws_connect(f"{server.url}/responses", headers=bearer("our-key")) as ws:
                response = await unstored_response(ws, tip["id"])
                assert response["usage"]["input_tokens"] > tip["usage"]["input_tokens"]
                makers.add(node_of(response))
            if makers - {node_of(tip)}:
                break
        assert makers - {node_of(tip)}, "every connection reached the same worker"


async def assert_not_found_by_both_workers(
    server: Process, http: aiohttp.ClientSession, key: str, tip: str
) -> None:
    makers = set()
    for _ in range(MOST_CONNECTIONS):
        async with http.ws_connect(f"{server.url}/responses", headers=bearer(key)) as ws:
            makers.add(node_of(await unstored_response(ws, None)))
            with pytest.raises(TurnFailed, match="previous_response_not_found"):
                await unstored_response(ws, tip)
        if len(makers) == 2:
            return
    raise AssertionError("every connection reached the same worker")


async def test_another_tenant_cannot_continue_the_chain_on_any_worker(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as (server, http):
        tip = await parked_at_a_worker(server, http)
        await assert_not_found_by_both_workers(server, http, "their-key", tip["id"])


async def test_zero_retention_parks_nothing_on_any_worker(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as (server, http):
        tip = await parked_at_a_worker(server, http, **ZERO_RETENTION)
        await assert_not_found_by_both_workers(server, http, "our-key", tip["id"])


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer "}, {"Authorization": "Bearer wrong"}])
async def test_only_nodes_can_fetch_parked_chains(postgres_url: str, headers: dict[str, str]) -> None:
    async with pair(postgres_url, reachable=True) as (here, _):
        tip = await parked_chain(here)
        url = f"{here.url.removesuffix('/v1')}/slipring/parked/{tip}"
        headers = {**headers, "X-Slipring-Tenant": b"default".hex()}
        async with here.http.get(url, headers=headers) as answer:
            assert answer.status == 404, "the same answer as for an unknown path"


async def test_a_node_without_a_node_url_hands_out_nothing() -> None:
    async with serve(FAST) as server:
        tip = await parked_chain(server)
        url = f"{server.url.removesuffix('/v1')}/slipring/parked/{tip}"
        async with server.http.get(url, headers={"Authorization": "Bearer "}) as answer:
            assert answer.status == 404
