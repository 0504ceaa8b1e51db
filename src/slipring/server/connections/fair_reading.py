"""Shares the reading of an event loop among connections whose clients send more than is read at once.

uvloop reads 32 buffers of 250 kB from a socket, and as much from every other socket that has data, before it
runs anything else: ten clients with messages of 15 MiB keep it from all others for as long as 80 MB take. So
once one round of the event loop has read 1 MB in large pieces, each connection that brings another one is not
read again until its turn comes, and in each round only two have theirs. Connections that bring small pieces
never wait.
"""

import asyncio
from collections import deque
from typing import Protocol

LARGE_READ_BYTES = 64 * 1024
"""Only reads of this size count: after a smaller one, the socket has no more."""
ROUND_BYTES = 2**20
"""Bytes of large reads in one round, after which connections wait. They take about two milliseconds. Holding
after every read instead would cost 35 us per 250 kB."""
AT_ONCE = 2
"""Connections that have their turn in one round. The first may bring all that a round has, each further one a
buffer more."""


class HeldConnection(Protocol):
    """A connection whose reading can be held."""

    def hold_reading(self) -> None:
        """Read nothing more."""

    def release_reading(self) -> None:
        """Read again."""


class FairReading:
    """Shares the reading of one event loop among the connections that bring large pieces, in the order in
    which they brought them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._held: deque[HeldConnection] = deque()
        self._left = ROUND_BYTES
        """Bytes that this round may still bring."""
        self._is_counting = False

    def read(self, connection: HeldConnection, size_bytes: int) -> None:
        """A connection has brought a large piece. It is held if the round has brought enough, until its turn
        comes, in the next round at the earliest. It must not be held already."""
        if not self._is_counting:
            self._is_counting = True
            self._loop.call_soon(self._next)
        self._left -= size_bytes
        if self._left <= 0:
            connection.hold_reading()
            self._held.append(connection)

    def _next(self) -> None:
        self._left = ROUND_BYTES
        for _ in range(min(AT_ONCE, len(self._held))):
            self._held.popleft().release_reading()
        self._is_counting = bool(self._held)
        if self._is_counting:
            self._loop.call_soon(self._next)
