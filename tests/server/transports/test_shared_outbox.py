"""Lanes that share an outbox before a client that reads slowly: each gets its part of what the client reads.

A model without sockets and clocks. Lanes deliver events as an engine's driver does and wait for room; the
client reads any number of bytes; tasks are cancelled at any moment. What the client has read decides: between
two events of a lane that has more to send, there are never more bytes than the queue and the transport hold,
some messages of each lane, and what else was sent meanwhile.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipring.server.transports import outbox as outbox_module
from slipring.server.transports.outbox import Outbox

LANES = 4
LIMITS = [50, 600]
"""Bytes of the queue: a single event is more, or several fit."""
HIGH_WATERS = [40, 200]
"""Bytes that the transport takes before writing has to wait: the same."""
AT_ONCE = 150
"""What the outbox joins to one write."""
LONGEST = 90
"""Bytes of an event of a lane."""
HEAD_BYTES = 4
ENOUGH = 40
"""Rounds of the event loop in which everything happens that can happen."""


class Bare(Outbox):
    """An outbox whose messages are numbered texts, not frames, which the suite checks in every other one."""

    __slots__ = ()
    post = Outbox.post
    deliver = Outbox.deliver


class Transport:
    """What has been written and not read. It is full above its high-water mark, and writable again when the
    client has read it down to a quarter, like those of asyncio and uvloop."""

    def __init__(self, high_water: int) -> None:
        self.high_water = high_water
        self.unread = b""
        self._waiting: list[asyncio.Future[None]] = []

    def write(self, data: bytes) -> "asyncio.Future[None] | None":
        self.unread += data
        if len(self.unread) <= self.high_water:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def read(self, size: int) -> bytes:
        data, self.unread = self.unread[:size], self.unread[size:]
        if len(self.unread) <= self.high_water // 4:
            for future in self._waiting:
                if not future.done():
                    future.set_result(None)
            self._waiting.clear()
        return data


class Lane:
    """A lane that always has more to send, until it is cancelled."""

    def __init__(self, number: int, sizes: list[int]) -> None:
        self.number = number
        self.sizes = sizes
        self.sent = 0
        self.read = 0
        self.since_read = 0
        """Bytes that the client has read since it read an event of this lane."""

    async def run(self, deliver: Callable[[bytes], Any]) -> None:
        while True:
            text = b"%d:%d:" % (self.number, self.sent)
            self.sent += 1
            waiting = deliver(text.ljust(self.sizes[self.sent % len(self.sizes)], b"x"))
            if waiting is not None:
                await waiting
            else:
                await asyncio.sleep(0)  # the next token


class Scene:
    """An outbox, its lanes and its client."""

    def __init__(
        self, made: Callable[..., Outbox], limit_bytes: int, high_water: int, sizes: list[list[int]]
    ) -> None:
        self.transport = Transport(high_water)
        self._limit_bytes = limit_bytes
        self.outbox = made(
            self.transport.write,
            limit_bytes,
            abort=lambda: pytest.fail("the connection was dropped"),
            encode=lambda event: event,
            head=lambda size: size.to_bytes(HEAD_BYTES),
        )
        self.lanes = [Lane(number, each) for number, each in enumerate(sizes)]
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.others: list[asyncio.Task[None]] = []
        self._stream = b""
        self._large_bytes = 0
        """Of messages that no lane has sent."""

    def begin(self) -> None:
        for lane in self.lanes:
            self.tasks[lane.number] = asyncio.create_task(lane.run(self._deliver))

    def _deliver(self, message: bytes) -> Any:
        event: Any = message
        return self.outbox.deliver([event])

    async def act(self, action: str, argument: int) -> None:
        if action == "read":
            self._take(self.transport.read(argument))
        elif action == "large":
            # The first events of a response repeat what the client has sent.
            self.outbox.post(b"large:".ljust(argument * 3, b"x"))
            self._large_bytes += argument * 3 + HEAD_BYTES
            self.outbox.flush()
        elif action == "cancel":
            if (task := self.tasks.pop(argument % LANES, None)) is not None:
                task.cancel()
        elif action == "wait":
            self._wait(self.outbox.settle() if argument % 2 else self._room())
        elif self.others:
            self.others.pop(argument % len(self.others)).cancel()
        for _ in range(argument % 3):  # so that actions meet others half done
            await asyncio.sleep(0)

    async def _room(self) -> None:
        if (waiting := self.outbox.room()) is not None:
            await waiting

    def _wait(self, wait: Coroutine[Any, Any, None]) -> None:
        self.others.append(asyncio.create_task(wait))

    @property
    def bound(self) -> int:
        held = self._limit_bytes + self.transport.high_water + AT_ONCE
        return held + 3 * LANES * (LONGEST + HEAD_BYTES) + self._large_bytes

    def _take(self, data: bytes) -> None:
        self._stream += data
        for lane in self.lanes:
            lane.since_read += len(data)
        while len(self._stream) >= HEAD_BYTES:
            end = HEAD_BYTES + int.from_bytes(self._stream[:HEAD_BYTES])
            if len(self._stream) < end:
                break
            kind, _, rest = self._stream[HEAD_BYTES:end].partition(b":")
            self._stream = self._stream[end:]
            if kind != b"large":
                lane = self.lanes[int(kind)]
                assert int(rest.partition(b":")[0]) == lane.read, "lost, repeated or out of order"
                lane.read += 1
                lane.since_read = len(self._stream)
        for number, lane in enumerate(self.lanes):
            if number in self.tasks:
                assert lane.since_read <= self.bound, f"lane {number} is silent"

    async def go_on(self) -> None:
        """The client reads on: every lane that was not cancelled must be heard of, again and again."""
        for _ in range(3):
            before = {number: self.lanes[number].read for number in self.tasks}
            left, data = self.bound + self._large_bytes, b"begin"
            while left > 0 and data:  # if nothing has come, nothing will
                for _ in range(ENOUGH):
                    await asyncio.sleep(0)
                self._take(data := self.transport.read(max(HIGH_WATERS)))
                left -= len(data)
            for number, count in before.items():
                assert not self.tasks[number].done()
                assert self.lanes[number].read > count, f"lane {number} is silent"

    async def end(self) -> None:
        tasks = [*self.tasks.values(), *self.others]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self.outbox.discard()
        for future in self.transport._waiting:
            future.cancel()


async def play(
    made: Callable[..., Outbox],
    limit_bytes: int,
    high_water: int,
    sizes: list[list[int]],
    actions: list[tuple[str, int]],
) -> None:
    scene = Scene(made, limit_bytes, high_water, sizes)
    scene.begin()
    try:
        for action, argument in actions:
            await scene.act(action, argument)
        await scene.go_on()
    finally:
        await scene.end()


ACTIONS = st.tuples(
    st.sampled_from(["read", "read", "read", "large", "cancel", "wait", "stop waiting"]), st.integers(1, 400)
)
SIZES = st.lists(st.lists(st.integers(20, LONGEST), min_size=1, max_size=4), min_size=LANES, max_size=LANES)


@pytest.fixture(autouse=True, scope="module")
def small_writes() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outbox_module, "_MAX_WRITE_BYTES", AT_ONCE)
        yield


@settings(max_examples=150)
@given(st.sampled_from(LIMITS), st.sampled_from(HIGH_WATERS), SIZES, st.lists(ACTIONS, max_size=40))
def test_every_lane_is_heard_within_a_bound_of_bytes(
    limit_bytes: int, high_water: int, sizes: list[list[int]], actions: list[tuple[str, int]]
) -> None:
    asyncio.run(play(Bare, limit_bytes, high_water, sizes, actions))


class Unfair(Bare):
    """An outbox that gives room to all that wait at once: the first that is resumed takes it."""

    __slots__ = ()

    def room(self) -> Any:
        return self._wait_for_room() if self._bytes > self._limit_bytes else None

    async def _wait_for_room(self) -> None:
        while self._bytes > self._limit_bytes:
            await self._wait_for_progress()


async def test_the_model_finds_an_outbox_that_lets_a_lane_starve() -> None:
    with pytest.raises(AssertionError, match="is silent"):
        await play(Unfair, LIMITS[0], HIGH_WATERS[0], [[LONGEST]] * LANES, [])
