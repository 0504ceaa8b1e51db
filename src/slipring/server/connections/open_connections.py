"""The registry of open connections: how many there may be, and how long each may keep the server waiting.

It tracks three things, for HTTP and WebSockets alike, each at a cost that does not grow with the number of
idle connections:

- *Waiting*: connections whose next request has not arrived. Once it begins, its head must be complete within
  ``header_timeout_s``. Connections that have not sent a valid key are *anonymous*: they may take up only a
  share of all connections, and the one that has waited longest is closed to make room for the next.
- *Unread*: connections with bytes that their client has not read: more than a few KiB, or the end of a
  response. The client must read some within every ``send_timeout_s``. The bytes are counted per tenant and in
  total; above a limit the connection that has been unread longest is closed.
- *Unfinished*: WebSocket messages that have arrived in part. More must arrive within every
  ``body_timeout_s`` in which the server reads, and the bytes are counted with those of other requests.

File descriptors bound the number of connections too. A server without a free descriptor can neither accept a
client nor reach its engine or its store. So the soft limit is raised to the hard one, and some descriptors
are reserved for other uses than connections.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import Literal, Protocol

from slipring.base.errors import OVERLOAD_RETRY_S, RateLimited, Unavailable
from slipring.core.byte_ledger import Ledger
from slipring.core.limits import Limits

log = logging.getLogger("slipring")

PROGRESS_BYTES = 4096
"""Bytes that a client has to read or send within a deadline to get another one. A client that does less
keeps memory in use on purpose."""
_CHARGE_STEP_BYTES = 64 * 1024
"""Unfinished messages are counted in steps of this size: most are complete before the first step."""
_GRACE_S = 0.25
"""How long an anonymous connection is kept when others need its place: enough for a client that sends its
request at once."""
_SURPLUS = 32
"""Connections beyond the limit that are accepted just to be answered with an error."""
_EXHAUSTION_S = 30.0
"""How long ``trouble`` reports that the process ran out of file descriptors."""
_NO_TENANT = ""
_MESSAGE_TIMEOUT, _TOO_MUCH = 1008, 1013
"""Close codes: policy violation; try again later."""


DropReason = Literal["head_timeout", "made_room", "unread", "message_timeout", "message_memory"]


class ConnectionState(Enum):
    AWAITING_HEAD = "awaiting head"
    """Waiting for the head of its first request, or of one that has begun to arrive."""
    IDLE = "idle"
    """Kept open for another request."""
    SERVING = "serving"


class TrackedConnection(Protocol):
    """What the registry uses of a connection."""

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


class _Unfinished:
    """A message that is being received."""

    __slots__ = ("charged", "seen", "since", "tenant")

    def __init__(self, tenant: str, clock: float) -> None:
        self.tenant = tenant
        self.charged = 0
        self.seen = 0
        """Bytes that had arrived when the deadline was last extended."""
        self.since = clock


class Connections:
    """The open connections of one process."""

    def __init__(self, limits: Limits, room: int, requests: Ledger, clock: Callable[[], float]) -> None:
        """``room``: the most connections at once. ``requests``: counts the bytes of requests."""
        self.room = room
        self.open = 0
        self.unread = Ledger(limits.tenant_unread_bytes, limits.unread_bytes)
        self._limits = limits
        self._requests = requests
        self._clock = clock
        self._anonymous = 0
        self._anonymous_room = max(1, int(room * limits.anonymous_share))
        self._tenant_room = max(1, int(room * limits.tenant_share))
        self._by_tenant: Counter[str] = Counter()
        self._waiting: dict[tuple[ConnectionState, bool], OrderedDict[TrackedConnection, float]] = {
            (state, anonymous): OrderedDict()
            for state in (ConnectionState.AWAITING_HEAD, ConnectionState.IDLE)
            for anonymous in (True, False)
        }
        self._unread: dict[TrackedConnection, _Unread] = {}
        self._unfinished: dict[TrackedConnection, _Unfinished] = {}
        self._known: set[TrackedConnection] = set()
        self._exhausted_at: float | None = None
        self.dropped: Counter[DropReason] = Counter()
        """Connections that were closed because of their client, by reason."""

    # Number of connections.

    @property
    def has_room(self) -> bool:
        return self._anonymous < self._anonymous_room and self.open < self.room

    def make_room(self) -> bool:
        """Close an anonymous or idle connection if that is needed to accept another; returns whether there is
        room now."""
        if self._anonymous >= self._anonymous_room and not self._close_anonymous():
            return False
        if self.open < self.room or self._close_anonymous() or self._close_idle():
            return True
        if any(self._waiting[state, True] for state in (ConnectionState.AWAITING_HEAD, ConnectionState.IDLE)):
            return False  # one of these can be closed in a moment
        return self.open < self.room + _SURPLUS

    def opened(self, connection: TrackedConnection) -> None:
        """Register a new connection, anonymous at first."""
        connection.is_surplus = self.open >= self.room
        self._known.add(connection)
        self.open += 1
        self._anonymous += 1
        self._wait(connection, ConnectionState.AWAITING_HEAD)

    def closed(self, connection: TrackedConnection) -> None:
        """Remove a connection that is closed or about to be. Does nothing if it was removed before."""
        if connection not in self._known:
            return
        self._known.discard(connection)
        self.open -= 1
        self._leave_queue(connection)
        connection.state = ConnectionState.SERVING
        self._count(connection.tenant, -1)
        self.resumed(connection)
        self.completed(connection)

    def identify(self, connection: TrackedConnection, tenant: str, *, alone: bool) -> None:
        """Count a connection as one of ``tenant``, whose key it has sent. Raises if the server or the tenant
        has too many. ``alone``: no keys are needed, so there is no other tenant to leave room for."""
        connection.is_surplus = connection.is_surplus and self.open > self.room
        if connection.is_surplus:
            raise Unavailable(
                "The server has too many connections. Try again later.", retry_after_s=OVERLOAD_RETRY_S
            )
        if connection.tenant == tenant or connection not in self._known:
            return
        if not alone and self._by_tenant[tenant] >= self._tenant_room and not self._close_idle(tenant):
            connection.is_surplus = True
            raise RateLimited(
                f"Too many connections: one tenant may hold {self._tenant_room} at once on this server.",
                retry_after_s=OVERLOAD_RETRY_S,
            )
        self._count(connection.tenant, -1)
        self._count(tenant, 1)
        connection.tenant = tenant

    def exhausted(self) -> None:
        """The process has run out of file descriptors: log it, and close an anonymous or idle connection."""
        clock = self._clock()
        if self._exhausted_at is None or clock - self._exhausted_at > _EXHAUSTION_S:
            log.error(
                "out of file descriptors with %d connections open: new ones are refused;"
                " raise the limit (ulimit -n) or lower max_connections",
                self.open,
            )
        self._exhausted_at = clock
        if not self._close_anonymous():
            self._close_idle()

    @property
    def trouble(self) -> str | None:
        """Why connections are being refused, for ``/health``; None: they are not."""
        if self._exhausted_at is not None and self._clock() - self._exhausted_at <= _EXHAUSTION_S:
            return "the process is out of file descriptors"
        return None

    def _count(self, tenant: str | None, difference: int) -> None:
        if tenant is None:
            self._anonymous += difference
            return
        self._by_tenant[tenant] += difference
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant]

    def _close_anonymous(self) -> bool:
        """Close the anonymous connection that has waited longest for a request; returns whether there was
        one."""
        due = self._clock() - _GRACE_S
        for state in (ConnectionState.AWAITING_HEAD, ConnectionState.IDLE):
            connection, since = next(iter(self._waiting[state, True].items()), (None, due))
            if connection is not None and since <= due:
                self._drop(connection, "made_room")
                return True
        return False

    def _close_idle(self, tenant: str | None = None) -> bool:
        """Close the connection that has been idle longest, of one tenant or of any; returns whether there was
        one."""
        idle = self._waiting[ConnectionState.IDLE, False]
        connection = next((each for each in idle if tenant in (None, each.tenant)), None)
        if connection is not None:
            self._drop(connection, "made_room")
        return connection is not None

    def _drop(self, connection: TrackedConnection, reason: DropReason) -> None:
        self.dropped[reason] += 1
        self.closed(connection)
        connection.abort()

    # Connections that wait for a request.

    def serving(self, connection: TrackedConnection) -> None:
        """A request has arrived."""
        self._leave_queue(connection)
        connection.state = ConnectionState.SERVING

    def served(self, connection: TrackedConnection) -> None:
        """A request has been answered: wait for the next."""
        if connection in self._known:
            self._wait(connection, ConnectionState.IDLE)

    def request_begins(self, connection: TrackedConnection) -> None:
        """The first bytes of another request have arrived."""
        if connection in self._known and connection.state is ConnectionState.IDLE:
            self._wait(connection, ConnectionState.AWAITING_HEAD)

    def _wait(self, connection: TrackedConnection, state: ConnectionState) -> None:
        self._leave_queue(connection)
        connection.state = state
        self._waiting[state, connection.tenant is None][connection] = self._clock()

    def _leave_queue(self, connection: TrackedConnection) -> None:
        if connection.state is not ConnectionState.SERVING:
            for anonymous in (True, False):
                self._waiting[connection.state, anonymous].pop(connection, None)

    # Connections whose client does not read.

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

    # Connections with an unfinished message.

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
        self.dropped["message_memory"] += 1
        self.completed(connection)
        connection.refuse_message(_TOO_MUCH, "too many unfinished messages")

    def completed(self, connection: TrackedConnection) -> None:
        """The message is complete, or is not received any further."""
        connection.unfinished_bytes = 0
        unfinished = self._unfinished.pop(connection, None)
        if unfinished is not None and unfinished.charged:
            self._requests.remove(unfinished.tenant, unfinished.charged)

    # Deadlines.

    def tick(self) -> None:
        """Close the connections that have exceeded a deadline."""
        clock = self._clock()
        for anonymous in (True, False):
            queue = self._waiting[ConnectionState.AWAITING_HEAD, anonymous]
            while queue and clock - next(iter(queue.values())) > self._limits.header_timeout_s:
                connection = next(iter(queue))
                self.dropped["head_timeout"] += 1
                self.closed(connection)
                connection.expire()
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
            self.dropped["message_timeout"] += 1
            self.completed(connection)
            connection.refuse_message(_MESSAGE_TIMEOUT, "message timeout")


_RESERVED = 64
"""Reserved at least, for files, the store, child processes and connections to engines."""
_RESERVED_SHARE = 0.2
"""Reserved at least, as a share of all: a remote engine needs one for every running response."""
_FEW = 1000
"""Fewer connections than this are worth a warning, also if no other number was asked for."""


def raise_limit() -> int | None:
    """Raise the soft limit of open descriptors to the hard limit; returns it, None if there is none."""
    try:
        import resource
    except ImportError:  # not a Unix system
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # the platform has a lower limit of its own
            return soft
        return hard
    return None if soft == resource.RLIM_INFINITY else soft


def room_for_connections(descriptors: int | None, max_connections: int) -> int:
    """The most connections at once: the configured number, or fewer if descriptors do not suffice."""
    if descriptors is None:
        return max_connections
    reserved = max(_RESERVED, int(descriptors * _RESERVED_SHARE))
    return max(1, min(max_connections, descriptors - reserved))


def is_reduced(room: int, max_connections: int) -> bool:
    """Whether fewer connections are possible than were asked for, or than a server usually needs."""
    return room < min(max_connections, _FEW) or (room < max_connections != Limits().max_connections)


def log_reduced_room(room: int, max_connections: int) -> None:
    """Log if the room is reduced."""
    if is_reduced(room, max_connections):
        log.warning(
            "at most %d connections at once, not %d: the process may open too few files (ulimit -n)",
            room,
            max_connections,
        )
