"""Clients that do not read what they are sent.

Connections are tracked that have bytes which their client has not read: more than a few KiB, or the end of a
response. The client must read some within every ``send_timeout_s``. The bytes are counted per tenant and in
total; above a limit the connection that has been unread longest is closed. The cost does not grow with the
number of idle connections. ``unfinished_messages`` watches those that send bit by bit.
"""

import logging
from collections.abc import Callable, Set

from slipring.core.byte_ledger import Ledger
from slipring.core.limits import Limits
from slipring.server.connections.tracked_connection import DropReason, TrackedConnection

log = logging.getLogger("slipring")

PROGRESS_BYTES = 4096
"""Bytes that a client has to read or send within a deadline to get another one. A client that does less
keeps memory in use on purpose."""
NO_TENANT = ""


class _Unread:
    """Bytes that a client does not read."""

    __slots__ = ("charged", "drained", "since", "size", "tenant")

    def __init__(self, tenant: str, size: int, clock: float) -> None:
        self.tenant = tenant
        self.size = size
        """Bytes that had not reached the client's system when it was last checked."""
        self.charged = 0
        self.drained = 0
        """Bytes read since the deadline was last extended."""
        self.since = clock


class SlowClients:
    """Watches the open connections of one process, and drops those whose clients do not read."""

    def __init__(
        self,
        limits: Limits,
        clock: Callable[[], float],
        known: Set[TrackedConnection],
        drop: Callable[[TrackedConnection, DropReason], None],
    ) -> None:
        """``known``: the open connections. ``drop``: closes one at once."""
        self.unread = Ledger(limits.tenant_unread_bytes, limits.unread_bytes)
        self._limits = limits
        self._clock = clock
        self._known = known
        self._drop = drop
        self._unread: dict[TrackedConnection, _Unread] = {}

    def watch(self, connection: TrackedConnection) -> None:
        """Check with every tick whether the client reads what was written."""
        if connection in self._known and connection not in self._unread:
            tenant = connection.tenant or NO_TENANT
            self._unread[connection] = _Unread(tenant, connection.undelivered_bytes, self._clock())

    def paused(self, connection: TrackedConnection) -> None:
        """The transport's buffer is above its high-water mark."""
        self.watch(connection)
        self.measure(connection)

    def resumed(self, connection: TrackedConnection) -> None:
        """The client has read enough: stop tracking it."""
        unread = self._unread.pop(connection, None)
        if unread is not None and unread.charged:
            self.unread.remove(unread.tenant, unread.charged)

    def measure(self, connection: TrackedConnection) -> None:
        """Count a connection's unread bytes anew, and close connections while a limit is exceeded."""
        unread = self._unread.get(connection)
        if unread is None:
            return
        size = connection.unread_bytes
        self.unread.add(unread.tenant, size - unread.charged)
        unread.charged = size
        while not self.unread.fits_tenant(unread.tenant, 0):
            self._close_unread(unread.tenant)
        while not self.unread.fits(0) and (tenant := self.unread.largest()) is not None:
            self._close_unread(tenant)

    def _close_unread(self, tenant: str) -> None:
        """Close the connection of a tenant that has had unread bytes for longest."""
        connection = next(each for each, unread in self._unread.items() if unread.tenant == tenant)
        log.warning(
            "tenant %r: closing a connection, because clients have left %d bytes unread",
            tenant,
            self.unread.used_by(tenant),
        )
        self._drop(connection, "unread")

    def tick(self) -> None:
        """Drop the clients that have exceeded a deadline."""
        clock = self._clock()
        for connection in list(self._unread):
            if connection in self._unread:  # measuring one may have closed others
                self._check_unread(connection, clock)

    def _check_unread(self, connection: TrackedConnection, clock: float) -> None:
        if not connection.unsent_bytes:
            self.resumed(connection)
            return
        # The outgoing queue is left out: it may grow although the client reads. The kernel's is not: it may
        # hold megabytes, and the kernel takes nothing from the transport before a third of that is read.
        unread, size = self._unread[connection], connection.undelivered_bytes
        unread.drained += max(0, unread.size - size)
        unread.size = size
        if unread.drained >= PROGRESS_BYTES:
            unread.drained, unread.since = 0, clock
        if clock - unread.since > self._limits.send_timeout_s:
            self._drop(connection, "unread")
        else:
            self.measure(connection)
