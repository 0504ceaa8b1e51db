"""Periodic tasks: repetition, failures, the last call."""

import asyncio
from collections.abc import Sequence

import pytest

from slipring.base.errors import Unavailable
from slipring.base.periodic_tasks import PeriodicTasks

NEVER_S = 3600.0


async def run_with(outcomes: Sequence[Exception | None]) -> None:
    """Run periodic work whose runs end so, until one more run has begun."""
    calls: asyncio.Queue[int] = asyncio.Queue()
    remaining = iter(outcomes)

    async def work() -> None:
        calls.put_nowait(1)
        error = next(remaining, None)
        if error is not None:
            raise error

    tasks = PeriodicTasks()
    tasks.start("counting", work, 0.001)
    async with asyncio.timeout(300):
        for _ in range(len(outcomes) + 1):
            await calls.get()
    await tasks.stop()


async def test_work_is_repeated_after_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    await run_with([Unavailable("The store is away."), RuntimeError("unexpected"), None])
    assert [record.getMessage() for record in caplog.records] == [
        "counting failed: The store is away.",
        "counting failed unexpectedly",
    ]


async def test_a_failure_that_lasts_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    await run_with([Unavailable("away"), Unavailable("away"), None, Unavailable("away"), Unavailable("full")])
    assert [record.getMessage() for record in caplog.records] == [
        "counting failed: away",
        "counting failed: away",
        "counting failed: full",
    ]


async def test_stop_calls_only_work_that_asks_for_it_once_more() -> None:
    calls = []

    async def work(name: str) -> None:
        calls.append(name)

    tasks = PeriodicTasks()
    tasks.start("a", lambda: work("a"), NEVER_S)
    tasks.start("b", lambda: work("b"), NEVER_S, at_stop=True)
    await asyncio.sleep(0)
    await tasks.stop()
    assert calls == ["b"]


async def test_stop_cancels_a_last_call_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipring.base.periodic_tasks._LAST_RUN_S", 0.01)
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    tasks = PeriodicTasks()
    tasks.start("waiting", work, NEVER_S, at_stop=True)
    await asyncio.sleep(0)
    await tasks.stop()
    assert cancelled.is_set()
