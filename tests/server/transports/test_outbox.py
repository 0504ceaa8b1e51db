"""The outbox: which messages it writes together, and which it keeps for a slow client."""

import asyncio
from functools import partial

import pytest

from slipring.base.errors import ServerError
from slipring.protocol.events import Error
from slipring.server.transports.http import no_head
from slipring.server.transports.outbox import Outbox, run_until_waiting

LIFE = b": keepalive\n\n"
EVENT = Error.of(ServerError(), None)
MANY = 10_000


def box(written: list[bytes], reads: asyncio.Event, *, joins: bool = True) -> Outbox:
    async def write(message: bytes) -> None:
        written.append(message)
        await reads.wait()

    return Outbox(write, 100_000, abort=not_expected, encode=lambda _: LIFE, head=no_head if joins else None)


def not_expected() -> None:
    raise AssertionError("the connection must not be dropped")


async def test_queued_messages_are_written_together_up_to_a_limit() -> None:
    written: list[bytes] = []
    reads = asyncio.Event()
    reads.set()
    outbox = box(written, reads)
    for _ in range(MANY):
        outbox.post(LIFE)
    await outbox.settle()
    assert b"".join(written) == LIFE * MANY
    assert len(written) == 2
    assert len(written[0]) < 64 * 1024 + len(LIFE)


async def test_without_heads_each_message_is_written_by_itself() -> None:
    written: list[bytes] = []
    reads = asyncio.Event()
    reads.set()
    outbox = box(written, reads, joins=False)
    outbox.post(LIFE)
    outbox.post(LIFE)
    await outbox.settle()
    assert written == [LIFE, LIFE]


async def test_a_producer_that_is_cancelled_stops_no_other_and_not_the_writing() -> None:
    written: list[bytes] = []
    reads = asyncio.Event()
    outbox = box(written, reads)
    for _ in range(2 * MANY):
        outbox.post(LIFE)
    outbox.flush()
    assert outbox.full

    async def wait_for_room() -> None:
        waiting = outbox.room()
        assert waiting is not None
        await waiting

    producers = [asyncio.create_task(wait_for_room()) for _ in range(3)]
    settling = asyncio.create_task(outbox.settle())
    await asyncio.sleep(0)
    for cancelled in (producers[0], settling):
        cancelled.cancel()
    await asyncio.wait([producers[0], settling])
    assert outbox.full
    reads.set()
    await asyncio.gather(*producers[1:])
    await outbox.settle()
    assert b"".join(written) == LIFE * 2 * MANY
    assert outbox.room() is None


async def test_a_client_that_cannot_be_written_to_is_dropped() -> None:
    async def fail(message: bytes) -> None:
        raise RuntimeError("a fault of the library")

    def fail_at_once(message: bytes) -> None:
        raise RuntimeError("a fault of the library")

    for write in (fail, fail_at_once):
        for joins in (True, False):
            dropped: list[bool] = []
            outbox = Outbox(
                write,
                100,
                abort=partial(dropped.append, True),
                encode=lambda _: LIFE,
                head=no_head if joins else None,
            )
            assert outbox.deliver([EVENT]) is None
            await outbox.settle()
            assert dropped == [True]
            outbox.post(LIFE)
            outbox.flush()
            assert (outbox.queued_bytes(), dropped) == (0, [True])


def direct(written: list[bytes], *, limit_bytes: int = 100, joins: bool = True) -> tuple[Outbox, list[int]]:
    """An outbox whose client keeps up, and the queue's size at each time that it was full."""
    full: list[int] = []
    outbox = Outbox(
        written.append,
        limit_bytes,
        abort=not_expected,
        encode=lambda _: LIFE,
        head=(lambda size: b"<%d>" % size) if joins else None,
        on_full=lambda: full.append(outbox.queued_bytes()),
    )
    return outbox, full


async def test_a_message_that_finds_the_queue_empty_is_written_at_once() -> None:
    written: list[bytes] = []
    outbox, full = direct(written)
    assert outbox.deliver([EVENT]) is None
    assert (written, outbox.queued_bytes(), full) == ([b"<13>" + LIFE], 0, [])


async def test_a_delivered_message_comes_after_those_that_are_queued() -> None:
    written: list[bytes] = []
    outbox, _ = direct(written)
    outbox.post(LIFE)
    assert outbox.deliver([EVENT]) is None
    assert written == [(b"<13>" + LIFE) * 2]


async def test_a_delivered_message_without_heads_is_written_by_itself() -> None:
    written: list[bytes] = []
    outbox, _ = direct(written, joins=False)
    assert outbox.deliver([EVENT]) is None
    assert written == [LIFE]


async def test_a_delivered_message_beyond_the_limit_is_reported() -> None:
    written: list[bytes] = []
    outbox, full = direct(written, limit_bytes=10)
    assert outbox.deliver([EVENT]) is None
    assert (len(written), full) == (1, [len(LIFE)])


async def test_messages_delivered_to_a_slow_client_are_queued() -> None:
    written: list[bytes] = []
    reads = asyncio.Event()
    outbox = box(written, reads)
    assert outbox.deliver([EVENT]) is None, "there is room"
    await asyncio.sleep(0)
    assert outbox.deliver([EVENT]) is None, "there is room"
    assert (written, outbox.queued_bytes()) == ([LIFE], len(LIFE))
    reads.set()
    await outbox.settle()
    assert (written, outbox.queued_bytes()) == ([LIFE, LIFE], 0)


async def test_messages_delivered_to_a_lost_client_are_dropped() -> None:
    def write(message: bytes) -> None:
        raise ConnectionResetError

    outbox = Outbox(write, 100, abort=not_expected, encode=lambda _: LIFE, head=no_head)
    assert outbox.deliver([EVENT]) is None
    assert outbox.deliver([EVENT]) is None
    assert outbox.queued_bytes() == 0


async def test_a_coroutine_that_does_not_wait_is_run_at_once() -> None:
    done = []

    async def write() -> None:
        done.append(True)

    assert run_until_waiting(write()) is None
    assert done


async def test_a_coroutine_that_waits_is_run_to_its_end_by_awaiting_the_rest() -> None:
    first, second = asyncio.Event(), asyncio.Event()
    steps = []

    async def write() -> None:
        steps.append("begun")
        await first.wait()
        steps.append("first")
        await second.wait()
        steps.append("second")

    rest = run_until_waiting(write())
    assert rest is not None
    assert steps == ["begun"]
    task = asyncio.ensure_future(rest)
    for event in (first, second):
        await asyncio.sleep(0)
        event.set()
    await task
    assert steps == ["begun", "first", "second"]


async def test_a_coroutine_whose_rest_is_cancelled_is_cancelled() -> None:
    cleaned = []

    async def write() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    rest = run_until_waiting(write())
    assert rest is not None
    task = asyncio.ensure_future(rest)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned


async def test_errors_of_a_coroutine_are_raised_before_and_after_its_first_wait() -> None:
    async def fail(event: asyncio.Event | None) -> None:
        if event is not None:
            await event.wait()
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        run_until_waiting(fail(None))
    event = asyncio.Event()
    rest = run_until_waiting(fail(event))
    assert rest is not None
    event.set()
    with pytest.raises(ConnectionResetError):
        await rest
