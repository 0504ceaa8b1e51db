"""Rendered contexts as bytes, so that a chain that is read back is neither rendered nor tokenized again.

Owns the form of these bytes: what a response adds to its parent's context, or the whole where it is not
appended to it. They name the renderer and the vocabulary that their ids belong to. Must not know where they
are kept, nor how anything is rendered. Heads are not in them: whoever keeps a response keeps its head. What
cannot be read is None and never an error, for a context can always be rendered from its items.
"""

import struct
import zlib
from itertools import takewhile
from typing import Literal

from msgspec import Raw, Struct, msgpack

from slipring.core.chain.head import Head
from slipring.prompts.dialects.dialect import Block
from slipring.prompts.rendering import Preface, Rendered, Step, empty
from slipring.prompts.templates.template_renderer import Tail
from slipring.protocol.requests import TextFormat

_VERSION = 1
"""Of the form, in which a ``Block`` and a ``Tail`` are written as they are: it changes when they do."""
_seal = struct.Struct("<BI")
"""The version, and a checksum of what follows: other ids than were said must not pass for them."""


class _Preface(Struct, frozen=True, array_like=True):
    """A preface without its head."""

    kind: Literal["text", "json_object", "json_schema"]
    echo: bytes
    schema: bytes | None
    ids: bytes


class _Addition(Struct, frozen=True, array_like=True):
    """What a context adds to another, or to nothing."""

    writer: str
    after: int | None
    """The tokens of the parent's body; None: it stands alone, and no parent is needed."""
    preface: _Preface | None
    """None: the parent's."""
    earlier: bytes
    last: bytes | None
    """The ids of the last step; None: there is no step."""
    tail: Block | Tail | None


_encoder = msgpack.Encoder()
_decoder = msgpack.Decoder(_Addition)


class RenderedPositions:
    """Packs ``Rendered`` positions, of all renderers; those of other engines are not kept."""

    def pack(self, position: object, parent: object) -> bytes | None:
        if not isinstance(position, Rendered):
            return None
        tail = position.body.tail
        if tail is not None and not isinstance(tail, Block | Tail):
            return None
        before = parent if isinstance(parent, Rendered) and _continues(position, parent) else None
        end = before.body if before is not None else None
        new = [node.step for node in takewhile(lambda node: node is not end, position.body.lineage())]
        shares_preface = before is not None and _is_same(position.preface, before.preface)
        addition = _Addition(
            writer=position.writer,
            after=before.body.total if before is not None else None,
            preface=None if shares_preface else _pack_preface(position.preface),
            # Nobody goes on from within a response, but engines take its last step for the answer.
            earlier=b"".join(map(_pack_ids, reversed(new[1:]))),
            last=_pack_ids(new[0]) if new else None,
            tail=tail if new else None,
        )
        packed = _encoder.encode(addition)
        return _seal.pack(_VERSION, zlib.crc32(packed)) + packed

    def unpack(self, data: bytes, parent: object, head: Head) -> Rendered | None:
        try:
            return _append(_read(data), parent if isinstance(parent, Rendered) else None, head)
        except (ValueError, RecursionError, struct.error):
            return None


def _continues(position: Rendered, parent: Rendered) -> bool:
    """Whether a context was made by appending to another. That ids are equal is not enough: engines tell what
    contexts share by the bodies that they share."""
    return position.writer == parent.writer and any(body is parent.body for body in position.body.lineage())


def _is_same(one: Preface, other: Preface) -> bool:
    return one is other or (
        one.step.ids == other.step.ids and one.format == other.format and one.head == other.head
    )


def _pack_preface(preface: Preface) -> _Preface:
    format = preface.format
    return _Preface(format.kind, bytes(format.echo), format.schema, _pack_ids(preface.step))


def _pack_ids(step: Step) -> bytes:
    """Four bytes a token, the same on every machine."""
    return struct.pack(f"<{len(step.ids)}I", *step.ids)


def _read(data: bytes) -> _Addition:
    version, checksum = _seal.unpack_from(data)
    packed = data[_seal.size :]
    if version != _VERSION or checksum != zlib.crc32(packed):
        raise ValueError
    return _decoder.decode(packed)


def _append(addition: _Addition, parent: Rendered | None, head: Head) -> Rendered | None:
    preface: Preface | None = None
    if addition.after is None:
        body = empty(None)
    elif parent is not None and parent.writer == addition.writer and parent.body.total == addition.after:
        body, preface = parent.body, parent.preface
        if addition.preface is None and addition.last is None:
            return parent
    else:
        return None
    if addition.preface is not None:
        preface = _unpack_preface(addition.preface, head)
    if preface is None:
        return None
    if addition.earlier:
        body = body.then(_unpack_ids(addition.earlier), None)
    if addition.last is not None:
        body = body.then(_unpack_ids(addition.last), addition.tail)
    return Rendered(addition.writer, preface, body)


def _unpack_preface(packed: _Preface, head: Head) -> Preface:
    format = TextFormat(kind=packed.kind, echo=Raw(packed.echo), schema=packed.schema)
    return Preface(head, format, Step.of(_unpack_ids(packed.ids)))


def _unpack_ids(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(packed) // 4}I", packed)
