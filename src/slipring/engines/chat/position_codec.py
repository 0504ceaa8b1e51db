"""Stores positions as bytes, so that another process sends a server back what it wants with earlier answers.

The bytes hold these fields and no messages, which are encoded again. Bytes of another server, and bytes that
cannot be read, give None: the context is then sent without such fields.
"""

from hashlib import blake2b
from itertools import takewhile

from msgspec import UNSET, DecodeError, Raw, Struct, UnsetType, msgpack

from slipring.core.chain.head import Head
from slipring.engines.chat.messages import Writer
from slipring.engines.chat.options import ChatOptions
from slipring.engines.chat.request_body import stored_fields
from slipring.engines.chat.returned_fields import ReturnedAnswer, ReturnedFields, StoredFields, linked

_VERSION = b"\x50"
"""The first byte. Different from those of other engines' positions, which are stored in the same place."""


class _PackedFields(Struct, frozen=True, array_like=True):
    extra_content: bytes = b""
    provider_specific_fields: bytes = b""
    reasoning_details: bytes = b""

    @classmethod
    def of(cls, fields: ReturnedFields) -> "_PackedFields":
        return cls(
            *map(_bytes, (fields.extra_content, fields.provider_specific_fields, fields.reasoning_details))
        )

    def fields(self) -> ReturnedFields:
        return ReturnedFields(
            *map(_raw, (self.extra_content, self.provider_specific_fields, self.reasoning_details))
        )


def _bytes(raw: Raw | UnsetType) -> bytes:
    return bytes(raw) if isinstance(raw, Raw) else b""


def _raw(data: bytes) -> Raw | UnsetType:
    return Raw(data) if data else UNSET


class _PackedAnswer(Struct, frozen=True, array_like=True):
    first: str
    message: _PackedFields
    calls: dict[str, _PackedFields]


class _Packed(Struct, frozen=True, array_like=True):
    continues: bool
    """Whether the parent's fields come before."""
    answers: list[_PackedAnswer]
    """Oldest first."""
    message: _PackedFields
    calls: list[_PackedFields]


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
        answers = [
            _PackedAnswer(
                node.first,
                _PackedFields.of(node.message),
                {id: _PackedFields.of(fields) for id, fields in node.calls.items()},
            )
            for node in reversed(new)
        ]
        message, calls = own.returned.message, own.returned.calls
        packed = _Packed(continues, answers, _PackedFields.of(message), list(map(_PackedFields.of, calls)))
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
            calls = {id: fields.fields() for id, fields in each.calls.items()}
            kept = linked(kept, each.first, each.message.fields(), calls)
        returned = ReturnedAnswer(packed.message.fields(), tuple(each.fields() for each in packed.calls))
        return StoredFields(self._home, kept, returned.bounded())
