"""The outgoing queue of a connection and its single writer.

``post`` queues a message without waiting. The first caller of ``flush`` writes the queue in order; callers
that find it writing leave their messages to it. When a client reads slowly, ``flush`` waits, the queue fills,
and producers wait for room: that is the backpressure that stops an engine from being pulled. How long a
client may take is decided by ``connections.registry``, not here.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

Write = Callable[[bytes], Awaitable[None] | None]
"""Writes bytes; returns an awaitable if the caller has to wait before the next write."""
Frame = Callable[[bytes], bytes]
_MAX_WRITE_BYTES = 64 * 1024


class Outbox:
    """A bounded queue of messages and its single writer."""

    __slots__ = (
        "_bytes",
        "_failed",
        "_frame",
        "_limit_bytes",
        "_messages",
        "_on_full",
        "_room",
        "_task",
        "_write",
        "_writing",
    )

    def __init__(
        self,
        write: Write,
        limit_bytes: int,
        *,
        frame: Frame | None = None,
        on_full: Callable[[], None] | None = None,
    ) -> None:
        """``frame`` encodes a message so that several can be written at once; without it each message is
        written by itself. ``on_full`` is called for each message posted beyond the limit."""
        self._write = write
        self._frame = frame
        self._on_full = on_full
        self._limit_bytes = limit_bytes
        self._messages: deque[bytes] | None = None
        """None until there is one: an empty deque takes 760 bytes, of every idle connection."""
        self._bytes = 0
        self._writing = False
        self._failed = False
        self._room: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None

    def queued_bytes(self) -> int:
        return self._bytes

    @property
    def full(self) -> bool:
        return self._bytes > self._limit_bytes

    def post(self, message: bytes) -> None:
        """Queue a message. ``flush`` or ``kick`` writes it. Dropped after ``discard``."""
        if not self._failed:
            if self._messages is None:
                self._messages = deque()
            self._messages.append(message)
            self._bytes += len(message)
            if self._bytes > self._limit_bytes and self._on_full is not None:
                self._on_full()

    def deliver(self, message: bytes) -> Awaitable[None] | None:
        """``post`` and ``flush`` in one step. A message that finds the queue empty, like most tokens, is
        written without being queued."""
        frame = self._frame
        if (
            frame is None
            or self._messages
            or self._writing
            or self._failed
            or self._room is not None
            or len(message) > self._limit_bytes
        ):
            self.post(message)
            return self.flush()
        try:
            waiting = self._write(frame(message))
        except OSError:
            self.discard()
            return None
        if waiting is None:
            return None
        self._writing = True
        return self._keep_writing(waiting)

    def kick(self) -> None:
        """Write the queue, for callers that must not wait; a task waits for a slow client in their place."""
        if self._messages and not self._writing and self._task is None:
            waiting = self.flush()
            if waiting is not None:
                self._task = asyncio.create_task(self._wait_in_task(waiting))

    def flush(self) -> Awaitable[None] | None:
        """Write the queue, unless another caller is writing it. Returns an awaitable, to be awaited, if the
        client does not keep up: it waits until the client has taken the messages or there is room again."""
        if self._writing:
            return self._wait_for_room() if self.full else None
        waiting = self._write_queue()
        if waiting is not None:
            self._writing = True
            return self._keep_writing(waiting)
        if self._room is not None:
            self._give_room()
        return None

    async def room(self) -> None:
        """Wait until there is room, without becoming the writer: for the connection's reader."""
        while self.full:
            self.kick()
            if self.full:
                await self._wait_for_room()

    async def settle(self) -> None:
        """Wait until the queue has been written, or dropped."""
        while (self._messages or self._writing) and not self._failed:
            if self._writing:
                await self._wait_for_room()
            elif (waiting := self.flush()) is not None:
                await waiting

    def discard(self) -> None:
        """The client cannot be reached any more, or has received everything: drop the queue and all later
        messages, and release everyone who waits, and what the outbox wrote to."""
        self._failed = True
        self._write, self._on_full = _write_nowhere, None
        if self._messages is not None:
            self._messages.clear()
        self._bytes = 0
        self._give_room()

    def _write_queue(self) -> Awaitable[None] | None:
        """Write until the queue is empty or a write has to be waited for."""
        messages, frame, write = self._messages, self._frame, self._write
        try:
            while messages:
                message = messages.popleft()
                self._bytes -= len(message)
                if frame is not None:
                    message = frame(message)
                    if messages:  # usually false: one token at a time
                        message = self._joined(message, messages, frame)
                waiting = write(message)
                if waiting is not None:
                    return waiting
        except OSError:
            self.discard()  # disconnected; the connection's reader notices that itself
        return None

    async def _keep_writing(self, waiting: Awaitable[None] | None) -> None:
        """Wait for a write, then write what has been queued in the meantime, until the queue is empty."""
        try:
            while waiting is not None:
                await waiting
                if self._room is not None and not self.full:
                    self._give_room()
                waiting = self._write_queue()
        except OSError:
            self.discard()
        finally:
            self._writing = False
            if self._messages:
                self.kick()  # the writing task was cancelled, but the rest still has to be sent
            else:
                self._give_room()

    def _joined(self, first: bytes, messages: deque[bytes], frame: Frame) -> bytes:
        """A frame and those that follow it in the queue, up to a bound."""
        frames, size = [first], len(first)
        while messages and size < _MAX_WRITE_BYTES:
            message = messages.popleft()
            self._bytes -= len(message)
            frames.append(frame(message))
            size += len(frames[-1])
        return b"".join(frames)

    async def _wait_in_task(self, waiting: Awaitable[None]) -> None:
        try:
            await waiting
        finally:
            self._task = None

    async def _wait_for_room(self) -> None:
        if self._room is None:
            self._room = asyncio.Event()
        await self._room.wait()

    def _give_room(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None


def _write_nowhere(_: bytes) -> None:
    """The ``write`` of an outbox that has been discarded."""


def run_until_waiting(coroutine: Coroutine[Any, None, None]) -> Awaitable[None] | None:
    """Run a coroutine up to its first wait. Returns None if it has ended, as a write does while the client
    keeps up, and otherwise an awaitable for the rest."""
    try:
        awaited = coroutine.send(None)
    except StopIteration:
        return None
    return _Rest(coroutine, awaited)


class _Rest:
    """Awaits the rest of a coroutine that waits for ``awaited``."""

    __slots__ = ("_awaited", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, None, None], awaited: Any) -> None:
        self._coroutine = coroutine
        self._awaited = awaited

    def __await__(self) -> Generator[Any, None, None]:
        awaited = self._awaited
        while True:
            try:
                try:
                    yield awaited
                except BaseException as error:
                    awaited = self._coroutine.throw(error)
                else:
                    awaited = self._coroutine.send(None)
            except StopIteration:
                return
