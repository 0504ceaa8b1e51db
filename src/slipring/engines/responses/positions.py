"""Positions: where an upstream keeps a response of ours, and what only it can read of it.

A position names the upstream's response weakly: by the socket that it was made on, whose upstream forgets it
when the socket closes, or by an id alone where the upstream stores. The ids of calls differ on the two sides,
and so a position knows the upstream's own, in order.
"""

import weakref
from typing import TYPE_CHECKING

from slipring.core.generation import Job

if TYPE_CHECKING:
    from slipring.engines.responses.sockets import Lane, Socket

_BYTES = 400


class Position:
    """What is left with a response."""

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
        socket: "Socket | None" = None,
        lane: "Lane | None" = None,
    ) -> None:
        self.upstream_id = upstream_id
        self.home = home
        """The engine that left it: ids and thoughts of one upstream are nothing to another."""
        self.whole = whole
        """Whether the context was sent whole, with our ids in all that came before this response."""
        self.call_ids = call_ids
        self.thoughts = thoughts
        """Reasoning that only the upstream can read, each with the number of other items before it."""
        self.lane = lane
        self._socket = None if socket is None else weakref.ref(socket)
        own = sum(map(len, call_ids)) + sum(len(raw) for _, raw in thoughts)
        self.size_bytes: int = _BYTES + own + (before.size_bytes if before is not None else 0)

    @property
    def socket(self) -> "Socket | None":
        return self._socket() if self._socket is not None else None


def position_of(job: Job, home: object) -> Position | None:
    """Where the job's parent was left, if it was left by this engine."""
    return own_position(job.parent.position, home) if job.parent is not None else None


def own_position(position: object, home: object) -> Position | None:
    return position if isinstance(position, Position) and position.home is home else None


def upstream_call_id(job: Job, home: object, call_id: str) -> str:
    """What the upstream calls a call that we call ``call_id``, if it continues by id."""
    for node in job.parent.chain() if job.parent is not None else ():
        position = own_position(node.position, home)
        if position is None:
            break
        ours = [item.call_id for item in node.answer if item.call_id is not None]
        if call_id in ours[: len(position.call_ids)]:
            return position.call_ids[ours.index(call_id)]
        if position.whole:
            break  # whatever is older was sent with our ids
    return call_id
