"""The latest events of a background run, and those who follow it when the older ones are not in memory."""

import asyncio
from typing import Any

import pytest

from slipring.core.limits import Limits
from slipring.errors import Unavailable
from slipring.server.background.recent_events import Tail
from slipring.stores.base import RunEvent
from tests.server.background.test_runs import running, written
from tests.server.raw import until


def events(*numbers: int, size_bytes: int = 10) -> list[RunEvent]:
    return [RunEvent(number, b"x" * size_bytes) for number in numbers]


def numbers_of(found: list[RunEvent] | None) -> list[int] | None:
    return None if found is None else [event.sequence_number for event in found]


def test_what_is_new_is_found() -> None:
    tail = Tail(1000)
    tail.add(events(0, 1, 2))
    assert numbers_of(tail.after(-1)) == [0, 1, 2]
    assert numbers_of(tail.after(1)) == [2]
    assert tail.after(2) == []
    assert tail.after(100) == []


def test_what_has_been_told_is_not_looked_at_again() -> None:
    looked = 0

    class Watched(RunEvent):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            nonlocal looked
            looked += name == "sequence_number"
            return super().__getattribute__(name)

    tail = Tail(2**30)
    tail.add([Watched(number, b"x") for number in range(10_000)])
    looked = 0
    assert len(tail.after(9_998) or []) == 1
    assert looked < 20


def test_at_the_bound_all_are_there_and_past_it_the_oldest_are_dropped() -> None:
    tail = Tail(30)
    tail.add(events(0, 1, 2))
    assert (numbers_of(tail.after(-1)), tail.used_bytes) == ([0, 1, 2], 30)
    tail.add(events(3, size_bytes=11))
    assert tail.used_bytes <= 30
    assert tail.after(-1) is None
    assert tail.after(0) is None
    assert numbers_of(tail.after(1)) == [2, 3]
    assert numbers_of(tail.after(2)) == [3]


def test_the_newest_is_always_there() -> None:
    tail = Tail(5)
    tail.add(events(0, 1))
    assert numbers_of(tail.after(0)) == [1]


async def test_a_run_is_followed_from_its_beginning_though_only_its_end_is_in_memory() -> None:
    async with running(limits=Limits(run_tail_bytes=1)) as (engine, api):
        begun = await api.begin()
        early = asyncio.create_task(api.events(begun["id"]))
        performance = await engine.next()
        performance.say("a", "b", "c")
        await written(api, begun["id"], 8)
        (live,) = api.server.server.background._runs.values()
        assert live.tail.used_bytes < 1000
        late = asyncio.create_task(api.events(begun["id"]))
        performance.say("d", "e")
        performance.finish()
        told = await early
        assert told[-1]["type"] == "response.completed"
        assert [event["sequence_number"] for event in told] == list(range(len(told)))
        assert await late == told == await api.events(begun["id"])


async def test_an_engine_is_not_pulled_while_the_store_does_not_keep_up() -> None:
    limits = Limits(send_buffer_bytes=1000)
    async with running(limits=limits) as (engine, api):
        begun = await api.begin()
        runs = api.server.service.store.runs
        really_append, is_away = runs.append, True

        async def append(*given: Any, **more: Any) -> None:
            if is_away:
                raise Unavailable("gone")
            await really_append(*given, **more)

        runs.append = append
        performance = await engine.next()
        performance.say(*(["many words"] * 100))
        performance.finish()
        (live,) = api.server.server.background._runs.values()
        await until(lambda: live._is_full)
        left = performance.cues.qsize()
        assert left > 50
        is_away = False
        done = await api.ended(begun["id"])
        assert done["output"][0]["content"][0]["text"] == "many words" * 100


async def test_one_tenant_has_only_its_share_of_the_runs() -> None:
    keys = ("ours:our-key", "theirs:their-key")
    async with running(limits=Limits(tenant_runs=2), api_key=keys) as (engine, api):
        body = {"input": "x", "background": True}

        async def begin(key: str) -> tuple[int, Any]:
            url, headers = f"{api.server.url}/responses", {"Authorization": f"Bearer {key}"}
            async with api.server.http.post(url, json=body, headers=headers) as answer:
                return answer.status, await answer.json()

        assert [(await begin("our-key"))[0] for _ in range(2)] == [200, 200]
        status, refused = await begin("our-key")
        assert (status, refused["error"]["code"]) == (429, "rate_limit_exceeded")
        assert "for this tenant" in refused["error"]["message"]
        assert (await begin("their-key"))[0] == 200
        for _ in range(3):
            (await engine.next()).finish()
        background = api.server.server.background
        await until(lambda: not background._runs)
        assert not background._made_for
        assert (await begin("our-key"))[0] == 200
        (await engine.next()).finish()


@pytest.mark.parametrize("most_bytes", [1, 100_000])
async def test_a_run_that_the_store_does_not_take_ends_however_much_it_has_said(most_bytes: int) -> None:
    async with running(limits=Limits(send_buffer_bytes=most_bytes)) as (engine, api):
        runs = api.server.service.store.runs
        finished = asyncio.Event()

        async def open_never(*given: Any, **more: Any) -> None:
            await finished.wait()
            raise Unavailable("gone")

        runs.open = open_never
        body = {"input": "x", "background": True}
        posting = asyncio.create_task(api.call("POST", "/responses", json=body))
        performance = await engine.next()
        performance.finish()
        (live,) = api.server.service.clients
        await until(lambda: live._is_full or performance.cues.empty())
        finished.set()
        status, error = await posting
        assert (status, error["error"]["message"]) == (503, "gone")
        await until(lambda: not api.server.service.clients)
        await until(lambda: not api.server.server.background._made_for)
        assert api.server.service.requests.used_bytes == 0
        await until(lambda: len(api.server.server.background._tasks) == 2)
