"""Responses as rows and back. Pure: no database, no clock.

A row holds what is new in its response. What the response shares with its parent is left out, and comes back
as the very same object, so that a chain that was read costs the memory of one that was made.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from slipring.core.chain.head import Head
from slipring.core.chain.state import Carry, OpenCall, Position, Positions, ResponseState
from slipring.protocol import wire
from slipring.protocol.items import Item
from slipring.protocol.requests import TextFormat
from slipring.protocol.responses import Response
from slipring.protocol.tools import CallableTool, Toolset

_NO_CARRY = Carry()

_items = msgspec.msgpack.Decoder(tuple[Item, ...])
_pack = msgspec.msgpack.Encoder().encode
_response = msgspec.json.Decoder(Response)


class _CarryDelta(Struct, omit_defaults=True):
    """A ``Carry`` without what is the parent's."""

    open_calls: dict[str, OpenCall] | UnsetType = UNSET
    tools: tuple[CallableTool, ...] | UnsetType = UNSET
    effort: str | UnsetType | None = UNSET
    format: TextFormat | UnsetType | None = UNSET


_carry = msgspec.json.Decoder(_CarryDelta)


class Record(Struct, frozen=True):
    """What is read of a response, in the order of its columns."""

    id: str
    head: bytes
    response: bytes
    input: bytes
    output: bytes
    carry: bytes | None
    position: bytes | None


def digest(head: Head) -> bytes:
    """By which a head is known in the store."""
    instructions = b"" if head.instructions is None else b"=" + head.instructions.encode()
    sizes = len(instructions).to_bytes(8, "big")
    return hashlib.sha256(sizes + instructions + head.tools.raw).digest()


def head_columns(head: Head) -> tuple[bytes | None, bytes]:
    instructions = None if head.instructions is None else head.instructions.encode()
    return instructions, head.tools.raw


def read_head(instructions: bytes | None, tools: bytes, near: Head | None = None) -> Head:
    """A head from its columns; tools that are those of a head nearby are shared with it."""
    known = near.tools if near is not None and near.tools.raw == tools else None
    return Head(
        instructions=None if instructions is None else bytes(instructions).decode(),
        tools=known if known is not None else Toolset.read(Raw(tools)),
    )


def pack_items(items: Iterable[Item]) -> bytes:
    return _pack(tuple(items))


def unpack_items(data: bytes) -> tuple[Item, ...]:
    return _items.decode(data)


def pack_response(response: Response) -> bytes:
    """The object without what is kept elsewhere: the head and the output."""
    return wire.encode(structs.replace(response, instructions=wire.NULL, tools=wire.NULL, output=[]))


def unpack_response(data: bytes, head: Head, output: tuple[Item, ...]) -> Response:
    response = _response.decode(data)
    response.instructions = head.instructions_json
    response.tools = head.tools.echo
    response.output = [Raw(item.raw) for item in output]
    return response


def pack_carry(carry: Carry, parent: Carry | None) -> bytes | None:
    """None: all of it is the parent's."""
    before = parent if parent is not None else _NO_CARRY
    if carry is before or carry == before:
        return None
    return wire.encode(
        _CarryDelta(
            open_calls=UNSET if carry.open_calls == before.open_calls else dict(carry.open_calls),
            tools=UNSET if carry.tools == before.tools else carry.tools,
            effort=UNSET if carry.effort == before.effort else carry.effort,
            format=UNSET if carry.format == before.format else carry.format,
        )
    )


def unpack_carry(data: bytes | None, parent: Carry | None) -> Carry:
    before = parent if parent is not None else _NO_CARRY
    if data is None:
        return before
    delta = _carry.decode(data)
    return Carry(
        open_calls=before.open_calls if delta.open_calls is UNSET else delta.open_calls,
        tools=before.tools if delta.tools is UNSET else delta.tools,
        effort=before.effort if delta.effort is UNSET else delta.effort,
        format=before.format if delta.format is UNSET else delta.format,
    )


def columns(state: ResponseState, positions: Positions | None) -> tuple[Any, ...]:
    """What a row holds of a state, from ``parent_id`` on, without what the store itself decides."""
    response, parent = state.response, state.parent
    return (
        parent.id if parent is not None else None,
        response.status,
        response.model,
        response.created_at,
        digest(state.head),
        pack_response(response),
        pack_items(state.input),
        pack_items(state.output),
        pack_carry(state.carry, parent.carry if parent is not None else None),
        _pack_position(state, positions),
    )


def record(state: ResponseState, positions: Positions | None) -> Record:
    """What would be read of a state again."""
    parent = state.parent
    return Record(
        id=state.id,
        head=digest(state.head),
        response=pack_response(state.response),
        input=pack_items(state.input),
        output=pack_items(state.output),
        carry=pack_carry(state.carry, parent.carry if parent is not None else None),
        position=_pack_position(state, positions),
    )


def _pack_position(state: ResponseState, positions: Positions | None) -> bytes | None:
    if positions is None or state.position is None:
        return None
    return positions.pack(state.position, state.parent.position if state.parent is not None else None)


def rebuild(
    record: Record, parent: ResponseState | None, head: Head, positions: Positions | None
) -> ResponseState:
    """The state of a row, on that of its parent."""
    output = unpack_items(record.output)
    position: Position | None = None
    if record.position is not None and positions is not None:
        before = parent.position if parent is not None else None
        position = positions.unpack(record.position, before, head)
    return ResponseState(
        response=unpack_response(record.response, head, output),
        parent=parent,
        head=head,
        input=unpack_items(record.input),
        output=output,
        carry=unpack_carry(record.carry, parent.carry if parent is not None else None),
        position=position,
    )
