"""What an outbox writes together, and what it keeps while nobody reads."""

import asyncio

from slipring.server.transports.outbox import Outbox

LIFE = b": keepalive\n\n"
MANY = 10_000


def box(written: list[bytes], reads: asyncio.Event, *, joins: bool = True) -> Outbox:
    async def write(message: bytes) -> None:
        written.append(message)
        await reads.wait()

    return Outbox(write, 100_000, frame=bytes if joins else None)


async def written_by(outbox: Outbox) -> None:
    if (waiting := outbox.flush()) is not None:
        await waiting


async def test_what_is_queued_is_written_together_up_to_a_bound() -> None:
    written: list[bytes] = []
    reads = asyncio.Event()
    reads.set()
    outbox = box(written, reads)
    for _ in range(MANY):
        outbox.post(LIFE)
    await written_by(outbox)
    assert b"".join(written) == LIFE * MANY
    assert len(written) == 2
    assert len(written[0]) < 64 * 1024 + len(LIFE)


async def test_without_a_way_to_join_each_is_written_by_itself() -> None:
    written: list[bytes] = []
    reads = asyncio.Event()
    reads.set()
    outbox = box(written, reads, joins=False)
    outbox.post(LIFE)
    outbox.post(LIFE)
    await written_by(outbox)
    assert written == [LIFE, LIFE]


async def test_a_writer_that_is_cancelled_leaves_the_rest_to_another() -> None:
    written: list[bytes] = []
    reads = asyncio.Event()
    outbox = box(written, reads)
    for _ in range(MANY):
        outbox.post(LIFE)
    assert outbox.full
    writer = asyncio.create_task(written_by(outbox))
    await asyncio.sleep(0)
    assert not outbox.full, "what is being written is not queued"
    writer.cancel()
    await asyncio.wait([writer])
    reads.set()
    await outbox.settle()
    assert b"".join(written) == LIFE * MANY
