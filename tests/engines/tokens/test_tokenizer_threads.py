"""Threads for tokenizing: a bounded number, tenants in turn."""

import asyncio
import threading
from collections.abc import Callable

import pytest
from msgspec import structs

from slipring.core.generation import Job
from slipring.core.limits import Limits
from slipring.engines.tokens.tokenizer_threads import FairThreadPool, TokenizerThreads
from slipring.protocol.items.items import Item
from tests.engines.tokens.test_token_answer import job
from tests.prompts.vocabulary import message


def job_with(*items: Item) -> Job:
    return structs.replace(job(), input=items)


class BlockingWork:
    """Functions that block their thread until ``release``."""

    def __init__(self) -> None:
        self.started: asyncio.Queue[str] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._gates: dict[str, threading.Event] = {}

    def function(self, name: str) -> Callable[[], str]:
        gate = self._gates[name] = threading.Event()

        def run() -> str:
            self._loop.call_soon_threadsafe(self.started.put_nowait, name)
            assert gate.wait(60)
            return name

        return run

    def release(self, name: str) -> None:
        self._gates[name].set()


async def test_a_pool_runs_as_many_functions_as_it_has_threads_and_tenants_take_turns() -> None:
    pool, work = FairThreadPool("test", 2), BlockingWork()
    names = [("a", "a1"), ("a", "a2"), ("a", "a3"), ("a", "a4"), ("b", "b1")]
    running = [asyncio.create_task(pool.run(tenant, work.function(name))) for tenant, name in names]
    assert {await work.started.get(), await work.started.get()} == {"a1", "a2"}
    assert work.started.empty()
    order = []
    for name in ("a1", "a2", "a3", "b1"):
        work.release(name)
        if len(order) < 3:
            order.append(await work.started.get())
    # Tenant b came last, and waits for one function of tenant a, not for all.
    assert order == ["a3", "b1", "a4"]
    work.release("a4")
    assert await asyncio.gather(*running) == [name for _, name in names]


async def test_a_cancelled_caller_keeps_its_thread_until_the_function_returns() -> None:
    pool, work = FairThreadPool("test", 1), BlockingWork()
    first = asyncio.create_task(pool.run("a", work.function("first")))
    assert await work.started.get() == "first"
    waiting = asyncio.create_task(pool.run("b", work.function("waiting")))
    second = asyncio.create_task(pool.run("c", work.function("second")))
    for task in (first, waiting):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert work.started.empty()
    work.release("first")
    assert await work.started.get() == "second"
    work.release("second")
    assert await second == "second"


@pytest.mark.parametrize(("size", "at_once"), [(1, 1), (2, 1), (4, 2)])
async def test_spare_functions_leave_threads_to_others(size: int, at_once: int) -> None:
    pool, work = FairThreadPool("test", size), BlockingWork()
    spare = [asyncio.create_task(pool.run_spare("a", work.function(f"spare {n}"))) for n in range(4)]
    assert [await work.started.get() for _ in range(at_once)] == [f"spare {n}" for n in range(at_once)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert work.started.empty()
    names = [f"own {n}" for n in range(size)]
    own = [asyncio.create_task(pool.run("a", work.function(name))) for name in names]
    assert [await work.started.get() for _ in range(size - at_once)] == names[: size - at_once]
    for n in range(at_once):
        work.release(f"spare {n}")
        assert await work.started.get() == names[size - at_once + n], "it goes before the spare functions"
    assert work.started.empty()
    for name in [*names, *(f"spare {n}" for n in range(at_once, 4))]:
        work.release(name)
    assert await asyncio.gather(*own, *spare) == [*names, *(f"spare {n}" for n in range(4))]


async def test_a_function_that_raises_frees_its_thread() -> None:
    pool = FairThreadPool("test", 1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await pool.run("a", lambda: 1 / 0)
    assert await pool.run("a", lambda: 1) == 1


async def test_small_jobs_are_prepared_on_the_event_loop_and_large_ones_in_a_thread() -> None:
    tokenizer_threads = TokenizerThreads(Limits())
    here = threading.current_thread().name
    name = lambda: threading.current_thread().name  # noqa: E731
    assert await tokenizer_threads.prepare(job_with(message("user", "x")), name) == here
    assert await tokenizer_threads.prepare(job_with(message("user", "x" * 70_000)), name) != here


class SlowVocabulary:
    """Worth accelerating once."""

    def __init__(self) -> None:
        self.accelerated: list[str] = []
        self.done = threading.Event()

    def is_worth_accelerating(self) -> bool:
        return not self.accelerated

    def accelerate(self) -> None:
        self.accelerated.append(threading.current_thread().name)
        self.done.set()


async def test_a_vocabulary_is_accelerated_in_a_thread_of_its_own() -> None:
    vocabulary = SlowVocabulary()
    tokenizing = TokenizerThreads(Limits())
    tokenizing.encoded(vocabulary)
    assert await asyncio.to_thread(vocabulary.done.wait, 60)
    tokenizing.encoded(vocabulary)
    assert vocabulary.accelerated == ["accelerate"]
