"""Sample responses, items, events and keys to store."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, structs

from slipring.core.chain import item_ids
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.chain.state import Carry, Position, ResponseState
from slipring.core.checks.verdicts import NodeVerdicts
from slipring.protocol import wire
from slipring.protocol.items.items import Item, user_message
from slipring.protocol.responses import Response
from slipring.protocol.tools.toolset import Toolset
from slipring.stores.keys import Key
from slipring.stores.runs import RunEvent
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
    appended: Sequence[Item] = (),
    verdicts: NodeVerdicts | None = None,
    **fields: Any,
) -> ResponseState:
    """Return a response that has made a message. Head and carry default to the parent's."""
    bare = node(name, parent)
    head = head or bare.head
    output = (message(item_ids.output_id("message", name, 0), f"I am {name}"), *appended)
    response = structs.replace(
        bare.response,
        instructions=head.instructions_json,
        tools=head.tools.echo,
        output=[Raw(item.raw) for item in output],
        store=True,
        **fields,
    )
    stored = ResponseState(
        response=response,
        parent=parent,
        head=head,
        input=tuple(given) or (user_message(f"who is {name}?"),),
        output=output,
        carry=carry or bare.carry,
        position=position,
    )
    stored.verdicts = verdicts
    return stored


def chain(length: int, prefix: str = "resp_", parent: ResponseState | None = None) -> list[ResponseState]:
    """Return a chain of ``length`` responses, oldest first."""
    states: list[ResponseState] = []
    for number in range(length):
        parent = state(f"{prefix}{number}", parent)
        states.append(parent)
    return states


def ids(found: ResponseState | None) -> list[str]:
    """Return the ids of a chain, newest first."""
    return [each.id for each in found.chain()] if found is not None else []


def encoded(response: Response | None) -> bytes:
    return wire.encode(response)


def same(left: ResponseState | None, right: ResponseState) -> bool:
    """Return whether two chains are equal in everything that a later turn or a client can observe."""
    if left is None or left.depth != right.depth:
        return False
    return all(_observable(a) == _observable(b) for a, b in zip(left.chain(), right.chain(), strict=True))


def _observable(each: ResponseState) -> tuple[Any, ...]:
    return (
        *(encoded(each.response), each.input, each.output, each.head, each.carry, each.position),
        each.verdicts,
    )


def response(name: str, **fields: Any) -> Response:
    return structs.replace(node(name).response, **{"status": "in_progress", "background": True, **fields})


def event(number: int) -> RunEvent:
    return RunEvent(sequence_number=number, data=b'{"sequence_number":%d}' % number)


def key(key_id: str, **fields: Any) -> Key:
    return structs.replace(Key(id=key_id, tenant="t", digest=b"\0\xff" * 16, created_at=1), **fields)


class Tokens:
    """A position as token engines create it: all token ids of the context."""

    def __init__(self, ids: tuple[int, ...]) -> None:
        self.ids = ids

    @property
    def size_bytes(self) -> int:
        return 4 * len(self.ids)

    def unshared_bytes(self, earlier: Any) -> int:
        return self.size_bytes - int(earlier.size_bytes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokens) and other.ids == self.ids

    __hash__ = None  # type: ignore[assignment]


class TokenPositions:
    """Encodes a position as the token ids that it adds to its parent's."""

    def pack(self, position: Position, parent: Position | None) -> bytes | None:
        if not isinstance(position, Tokens):
            return None
        shared = len(parent.ids) if isinstance(parent, Tokens) else 0
        return wire.encode([shared, position.ids[shared:]])

    def unpack(self, data: bytes, parent: Position | None, head: Head) -> Position | None:
        shared, own = msgspec.json.decode(data, type=tuple[int, tuple[int, ...]])
        before = parent.ids if isinstance(parent, Tokens) else ()
        return Tokens(before[:shared] + own) if len(before) >= shared else None
