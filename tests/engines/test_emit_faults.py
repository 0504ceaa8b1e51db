"""What an engine does when the function that takes its deltas fails, cancels or waits in vain: the job ends
with that, once, its place is free, and the engine is not blamed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import pytest
from msgspec import structs

from slipring.core.generation import Delta, Finished, Job, Text
from slipring.engines.base import Engine
from tests.engines.emitting import deltas_of
from tests.engines.fakes.server import FakeServer, Say, Stall, started
from tests.engines.test_contract import EVERY, FAKES
from tests.engines.test_counts import job_of

WAYS = pytest.mark.parametrize(
    "way", ["raises", "raises OSError", "raises TimeoutError", "cancels", "waits in vain", "awaited fails"]
)
FAILURES: dict[str, type[BaseException]] = {
    "raises": LookupError,
    "raises OSError": ConnectionResetError,
    "raises TimeoutError": TimeoutError,
    "awaited fails": ConnectionResetError,
}


@asynccontextmanager
async def fake_engine(fake: FakeServer) -> AsyncIterator[Engine]:
    """An engine in front of a fake: one job at a time, refused for good after one failure of the server."""
    await fake.start()
    try:
        async with started(fake.engine(failures_to_close=1, max_jobs=1, retries=2)) as engine:
            yield engine
    finally:
        await fake.close()


def job_for(engine: Engine) -> Job:
    return structs.replace(job_of(), model=engine.models()[0])


async def still_works(fake: FakeServer, engine: Engine) -> None:
    """Require that a job that follows is answered: nothing of the one before holds a place."""
    fake.scripts.clear()
    async with asyncio.timeout(300):
        deltas = await deltas_of(engine, job_for(engine))
    assert isinstance(deltas[-1], Finished)


@EVERY
@WAYS
@pytest.mark.parametrize("is_first", [True, False])
async def test_a_job_ends_as_its_deltas_are_taken(kind: str, way: str, *, is_first: bool) -> None:
    fake = FAKES[kind]()
    calls = 0

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ConnectionResetError("mine")

    def emit(deltas: list[Delta]) -> Awaitable[None] | None:
        nonlocal calls
        if not any(isinstance(delta, Text) for delta in deltas) and not is_first:
            return None
        calls += 1
        if way in ("cancels", "waits in vain"):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            (running if way == "cancels" else future).cancel()
            return None if way == "cancels" else future
        if way == "awaited fails":
            return fail()
        raise FAILURES[way]("mine")

    async with fake_engine(fake) as engine:
        fake.script(Say(("one", "two")), Stall())
        running = asyncio.create_task(engine.generate(job_for(engine), emit))
        await asyncio.wait([running], timeout=300)
        assert running.done()
        if way in FAILURES:
            assert not running.cancelled()
            failure = running.exception()
            assert type(failure) is FAILURES[way]
            assert str(failure) == "mine"
        else:
            assert running.cancelled()
        assert calls == 1
        await still_works(fake, engine)


@EVERY
@pytest.mark.parametrize("is_slow", [False, True])
async def test_a_job_that_is_asked_to_stop_as_its_text_is_taken_ends_there(
    kind: str, *, is_slow: bool
) -> None:
    fake = FAKES[kind]()
    taken: list[Delta] = []

    async def wait() -> None:
        await asyncio.sleep(0)

    def emit(deltas: list[Delta]) -> Awaitable[None] | None:
        taken.extend(deltas)
        job.stop.asked = job.stop.asked or any(isinstance(delta, Text) for delta in deltas)
        return wait() if is_slow else None

    async with fake_engine(fake) as engine, asyncio.timeout(300):
        fake.script(Say(("one", "two")), Stall())
        job = job_for(engine)
        await engine.generate(job, emit)
        assert isinstance(taken[-1], Finished)
        assert taken[-1].reason == "steered"
        await still_works(fake, engine)
