"""WebSocket messages that have arrived in part: how long one may take, and how many bytes all may have.

More must arrive within every ``body_timeout_s`` in which the server reads. The bytes are counted with those
of other requests, per tenant and in total; a connection whose message does not fit any more is closed.
``request_bodies`` applies the same to the bodies of requests.
"""

from collections import Counter
from collections.abc import Callable, Set

from slipring.core.byte_ledger import Ledger
from slipring.core.limits import Limits
from slipring.server.connections.slow_clients import NO_TENANT, PROGRESS_BYTES
from slipring.server.connections.tracked_connection import DropReason, TrackedConnection

_CHARGE_STEP_BYTES = 64 * 1024
"""Messages are counted in steps of this size: most are complete before the first step."""
_MESSAGE_TIMEOUT, _TOO_MUCH = 1008, 1013
"""Close codes: policy violation; try again later."""


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
    """The messages that the open connections of one process are receiving."""

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
            tenant = connection.tenant or NO_TENANT
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
