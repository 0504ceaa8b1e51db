"""The lanes of a socket to an upstream: which events their reader is given together."""

import asyncio

from slipring.core.generation import Delta, Job, Text
from slipring.engines.remote.streamed_answer import AnswerReader
from slipring.engines.responses.events import Event
from slipring.engines.responses.sockets import Lane
from tests.engines.test_counts import job_of


class Batches(AnswerReader[Event]):
    """Notes which events come together. The answer ends with ``response.completed``."""

    def __init__(self, job: Job) -> None:
        super().__init__(job, lambda deltas: None)
        self.seen: list[list[str]] = []

    def read(self, batch: list[Event]) -> tuple[list[Delta], Exception | None]:
        self.seen.append([event.delta for event in batch])
        self.has_ended = batch[-1].type == "response.completed"
        return [Text(event.delta) for event in batch], None


async def delivered(*reads: int) -> list[list[str]]:
    """The batches of an answer whose events come with reads of so many events each."""
    lane, reader = Lane(None), Batches(job_of("hello"))
    lane.take()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(lane.deliver(reader, lambda: None))
        await asyncio.sleep(0)  # it waits for events
        number, total = 0, sum(reads)
        for count in reads:
            for _ in range(count):
                number += 1
                kind = "response.completed" if number == total else "response.output_text.delta"
                await lane.put(Event(type=kind, delta=str(number)))
            await asyncio.sleep(0)  # the next read
            await asyncio.sleep(0)
    assert [delta for batch in reader.seen for delta in batch] == [str(1 + at) for at in range(total)]
    return reader.seen


async def test_events_of_one_read_are_delivered_together() -> None:
    assert [len(batch) for batch in await delivered(3, 1, 5)] == [3, 1, 5]


async def test_a_full_queue_is_delivered_at_once() -> None:
    assert [len(batch) for batch in await delivered(70)] == [32, 32, 6]
