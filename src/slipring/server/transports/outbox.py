"""The outgoing queue of a connection and its single writer.

``send`` queues events, ``flush`` writes the queue in order until the client does not keep up. A task of
the outbox, which nothing cancels, waits for the client and writes the rest. Producers may be cancelled at any
time, so they never write to a slow client: they wait for room in the queue. That is the backpressure that
stops an engine from being pulled. ``connections.slow_clients`` decides how long a client may take.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Protocol

from slipring.protocol import wire
from slipring.protocol.events import Event
from slipring.server.driver import Sink

Write = Callable[[bytes], Awaitable[None] | None]
"""Writes bytes; returns an awaitable if the next write has to wait for it."""
Head = Callable[[int], bytes]
"""What is written before a message of this size."""
_MAX_WRITE_BYTES = 64 * 1024

log = logging.getLogger("slipring")


class Paced(Protocol):
    """A connection whose client may read more slowly than is written."""

    @property
    def transport(self) -> asyncio.Transport | None:
        """None if it is closed."""

    is_paused: bool
    """Whether more waits to be sent than the client reads."""

    async def drained(self) -> None:
        """Wait until the client has read enough. Raises ``ConnectionError`` if the connection is lost."""


class Outbox(Sink):
    """A sink with a bounded queue of messages and a single writer."""

    __slots__ = (
        "__weakref__",
        "_abort",
        "_bytes",
        "_connection",
        "_failed",
        "_head",
        "_limit_bytes",
        "_messages",
        "_on_full",
        "_progress",
        "_turns",
        "_waiting",
        "_write",
        "_writer",
        "encode",
    )

    def __init__(
        self,
        write: Write,
        limit_bytes: int,
        *,
        abort: Callable[[], None],
        encode: Callable[[Event], bytes] | None = None,
        head: Head | None = None,
        on_full: Callable[[], None] | None = None,
        connection: Paced | None = None,
    ) -> None:
        """``encode`` makes a message of an event: its JSON if none is given. Empty ones are not sent. Several
        messages are written at once, each behind its ``head``; without that, each is written by itself.
        With a ``connection``, an event that finds the queue empty is written to its transport, as ``write``
        would do it. ``on_full`` is called for each message posted beyond the limit, ``abort`` to drop the
        connection if an event cannot be encoded, or if writing fails for another reason than that the
        connection is closed."""
        self._write = write
        self.encode = encode or wire.encode
        self._head = head
        self._connection = connection
        self._on_full = on_full
        self._abort = abort
        self._limit_bytes = limit_bytes
        self._messages: deque[bytes] | None = None
        """None until there is one: an empty deque takes 760 bytes, of every idle connection."""
        self._bytes = 0
        self._failed = False
        self._progress: asyncio.Event | None = None
        """Set after the next write; None if nothing waits for that."""
        self._turns: asyncio.Lock | None = None
        """Held by the producer that gets the next room; None until one has waited for it."""
        self._waiting = 0
        """Producers that wait for room."""
        self._writer: asyncio.Task[None] | None = None
        """Waits for the client and writes the queue; None while the client keeps up."""

    def queued_bytes(self) -> int:
        return self._bytes

    @property
    def full(self) -> bool:
        return self._bytes > self._limit_bytes

    def post(self, message: bytes) -> None:
        """Queue a message, if it is not empty. ``flush`` writes it. Dropped after ``discard``."""
        if message and not self._failed:
            if self._messages is None:
                self._messages = deque()
            self._messages.append(message)
            self._bytes += len(message)
            if self._bytes > self._limit_bytes and self._on_full is not None:
                self._on_full()

    def send(self, events: list[Event]) -> None:
        encode, post = self.encode, self.post
        try:
            for event in events:
                post(encode(event))
        except Exception:
            self._abort()  # its client would wait for the event for ever
            raise

    def deliver(self, events: list[Event]) -> Awaitable[None] | None:
        # Hot path, one event per token: one that finds the queue empty is written without being queued.
        head = self._head
        if len(events) != 1 or head is None or self._messages or self._writer is not None or self._failed:
            return super().deliver(events)
        try:
            message = self.encode(events[0])
        except Exception:
            self._abort()
            raise
        if not message or len(message) > self._limit_bytes:
            self.post(message)
            self.flush()
            return self.room()
        try:
            framed, connection = head(len(message)) + message, self._connection
            if connection is None or (transport := connection.transport) is None or transport.is_closing():
                waiting = self._write(framed)
            else:
                transport.write(framed)
                waiting = connection.drained() if connection.is_paused else None
        except Exception as error:
            self._give_up(error)
            return None
        if waiting is not None:
            self._writer = asyncio.create_task(self._keep_writing(waiting))
        return self._wait_for_room() if self._waiting else None

    def flush(self) -> None:
        """Write the queue; what the client does not take at once, the writer's task writes later."""
        if self._messages and self._writer is None:
            waiting = self._write_queue()
            if waiting is not None:
                self._writer = asyncio.create_task(self._keep_writing(waiting))

    def room(self) -> Awaitable[None] | None:
        """An awaitable that waits until the queue is below its limit; None if it is. Producers get room in
        the order in which they began to wait, so that one that always has more to send does not keep the
        others from sending."""
        return self._wait_for_room() if self._waiting or self._bytes > self._limit_bytes else None

    async def settle(self) -> None:
        """Wait until the queue has been written, or dropped."""
        self.flush()
        while self._writer is not None and not self._failed:
            await self._wait_for_progress()

    def discard(self) -> None:
        """The client cannot be reached any more, or has received everything: drop the queue and all later
        messages, and release all that wait, and what the outbox wrote to."""
        self._failed = True
        self._write, self._on_full, self._abort = _write_nowhere, None, _abort_nothing
        self._connection = None
        if self._messages is not None:
            self._messages.clear()
        self._bytes = 0
        self._report_progress()

    def _give_up(self, error: Exception) -> None:
        """Writing has failed: nothing more can be sent to this client."""
        abort = self._abort
        self.discard()
        if not isinstance(error, OSError):  # disconnected; the connection's reader notices that itself
            log.error("writing to a connection failed unexpectedly", exc_info=error)
            abort()

    def _write_queue(self) -> Awaitable[None] | None:
        """Write until the queue is empty or a write has to be waited for."""
        messages, head, write = self._messages, self._head, self._write
        try:
            while messages:
                message = messages.popleft()
                self._bytes -= len(message)
                waiting = write(message if head is None else self._joined(message, messages, head))
                if waiting is not None:
                    return waiting
        except Exception as error:
            self._give_up(error)
        return None

    async def _keep_writing(self, waiting: Awaitable[None] | None) -> None:
        """Wait for a write, then write what has been queued in the meantime, until the queue is empty."""
        try:
            while waiting is not None:
                await waiting
                waiting = self._write_queue()
                self._report_progress()
        except Exception as error:
            self._give_up(error)
        finally:
            self._writer = None
            self._report_progress()

    def _joined(self, first: bytes, messages: deque[bytes], head: Head) -> bytes:
        """A message and those that follow it in the queue, up to a bound, each behind its head."""
        pieces, size = [head(len(first)), first], len(first)
        while messages and size < _MAX_WRITE_BYTES:
            message = messages.popleft()
            self._bytes -= len(message)
            pieces += (head(len(message)), message)
            size += len(message)
        return b"".join(pieces)

    async def _wait_for_room(self) -> None:
        if self._turns is None:
            self._turns = asyncio.Lock()
        self._waiting += 1
        try:
            async with self._turns:  # which is first come, first served
                while self._bytes > self._limit_bytes:
                    await self._wait_for_progress()
        finally:
            self._waiting -= 1

    async def _wait_for_progress(self) -> None:
        if self._progress is None:
            self._progress = asyncio.Event()
        await self._progress.wait()

    def _report_progress(self) -> None:
        if self._progress is not None:
            self._progress.set()
            self._progress = None


def _abort_nothing() -> None:
    """The ``abort`` of an outbox that has been discarded."""


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
