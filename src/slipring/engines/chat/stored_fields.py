"""Stores positions as bytes, so that another process sends a server back what it wants with earlier answers.

The bytes hold these fields and no messages, which are encoded again. Bytes of another server, and bytes that
cannot be read, give None: the context is then sent without such fields.
"""

from hashlib import blake2b
from itertools import takewhile

from msgspec import DecodeError, Struct, msgpack

from slipring.core.chain.head import Head
from slipring.engines.chat.messages import Writer
from slipring.engines.chat.options import ChatOptions
from slipring.engines.chat.request_body import stored_fields
from slipring.engines.chat.returned_fields import ReturnedAnswer, ReturnedFields, StoredFields, linked

_VERSION = b"\x50"
"""The first byte. Different from those of other engines' positions, which are stored in the same place."""


class _PackedAnswer(Struct, frozen=True, array_like=True):
    first: str
    message: ReturnedFields
    calls: dict[str, ReturnedFields]


class _Packed(Struct, frozen=True, array_like=True):
    continues: bool
    """Whether the parent's fields come before."""
    answers: list[_PackedAnswer]
    """Oldest first."""
    message: ReturnedFields
    calls: tuple[ReturnedFields, ...]


_encoder = msgpack.Encoder()
_decoder = msgpack.Decoder(_Packed)


class PositionCodec:
    """Encodes and decodes the positions of one engine."""

    def __init__(self, home: Writer, options: ChatOptions) -> None:
        self._home = home
        # Who can read the fields. Names of keys, and not the keys themselves.
        reader = (options.url, options.query, options.key_env, options.key_file)
        self._start = _VERSION + blake2b("\0".join(reader).encode(), digest_size=8).digest()

    def pack(self, position: object, parent: object) -> bytes | None:
        """Encode what a position keeps and its parent's does not; None if it keeps nothing, or is not of this
        engine."""
        own, earlier = stored_fields(position, self._home), stored_fields(parent, self._home)
        if own is None or not own.size_bytes:
            return None
        continues = own.kept is not None and earlier is not None and own.kept.shared_bytes(earlier.kept) > 0
        end = earlier.kept if earlier is not None and continues else None
        new = (
            list(takewhile(lambda node: node is not end, own.kept.lineage())) if own.kept is not None else []
        )
        answers = [_PackedAnswer(node.first, node.message, node.calls) for node in reversed(new)]
        packed = _Packed(continues, answers, own.returned.message, own.returned.calls)
        return self._start + _encoder.encode(packed)

    def unpack(self, data: bytes, parent: object, head: Head) -> StoredFields | None:
        """Decode a position."""
        if not data.startswith(self._start):
            return None
        try:
            packed = _decoder.decode(data[len(self._start) :])
        except DecodeError:
            return None
        earlier = stored_fields(parent, self._home)
        kept = earlier.kept if earlier is not None and packed.continues else None
        for each in packed.answers:
            kept = linked(kept, each.first, each.message, each.calls)
        return StoredFields(self._home, kept, ReturnedAnswer(packed.message, packed.calls).bounded())
