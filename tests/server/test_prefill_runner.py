"""Prefills that run beside turns: one for each response, ended with it."""

import asyncio
from typing import Any, Literal

import pytest
from msgspec import structs

from slipring.base.errors import ApiError, InvalidRequest, RateLimited
from slipring.core.generation import Job, Model, Prefill
from slipring.engines.base import Engine
from slipring.server import prefill_runner
from slipring.server.prefill_runner import Prefills
from tests.core.connection import node
from tests.harness import PuppetEngine
from tests.prompts.test_rendering import job, user
from tests.server.raw import until

PREFILL = Prefill(job((user("hi"),)), "user")


def following(**fields: Any) -> Job:
    """A job that continues ``resp_1``."""
    return structs.replace(PREFILL.job, parent=node("resp_1"), **fields)


class PrefillingEngine(PuppetEngine):
    """Prefills until the test ends it."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()
        self.result: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def models(self) -> list[Model]:
        return super().models()

    async def prefill(self, prefill: Prefill) -> int:
        self.begun.set()
        return await asyncio.shield(self.result)


def start(
    running: Prefills,
    engine: Engine,
    response_id: str = "resp_1",
    prefill: Prefill = PREFILL,
    *,
    refused: ApiError | None = None,
) -> "asyncio.Future[int | None]":
    async def permit() -> None:
        if refused is not None:
            raise refused

    ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
    running.start(response_id, prefill, engine, ended.set_result, permit)
    return ended


async def test_the_end_of_a_prefill_is_reported_and_the_next_may_begin() -> None:
    running, engine = Prefills(), PrefillingEngine()
    ended = start(running, engine)
    engine.result.set_result(42)
    assert await ended == 42
    assert await start(running, engine) == 42


@pytest.mark.parametrize("error", [InvalidRequest("no"), RuntimeError("a fault of ours")])
async def test_a_prefill_that_fails_is_reported(error: Exception, caplog: Any) -> None:
    running, engine = Prefills(), PrefillingEngine()
    engine.result.set_exception(error)
    assert await start(running, engine) is None
    assert ("unexpectedly" in caplog.text) is isinstance(error, RuntimeError)


async def test_a_second_prefill_of_a_response_is_not_started() -> None:
    running, engine = Prefills(), PrefillingEngine()
    first = start(running, engine)
    assert await start(running, engine) is None
    assert not first.done()
    await running.close()


async def test_past_the_bound_prefills_wait_and_tenants_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill_runner, "_MOST_RUNNING", 2)
    monkeypatch.setattr(prefill_runner, "_MOST_WAITING", 2)
    running, engine = Prefills(), PrefillingEngine()
    other = structs.replace(PREFILL, job=structs.replace(PREFILL.job, tenant="other"))
    first, second = start(running, engine, "resp_1"), start(running, engine, "resp_2")
    third, fourth = start(running, engine, "resp_3"), start(running, engine, "resp_4", other)
    # What has no place is no failure: more of an output may be prefilled later.
    assert await start(running, engine, "resp_5") == 0
    assert await start(running, engine, "resp_3") is None, "it waits already"
    running.cancel(PREFILL.job.tenant, "resp_1")
    await until(lambda: ("other", "resp_4") in running.tasks)
    assert list(running._waiting) == [(PREFILL.job.tenant, "resp_3")]
    engine.result.set_result(7)
    assert [await each for each in (second, third, fourth)] == [7, 7, 7]
    assert not first.done()


@pytest.mark.parametrize("how", ["cancel", "continue", "close"])
async def test_a_prefill_that_waits_can_be_ended(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(prefill_runner, "_MOST_RUNNING", 1)
    running, engine = Prefills(), PrefillingEngine()
    start(running, engine, "resp_0")
    waiting = start(running, engine, "resp_1")
    if how == "cancel":
        running.cancel(PREFILL.job.tenant, "resp_1")
    elif how == "continue":
        await running.end_for(following())
    await running.close()
    assert not waiting.done()
    assert not running.tasks


async def test_outputs_that_wait_are_left_alone_by_a_recognised_history(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefill_runner, "_MOST_RUNNING", 1)
    running, engine = Prefills(), PrefillingEngine()
    start(running, engine, "resp_0")
    outputs = start(running, engine, "resp_1", structs.replace(PREFILL, expects="output"))
    await running.end_for(following(recognised=True))
    engine.result.set_result(7)
    assert await outputs == 7


async def test_a_client_that_may_not_use_the_engine_prefills_nothing() -> None:
    running, engine = Prefills(), PrefillingEngine()
    assert await start(running, engine, refused=RateLimited("Used up.")) is None
    assert not engine.begun.is_set()


async def test_ending_a_prefill_waits_for_it_and_reports_nothing() -> None:
    running, engine = Prefills(), PrefillingEngine()
    ended = start(running, engine)
    await engine.begun.wait()
    await running.end_for(following(tenant="other"))
    assert running.tasks
    await running.end_for(following())
    assert not running.tasks
    assert not ended.done()
    running.cancel(PREFILL.job.tenant, "resp_1")


@pytest.mark.parametrize(
    ("expects", "fields", "ends"),
    [
        ("output", {}, True),
        ("user", {}, True),
        ("output", {"fork": True}, False),
        ("user", {"fork": True}, False),
        ("output", {"fork": True, "recognised": True}, False),
        ("user", {"fork": True, "recognised": True}, True),
    ],
)
async def test_which_jobs_end_the_prefill_of_the_response_that_they_continue(
    expects: Literal["output", "user"], fields: dict[str, bool], *, ends: bool
) -> None:
    running, engine = Prefills(), PrefillingEngine()
    ended = start(running, engine, prefill=Prefill(PREFILL.job, expects))
    await engine.begun.wait()
    await running.end_for(PREFILL.job)
    await running.end_for(following(**fields))
    engine.result.set_result(42)
    if not ends:
        assert await ended == 42
    await running.close()
    assert ended.done() is not ends


async def test_a_prefill_that_is_ended_before_it_has_begun_leaves_nothing_behind() -> None:
    running, engine = Prefills(), PrefillingEngine()
    ended = start(running, engine)
    await running.end_for(following())
    assert not engine.begun.is_set()
    assert not ended.done()
    engine.result.set_result(42)
    assert await start(running, engine) == 42, "the response has no other prefill"


class SlowToEnd(PrefillingEngine):
    """Is free of a cancelled prefill when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.ending = asyncio.Event()
        self.may_end = asyncio.Event()
        self.is_free = False

    async def prefill(self, prefill: Prefill) -> int:
        try:
            return await super().prefill(prefill)
        finally:
            self.ending.set()
            await self.may_end.wait()
            self.is_free = True


@pytest.mark.parametrize("closes", [False, True])
async def test_a_prefill_that_ends_is_waited_for_and_not_cancelled_again(*, closes: bool) -> None:
    running, engine = Prefills(), SlowToEnd()
    start(running, engine)
    await engine.begun.wait()
    running.cancel(PREFILL.job.tenant, "resp_1")
    await engine.ending.wait()
    ended = asyncio.ensure_future(running.close() if closes else running.end_for(following()))
    await asyncio.sleep(0)
    engine.may_end.set()
    await ended
    assert engine.is_free


async def test_an_engine_that_cannot_prefill_does_nothing() -> None:
    assert await start(Prefills(), PuppetEngine()) == 0
