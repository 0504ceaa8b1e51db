"""Stores positions as bytes, so that another process sends an upstream the same context.

The bytes hold what was kept of each step of a response: its encrypted reasoning and the upstream's call ids.
They have the upstream's id of the response only if the upstream stores responses: otherwise it has forgotten
the response together with the socket. Bytes of another upstream, and bytes that cannot be read, give None:
the context is then sent without encrypted reasoning.
"""

from hashlib import blake2b

from msgspec import DecodeError, Struct, msgpack

from slipring.core.chain.head import Head
from slipring.engines.responses.options import ResponsesOptions
from slipring.engines.responses.positions import KeptStep, Position, own_position

_VERSION = b"\x40"
"""The first byte. Different from those of rendered contexts, which are stored in the same place."""
_MOST_THOUGHT_BYTES = 4 * 2**20
"""Of one response. One that has more is stored without its encrypted reasoning."""


class _PackedStep(Struct, frozen=True, array_like=True):
    call_ids: tuple[str, ...]
    thoughts: tuple[tuple[int, bytes], ...]
    others: int
    whole: bool


class _Packed(Struct, frozen=True, array_like=True):
    upstream_id: str
    steps: list[_PackedStep]
    """Oldest first."""


_encoder = msgpack.Encoder()
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
        steps: list[KeptStep] = []
        step: KeptStep | None = own.step
        while step is not None:
            steps.append(step)
            step = step.before
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
            step = KeptStep(each.call_ids, each.thoughts, others=each.others, whole=each.whole, before=step)
        if step is None:
            return None
        before = own_position(parent, self._home)
        return Position(packed.upstream_id, home=self._home, before=before, step=step)
