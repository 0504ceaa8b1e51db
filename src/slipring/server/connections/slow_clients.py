"""Slow clients: those that do not read what they are sent, and those that send a message bit by bit.

Connections are tracked that have bytes which their client has not read: more than a few KiB, or the end of a
response. The client must read some within every ``send_timeout_s``. The bytes are counted per tenant and in
total; above a limit the connection that has been unread longest is closed. The cost does not grow with the
number of idle connections.

Of a WebSocket message that has arrived in part, more must arrive within every ``body_timeout_s`` in which the
server reads. The bytes are counted with those of other requests, per tenant and in total; a connection whose
message does not fit any more is closed. ``request_bodies`` applies the same to the bodies of requests.
"""

import logging
from collections import Counter
from collections.abc import Callable, Set
from enum import Enum
from typing import Literal, Protocol

from slipring.core.byte_ledger import Ledger
from slipring.core.limits import Limits

log = logging.getLogger("slipring")

PROGRESS_BYTES = 4096
"""Bytes that a client has to read or send within a deadline to get another one. A client that does less
keeps memory in use on purpose."""
_NO_TENANT = ""
_CHARGE_STEP_BYTES = 64 * 1024
"""Messages are counted in steps of this size: most are complete before the first step."""
_MESSAGE_TIMEOUT, _TOO_MUCH = 1008, 1013
"""Close codes: policy violation; try again later."""

DropReason = Literal["head_timeout", "made_room", "unread", "message_timeout", "message_memory"]
"""Why a connection was closed because of its client."""


class ConnectionState(Enum):
    AWAITING_HEAD = "awaiting head"
    """Waiting for the head of its first request, or of one that has begun to arrive."""
    IDLE = "idle"
    """Kept open for another request."""
    SERVING = "serving"


class TrackedConnection(Protocol):
    """What the registry of open connections, and the watch over slow clients, know of a connection."""

    tenant: str | None
    """The tenant of the key it has sent; None: no key yet."""
    state: ConnectionState
    is_surplus: bool
    """Whether it exceeds a limit on connections: its requests are refused."""
    unfinished_bytes: int
    """Bytes of the WebSocket message that is being received."""

    @property
    def is_reading_paused(self) -> bool:
        """Whether the server reads nothing that the client sends, because earlier messages wait."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes in the transport that the client has not read."""

    @property
    def undelivered_bytes(self) -> int:
        """Bytes in the transport and in the kernel that the client's system has not acknowledged."""

    @property
    def unread_bytes(self) -> int:
        """Bytes in the transport and in the outgoing queue."""

    def abort(self) -> None:
        """Close at once. Unread bytes are lost."""

    def expire(self) -> None:
        """Close because the head of a request did not arrive in time."""

    def refuse_message(self, code: int, reason: str) -> None:
        """Close a WebSocket because of the message that is being received."""


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
    """Watches the open connections of one process, and drops those whose clients do not read what they are
    sent."""

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


class _Unfinished:
    """A message that is being received."""

    __slots__ = ("charged", "seen", "since", "tenant")

    def __init__(self, tenant: str, clock: float) -> None:
        self.tenant = tenant
        self.charged = 0
        self.seen = 0
        """Bytes that had arrived when the deadline was last extended."""
        self.since = clock


class UnfinishedMessages:
    """The WebSocket messages that have arrived in part on the open connections of one process."""

    def __init__(
        self,
        limits: Limits,
        requests: Ledger,
        clock: Callable[[], float],
        known: Set[TrackedConnection],
        dropped: Counter[DropReason],
    ) -> None:
        """``requests``: counts the bytes of requests. ``known``: the open connections. ``dropped``: counts
        those that are closed."""
        self._limits = limits
        self._requests = requests
        self._clock = clock
        self._known = known
        self._dropped = dropped
        self._unfinished: dict[TrackedConnection, _Unfinished] = {}

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

    def tick(self) -> None:
        """Refuse the messages that have exceeded the deadline."""
        clock = self._clock()
        for connection in list(self._unfinished):
            self._check(connection, clock)

    def _check(self, connection: TrackedConnection, clock: float) -> None:
        unfinished, size = self._unfinished[connection], connection.unfinished_bytes
        if size - unfinished.seen >= PROGRESS_BYTES or connection.is_reading_paused:
            unfinished.seen, unfinished.since = size, clock
        if clock - unfinished.since > self._limits.body_timeout_s:
            self._dropped["message_timeout"] += 1
            self.completed(connection)
            connection.refuse_message(_MESSAGE_TIMEOUT, "message timeout")
