"""Following a background run costs what is new: every event is read once, from memory or from the store."""

import asyncio
from typing import Any

import pytest

from slipring.core.limits import Limits
from slipring.server.background.event_stream import _batches
from slipring.stores.runs import RunEvent
from tests.api import Api, check_rest
from tests.harness import TERMINAL
from tests.server.background.test_runs import running, written
from tests.server.raw import until
from tests.stores.samples import response


class StoreReads:
    """Counts what is read from the runs of a store."""

    def __init__(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs = 0
        self.events: list[int] = []
        runs = api.server.service.store.runs
        read, read_events = runs.read, runs.events

        async def count_read(*given: Any) -> Any:
            self.runs += 1
            return await read(*given)

        async def count_events(*given: Any, **more: Any) -> list[RunEvent]:
            found: list[RunEvent] = await read_events(*given, **more)
            self.events += [event.sequence_number for event in found]
            return found

        monkeypatch.setattr(runs, "read", count_read)
        monkeypatch.setattr(runs, "events", count_events)


async def followed(api: Api, response_id: str, after: int = -1) -> list[int]:
    """The numbers of all events that a follower gets."""
    batches = _batches(api.server.server.background, "default", response(response_id), after)
    return [event.sequence_number async for batch in batches for event in batch]


async def test_a_follower_on_the_same_node_reads_nothing_from_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as (engine, api):
        begun = await api.begin()
        performance = await engine.next()
        performance.say("a")
        await written(api, begun["id"], 6)
        reads = StoreReads(api, monkeypatch)
        following = asyncio.create_task(followed(api, begun["id"]))
        await asyncio.sleep(0)
        performance.say("b")
        performance.finish()
        numbers = await asyncio.wait_for(following, 300)
        assert numbers == list(range(len(numbers)))
        assert (reads.runs, reads.events) == (0, [])


async def test_a_follower_on_another_node_reads_each_event_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as (engine, api):
        begun = await api.begin()
        performance = await engine.next()
        performance.say("a")
        await written(api, begun["id"], 6)
        reads = StoreReads(api, monkeypatch)
        monkeypatch.setattr(api.server.server.background, "find", lambda tenant, response_id: None)
        following = asyncio.create_task(followed(api, begun["id"]))
        performance.say("b")
        performance.finish()
        numbers = await asyncio.wait_for(following, 300)
        assert reads.events == numbers == list(range(len(numbers)))


async def test_events_of_a_finished_run_are_read_without_the_run_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as (engine, api):
        begun = await api.begin()
        (await engine.next()).finish()
        await api.ended(begun["id"])
        last = len(await followed(api, begun["id"])) - 1
        reads = StoreReads(api, monkeypatch)
        assert await followed(api, begun["id"]) == list(range(last + 1))
        assert reads.runs == 0
        assert await followed(api, begun["id"], after=last) == []


async def test_a_follower_that_is_behind_reads_pages_from_the_store_and_then_from_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slipring.server.background.event_stream._PAGE", 2)
    async with running(limits=Limits(run_tail_bytes=1)) as (engine, api):
        begun = await api.begin()
        performance = await engine.next()
        performance.say("a", "b", "c")
        await written(api, begun["id"], 8)
        reads = StoreReads(api, monkeypatch)
        following = asyncio.create_task(followed(api, begun["id"]))
        performance.finish()
        numbers = await asyncio.wait_for(following, 300)
        assert numbers == list(range(len(numbers)))
        assert len(set(reads.events)) == len(reads.events)


async def test_a_run_is_streamed_from_its_start_even_if_only_its_end_is_in_memory() -> None:
    async with running(limits=Limits(run_tail_bytes=1)) as (engine, api):
        begun = await api.begin()
        early = asyncio.create_task(api.events(begun["id"]))
        performance = await engine.next()
        performance.say("a", "b", "c")
        await written(api, begun["id"], 8)
        (live,) = api.server.server.background._runs.values()
        assert live.recent_events.used_bytes < 1000
        late = asyncio.create_task(api.events(begun["id"]))
        performance.say("d", "e")
        performance.finish()
        events = await early
        assert events[-1]["type"] == "response.completed"
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert await late == events == await api.events(begun["id"])


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_follower_of_a_run_that_is_deleted_gets_a_terminal_event(
    monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    async with running() as (engine, api):
        begun = await api.begin(metadata={"a": "b"})
        performance = await engine.next()
        performance.say("a")
        middle = (await written(api, begun["id"], 6)).last_sequence
        if elsewhere:
            monkeypatch.setattr(api.server.server.background, "find", lambda tenant, response_id: None)
        whole = asyncio.create_task(api.events(begun["id"]))
        rest = asyncio.create_task(api.events(begun["id"], starting_after=middle))
        await until(lambda: len(api.server.service.clients) == 3)
        reads = StoreReads(api, monkeypatch)
        await until(lambda: not elsewhere or reads.runs >= 2)  # both have had all events, and wait for more
        assert (await api.call("DELETE", f"/responses/{begun['id']}"))[0] == 200
        monkeypatch.undo()
        await api.server.server.background.stop("default", begun["id"])
        for events in await asyncio.wait_for(asyncio.gather(whole, rest), 300):
            last = events[-1]
            assert [event["type"] for event in events if event["type"] in TERMINAL] == ["response.incomplete"]
            assert (last["response"]["status"], last["response"]["output"]) == ("cancelled", [])
            assert (last["response"]["id"], last["response"]["metadata"]) == (begun["id"], {"a": "b"})
            assert last["sequence_number"] == middle + 1
        assert (await api.call("GET", f"/responses/{begun['id']}?stream=true"))[0] == 404


async def test_a_run_whose_events_are_gone_is_streamed_as_its_end() -> None:
    """As after the memory store has made room."""
    async with running() as (engine, api):
        begun = await api.begin()
        performance = await engine.next()
        performance.say("a")
        performance.finish()
        done = await api.ended(begun["id"])
        await until(lambda: not api.server.server.background._runs)
        assert await api.server.service.store.runs.delete("default", begun["id"])
        text = await api.stream(begun["id"])
        (event,) = check_rest(text)
        assert (event["type"], event["response"]) == ("response.completed", done)
