"""Chains that are not stored, and whose socket was cut on one node: they go on over a socket to another."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

import aiohttp
import pytest

from tests.harness import FAST, PuppetEngine, Running, serve
from tests.nodes.pairs import node_of, pair
from tests.server.cluster.test_parking import TWO_TENANTS, chain, cut
from tests.server.issuing import bearer
from tests.server.process.test_workers import look
from tests.test_cli import FAST as FAST_FLAGS
from tests.test_cli import Process, launched

ZERO_RETENTION = {"OpenAI-Beta": "slipring_zero_retention=v1"}
MOST_CONNECTIONS = 64
"""The kernel chooses the worker of a connection; so often it does not choose the same by chance."""


async def left_behind(node: Running, **options: Any) -> str:
    """The tip of a chain whose socket was cut."""
    async with node.connect(abandoned=True, **options) as socket:
        tip = await chain(socket)
        await cut(node, socket)
    return tip


async def refused(node: Running, tip: str, **options: Any) -> None:
    async with node.connect(**options) as socket:
        error = await socket.error(input="x", store=False, previous_response_id=tip)
        assert (error["status"], error["error"]["code"]) == (400, "previous_response_not_found")


async def test_a_chain_goes_on_on_the_other_node(postgres_url: str) -> None:
    async with pair(postgres_url, reachable=True) as (here, there):
        tip = await left_behind(here)
        async with there.connect() as socket:
            response = await socket.response(input="go on", store=False, previous_response_id=tip)
            assert node_of(response) == there.service.node_id
            again = await socket.response(input="more", store=False, previous_response_id=response["id"])
            assert again["usage"]["input_tokens"] > response["usage"]["input_tokens"]


async def test_nothing_of_the_history_is_lost_on_the_way(postgres_url: str) -> None:
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
            said = [item.raw for item in performance.job.context()]
            expected = [b"remember", b"I do"] * 3 + [b"go on"]
            assert len(said) == len(expected)
            assert all(text in raw for text, raw in zip(expected, said, strict=True))
            performance.finish()
            stored = (await socket.until("response.completed"))[-1]["response"]
        # It is stored now with all that it builds on, so the first node can go on too, over HTTP.
        answer = asyncio.create_task(here.post(input="back", previous_response_id=stored["id"]))
        performance = await engines[0].next()
        assert len(list(performance.job.context())) == 8
        performance.finish()
        assert (await answer)[0] == 200


async def test_a_chain_may_move_again_and_again(postgres_url: str) -> None:
    """Each time the node that made the newest response has it."""
    async with pair(postgres_url, reachable=True) as nodes:
        tip = await left_behind(nodes[0])
        for number in range(1, 5):
            node = nodes[number % 2]
            async with node.connect(abandoned=True) as socket:
                response = await socket.response(input="go on", store=False, previous_response_id=tip)
                await cut(node, socket)
            tip = response["id"]


async def test_another_tenant_cannot_go_on(postgres_url: str) -> None:
    async with pair(postgres_url, reachable=True, api_key=TWO_TENANTS) as (here, there):
        tip = await left_behind(here, key="our-key")
        await refused(there, tip, key="their-key")
        async with there.connect(key="our-key") as socket:
            await socket.response(input="x", store=False, previous_response_id=tip)


async def test_nobody_can_over_http(postgres_url: str) -> None:
    async with pair(postgres_url, reachable=True) as (here, there):
        tip = await left_behind(here)
        status, error = await there.post(input="x", previous_response_id=tip)
        assert (status, error["error"]["code"]) == (400, "previous_response_not_found")


async def test_nodes_that_do_not_know_of_each_other_have_nothing(postgres_url: str) -> None:
    async with pair(postgres_url) as (here, there):
        tip = await left_behind(here)
        await refused(there, tip)
        async with here.connect() as socket:
            await socket.response(input="x", store=False, previous_response_id=tip)


async def test_a_client_that_wants_nothing_kept_leaves_nothing(postgres_url: str) -> None:
    async with pair(postgres_url, reachable=True) as (here, there):
        tip = await left_behind(here, headers=ZERO_RETENTION)
        await refused(there, tip)


async def test_a_node_that_stopped_has_taken_it_along(postgres_url: str) -> None:
    async with pair(postgres_url, reachable=True) as (here, there):
        tip = await left_behind(here)
        await here.server.stop()
        await refused(there, tip)


async def test_a_node_that_was_killed_has_taken_it_along(postgres_url: str) -> None:
    """It is still announced in the store, and nobody answers there."""
    async with pair(postgres_url, reachable=True) as (_, there):
        async with launched(*FAST_FLAGS, "--store", postgres_url, "--node-url", "http://127.0.0.1:1") as dead:
            async with aiohttp.ClientSession() as http:
                ws = await http.ws_connect(f"{dead.url}/responses")
                tip = await made(ws, None)
            dead.process.kill()
        await refused(there, tip["id"])


class Refused(Exception):
    """No response was made."""


async def made(ws: aiohttp.ClientWebSocketResponse, previous: str | None) -> dict[str, Any]:
    """One more response that is not stored, on a plain socket."""
    create = {"type": "response.create", "input": "x", "store": False, "previous_response_id": previous}
    await ws.send_json(create)
    while True:
        event = await ws.receive_json(timeout=60)
        if event["type"] in ("error", "response.failed"):
            raise Refused(event)
        if event["type"] == "response.completed":
            response: dict[str, Any] = event["response"]
            return response


def reset(ws: aiohttp.ClientWebSocketResponse) -> None:
    """Cut a socket off, without a goodbye."""
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


async def left_at_a_worker(server: Process, http: aiohttp.ClientSession, **headers: str) -> dict[str, Any]:
    """The last response of a chain whose socket was cut; both workers know that nobody is connected."""
    ws = await http.ws_connect(f"{server.url}/responses", headers={**bearer("our-key"), **headers})
    tip = await made(ws, (await made(ws, None))["id"])
    reset(ws)
    await look(server.url, lambda said: len(said) == 2 and not any(map(is_connected, said.values())))
    return tip


def is_connected(health: dict[str, Any]) -> bool:
    return bool(health["connections"])


async def test_a_chain_goes_on_on_another_worker(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as (server, http):
        tip = await left_at_a_worker(server, http)
        makers = set()
        for _ in range(MOST_CONNECTIONS):
            async with http.ws_connect(f"{server.url}/responses", headers=bearer("our-key")) as ws:
                response = await made(ws, tip["id"])
                assert response["usage"]["input_tokens"] > tip["usage"]["input_tokens"]
                makers.add(node_of(response))
            if makers - {node_of(tip)}:
                break
        assert makers - {node_of(tip)}, "the kernel has led every connection to the same worker"


async def refused_by_both_workers(server: Process, http: aiohttp.ClientSession, key: str, tip: str) -> None:
    makers = set()
    for _ in range(MOST_CONNECTIONS):
        async with http.ws_connect(f"{server.url}/responses", headers=bearer(key)) as ws:
            makers.add(node_of(await made(ws, None)))
            with pytest.raises(Refused, match="previous_response_not_found"):
                await made(ws, tip)
        if len(makers) == 2:
            return
    raise AssertionError("the kernel has led every connection to the same worker")


async def test_another_tenant_cannot_go_on_on_any_worker(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as (server, http):
        tip = await left_at_a_worker(server, http)
        await refused_by_both_workers(server, http, "their-key", tip["id"])


async def test_a_client_that_wants_nothing_kept_leaves_nothing_at_any_worker(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as (server, http):
        tip = await left_at_a_worker(server, http, **ZERO_RETENTION)
        await refused_by_both_workers(server, http, "our-key", tip["id"])


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer "}, {"Authorization": "Bearer wrong"}])
async def test_only_nodes_are_told_what_is_parked(postgres_url: str, headers: dict[str, str]) -> None:
    async with pair(postgres_url, reachable=True) as (here, _):
        tip = await left_behind(here)
        url = f"{here.url.removesuffix('/v1')}/slipring/parked/{tip}"
        headers = {**headers, "X-Slipring-Tenant": b"default".hex()}
        async with here.http.get(url, headers=headers) as answer:
            assert answer.status == 404, "as where there is nothing at all"


async def test_a_node_without_an_address_tells_nobody() -> None:
    async with serve(FAST) as server:
        tip = await left_behind(server)
        url = f"{server.url.removesuffix('/v1')}/slipring/parked/{tip}"
        async with server.http.get(url, headers={"Authorization": "Bearer "}) as answer:
            assert answer.status == 404
