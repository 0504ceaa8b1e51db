"""The registry of open connections: how many there may be, and how long each may wait with its next request.

The head of a request that has begun must be complete within ``header_timeout_s``. Connections that have not
sent a valid key are *anonymous*: they may take up only a share of all connections, and the one that has
waited longest is closed to make room for the next. The cost does not grow with the number of idle
connections. ``slow_clients`` watches those that do not read or that send a message bit by bit.

File descriptors bound the number of connections too. A server without a free descriptor can neither accept a
client nor reach its engine or its store. So the soft limit is raised to the hard one, and some descriptors
are reserved for other uses than connections.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable

from slipring.base.errors import OVERLOAD_RETRY_S, RateLimited, Unavailable
from slipring.core.byte_ledger import Ledger
from slipring.core.limits import Limits
from slipring.server.connections.slow_clients import (
    ConnectionState,
    DropReason,
    SlowClients,
    TrackedConnection,
    UnfinishedMessages,
)

log = logging.getLogger("slipring")

_RESERVED_DESCRIPTORS = 64
"""Reserved at least, for files, the store, child processes and connections to engines."""
_RESERVED_SHARE = 0.2
"""Reserved at least, as a share of all: a remote engine needs one for every running response."""
_FEW_CONNECTIONS = 1000
"""Fewer connections than this are worth a warning, also if no other number was asked for."""
_GRACE_S = 0.25
"""How long an anonymous connection is kept when others need its place: enough for a client that sends its
request at once."""
_SURPLUS = 32
"""Connections beyond the limit that are accepted just to be answered with an error."""
_EXHAUSTION_S = 30.0
"""How long ``trouble`` reports that the process ran out of file descriptors."""


def raise_descriptor_limit() -> int | None:
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
    reserved = max(_RESERVED_DESCRIPTORS, int(descriptors * _RESERVED_SHARE))
    return max(1, min(max_connections, descriptors - reserved))


def is_room_reduced(room: int, max_connections: int) -> bool:
    """Whether fewer connections are possible than were asked for, or than a server usually needs."""
    return room < min(max_connections, _FEW_CONNECTIONS) or (
        room < max_connections != Limits().max_connections
    )


def log_reduced_room(room: int, max_connections: int) -> None:
    """Log if the room is reduced."""
    if is_room_reduced(room, max_connections):
        log.warning(
            "at most %d connections at once, not %d: the process may open too few files (ulimit -n)",
            room,
            max_connections,
        )


class Connections:
    """The open connections of one process."""

    def __init__(self, limits: Limits, room: int, requests: Ledger, clock: Callable[[], float]) -> None:
        """``room``: the most connections at once. ``requests``: counts the bytes of requests."""
        self.room = room
        self.open = 0
        self._limits = limits
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
        self._known: set[TrackedConnection] = set()
        self._exhausted_at: float | None = None
        self.dropped: Counter[DropReason] = Counter()
        """Connections that were closed because of their client, by reason."""
        self.slow_clients = SlowClients(limits, clock, self._known, self._drop)
        self.unfinished = UnfinishedMessages(limits, requests, clock, self._known, self.dropped)
        self.unread = self.slow_clients.unread
        """Counts the bytes that clients have not read."""

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
        self.slow_clients.resumed(connection)
        self.unfinished.completed(connection)

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
        self.slow_clients.tick()
        self.unfinished.tick()
