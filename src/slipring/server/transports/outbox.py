"""The one writer of a connection.

Messages are posted without waiting and written in order by whoever flushes first; the others leave theirs in
the queue. When a client reads slowly the flush waits, the queue fills, and those who make messages wait for
room: that is how an engine stops being pulled. How long a client may take is not decided here: see
``connections``.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

Write = Callable[[bytes], Awaitable[None] | None]
"""Returns what to wait for, if anything."""
Frame = Callable[[bytes], bytes]
_MOST_AT_ONCE = 64 * 1024


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
        """``frame`` makes of a message what can be written together with others; without it each is written
        by itself. ``on_full`` is called whenever a message comes that is past the limit."""
        self._write = write
        self._frame = frame
        self._on_full = on_full
        self._limit_bytes = limit_bytes
        self._messages: deque[bytes] = deque()
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
        """Queue a message. ``flush`` or ``kick`` sends it."""
        if not self._failed:
            self._messages.append(message)
            self._bytes += len(message)
            if self._bytes > self._limit_bytes and self._on_full is not None:
                self._on_full()

    def kick(self) -> None:
        """Have the queue written in the background, for callers that must not wait."""
        if self._messages and not self._writing and self._task is None:
            self._task = asyncio.create_task(self._flush_alone())

    def flush(self) -> Awaitable[None] | None:
        """Write what is queued, unless somebody else does already. Returns what to wait for: that the client
        takes it, or that there is room. Mostly that is nothing."""
        if self._writing:
            return self._wait_for_room() if self.full else None
        waiting = self._write_on()
        if waiting is not None:
            self._writing = True
            return self._keep_writing(waiting)
        if self._room is not None:
            self._give_room()
        return None

    async def room(self) -> None:
        """Wait until there is room, while somebody else writes. For the reader, which must not."""
        while self.full:
            self.kick()
            await self._wait_for_room()

    async def settle(self) -> None:
        """Wait until everything has been written or nothing can be."""
        while (self._messages or self._writing) and not self._failed:
            if self._writing:
                await self._wait_for_room()
            elif (waiting := self.flush()) is not None:
                await waiting

    def discard(self) -> None:
        """Nobody reads any more: drop what is queued and let everybody go on."""
        self._failed = True
        self._messages.clear()
        self._bytes = 0
        self._give_room()

    def _write_on(self) -> Awaitable[None] | None:
        """Write until nothing is left, or there is something to wait for."""
        messages, frame, write = self._messages, self._frame, self._write
        try:
            while messages:
                message = messages.popleft()
                self._bytes -= len(message)
                if frame is not None:
                    message = frame(message)
                    if messages:  # mostly it is one token, and alone
                        message = self._joined(message, frame)
                waiting = write(message)
                if waiting is not None:
                    return waiting
        except OSError:
            self.discard()  # the client is gone; its reader finds out by itself
        return None

    async def _keep_writing(self, waiting: Awaitable[None] | None) -> None:
        """Wait, write what has come meanwhile, and so on."""
        try:
            while waiting is not None:
                await waiting
                if self._room is not None and not self.full:
                    self._give_room()
                waiting = self._write_on()
        except OSError:
            self.discard()
        finally:
            self._writing = False
            if self._messages:
                self.kick()  # the task that was writing has been cancelled: the rest still has to go out
            else:
                self._give_room()

    def _joined(self, first: bytes, frame: Frame) -> bytes:
        """A frame and those that follow in the queue, up to a bound."""
        taken, size = [first], len(first)
        while self._messages and size < _MOST_AT_ONCE:
            message = self._messages.popleft()
            self._bytes -= len(message)
            taken.append(frame(message))
            size += len(taken[-1])
        return b"".join(taken)

    async def _flush_alone(self) -> None:
        try:
            if (waiting := self.flush()) is not None:
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
