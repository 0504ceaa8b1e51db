"""Stores rendered contexts as bytes, so that a chain loaded from a store is not rendered again.

The bytes hold what a response appends to its parent's context. If the context was rendered anew, they hold
what it does not share with its parent's, and which ranges of ids it does share; without a parent, all of it.
They identify the renderer and the vocabulary of the ids. They do not include the head, which the store keeps
with the response. Bytes that cannot be read give None, not an error: a context can always be rendered from
its items.
"""

import struct
import zlib
from array import array
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Literal

from msgspec import Raw, Struct, msgpack, structs

from slipring.core.chain.instructions_and_tools import Head
from slipring.prompts.rendering import Body, EncodedIds, PlacedPicture, Preface, Rendered, empty
from slipring.prompts.templates.template_renderer import Tail
from slipring.protocol.requests import TextFormat

_ID_BYTES = 4
_BLOCK = 32 * _ID_BYTES
"""Ranges are found by blocks of this size, so a shared range of twice the size is always found."""

Piece = bytes | tuple[int, int]
"""New ids, or the range of other ids that is copied: its first byte and its length in bytes."""


def shared(ids: bytes, source: bytes) -> list[Piece]:
    """``ids`` as pieces, copied from ``source`` where that has a long range of them. Takes time proportional
    to both."""
    pieces: list[Piece] = []
    start = common_bytes(ids, source)
    if start:
        pieces.append((0, start))
    last = len(source) // _BLOCK * _BLOCK - _BLOCK
    blocks = {source[at : at + _BLOCK]: at for at in range(last, -1, -_BLOCK)}
    new = at = start
    while at + _BLOCK <= len(ids):
        found = blocks.get(ids[at : at + _BLOCK])
        if found is None:
            at += _ID_BYTES
            continue
        while at > new and found and ids[at - _ID_BYTES : at] == source[found - _ID_BYTES : found]:
            at -= _ID_BYTES
            found -= _ID_BYTES
        if at > new:
            pieces.append(ids[new:at])
        length = common_bytes(ids, source, at, found)
        pieces.append((found, length))
        new = at = at + length
    if new < len(ids):
        pieces.append(ids[new:])
    return pieces


def joined(pieces: Sequence[Piece], source: bytes) -> bytes:
    """The ids that were written as ``pieces``. Raises ``ValueError`` for a range that ``source`` lacks."""
    parts: list[bytes] = []
    for piece in pieces:
        if isinstance(piece, bytes):
            parts.append(piece)
            continue
        first, length = piece
        if first < 0 or length < 0 or first + length > len(source):
            raise ValueError("a range outside the other ids")
        parts.append(source[first : first + length])
    return b"".join(parts)


def common_tokens(one: bytes, other: bytes) -> int:
    """How many ids both begin with."""
    return common_bytes(one, other) // _ID_BYTES


def common_bytes(one: bytes, other: bytes, at: int = 0, found: int = 0) -> int:
    """Length of the whole ids that both have in common, from the place ``at`` of one and ``found`` of the
    other on."""
    most = min(len(one) - at, len(other) - found)
    length, size = 0, most
    while size >= _ID_BYTES:
        if (
            length + size <= most
            and one[at + length : at + length + size] == other[found + length : found + length + size]
        ):
            length += size
        else:
            size = size // (2 * _ID_BYTES) * _ID_BYTES
    return length


_IS_LITTLE_ENDIAN = array("I", [1]).tobytes()[0] == 1
_VERSION = 2
"""Of what is appended, and of whole contexts. Increase it when the format changes. ``Tail``'s fields are
part of it."""
_VERSION_REWRITTEN = 3
"""Of contexts that share ranges of ids with their parent's. Servers that read version 2 only render them."""
_VERSION_PICTURED = 4
"""Of contexts that add pictures. Servers that do not read it render them."""
_WORTH_SHARING_BYTES = 1024
_header = struct.Struct("<BI")
"""Version and CRC-32 of the rest: corrupt ids must not pass for those that the model emitted."""


class _Preface(Struct, frozen=True, array_like=True):
    """A preface without its head."""

    kind: Literal["text", "json_object", "json_schema"]
    echo: bytes
    schema: bytes | None
    ids: bytes
    """Empty: the ids of a head are not apart from those that follow."""


class _Addition(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a context appends to its parent, or a whole context."""

    writer: str
    after: int | None
    """Number of tokens in the parent's body; None: a context that appends to none."""
    preface: _Preface | None
    """None: the same as the parent's."""
    earlier: bytes
    """Ids of all new steps except the last."""
    last: bytes | None
    """Ids of the last new step; None: no step was appended."""
    tail: Tail | None


class _Rewritten(_Addition, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A context that was rendered anew, and has ids of its parent's in it."""

    checksum: int
    """CRC-32 of all ids of the parent's body."""
    shared: list[Piece]
    """Stands for ``earlier``, which is empty."""


class _Pictured(_Addition, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A context with pictures among the ids of its new steps."""

    total: int
    """The tokens of the whole context."""
    pictures: list[PlacedPicture]
    """Among the ids of ``earlier`` and ``last``, joined."""


_encoder = msgpack.Encoder()
_decoders: dict[int, msgpack.Decoder[_Addition]] = {
    _VERSION: msgpack.Decoder(_Addition),
    _VERSION_REWRITTEN: msgpack.Decoder(_Rewritten),
    _VERSION_PICTURED: msgpack.Decoder(_Pictured),
}


class RenderingCodec:
    """Encodes and decodes ``Rendered`` positions of all renderers."""

    def pack(self, position: object, parent: object) -> bytes | None:
        """Encode a position relative to its parent's. None if it is not a ``Rendered`` position."""
        if not isinstance(position, Rendered):
            return None
        tail = position.body.tail
        if tail is not None and not isinstance(tail, Tail):
            return None
        base = parent if isinstance(parent, Rendered) and _continues(position, parent) else None
        end = base.body if base is not None else None
        new = [node.step for node in takewhile(lambda node: node is not end, position.body.lineage())]
        shares_preface = base is not None and position.preface == base.preface
        addition = _Addition(
            writer=position.writer,
            after=base.body.total if base is not None else None,
            preface=None if shares_preface else _pack_preface(position.preface),
            # No context branches off within a response, so its steps can be merged, except for the last:
            # engines take that for the answer.
            earlier=_pack_steps(reversed(new[1:])),
            last=_pack_ids(new[0]) if new else None,
            tail=tail if new else None,
        )
        version = _VERSION
        if new and position.body.pictures:
            # Also if none is new: tokens beside the ids may have been counted since.
            version, pictures = _VERSION_PICTURED, _placed(new[::-1])
            addition = _Pictured(**structs.asdict(addition), total=position.total, pictures=pictures)
        elif base is None and isinstance(parent, Rendered) and parent.writer == position.writer:
            addition = _sharing(addition, parent)
            version = _VERSION_REWRITTEN if isinstance(addition, _Rewritten) else _VERSION
        packed = _encoder.encode(addition)
        return _header.pack(version, zlib.crc32(packed)) + packed

    def unpack(self, data: bytes, parent: object, head: Head) -> Rendered | None:
        """Decode a position. None if the bytes are invalid or do not fit the parent."""
        try:
            return _append(_read(data), parent if isinstance(parent, Rendered) else None, head)
        except (ValueError, RecursionError, struct.error):
            return None


def _continues(position: Rendered, parent: Rendered) -> bool:
    """Whether a context was made by appending to another. Compares identity, not ids: engines detect what
    contexts share by their common ``Body`` objects."""
    return position.writer == parent.writer and position.body.continues(parent.body)


def _placed(steps: Iterable[EncodedIds]) -> list[PlacedPicture]:
    """The pictures of several steps, as if these were one."""
    placed: list[PlacedPicture] = []
    before = 0
    for step in steps:
        placed += [structs.replace(picture, at=before + picture.at) for picture in step.pictures]
        before += len(step.ids)
    return placed


def _pack_preface(preface: Preface) -> _Preface:
    format = preface.format
    return _Preface(format.kind, bytes(format.echo), format.schema, b"")


def _pack_steps(steps: Iterable[EncodedIds]) -> bytes:
    return b"".join(map(_pack_ids, steps))


def _sharing(whole: _Addition, parent: Rendered) -> _Addition:
    """A context with what it shares with its parent's; unchanged if that saves little: a whole context can be
    read without its parent's."""
    theirs = _pack_steps(parent.body.steps())
    pieces = shared(whole.earlier, theirs)
    if sum(piece[1] for piece in pieces if not isinstance(piece, bytes)) < _WORTH_SHARING_BYTES:
        return whole
    fields = {**structs.asdict(whole), "earlier": b""}
    return _Rewritten(**fields, checksum=zlib.crc32(theirs), shared=pieces)


def _pack_ids(step: EncodedIds) -> bytes:
    """Four bytes per token, little-endian on every machine."""
    return (step.ids if _IS_LITTLE_ENDIAN else _swapped(step.ids)).tobytes()


def _swapped(ids: "array[int]") -> "array[int]":
    swapped = ids[:]
    swapped.byteswap()
    return swapped


def _read(data: bytes) -> _Addition:
    version, checksum = _header.unpack_from(data)
    packed = data[_header.size :]
    if checksum != zlib.crc32(packed):
        raise ValueError
    if (decoder := _decoders.get(version)) is None:
        raise ValueError
    return decoder.decode(packed)


def _append(addition: _Addition, parent: Rendered | None, head: Head) -> Rendered | None:
    preface: Preface | None = None
    if addition.after is None:
        body = empty(None)
    elif parent is not None and parent.writer == addition.writer and parent.body.total == addition.after:
        body, preface = parent.body, parent.preface
        if addition.last is None:
            return parent
    else:
        return None
    if addition.preface is not None:
        preface = _unpack_preface(addition.preface, head)
    if preface is None or addition.last is None:
        return None
    earlier = addition.earlier
    if isinstance(addition, _Rewritten):
        theirs = _pack_steps(parent.body.steps()) if parent is not None else b""
        if zlib.crc32(theirs) != addition.checksum:
            return None
        earlier = joined(addition.shared, theirs)
    return Rendered(addition.writer, preface, _with_steps(body, addition, earlier, addition.last))


def _with_steps(body: Body, addition: _Addition, earlier: bytes, last: bytes) -> Body:
    """A body with the steps of an addition."""
    pictures = addition.pictures if isinstance(addition, _Pictured) else []
    first_ids, last_ids = _unpack_ids(earlier), _unpack_ids(last)
    if earlier:
        body = body.then(first_ids, None, [each for each in pictures if each.at < len(first_ids)])
    late = [each for each in pictures if each.at >= len(first_ids)]
    if isinstance(addition, _Pictured):
        body = body.counted(addition.total - len(last_ids) - sum(each.tokens for each in late))
    placed = [structs.replace(each, at=each.at - len(first_ids)) for each in late]
    return body.then(last_ids, addition.tail, placed)


def _unpack_preface(packed: _Preface, head: Head) -> Preface:
    format = TextFormat(kind=packed.kind, echo=Raw(packed.echo), schema=packed.schema)
    return Preface(head, format)


def _unpack_ids(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(packed) // 4}I", packed)
