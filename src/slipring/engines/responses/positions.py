"""Positions: where an upstream keeps a response, and the parts of it that only the upstream can read.

A position refers to the upstream's response by the socket that it was made on, whose upstream forgets it when
the socket closes, or by its id alone if the upstream stores responses. Call ids differ on the two sides, so a
position has the upstream's call ids in order.
"""

import weakref

from slipring.core.generation import Job
from slipring.engines.responses.sockets import Lane, Socket

_BYTES = 400
CALLS = frozenset({"function_call", "custom_tool_call", "tool_search_call"})
"""Calls that have an id of ours. Others keep the upstream's."""


class Position:
    """What the engine leaves with a response, for the next turn."""

    __slots__ = (
        "__weakref__",
        "_socket",
        "call_ids",
        "home",
        "lane",
        "size_bytes",
        "thoughts",
        "upstream_id",
        "whole",
    )

    def __init__(
        self,
        upstream_id: str,
        *,
        home: object,
        before: "Position | None",
        whole: bool,
        call_ids: tuple[str, ...] = (),
        thoughts: tuple[tuple[int, bytes], ...] = (),
        socket: Socket | None = None,
        lane: Lane | None = None,
    ) -> None:
        self.upstream_id = upstream_id
        self.home = home
        """The engine that left it: ids and thoughts mean nothing to another upstream."""
        self.whole = whole
        """Whether the whole context was sent, so that everything before this response has our ids."""
        self.call_ids = call_ids
        self.thoughts = thoughts
        """Encrypted reasoning items, each with the number of other items before it."""
        self.lane = lane
        self._socket = None if socket is None else weakref.ref(socket)
        own = sum(map(len, call_ids)) + sum(len(raw) for _, raw in thoughts)
        self.size_bytes: int = _BYTES + own + (before.size_bytes if before is not None else 0)

    @property
    def socket(self) -> Socket | None:
        """The socket that the response was made on, while it exists."""
        return self._socket() if self._socket is not None else None


def position_of(job: Job, home: object) -> Position | None:
    """The position of the job's parent, if this engine left it."""
    return own_position(job.parent.position, home) if job.parent is not None else None


def own_position(position: object, home: object) -> Position | None:
    """``position`` if this engine left it, else None."""
    return position if isinstance(position, Position) and position.home is home else None


def upstream_call_id(job: Job, home: object, call_id: str) -> str:
    """The upstream's id of the call that we call ``call_id``, for a job that continues by id."""
    for node in job.parent.chain() if job.parent is not None else ():
        position = own_position(node.position, home)
        if position is None:
            break
        ours = [item.call_id for item in node.answer if item.type in CALLS]
        if call_id in ours[: len(position.call_ids)]:
            return position.call_ids[ours.index(call_id)]
        if position.whole:
            break  # everything older was sent with our ids
    return call_id
