"""Every open connection of a process: how many there may be, and how long each may keep the server waiting.

Three things are watched, for HTTP and WebSockets alike, each at a cost that does not grow with the number of
connections at rest:

- *Waiting*: connections whose next request has not come. Its head must be complete in ``header_timeout_s``.
  Those who have not shown a key are *anonymous*: they share a part of all connections, and the one that has
  waited longest is closed to make room for the next.
- *Unread*: connections with bytes that their client has not taken: more than a few KiB, or the last of an
  answer. The client must take some in every ``send_timeout_s``. The bytes are counted per tenant and in all;
  past a bound the connection that has waited longest is closed.
- *Unfinished*: WebSocket messages of which a part has come. The rest must come in, likewise by progress in
  every ``body_timeout_s``, and the bytes are counted with those of other requests.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from slipring.core.byte_ledger import Ledger
from slipring.core.limits import Limits
from slipring.errors import RateLimited, Unavailable

log = logging.getLogger("slipring")

PROGRESS_BYTES = 4096
"""What a client has to take or send within a deadline to be given another one. Less is a client that keeps
memory in use on purpose."""
_CHARGED_IN = 64 * 1024
"""Unfinished messages are counted in steps of so many bytes: most are complete before the first."""
_GRACE_S = 0.25
"""How long a connection that has shown no key is left alone although others want its place: a client that
sends its request at once has shown its key by then."""
_SURPLUS = 32
"""Connections past the bound that are held just long enough to be told so."""
_EXHAUSTION_S = 30.0
"""How long after it last ran out of descriptors a server says so."""
_NO_TENANT = ""
_MESSAGE_TIMEOUT, _TOO_MUCH = 1008, 1013
"""Close codes: a policy was violated; try again later."""


class Stage(Enum):
    """What a connection waits for, or that it is being served."""

    HEAD = "head"
    """The head of its first request, or of one that has begun to come."""
    REQUEST = "request"
    """Another request on a connection that is kept open."""
    SERVED = "served"


class Connection(Protocol):
    """A connection as this registry knows it."""

    tenant: str | None
    """Whose key it has shown; None: none yet."""
    stage: Stage
    is_surplus: bool
    """Whether it is one too many: its request is refused."""
    unfinished_bytes: int
    """Of a WebSocket message that is still coming."""

    @property
    def unsent_bytes(self) -> int:
        """What was written to the connection and has not been taken by its client."""

    @property
    def unread_bytes(self) -> int:
        """The same, and what waits to be written."""

    def abort(self) -> None:
        """Close at once. What is unread is lost."""

    def expire(self) -> None:
        """Close because the head of a request did not come in time."""

    def refuse_message(self, code: int, reason: str) -> None:
        """Close a WebSocket because of the message that is coming."""


class _Unread:
    """Bytes that a client does not take."""

    __slots__ = ("charged", "drained", "since", "size", "tenant")

    def __init__(self, tenant: str, size: int, clock: float) -> None:
        self.tenant = tenant
        self.size = size
        self.charged = 0
        self.drained = 0
        """Taken since the deadline was last extended."""
        self.since = clock


class _Unfinished:
    """A message that is coming."""

    __slots__ = ("charged", "seen", "since", "tenant")

    def __init__(self, tenant: str, clock: float) -> None:
        self.tenant = tenant
        self.charged = 0
        self.seen = 0
        """Bytes that had come when the deadline was last extended."""
        self.since = clock


class Connections:
    """The open connections of one process."""

    def __init__(self, limits: Limits, room: int, requests: Ledger, clock: Callable[[], float]) -> None:
        """``room``: how many there may be. ``requests``: where bytes of requests are counted."""
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
        self._waiting: dict[tuple[Stage, bool], OrderedDict[Connection, float]] = {
            (stage, anonymous): OrderedDict()
            for stage in (Stage.HEAD, Stage.REQUEST)
            for anonymous in (True, False)
        }
        self._unread: dict[Connection, _Unread] = {}
        self._unfinished: dict[Connection, _Unfinished] = {}
        self._known: set[Connection] = set()
        self._exhausted_at: float | None = None

    # How many there are.

    @property
    def has_room(self) -> bool:
        return self._anonymous < self._anonymous_room and self.open < self.room

    def make_room(self) -> bool:
        """Make room for one more connection; False: there is none just now, so it has to wait."""
        if self._anonymous >= self._anonymous_room and not self._close_anonymous():
            return False
        if self.open < self.room or self._close_anonymous() or self._close_idle():
            return True
        if any(self._waiting[stage, True] for stage in (Stage.HEAD, Stage.REQUEST)):
            return False  # one of these makes room in a moment
        return self.open < self.room + _SURPLUS

    def opened(self, connection: Connection) -> None:
        connection.is_surplus = self.open >= self.room
        self._known.add(connection)
        self.open += 1
        self._anonymous += 1
        self._wait(connection, Stage.HEAD)

    def closed(self, connection: Connection) -> None:
        """A connection is gone, or counts as gone. May be said twice."""
        if connection not in self._known:
            return
        self._known.discard(connection)
        self.open -= 1
        self._leave_queue(connection)
        connection.stage = Stage.SERVED
        self._count(connection.tenant, -1)
        self.resumed(connection)
        self.completed(connection)

    def identify(self, connection: Connection, tenant: str, *, alone: bool) -> None:
        """A request shows whose it is. Raises what refuses it where there is no place for it. ``alone``: no
        keys are needed, so there is no other tenant to leave room for."""
        connection.is_surplus = connection.is_surplus and self.open > self.room
        if connection.is_surplus:
            raise Unavailable("The server serves as many clients as it may. Try again later.")
        if connection.tenant == tenant or connection not in self._known:
            return
        if not alone and self._by_tenant[tenant] >= self._tenant_room and not self._close_idle(tenant):
            connection.is_surplus = True
            raise RateLimited(
                f"Too many connections: one tenant may hold {self._tenant_room} at once on this server."
            )
        self._count(connection.tenant, -1)
        self._count(tenant, 1)
        connection.tenant = tenant

    def exhausted(self) -> None:
        """The process has run out of file descriptors: say so, and close what nobody will miss."""
        clock = self._clock()
        if self._exhausted_at is None or clock - self._exhausted_at > _EXHAUSTION_S:
            log.error(
                "out of file descriptors with %d connections open: new ones are turned away;"
                " raise the limit (ulimit -n) or lower max_connections",
                self.open,
            )
        self._exhausted_at = clock
        if not self._close_anonymous():
            self._close_idle()

    @property
    def trouble(self) -> str | None:
        """Why connections are turned away just now, for whoever looks after the server."""
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
        """Close the connection without a key that has waited longest for a request; whether there was one."""
        due = self._clock() - _GRACE_S
        for stage in (Stage.HEAD, Stage.REQUEST):
            connection, since = next(iter(self._waiting[stage, True].items()), (None, due))
            if connection is not None and since <= due:
                self._drop(connection)
                return True
        return False

    def _close_idle(self, tenant: str | None = None) -> bool:
        """Close the connection that has been kept open longest for another request, of one tenant or of any;
        whether there was one."""
        idle = self._waiting[Stage.REQUEST, False]
        connection = next((each for each in idle if tenant in (None, each.tenant)), None)
        if connection is not None:
            self._drop(connection)
        return connection is not None

    def _drop(self, connection: Connection) -> None:
        self.closed(connection)
        connection.abort()

    # Those that wait for a request.

    def serving(self, connection: Connection) -> None:
        """A request has come."""
        self._leave_queue(connection)
        connection.stage = Stage.SERVED

    def served(self, connection: Connection) -> None:
        """A request has been answered, and another may follow."""
        if connection in self._known:
            self._wait(connection, Stage.REQUEST)

    def request_begins(self, connection: Connection) -> None:
        """The first bytes of another request have come."""
        if connection in self._known and connection.stage is Stage.REQUEST:
            self._wait(connection, Stage.HEAD)

    def _wait(self, connection: Connection, stage: Stage) -> None:
        self._leave_queue(connection)
        connection.stage = stage
        self._waiting[stage, connection.tenant is None][connection] = self._clock()

    def _leave_queue(self, connection: Connection) -> None:
        if connection.stage is not Stage.SERVED:
            for anonymous in (True, False):
                self._waiting[connection.stage, anonymous].pop(connection, None)

    # Those whose client does not read.

    def watch(self, connection: Connection) -> None:
        """Look from time to time whether the client takes what was written."""
        if connection in self._known and connection not in self._unread:
            tenant = connection.tenant or _NO_TENANT
            self._unread[connection] = _Unread(tenant, connection.unsent_bytes, self._clock())

    def paused(self, connection: Connection) -> None:
        """More was written than the client has taken so far."""
        self.watch(connection)
        self.measure(connection)

    def resumed(self, connection: Connection) -> None:
        """The client has taken everything."""
        unread = self._unread.pop(connection, None)
        if unread is not None and unread.charged:
            self.unread.remove(unread.tenant, unread.charged)

    def measure(self, connection: Connection) -> None:
        """Count what a connection holds now, and close others or itself where that is too much."""
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
        """Close the connection of a tenant whose client has left bytes unread for longest."""
        connection = next(each for each, unread in self._unread.items() if unread.tenant == tenant)
        log.warning(
            "tenant %r: a connection is closed, its clients have left %d bytes unread",
            tenant,
            self.unread.used_by(tenant),
        )
        self._drop(connection)

    # Those that send a message bit by bit.

    def received(self, connection: Connection) -> None:
        """More of a WebSocket message has come."""
        if connection not in self._known:
            return
        unfinished = self._unfinished.get(connection)
        if unfinished is None:
            tenant = connection.tenant or _NO_TENANT
            unfinished = self._unfinished[connection] = _Unfinished(tenant, self._clock())
        more = connection.unfinished_bytes - unfinished.charged
        if more < _CHARGED_IN:
            return
        if self._requests.fits_tenant(unfinished.tenant, more) and self._requests.fits(more):
            self._requests.add(unfinished.tenant, more)
            unfinished.charged += more
            return
        self.completed(connection)
        connection.refuse_message(_TOO_MUCH, "too many unfinished messages")

    def completed(self, connection: Connection) -> None:
        """No message is coming any more."""
        connection.unfinished_bytes = 0
        unfinished = self._unfinished.pop(connection, None)
        if unfinished is not None and unfinished.charged:
            self._requests.remove(unfinished.tenant, unfinished.charged)

    # Time.

    def tick(self) -> None:
        """Close the connections that have kept the server waiting for too long."""
        clock = self._clock()
        for anonymous in (True, False):
            queue = self._waiting[Stage.HEAD, anonymous]
            while queue and clock - next(iter(queue.values())) > self._limits.header_timeout_s:
                connection = next(iter(queue))
                self.closed(connection)
                connection.expire()
        for connection in list(self._unread):
            if connection in self._unread:  # measuring one may have closed others
                self._look_at_unread(connection, clock)
        for connection in list(self._unfinished):
            self._look_at_unfinished(connection, clock)

    def _look_at_unread(self, connection: Connection, clock: float) -> None:
        # What waits to be written is left out: it grows while the client reads.
        unread, size = self._unread[connection], connection.unsent_bytes
        if not size:
            self.resumed(connection)
            return
        unread.drained += max(0, unread.size - size)
        unread.size = size
        if unread.drained >= PROGRESS_BYTES:
            unread.drained, unread.since = 0, clock
        if clock - unread.since > self._limits.send_timeout_s:
            self._drop(connection)
        else:
            self.measure(connection)

    def _look_at_unfinished(self, connection: Connection, clock: float) -> None:
        unfinished, size = self._unfinished[connection], connection.unfinished_bytes
        if size - unfinished.seen >= PROGRESS_BYTES:
            unfinished.seen, unfinished.since = size, clock
        if clock - unfinished.since > self._limits.body_timeout_s:
            self.completed(connection)
            connection.refuse_message(_MESSAGE_TIMEOUT, "message timeout")
