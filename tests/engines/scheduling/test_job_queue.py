"""The queue of an engine: who runs, who waits, and who makes room."""

import asyncio

import pytest

from slipring.base.errors import RateLimited, ServerError
from slipring.engines.scheduling.job_queue import JobQueue


async def test_tenants_take_turns_and_each_keeps_its_own_order() -> None:
    queue = JobQueue(1, 256)
    order: list[str] = []

    async def job(name: str) -> None:
        with queue.ticket(name[0]) as ticket:
            await ticket.turn()
            order.append(name)
            await asyncio.sleep(0)

    names = ["a1", "a2", "a3", "b1", "b2", "c1"]
    await asyncio.gather(*map(job, names))
    assert order == ["a1", "a2", "b1", "c1", "a3", "b2"]


async def test_jobs_past_max_waiting_are_refused_at_once() -> None:
    queue = JobQueue(1, 1)
    with queue.ticket("a"):
        with queue.ticket("a"), pytest.raises(RateLimited) as refused, queue.ticket("b"):
            pass
        assert refused.value.retry_after_s == 1.0
        with queue.ticket("a"):
            pass  # the queue has room again


async def test_a_tenant_that_fills_the_queue_makes_room_for_another() -> None:
    queue = JobQueue(1, 4)
    ran: list[str] = []

    async def job(name: str) -> None:
        with queue.ticket(name[0]) as ticket:
            await ticket.turn()
            ran.append(name)

    with queue.ticket("a"):
        jobs = [asyncio.create_task(job(f"a{number}")) for number in range(1, 6)]
        await asyncio.sleep(0)  # a5 is refused: no tenant has more jobs waiting than its own
        jobs += [asyncio.create_task(job(f"b{number}")) for number in range(1, 4)]
        await asyncio.sleep(0)  # b1 and b2 replace a4 and a3; then both have two, and b3 is refused
        assert queue.waiting == 4
    results = await asyncio.gather(*jobs, return_exceptions=True)
    assert [isinstance(result, RateLimited) for result in results] == [
        *(False, False, True, True, True),
        *(False, False, True),
    ]
    assert all(result.retry_after_s == 1.0 for result in results if isinstance(result, RateLimited))
    assert ran == ["a1", "b1", "a2", "b2"]
    assert (queue.running, queue.waiting) == (0, 0)


async def test_a_cancelled_job_lets_the_next_one_run() -> None:
    queue = JobQueue(1, 256)
    entered = asyncio.Event()

    async def wait() -> None:
        with queue.ticket("t") as ticket:
            await ticket.turn()
            entered.set()

    with queue.ticket("t"):
        leaves, stays = asyncio.create_task(wait()), asyncio.create_task(wait())
        await asyncio.sleep(0)
        leaves.cancel()
        await asyncio.sleep(0)
    await asyncio.wait_for(stays, 300)
    assert entered.is_set()
    # Admitted and cancelled at once: the next one runs.
    with queue.ticket("t"):
        called, after = asyncio.create_task(wait()), asyncio.create_task(wait())
        await asyncio.sleep(0)
    called.cancel()
    await asyncio.wait_for(after, 300)
    assert (queue._running, queue._waiters) == (0, 0)


# Work beside the jobs


class SpareWork:
    """Work that runs until the test ends it."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.end = asyncio.Event()
        self.is_cancelled = False

    async def run(self) -> None:
        self.begun.set()
        try:
            await self.end.wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise


async def test_spare_work_runs_while_few_jobs_run() -> None:
    queue, work = JobQueue(4, 4), SpareWork()
    with queue.ticket("a"):
        running = asyncio.ensure_future(queue.run_spare(1, work.run))
        await work.begun.wait()
        work.end.set()
        assert await running


async def test_spare_work_waits_until_few_jobs_run() -> None:
    queue, work = JobQueue(4, 4), SpareWork()
    work.end.set()
    with queue.ticket("a"):
        running = asyncio.ensure_future(queue.run_spare(0, work.run))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not work.begun.is_set()
    assert await running


@pytest.mark.parametrize("most_jobs", [0, 1])
async def test_a_job_too_many_interrupts_spare_work(most_jobs: int) -> None:
    queue, work = JobQueue(2, 4), SpareWork()
    running = asyncio.ensure_future(queue.run_spare(most_jobs, work.run))
    await work.begun.wait()
    with queue.ticket("a") as first:
        await first.turn()
        for _ in range(5):
            await asyncio.sleep(0)
        assert work.is_cancelled is (most_jobs == 0)
        with queue.ticket("b"):
            assert not await running
            assert work.is_cancelled


async def test_a_job_that_waits_interrupts_spare_work() -> None:
    queue, work = JobQueue(1, 4), SpareWork()
    with queue.ticket("a"):
        running = asyncio.ensure_future(queue.run_spare(1, work.run))
        await work.begun.wait()
        with queue.ticket("b"):
            assert not await running


async def test_spare_work_that_is_given_up_is_cancelled_and_waited_for() -> None:
    queue, work = JobQueue(1, 4), SpareWork()
    running = asyncio.ensure_future(queue.run_spare(0, work.run))
    await work.begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert work.is_cancelled
    await asyncio.sleep(0)
    assert not queue._changes


async def test_spare_work_raises_what_it_fails_with() -> None:
    async def fails() -> None:
        raise ServerError("no")

    with pytest.raises(ServerError):
        await JobQueue(1, 1).run_spare(0, fails)
