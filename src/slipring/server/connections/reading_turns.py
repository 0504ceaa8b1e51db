"""The turns of connections whose clients send more than is read at once.

uvloop reads 32 buffers of 250 kB from a socket, and as much from every other socket that has data, before it
runs anything else: ten clients with messages of 15 MiB keep it from all others for as long as 80 MB take. So
a connection that has brought a large piece is not read again until its turn comes, and in each round of the
event loop only a few have theirs. Connections that bring small pieces never wait.
"""

import asyncio
from collections import deque
from typing import Protocol

LARGE_READ_BYTES = 64 * 1024
"""After a read of this size the connection waits for its turn: there may be more."""
_AT_ONCE = 4
"""Connections that have their turn in one round. Each brings 250 kB at most, which take about half a
millisecond."""


class HeldConnection(Protocol):
    """A connection whose reading can be held."""

    def hold_reading(self) -> None:
        """Read nothing more."""

    def release_reading(self) -> None:
        """Read again."""


class ReadingTurns:
    """Shares the reading of one event loop among the connections that bring large pieces, in the order in
    which they brought them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._held: deque[HeldConnection] = deque()

    def wait(self, connection: HeldConnection) -> None:
        """Hold a connection until its turn comes, in the next round of the event loop at the earliest. It
        must not be waiting already."""
        connection.hold_reading()
        if not self._held:
            self._loop.call_soon(self._next)
        self._held.append(connection)

    def _next(self) -> None:
        for _ in range(min(_AT_ONCE, len(self._held))):
            self._held.popleft().release_reading()
        if self._held:
            self._loop.call_soon(self._next)
