"""Background runs on two nodes: one makes them, both stream and cancel them, and each ends once."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from slipring.core.limits import Limits
from tests.api import Api
from tests.commands.test_cli import launched
from tests.harness import TERMINAL, Performance, PuppetEngine, serve
from tests.nodes.pairs import pair

SHORT_S = 4.0
"""A short lease, though long enough that a busy machine does not look dead."""
KEY = {"Authorization": "Bearer test-key"}


@asynccontextmanager
async def run_on_first_node(store: str, **settings: Any) -> AsyncIterator[tuple[Api, Api, Performance, str]]:
    """Two nodes, the engine's side of a run that the first one makes, and its id."""
    engine = PuppetEngine()
    async with pair(store, engine, PuppetEngine(), **settings) as (here, there):
        begun = await Api(here).begin()
        yield Api(here), Api(there), await engine.next(), begun["id"]


async def last_number(api: Api, response_id: str, at_least: int) -> int:
    """The number of the newest event in the store, once it is at least this."""
    async with asyncio.timeout(300):
        while True:
            run = await api.server.service.store.runs.read("default", response_id)
            if run is not None and run.last_sequence >= at_least:
                return int(run.last_sequence)
            await asyncio.sleep(0.01)


def terminal_types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events if event["type"] in TERMINAL]


async def test_the_other_node_reads_and_streams_a_run_while_it_is_made(postgres_url: str) -> None:
    async with run_on_first_node(postgres_url) as (here, there, performance, response_id):
        assert (await there.read(response_id))["status"] in ("queued", "in_progress")
        performance.say("a", "b")
        middle = await last_number(there, response_id, 6) - 1
        following = asyncio.create_task(there.events(response_id, starting_after=middle))
        whole = asyncio.create_task(there.events(response_id))
        performance.say("c")
        await last_number(there, response_id, middle + 2)
        assert not following.done()
        performance.finish()
        rest = await asyncio.wait_for(following, 300)
        assert [event["sequence_number"] for event in rest] == list(
            range(middle + 1, rest[-1]["sequence_number"] + 1)
        )
        assert terminal_types(rest) == ["response.completed"]
        assert (await asyncio.wait_for(whole, 300))[middle + 1 :] == rest
        assert await there.read(response_id) == await here.read(response_id) == rest[-1]["response"]
        assert await here.events(response_id) == await there.events(response_id)


async def test_a_stream_from_the_middle_sends_new_events_as_they_come(postgres_url: str) -> None:
    async with run_on_first_node(postgres_url) as (_, there, performance, response_id):
        performance.say("a")
        middle = await last_number(there, response_id, 5)
        url = f"{there.server.url}/responses/{response_id}?stream=true&starting_after={middle}"
        async with there.server.http.get(url, headers=KEY) as answer:
            performance.say("b")
            await answer.content.readuntil(b"data: ")
            event = json.loads(await answer.content.readline())
            assert (event["type"], event["delta"]) == ("response.output_text.delta", "b")
            assert event["sequence_number"] == middle + 1
            performance.finish()
            assert b"response.completed" in await answer.content.read()


async def test_a_cancel_on_the_other_node_stops_the_engine_at_the_next_write(postgres_url: str) -> None:
    async with run_on_first_node(postgres_url) as (here, there, performance, response_id):
        performance.say("a")
        await last_number(there, response_id, 5)
        following = asyncio.create_task(here.events(response_id))
        cancelled = await there.cancel(response_id)
        assert cancelled["status"] == "cancelled"
        performance.say("b")  # the lease is long: the owner notices only when it writes
        await asyncio.wait_for(performance.stopped.wait(), 300)
        for api in (here, there):
            assert await api.read(response_id) == cancelled
            events = await api.events(response_id)
            assert terminal_types(events) == ["response.incomplete"]
            assert events[-1]["response"] == cancelled
            assert "b" not in [event.get("delta") for event in events]
        assert terminal_types(await asyncio.wait_for(following, 300)) == ["response.incomplete"]


async def test_a_cancel_on_the_other_node_stops_an_engine_that_sends_nothing(postgres_url: str) -> None:
    limits = Limits(run_lease_s=SHORT_S)
    async with run_on_first_node(postgres_url, limits=limits) as (here, there, performance, response_id):
        cancelled = await there.cancel(response_id)
        await asyncio.wait_for(performance.stopped.wait(), 300)
        assert await here.read(response_id) == cancelled
        assert terminal_types(await here.events(response_id)) == ["response.incomplete"]


async def test_a_run_whose_lease_is_renewed_is_not_taken_over(postgres_url: str) -> None:
    limits = Limits(run_lease_s=SHORT_S)
    async with run_on_first_node(postgres_url, limits=limits) as (here, there, performance, response_id):
        runs = there.server.service.store.runs
        first = (await runs.read("default", response_id)).lease_until
        async with asyncio.timeout(300):
            while (await runs.read("default", response_id)).lease_until < first + SHORT_S:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        performance.finish()
        assert (await here.ended(response_id))["status"] == "completed"


async def test_a_delete_on_the_other_node_stops_the_engine(postgres_url: str) -> None:
    limits = Limits(run_lease_s=SHORT_S)
    async with run_on_first_node(postgres_url, limits=limits) as (here, there, performance, response_id):
        assert (await there.call("DELETE", f"/responses/{response_id}"))[0] == 200
        await asyncio.wait_for(performance.stopped.wait(), 300)
        for api in (here, there):
            assert (await api.call("GET", f"/responses/{response_id}"))[0] == 404


async def test_a_run_of_a_killed_node_fails_once(postgres_url: str) -> None:
    """Although two other nodes try to end it at the same time."""
    lease = ("--run-lease-s", str(SHORT_S), "--store", postgres_url)
    engine = ("--engine", "simulated:tokens_per_s=50,output_tokens=100000")
    limits = Limits(run_lease_s=SHORT_S)
    async with (
        launched(*engine, *lease) as killed,
        serve(store=postgres_url, limits=limits) as one,
        serve(store=postgres_url, limits=limits) as other,
    ):
        body = {"input": "hello", "background": True}
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{killed.url}/responses", json=body, headers=KEY) as answer,
        ):
            response_id = (await answer.json())["id"]
        middle = await last_number(Api(one), response_id, 20)
        following = [
            asyncio.create_task(Api(node).events(response_id, starting_after=middle)) for node in (one, other)
        ]
        killed.process.kill()
        streams = await asyncio.wait_for(asyncio.gather(*following), 300)
        assert streams[0] == streams[1]
        failed = await Api(one).read(response_id)
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
        for node in (one, other):
            events = await Api(node).events(response_id)
            assert terminal_types(events) == ["response.failed"]
            assert events[-1]["response"] == await Api(node).read(response_id) == failed
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            assert events[middle + 1 :] == streams[0]
