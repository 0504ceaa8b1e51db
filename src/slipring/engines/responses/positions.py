"""Positions: where an upstream keeps a response, and the parts of it that only the upstream can read.

A position refers to the upstream's response by the socket that it was made on, whose upstream forgets it when
the socket closes, or by its id alone if the upstream stores responses. Call ids differ on the two sides, so a
position has the upstream's call ids in order. One response of ours may be several of the upstream's, a step
each; its last position has what was kept of every step.

Positions are stored as bytes, so that another process sends an upstream the same context. The bytes hold what
was kept of each step: its encrypted reasoning and the upstream's call ids. They have the upstream's id of the
response only if the upstream stores responses: otherwise it has forgotten the response together with the
socket. Bytes of another upstream, and bytes that cannot be read, give None: the context is then sent without
encrypted reasoning.
"""

import weakref
from collections.abc import Iterator
from hashlib import blake2b
from typing import Protocol

from msgspec import DecodeError, Struct, msgpack

from slipring.core.chain.instructions_and_tools import Head
from slipring.core.generation import Job
from slipring.engines.responses.options import ResponsesOptions
from slipring.engines.responses.sockets import Lane, Socket
from slipring.protocol.items.items import CALL_OF_OUTPUT, Item

_BYTES = 400
_STEP_BYTES = 150
CALLS = frozenset({"function_call", "custom_tool_call", "tool_search_call"})
"""Calls that have an id of ours. Others keep the upstream's."""
_VERSION = b"\x40"
"""The first byte. Different from those of rendered contexts, which are stored in the same place."""
_MOST_THOUGHT_BYTES = 4 * 2**20
"""Of one response. One that has more is stored without its encrypted reasoning."""
_encoder = msgpack.Encoder()


class KeptStep(Struct, frozen=True, eq=False):
    """What is kept of one answer of the upstream."""

    call_ids: tuple[str, ...] = ()
    """The upstream's ids of its calls, in order."""
    thoughts: tuple[tuple[int, bytes], ...] = ()
    """Its encrypted reasoning items, each with the number of other items before it."""
    others: int = 0
    """How many items other than reasoning it has."""
    whole: bool = False
    """Whether the whole context was sent for it, so that everything before it has our ids."""
    before: "KeptStep | None" = None
    """The step before it in the same response."""

    def lineage(self) -> "Iterator[KeptStep]":
        """It and the steps before it, the newest first."""
        step: KeptStep | None = self
        while step is not None:
            yield step
            step = step.before

    @property
    def has_thoughts(self) -> bool:
        """Whether it or a step before it has encrypted reasoning."""
        return any(step.thoughts for step in self.lineage())

    @property
    def size_bytes(self) -> int:
        """Without the steps before it."""
        return _STEP_BYTES + sum(map(len, self.call_ids)) + sum(len(raw) for _, raw in self.thoughts)


class Position:
    """What the engine leaves with a response, for the next turn."""

    __slots__ = ("__weakref__", "_socket", "home", "lane", "size_bytes", "step", "upstream_id")

    def __init__(
        self,
        upstream_id: str,
        *,
        home: object,
        before: "Position | None",
        step: KeptStep,
        socket: Socket | None = None,
        lane: Lane | None = None,
    ) -> None:
        self.upstream_id = upstream_id
        self.home = home
        """The engine that left it: ids and thoughts mean nothing to another upstream."""
        self.step = step
        """The last step of the response."""
        self.lane = lane
        self._socket = None if socket is None else weakref.ref(socket)
        shared = before.size_bytes if before is not None else 0
        self.size_bytes: int = _BYTES + step.size_bytes + shared

    def unshared_bytes(self, earlier: object) -> int:
        """Memory of what it does not share with an earlier position: the steps of its response."""
        return _BYTES + sum(step.size_bytes for step in self.step.lineage())

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


def earlier_step(job: Job, home: object) -> KeptStep | None:
    """The step that the job continues within its own response; None if it is the first."""
    if job.parent is None or job.parent.id != job.response_id:
        return None
    position = own_position(job.parent.position, home)
    return position.step if position is not None else None


class _Answered(Protocol):
    """A response of a chain, or one step of a response that runs."""

    @property
    def position(self) -> object: ...

    @property
    def answer(self) -> tuple[Item, ...]: ...

    @property
    def earlier_steps(self) -> tuple[Item, ...]: ...


def steps_of(
    node: _Answered, home: object
) -> Iterator[tuple[tuple[Item, ...], tuple[Item, ...], KeptStep | None]]:
    """The steps of a response, last one first: the answer, the outputs of calls that another step has read
    after it, and what was kept of it."""
    position = own_position(node.position, home)
    step = position.step if position is not None else None
    yield node.answer, (), step
    items = node.earlier_steps
    end = len(items)
    while end:
        outputs = end
        while outputs and items[outputs - 1].type in CALL_OF_OUTPUT:
            outputs -= 1
        start = outputs
        while start and items[start - 1].type not in CALL_OF_OUTPUT:
            start -= 1
        step = step.before if step is not None else None
        if step is not None and step.others != sum(item.type != "reasoning" for item in items[start:outputs]):
            step = None  # the client has added something between: what was kept has no place here
        yield items[start:outputs], items[outputs:end], step
        end = start


def upstream_call_id(job: Job, home: object, call_id: str) -> str:
    """The upstream's id of the call that we call ``call_id``, for a job that continues by id."""
    for node in job.parent.chain() if job.parent is not None else ():
        for answer, _, step in steps_of(node, home):
            if step is None:
                return call_id
            ours = [item.call_id for item in answer if item.type in CALLS]
            if call_id in ours[: len(step.call_ids)]:
                return step.call_ids[ours.index(call_id)]
            if step.whole:
                return call_id  # everything older was sent with our ids
    return call_id


class _PackedStep(Struct, frozen=True, array_like=True):
    call_ids: tuple[str, ...]
    thoughts: tuple[tuple[int, bytes], ...]
    others: int
    whole: bool


class _Packed(Struct, frozen=True, array_like=True):
    upstream_id: str
    steps: list[_PackedStep]
    """Oldest first."""


_decoder = msgpack.Decoder(_Packed)


class PositionCodec:
    """Encodes and decodes the positions of one engine."""

    def __init__(self, home: object, options: ResponsesOptions) -> None:
        self._home = home
        self._is_stored_there = options.chain
        # Who can read what the upstream encrypted. Names of keys, and not the keys themselves.
        reader = (options.url, options.query, options.model, options.key_env, options.key_file)
        self._start = _VERSION + blake2b("\0".join(reader).encode(), digest_size=8).digest()

    def pack(self, position: object, parent: object) -> bytes | None:
        """Encode a position; None if it is not of this engine, or of no use to another process."""
        own = own_position(position, self._home)
        if own is None:
            return None
        steps = list(own.step.lineage())
        size_bytes = sum(len(raw) for each in steps for _, raw in each.thoughts)
        keeps_thoughts = 0 < size_bytes <= _MOST_THOUGHT_BYTES
        upstream_id = own.upstream_id if self._is_stored_there else ""
        if not (keeps_thoughts or upstream_id):
            return None
        packed = [
            _PackedStep(each.call_ids, each.thoughts if keeps_thoughts else (), each.others, each.whole)
            for each in reversed(steps)
        ]
        return self._start + _encoder.encode(_Packed(upstream_id, packed))

    def unpack(self, data: bytes, parent: object, head: Head) -> Position | None:
        """Decode a position; None if the bytes are not of this engine's upstream, or cannot be read."""
        if not data.startswith(self._start):
            return None
        try:
            packed = _decoder.decode(data[len(self._start) :])
        except DecodeError:
            return None
        step: KeptStep | None = None
        for each in packed.steps:
            step = KeptStep(each.call_ids, each.thoughts, each.others, each.whole, step)
        if step is None:
            return None
        before = own_position(parent, self._home)
        return Position(packed.upstream_id, home=self._home, before=before, step=step)
