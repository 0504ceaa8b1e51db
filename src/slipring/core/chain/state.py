"""The state of a response: a chain with shared structure.

A node holds what is new in its response and points at its parent. To continue is to make a node that points
here, to fork is to make two; nothing is copied, and memory per turn is the delta. Nodes never change.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from msgspec import Struct, structs

from slipring.core.chain import item_ids
from slipring.core.chain.head import Head
from slipring.protocol.append import ANSWERS
from slipring.protocol.items import Item, in_context, last_compaction
from slipring.protocol.requests import TextFormat
from slipring.protocol.responses import Response
from slipring.protocol.tools import CallableTool


class OpenCall(Struct, frozen=True):
    """A tool call that the client has not answered yet."""

    type: str
    required: bool = True
    """Whether nothing can be generated before the answer; asynchronous and cut-off calls do not insist."""


class Carry(Struct, frozen=True):
    """What the items of a chain leave behind for later turns, so that nobody has to walk it."""

    open_calls: Mapping[str, OpenCall] = {}
    """By ``call_id``."""
    tools: tuple[CallableTool, ...] = ()
    """Tools brought by ``additional_tools`` and ``tool_search_output`` items."""
    effort: str | None = None
    format: TextFormat | None = None
    """Set by the last ``configuration_update``."""


class Position(Protocol):
    """Whatever an engine leaves with a response, to go on from there."""

    @property
    def size_bytes(self) -> int:
        """The memory of the whole context, what it shares with earlier positions of the chain included."""


class Positions(Protocol):
    """How positions are written down, by somebody who knows what engines leave."""

    def pack(self, position: Position, parent: Position | None) -> bytes | None:
        """A position as bytes, without what it shares with the parent's; None: it cannot be kept, and need
        not be."""

    def unpack(self, data: bytes, parent: Position | None, head: Head) -> Position | None:
        """The position again, for a context with this head, after a parent's that was unpacked before; None
        where that cannot be."""


class ResponseState:
    """One finished response. Immutable; ``position`` belongs to the engine."""

    __slots__ = (
        "carry",
        "depth",
        "head",
        "input",
        "output",
        "parent",
        "position",
        "response",
        "root_id",
        "size_bytes",
    )

    def __init__(
        self,
        *,
        response: Response,
        parent: "ResponseState | None",
        head: Head,
        input: tuple[Item, ...],
        output: tuple[Item, ...],
        carry: Carry,
        position: Position | None = None,
    ) -> None:
        self.response = response
        self.parent = parent
        self.head = head
        self.input = input
        self.output = output
        self.carry = carry
        self.position = position
        self.root_id: str = parent.root_id if parent is not None else response.id
        """The first response of the chain."""
        self.depth: int = parent.depth + 1 if parent is not None else 1
        self.size_bytes = self._measure()

    @property
    def id(self) -> str:
        return self.response.id

    def chain(self) -> Iterator["ResponseState"]:
        """This node and its ancestors, newest first."""
        node: ResponseState | None = self
        while node is not None:
            yield node
            node = node.parent

    def context(self) -> Iterator[Item]:
        """All items up to and with this response, oldest first."""
        for node in reversed(list(self.chain())):
            yield from node.told
            yield from node.said

    @property
    def told(self) -> tuple[Item, ...]:
        """What this response adds to the context before its last words: its input, or the compaction that it
        made, which covers its input too; of a rollout, all that was said before its client's last answer."""
        made = last_compaction(self.output)
        before = self.input if made is None else self.output[made : made + 1]
        begun = 0 if made is None else made + 1
        return tuple(in_context(before + self.output[begun : self._seam]))

    @property
    def said(self) -> tuple[Item, ...]:
        """Its last words in the context, made by one job: where it is no rollout, all of its words."""
        return tuple(in_context(self.output[self._seam :]))

    @property
    def _seam(self) -> int:
        """Where in the output its last words begin."""
        output = self.output
        for index in range(len(output), 0, -1):
            if output[index - 1].type in _UNSAID:
                return index
        return 0

    @property
    def tokens(self) -> int | None:
        """The length of the context with this response, as the engine counted it; None: it is not known."""
        usage = self.response.usage
        # With a compaction, or in a rollout, the usage is of several jobs.
        if usage is None or self._seam:
            return None
        return usage.total_tokens or None

    def find_items(self, ids: set[str]) -> dict[str, Item]:
        """The items of this chain that have these ids: walks it, newest first, until all are found.

        An item that was sent without an id has one by its place.
        """
        found: dict[str, Item] = {}
        placed: dict[str, list[tuple[int, str]]] = {}
        for item_id in ids:
            place = item_ids.place_of(item_id)
            if place is not None and place.of_input:
                placed.setdefault(place.response_id, []).append((place.index, item_id))
        for node in self.chain():
            if len(found) == len(ids):
                break
            for item in reversed(node.input + node.output):
                if item.id in ids:
                    found.setdefault(item.id, item)
            for index, item_id in placed.get(node.id, ()):
                if index < len(node.input):
                    item = node.input[index]
                    if item_ids.place_id(item, node.id, index) == item_id:
                        found.setdefault(item_id, structs.replace(item, id=item_id))
        return found

    def _measure(self) -> int:
        """What this node adds to its parent's: whatever the two do not share."""
        own = _NODE_BYTES + sum([item.size_bytes for item in self.input + self.output])
        own += _echoed_bytes(self.response)
        head, carry, parent = self.head, self.carry, self.parent
        if parent is None or parent.head is not head:
            own += head.size_bytes
            if parent is not None and parent.head.tools is head.tools:
                own -= head.tools.size_bytes
        if parent is None or parent.carry.tools is not carry.tools:
            own += sum(tool.size_bytes for tool in carry.tools)
        if parent is None or parent.carry.open_calls is not carry.open_calls:
            own += _CALL_BYTES * len(carry.open_calls)
        if self.position is not None:
            shared = parent.position.size_bytes if parent is not None and parent.position is not None else 0
            own += max(self.position.size_bytes - shared, 0)
        return own

    def __repr__(self) -> str:
        return f"<ResponseState {self.id} depth={self.depth}>"

    def __reduce__(self) -> Any:
        raise TypeError("states are not pickled")


def _echoed_bytes(response: Response) -> int:
    """The parts of a request that every response keeps for itself and that a client can make large."""
    texts = (response.user, response.prompt_cache_key, response.safety_identifier, response.reasoning.mode)
    return (
        sum(len(text) for text in texts if isinstance(text, str))
        + sum(len(key) + len(value) for key, value in response.metadata.items())
        + len(bytes(response.tool_choice))
        + len(bytes(response.text.format))
    )


_UNSAID = frozenset({*ANSWERS, "compaction"})
"""What is in an output and is not the model's word."""
_NODE_BYTES = 1600
"""A node, its response object and their bookkeeping, without items."""
_CALL_BYTES = 200
