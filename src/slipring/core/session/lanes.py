"""Lanes: the ordered queues of turns on one connection.

Within a lane, turns run one after another, in the order of their creates. Lanes run concurrently, up to the
connection's limit on turns in flight; lanes that wait for a free slot get it in the order in which they
became ready.
"""

from collections.abc import Iterator

from slipring.base.errors import OVERLOAD_RETRY_S, LaneLimitReached, RateLimited
from slipring.core.chain.state import ResponseState
from slipring.core.chain.state_cache import ConnectionCache
from slipring.core.limits import Limits
from slipring.core.turn.turn import Turn

MOST_ENDED = 128
"""Responses of named lanes that have ended and whose lanes are remembered, per connection."""


class Lane:
    """A queue of turns. ``id`` is the wire's ``stream_id``; None is the default lane."""

    __slots__ = ("current", "id", "waiting")

    def __init__(self, id: str | None) -> None:
        self.id = id
        self.current: Turn | None = None
        self.waiting: list[Turn] = []


class Lanes:
    """All lanes of a connection, and the order in which they run."""

    __slots__ = (
        "_by_id",
        "_ended",
        "_max_in_flight",
        "_max_lanes",
        "_ready",
        "in_flight",
        "waiting",
        "waiting_bytes",
    )

    def __init__(self, max_in_flight: int, max_lanes: int) -> None:
        self._max_in_flight = max_in_flight
        self._max_lanes = max_lanes
        self._by_id: dict[str | None, Lane] = {}
        # Lists, and not deques, which take 760 bytes when they are empty: there are few lanes and turns.
        self._ready: list[Lane] = []
        self._ended: dict[str, str] | None = None
        """The lanes of the last responses that have ended, oldest first; None until a named lane has one."""
        self.in_flight = 0
        self.waiting = 0
        self.waiting_bytes = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def open(self, id: str | None) -> Lane:
        """The lane with this id, created if needed. Raises ``LaneLimitReached``; lanes are never removed."""
        lane = self._by_id.get(id)
        if lane is None:
            named = len(self._by_id) - (None in self._by_id)
            if id is not None and named >= self._max_lanes:
                raise LaneLimitReached(self._max_lanes)
            lane = self._by_id[id] = Lane(id)
        return lane

    def enqueue(self, turn: Turn, lane: Lane) -> None:
        """Add a turn to the end of its lane."""
        lane.waiting.append(turn)
        self.waiting += 1
        self.waiting_bytes += turn.asked.size_bytes
        if lane.current is None and len(lane.waiting) == 1:
            self._ready.append(lane)

    def must_wait(self, lane: Lane) -> bool:
        """Whether a turn that is enqueued in this lane now cannot begin at once."""
        return (
            lane.current is not None
            or bool(lane.waiting)
            or self.in_flight + len(self._ready) >= self._max_in_flight
        )

    def parent_to_pin(self, lane: Lane, forked: ResponseState | None) -> ResponseState | None:
        """What stays in memory until a turn begins that is enqueued in this lane now: the state that it
        forks, if the turn has to wait. The lane of that state goes on meanwhile."""
        return forked if self.must_wait(lane) else None

    def require_room(self, size_bytes: int, limits: Limits) -> None:
        """Raise ``RateLimited`` if the queue has no room for a turn of this size."""
        too_many = self.waiting >= limits.max_queued
        if too_many or self.waiting_bytes + size_bytes > limits.max_queued_bytes:
            raise RateLimited(
                f"Too many requests wait on this connection ({self.waiting})."
                " Wait for a response to finish, or open another connection.",
                retry_after_s=OVERLOAD_RETRY_S,
            )

    def next(self) -> Turn | None:
        """Dequeue the next turn that may run; None if no lane is ready or no slot is free."""
        if not self._ready or self.in_flight >= self._max_in_flight:
            return None
        lane = self._ready.pop(0)
        turn = lane.current = lane.waiting.pop(0)
        self.waiting -= 1
        self.waiting_bytes -= turn.asked.size_bytes
        self.in_flight += 1
        return turn

    def release(self, turn: Turn) -> None:
        """The running turn of a lane has ended; the lane's next turn becomes ready."""
        lane = self._by_id[turn.asked.lane]
        assert lane.current is turn, "only the turn that runs can end"
        lane.current = None
        self._remember(turn)
        self.in_flight -= 1
        if lane.waiting:
            self._ready.append(lane)

    def succeed(self, turn: Turn, successor: Turn) -> None:
        """Replace the running turn of a lane by its successor, before the turns that wait."""
        lane = self._by_id[turn.asked.lane]
        assert lane.current is turn, "only the turn that runs can be followed"
        lane.current = successor
        self._remember(turn)

    def find(self, response_id: str) -> Turn | None:
        """The running turn of this response; None before ``response.created`` and after the end."""
        for turn in self.running():
            is_known = turn.is_created and not turn.is_over
            if is_known and turn.output.response_id == response_id:
                return turn
        return None

    def lane_of(self, response_id: str, cache: ConnectionCache) -> str | None:
        """The named lane of a response that has ended: that of a cached one, or of one that ended here lately
        and was forgotten since."""
        if response_id in cache:
            return cache.lane_of(response_id)
        return self._ended.get(response_id) if self._ended is not None else None

    def _remember(self, turn: Turn) -> None:
        """Events about the response may have to name its lane after its end, and after it was forgotten."""
        if turn.asked.lane is None or turn.response is None:
            return
        if self._ended is None:
            self._ended = {}
        self._ended[turn.output.response_id] = turn.asked.lane
        if len(self._ended) > MOST_ENDED:
            del self._ended[next(iter(self._ended))]

    def is_busy(self, id: str | None) -> bool:
        """Whether a turn of this lane runs or waits."""
        lane = self._by_id.get(id)
        return lane is not None and (lane.current is not None or bool(lane.waiting))

    def running(self) -> Iterator[Turn]:
        return (lane.current for lane in list(self._by_id.values()) if lane.current is not None)

    def queued(self) -> Iterator[Turn]:
        return (turn for lane in self._by_id.values() for turn in lane.waiting)
