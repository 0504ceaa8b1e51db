"""Responses to be stored: with heads, calls, sealed items and positions, as turns leave them."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, structs

from slipring.core.chain import item_ids
from slipring.core.chain.head import Head
from slipring.core.chain.state import Carry, Position, ResponseState
from slipring.protocol import wire
from slipring.protocol.items import Item, user_message
from slipring.protocol.responses import Response
from slipring.protocol.tools import Toolset
from slipring.stores.base import Key, RunEvent
from tests.core.connection import function, node

TOOLS = Toolset.read(Raw(wire.encode([function("add", description="Adds."), {"type": "web_search"}])))
HEAD = Head(instructions="Be brief.\0Ünd höflich.", tools=TOOLS)


def message(item_id: str | None, text: str = "hello", role: str = "assistant") -> Item:
    fields = {"type": "message", "role": role, "content": text}
    named = fields if item_id is None else {"id": item_id, **fields}
    return Item(type="message", raw=wire.encode(named), id=item_id)


def state(
    name: str,
    parent: ResponseState | None = None,
    *,
    head: Head | None = None,
    carry: Carry | None = None,
    position: Position | None = None,
    given: Sequence[Item] = (),
    **fields: Any,
) -> ResponseState:
    """A response with one message in its output; what is not told is the parent's."""
    bare = node(name, parent)
    head = head or bare.head
    output = (message(item_ids.output_id("message", name, 0), f"I am {name}"),)
    response = structs.replace(
        bare.response,
        instructions=head.instructions_json,
        tools=head.tools.echo,
        output=[Raw(item.raw) for item in output],
        store=True,
        **fields,
    )
    return ResponseState(
        response=response,
        parent=parent,
        head=head,
        input=tuple(given) or (user_message(f"who is {name}?"),),
        output=output,
        carry=carry or bare.carry,
        position=position,
    )


def chain(length: int, prefix: str = "resp_", parent: ResponseState | None = None) -> list[ResponseState]:
    """Oldest first."""
    states: list[ResponseState] = []
    for number in range(length):
        parent = state(f"{prefix}{number}", parent)
        states.append(parent)
    return states


def ids(found: ResponseState | None) -> list[str]:
    """The chain, newest first."""
    return [each.id for each in found.chain()] if found is not None else []


def told(response: Response | None) -> bytes:
    return wire.encode(response)


def same(left: ResponseState | None, right: ResponseState) -> bool:
    """Whether two chains are equal in everything that a later turn or a client could see."""
    if left is None or left.depth != right.depth:
        return False
    return all(_seen(a) == _seen(b) for a, b in zip(left.chain(), right.chain(), strict=True))


def _seen(each: ResponseState) -> tuple[Any, ...]:
    return told(each.response), each.input, each.output, each.head, each.carry, each.position


def response(name: str, **fields: Any) -> Response:
    return structs.replace(node(name).response, **{"status": "in_progress", "background": True, **fields})


def event(number: int) -> RunEvent:
    return RunEvent(sequence_number=number, data=b'{"sequence_number":%d}' % number)


def key(key_id: str, **fields: Any) -> Key:
    return structs.replace(Key(id=key_id, tenant="t", digest=b"\0\xff" * 16, created_at=1), **fields)


class Tokens:
    """A position as token engines leave it: all ids of the context."""

    def __init__(self, ids: tuple[int, ...]) -> None:
        self.ids = ids

    @property
    def size_bytes(self) -> int:
        return 4 * len(self.ids)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokens) and other.ids == self.ids

    __hash__ = None  # type: ignore[assignment]


class TokenPositions:
    """Writes down what a position has more than its parent's."""

    def pack(self, position: Position, parent: Position | None) -> bytes | None:
        if not isinstance(position, Tokens):
            return None
        shared = len(parent.ids) if isinstance(parent, Tokens) else 0
        return wire.encode([shared, position.ids[shared:]])

    def unpack(self, data: bytes, parent: Position | None, head: Head) -> Position | None:
        shared, own = msgspec.json.decode(data, type=tuple[int, tuple[int, ...]])
        before = parent.ids if isinstance(parent, Tokens) else ()
        return Tokens(before[:shared] + own) if len(before) >= shared else None
