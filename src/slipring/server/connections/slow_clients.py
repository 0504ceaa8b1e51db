"""Clients that are too slow: those that do not read what they are sent, or send a message bit by bit.

Two things are tracked, for HTTP and WebSockets alike, at a cost that does not grow with the number of idle
connections:

- *Unread*: connections with bytes that their client has not read: more than a few KiB, or the end of a
  response. The client must read some within every ``send_timeout_s``. The bytes are counted per tenant and in
  total; above a limit the connection that has been unread longest is closed.
- *Unfinished*: WebSocket messages that have arrived in part. More must arrive within every
  ``body_timeout_s`` in which the server reads, and the bytes are counted with those of other requests.
  ``request_bodies`` applies the same to the bodies of requests.
"""

import logging
from collections import Counter
from collections.abc import Callable, Set

from slipring.core.byte_ledger import Ledger
from slipring.core.limits import Limits
from slipring.server.connections.tracked_connection import DropReason, TrackedConnection

log = logging.getLogger("slipring")

PROGRESS_BYTES = 4096
"""Bytes that a client has to read or send within a deadline to get another one. A client that does less
keeps memory in use on purpose."""
_CHARGE_STEP_BYTES = 64 * 1024
"""Unfinished messages are counted in steps of this size: most are complete before the first step."""
_NO_TENANT = ""
_MESSAGE_TIMEOUT, _TOO_MUCH = 1008, 1013
"""Close codes: policy violation; try again later."""


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


class _Unfinished:
    """A message that is being received."""

    __slots__ = ("charged", "seen", "since", "tenant")

    def __init__(self, tenant: str, clock: float) -> None:
        self.tenant = tenant
        self.charged = 0
        self.seen = 0
        """Bytes that had arrived when the deadline was last extended."""
        self.since = clock


class SlowClients:
    """Watches the open connections of one process, and drops those whose clients are too slow."""

    def __init__(
        self,
        limits: Limits,
        requests: Ledger,
        clock: Callable[[], float],
        known: Set[TrackedConnection],
        drop: Callable[[TrackedConnection, DropReason], None],
        dropped: Counter[DropReason],
    ) -> None:
        """``requests``: counts the bytes of requests. ``known``: the open connections. ``drop``: closes one
        at once. ``dropped``: counts those that are closed otherwise."""
        self.unread = Ledger(limits.tenant_unread_bytes, limits.unread_bytes)
        self._limits = limits
        self._requests = requests
        self._clock = clock
        self._known = known
        self._drop = drop
        self._dropped = dropped
        self._unread: dict[TrackedConnection, _Unread] = {}
        self._unfinished: dict[TrackedConnection, _Unfinished] = {}

    # Clients that do not read.

    def watch(self, connection: TrackedConnection) -> None:
        """Check with every tick whether the client reads what was written."""
        if connection in self._known and connection not in self._unread:
            tenant = connection.tenant or _NO_TENANT
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

    # Clients that do not finish a message.

    def received(self, connection: TrackedConnection) -> None:
        """More of a WebSocket message has arrived."""
        if connection not in self._known:
            return
        unfinished = self._unfinished.get(connection)
        if unfinished is None:
            tenant = connection.tenant or _NO_TENANT
            unfinished = self._unfinished[connection] = _Unfinished(tenant, self._clock())
        more = connection.unfinished_bytes - unfinished.charged
        if more < _CHARGE_STEP_BYTES:
            return
        if self._requests.fits_tenant(unfinished.tenant, more) and self._requests.fits(more):
            self._requests.add(unfinished.tenant, more)
            unfinished.charged += more
            return
        self._dropped["message_memory"] += 1
        self.completed(connection)
        connection.refuse_message(_TOO_MUCH, "too many unfinished messages")

    def completed(self, connection: TrackedConnection) -> None:
        """The message is complete, or is not received any further."""
        connection.unfinished_bytes = 0
        unfinished = self._unfinished.pop(connection, None)
        if unfinished is not None and unfinished.charged:
            self._requests.remove(unfinished.tenant, unfinished.charged)

    # Deadlines.

    def closed(self, connection: TrackedConnection) -> None:
        """A connection is closed: count it no longer."""
        self.resumed(connection)
        self.completed(connection)

    def tick(self) -> None:
        """Drop the clients that have exceeded a deadline."""
        clock = self._clock()
        for connection in list(self._unread):
            if connection in self._unread:  # measuring one may have closed others
                self._check_unread(connection, clock)
        for connection in list(self._unfinished):
            self._check_unfinished(connection, clock)

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

    def _check_unfinished(self, connection: TrackedConnection, clock: float) -> None:
        unfinished, size = self._unfinished[connection], connection.unfinished_bytes
        if size - unfinished.seen >= PROGRESS_BYTES or connection.is_reading_paused:
            unfinished.seen, unfinished.since = size, clock
        if clock - unfinished.since > self._limits.body_timeout_s:
            self._dropped["message_timeout"] += 1
            self.completed(connection)
            connection.refuse_message(_MESSAGE_TIMEOUT, "message timeout")
