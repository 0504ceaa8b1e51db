"""Encodes responses as rows and decodes them, and whole chains as bytes for another node. Pure: no database,
no clock.

A row holds only what its response adds to its parent. When a chain is decoded, what a response shares with
its parent is the same object, so that a loaded chain takes as much memory as one that was generated here.
"""

from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from slipring.core.chain import item_ids
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.chain.state import Approval, Carry, OpenCall, Position, Positions, ResponseState
from slipring.core.checks.verdicts import NodeVerdicts
from slipring.protocol import wire
from slipring.protocol.items.items import Item, raw_digest
from slipring.protocol.requests import TextFormat
from slipring.protocol.responses import Response
from slipring.protocol.tools.toolset import CallableTool, Toolset
from slipring.stores.pictures import Detached, unpack

_NO_CARRY = Carry()
_NO_PICTURES: Mapping[bytes, bytes] = MappingProxyType({})
_DIGEST_BYTES = 16

_pack = msgspec.msgpack.Encoder().encode
_response = msgspec.json.Decoder(Response)
_verdicts = msgspec.msgpack.Decoder(NodeVerdicts)


class _CarryDelta(Struct):
    """The fields of a ``Carry`` that differ from the parent's."""

    open_calls: dict[str, OpenCall] | UnsetType = UNSET
    tools: tuple[CallableTool, ...] | UnsetType = UNSET
    effort: str | UnsetType | None = UNSET
    format: TextFormat | UnsetType | None = UNSET
    lists: dict[str, Raw] | UnsetType = UNSET
    list_ids: dict[str, str] | UnsetType = UNSET
    approvals: dict[str, Approval] | UnsetType = UNSET
    answered: dict[str, bool] | UnsetType = UNSET
    """Without those of the parent, which stay."""
    pictures: int | UnsetType = UNSET
    attached: tuple[str, ...] | UnsetType = UNSET


_carry = msgspec.json.Decoder(_CarryDelta)
_CARRY_FIELDS = Carry.__struct_fields__


class Record(Struct, frozen=True):
    """The columns that are read to rebuild a response, in the order of the query."""

    id: str
    head: bytes
    response: bytes
    input: bytes
    output: bytes
    carry: bytes | None
    position: bytes | None
    verdicts: bytes | None = None


def head_columns(head: Head) -> tuple[bytes | None, bytes]:
    instructions = None if head.instructions is None else head.instructions.encode()
    return instructions, head.tools.raw


def read_head(instructions: bytes | None, tools: bytes, previous: Head | None = None) -> Head:
    """Decode a head from its columns. If ``previous`` has the same tools, its toolset object is shared."""
    shared = previous.tools if previous is not None and previous.tools.raw == tools else None
    return Head(
        instructions=None if instructions is None else bytes(instructions).decode(),
        tools=shared if shared is not None else Toolset.read(Raw(tools)),
    )


def names(state: ResponseState) -> list[bytes]:
    """Return, for each item whose id a client chose, digests of the id and of the item. An id that the server
    gave needs none: it says in which response its item is."""
    return [
        name_digest(item.id) + raw_digest(item)
        for item in (*state.input, *state.output)
        if item.id is not None and not item_ids.is_minted(item.id)
    ]


def name_digest(item_id: str) -> bytes:
    return _digest(item_id.encode())


def named_item(items: Iterable[Item], item_id: str, digest: bytes) -> Item:
    """Return the item with this id and this digest out of those of its response."""
    return next(item for item in items if item.id == item_id and raw_digest(item) == digest)


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()


def pack_items(items: Iterable[Item]) -> bytes:
    return _pack(tuple(items))


def pack_response(response: Response) -> bytes:
    """Encode the response object without its head and output, which have their own columns."""
    return wire.encode(structs.replace(response, instructions=wire.NULL, tools=wire.NULL, output=[]))


def unpack_response(data: bytes, head: Head, output: tuple[Item, ...]) -> Response:
    response = _response.decode(data)
    response.instructions = head.instructions_json
    response.tools = head.tools.echo
    response.output = [Raw(item.raw) for item in output]
    return response


def pack_carry(carry: Carry, parent: Carry | None) -> bytes | None:
    """Encode the fields that differ from the parent's; None if none do."""
    before = parent if parent is not None else _NO_CARRY
    if carry is before:
        return None
    fields = {name: getattr(carry, name) for name in _CARRY_FIELDS}
    changed = {name: value for name, value in fields.items() if value != getattr(before, name)}
    if "lists" in changed:
        changed["lists"] = {label: Raw(tools) for label, tools in carry.lists.items()}
    if "answered" in changed:
        changed["answered"] = {
            asked: approved for asked, approved in carry.answered.items() if asked not in before.answered
        }
    return wire.encode(changed) if changed else None


def unpack_carry(data: bytes | None, parent: Carry | None) -> Carry:
    before = parent if parent is not None else _NO_CARRY
    if data is None:
        return before
    delta = _carry.decode(data)
    fields = {name: getattr(delta, name) for name in _CARRY_FIELDS}
    if delta.lists is not UNSET:
        fields["lists"] = {label: bytes(tools) for label, tools in delta.lists.items()}
    if delta.answered is not UNSET:
        fields["answered"] = {**before.answered, **delta.answered}
    return structs.replace(before, **{name: value for name, value in fields.items() if value is not UNSET})


def pack_verdicts(verdicts: NodeVerdicts | None) -> bytes | None:
    return None if verdicts is None else _pack(verdicts)


def unpack_verdicts(data: bytes | None) -> NodeVerdicts | None:
    return None if data is None else _verdicts.decode(data)


def record(
    state: ResponseState,
    positions: Positions | None,
    pack: Callable[[Iterable[Item]], bytes] = pack_items,
) -> Record:
    """Return the record that a query would read for this state, its items packed by ``pack``."""
    parent = state.parent
    return Record(
        id=state.id,
        head=state.head.digest,
        response=pack_response(state.response),
        input=pack(state.input),
        output=pack(state.output),
        carry=pack_carry(state.carry, parent.carry if parent is not None else None),
        position=_pack_position(state, positions),
        verdicts=pack_verdicts(state.verdicts),
    )


def columns(state: ResponseState, positions: Positions | None, detached: Detached) -> tuple[Any, ...]:
    """Return the values of a row that follow ``expires_at``, from ``parent_id`` on. ``detached`` gets the
    pictures of its items."""
    response, parent_id = state.response, state.parent.id if state.parent is not None else None
    own = structs.astuple(record(state, positions, detached.pack))
    return (parent_id, response.status, response.model, response.created_at, *own[1:])


def _pack_position(state: ResponseState, positions: Positions | None) -> bytes | None:
    if positions is None or state.position is None or not state.keeps_position:
        return None
    parent = state.parent
    return positions.pack(
        state.position, parent.position if parent is not None and parent.keeps_position else None
    )


def rebuild(
    record: Record,
    parent: ResponseState | None,
    head: Head,
    positions: Positions | None,
    items: tuple[tuple[Item, ...], tuple[Item, ...]] | None = None,
) -> ResponseState:
    """Decode a record into the state that continues ``parent``. ``items``: its input and output; None if they
    are in the record as a whole, with their pictures."""
    input, output = items or (unpack(record.input, _NO_PICTURES), unpack(record.output, _NO_PICTURES))
    position: Position | None = None
    if record.position is not None and positions is not None:
        before = parent.position if parent is not None else None
        position = positions.unpack(record.position, before, head)
    state = ResponseState(
        response=unpack_response(record.response, head, output),
        parent=parent,
        head=head,
        input=input,
        output=output,
        carry=unpack_carry(record.carry, parent.carry if parent is not None else None),
        position=position,
    )
    state.keeps_position = record.position is not None
    state.verdicts = unpack_verdicts(record.verdicts)
    return state


class _Chain(Struct):
    """A chain as it is sent to another node."""

    heads: dict[bytes, tuple[bytes | None, bytes]]
    """The columns of each head, by its digest."""
    records: list[Record]
    """Oldest response first."""


_chain_decoder = msgspec.msgpack.Decoder(_Chain)


def pack_chain(state: ResponseState, positions: Positions | None) -> bytes:
    """Encode a response with all its ancestors; engine positions only if ``positions`` can encode them."""
    nodes = list(reversed(list(state.chain())))
    heads = {node.head.digest: head_columns(node.head) for node in nodes}
    return _pack(_Chain(heads, [record(node, positions) for node in nodes]))


def unpack_chain(data: bytes, positions: Positions | None) -> ResponseState | None:
    """Return the newest response of an encoded chain, None for an empty one.

    Raises ``ValueError`` for bytes that do not encode a chain.
    """
    chain = _chain_decoder.decode(data)
    heads: dict[bytes, Head] = {}
    state: ResponseState | None = None
    for each in chain.records:
        if each.head not in heads:
            previous = state.head if state is not None else None
            heads[each.head] = read_head(*chain.heads[each.head], previous)
        state = rebuild(each, state, heads[each.head], positions)
    return state
