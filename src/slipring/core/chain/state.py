"""The state of finished responses, as a linked chain.

Each ``ResponseState`` holds the items that are new in its response and a reference to its parent. A
continuation is a new node that refers to this one; a fork is two. Nothing is copied, so memory per turn is
the size of its new items. Nodes are immutable; the items of one may be kept in compressed form.
"""

import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from msgspec import Struct, msgpack, structs

from slipring.core.chain import item_ids
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.checks.verdicts import NodeVerdicts
from slipring.protocol.items.items import CALL_OF_OUTPUT, Item, in_context, last_compaction, renamed
from slipring.protocol.requests import TextFormat
from slipring.protocol.responses import Response
from slipring.protocol.tools.toolset import CallableTool

_DIVIDING = frozenset({*CALL_OF_OUTPUT, "compaction"})
"""Items of an output that its last job did not write, or that replace what is before them."""
_Items = tuple[tuple[Item, ...], tuple[Item, ...]]
"""Input and output."""
_FASTEST = 1
_encode = msgpack.Encoder().encode
_decoder: msgpack.Decoder[_Items] = msgpack.Decoder(_Items)


@lru_cache(maxsize=2)
def _decompressed(data: bytes) -> _Items:
    """The last ones are kept, because code that walks a chain reads a response several times."""
    return _decoder.decode(zlib.decompress(data))


class OpenCall(Struct, frozen=True):
    """A tool call without an output."""

    type: str
    required: bool = True
    """Whether the next response needs its output. False for asynchronous and truncated calls."""


class Approval(Struct, frozen=True):
    """A call of a hosted tool that the client may approve."""

    label: str
    name: str
    """Of the tool at its server."""
    arguments: str


class Carry(Struct, frozen=True):
    """The effect of a chain's items on later turns, kept with each node so that no turn walks the chain."""

    open_calls: Mapping[str, OpenCall] = {}
    """By ``call_id``."""
    tools: tuple[CallableTool, ...] = ()
    """Tools added by ``additional_tools`` and ``tool_search_output`` items."""
    effort: str | None = None
    format: TextFormat | None = None
    """Set, like ``effort``, by the last ``configuration_update`` item."""
    lists: Mapping[str, bytes] = {}
    """The tools that MCP servers listed, as JSON, by the label of the server."""
    list_ids: Mapping[str, str] = {}
    """The ids of the items with these lists, by the same labels; without those that have none."""
    approvals: Mapping[str, Approval] = {}
    """Calls that the client has neither approved nor denied, by the id of the request."""
    answered: Mapping[str, bool] = {}
    """Whether the client approved a call, by the id of the request. Only grows along a chain."""
    pictures: int = 0
    """How many images the context has."""
    attached: tuple[str, ...] = ()
    """What the context has beside texts, as ``attachments`` says, in order."""

    @property
    def has_attachments(self) -> bool:
        """Whether the context has images or files."""
        return bool(self.pictures or self.attached)

    @property
    def without_hosted_items(self) -> "Carry":
        """The carry of a response whose hosted tools another server has run: its lists and approvals mean
        nothing to this one, which may run those of a later turn."""
        return structs.replace(self, lists={}, list_ids={}, approvals={})


class Position(Protocol):
    """An engine's own state of a context, from which it continues. Opaque to the core."""

    @property
    def size_bytes(self) -> int:
        """Memory of the whole context, including what it shares with earlier positions of the chain."""

    def unshared_bytes(self, earlier: "Position") -> int:
        """Memory of what it does not share with an earlier position of the chain."""


class Positions(Protocol):
    """Serializes positions. Implemented where the engines' position types are known."""

    def pack(self, position: Position, parent: Position | None) -> bytes | None:
        """Serialize what a position does not share with its parent's; None if it cannot be serialized."""

    def unpack(self, data: bytes, parent: Position | None, head: Head) -> Position | None:
        """Restore a position of a context with this head, given the parent's restored position; None if that
        is impossible."""


class Branch(Struct, frozen=True):
    """A part of a chain without forks: the id of its first response, and the branch that it forks from."""

    id: str
    parent: "Branch | None" = None


class OutputByJob(NamedTuple):
    """The output of a response after its last compaction, as models see it, by the jobs that made it."""

    earlier: tuple[Item, ...]
    """What the jobs before the last one wrote, and the outputs of their calls."""
    answer: tuple[Item, ...]
    """The output of the last job."""
    unread: tuple[Item, ...]
    """Outputs of calls in ``answer`` that no job has processed yet: the next job's input begins with them."""


class ResponseState:
    """One finished response. Immutable, except that the engine owns ``position``, that an audit may add to
    ``verdicts``, and that its items may be compressed."""

    __slots__ = (
        "__weakref__",
        "_item_bytes",
        "_items",
        "_size_bytes",
        "branch",
        "carry",
        "context_bytes",
        "depth",
        "digest",
        "head",
        "keeps_position",
        "parent",
        "position",
        "response",
        "root_id",
        "verdicts",
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
        fork: bool = False,
    ) -> None:
        """``fork``: another response continues the parent too, or may."""
        self.response = response
        self.parent = parent
        self.head = head
        self._items: _Items | bytes = (input, output)
        self.carry = carry
        self.position = position
        self.keeps_position = True
        """Whether its position is part of what a store keeps of it; set by the code that makes the node."""
        self.verdicts: NodeVerdicts | None = None
        """Of safety checks, set by the code that makes the node; None if no policy applied."""
        self.digest: bytes | None = None
        """Of all items of the context, set by the turn that made the response; None if a history that is sent
        again must not be taken for this context."""
        self.root_id: str = parent.root_id if parent is not None else response.id
        """Id of the first response of the chain."""
        self.branch = branch_of(response.id, parent, fork=fork)
        self.depth: int = parent.depth + 1 if parent is not None else 1
        own_bytes = sum([len(item.raw) for item in input]) + sum([len(item.raw) for item in output])
        self.context_bytes: int = own_bytes + (parent.context_bytes if parent is not None else 0)
        """Length of the JSON of all items of the chain up to here."""
        self._size_bytes: int | None = None
        self._item_bytes = 0

    @property
    def input(self) -> tuple[Item, ...]:
        return self._plain[0]

    @property
    def output(self) -> tuple[Item, ...]:
        return self._plain[1]

    @property
    def _plain(self) -> _Items:
        items = self._items
        return _decompressed(items) if isinstance(items, bytes) else items

    @property
    def compressed_bytes(self) -> int:
        """The memory of its items in compressed form; 0 if they are not compressed."""
        return len(self._items) if isinstance(self._items, bytes) else 0

    @property
    def item_bytes(self) -> int:
        """The memory of its items, before they were compressed."""
        if isinstance(self._items, bytes):
            return self._item_bytes
        return sum([item.size_bytes for items in self._items for item in items])

    def compressed(self) -> bytes:
        """Its items in compressed form. To be called in a thread: it takes 20 to 40 ms per MB."""
        return zlib.compress(_encode(self._plain), _FASTEST)

    def keep_compressed(self, data: bytes) -> None:
        """Keep its items as ``compressed`` has returned them, and in no other form."""
        self._item_bytes = self.item_bytes
        self._size_bytes = self.size_bytes - self._item_bytes + len(data)
        self._items = data
        self.response = structs.replace(self.response, output=[])

    @property
    def size_bytes(self) -> int:
        """The memory of this node that it does not share with its parent. Measured on first access."""
        if self._size_bytes is None:
            self._size_bytes = self._measure()
        return self._size_bytes

    @property
    def id(self) -> str:
        return self.response.id

    @property
    def is_audited(self) -> bool:
        """Whether it may be refused after its end."""
        return self.verdicts is not None and self.verdicts.is_audited

    @property
    def refused_by(self) -> str | None:
        """The safety check that has refused this response, or one that it continues, after its end."""
        node: ResponseState | None = self
        while node is not None and (verdicts := node.verdicts) is not None and verdicts.is_audited:
            if verdicts.refused_by is not None:
                return verdicts.refused_by
            node = node.parent
        return None

    def chain(self) -> Iterator["ResponseState"]:
        """This node and its ancestors, newest first."""
        node: ResponseState | None = self
        while node is not None:
            yield node
            node = node.parent

    def context(self) -> Iterator[Item]:
        """All items up to and including this response, oldest first."""
        for node in reversed(list(self.chain())):
            yield from node.added

    @property
    def added(self) -> tuple[Item, ...]:
        """``prompt`` and ``answer``: what this response adds to the context, without what it left unread."""
        own, output, parent = self.input, self.output, self.parent
        if parent is not None and parent.unread:
            return (*self.prompt, *self.answer)
        for item in output:
            if item.opened is not None or item.type in _DIVIDING:
                return (*self.prompt, *self.answer)
        for item in own:
            if item.opened is not None:
                return (*self.prompt, *self.answer)
        return own + output  # most responses: one job, whose context is what their items say

    @property
    def prompt(self) -> tuple[Item, ...]:
        """The items that this response adds to the context before ``answer``.

        That is what its parent left unread and its input, or the compaction it made, which replaces both. If
        it ran several jobs, it includes the output of all but the last.
        """
        made = last_compaction(self.output)
        if made is not None:
            return (*in_context(self.output[made : made + 1]), *self.earlier_steps)
        left = self.parent.unread if self.parent is not None else ()
        return (*left, *in_context(self.input), *self.earlier_steps)

    @property
    def earlier_steps(self) -> tuple[Item, ...]:
        return self.steps.earlier

    @property
    def answer(self) -> tuple[Item, ...]:
        return self.steps.answer

    @property
    def unread(self) -> tuple[Item, ...]:
        output = self.output
        if output and (last := output[-1]).opened is None and last.type not in CALL_OF_OUTPUT:
            return ()
        return self.steps.unread

    @property
    def steps(self) -> OutputByJob:
        """Its output by jobs. Worked out on every access."""
        output = self.output
        for item in output:
            if item.opened is not None or item.type in _DIVIDING:
                break
        else:
            return OutputByJob((), output, ())  # almost always
        made = last_compaction(output)
        items = tuple(in_context(output if made is None else output[made + 1 :]))
        end = len(items)
        while end and items[end - 1].type in CALL_OF_OUTPUT:
            end -= 1
        start = end
        while start and items[start - 1].type not in CALL_OF_OUTPUT:
            start -= 1
        return OutputByJob(items[:start], items[start:end], items[end:])

    @property
    def tokens(self) -> int | None:
        """Length of the context including this response, as counted by the engine; None if unknown."""
        usage = self.response.usage
        # With a compaction or several steps, the usage is the sum of several jobs.
        if usage is None or last_compaction(self.output) is not None:
            return None
        steps = self.steps
        if steps.earlier or steps.unread:
            return None
        return usage.total_tokens or None

    def find_items(self, ids: set[str]) -> dict[str, Item]:
        """The items of this chain with these ids. Walks the chain, newest first, until all are found.

        An input item that was sent without an id is found by the id that its index gives it.
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
                        found.setdefault(item_id, renamed(item, item_id))
        return found

    def _measure(self) -> int:
        own = _NODE_BYTES + self.item_bytes
        own += echoed_bytes(self.response)
        own += self.verdicts.size_bytes if self.verdicts is not None else 0
        head, carry, parent = self.head, self.carry, self.parent
        if parent is None or parent.head is not head:
            own += head.size_bytes
            if parent is not None and parent.head.tools is head.tools:
                own -= head.tools.size_bytes
        if parent is None or parent.carry.tools is not carry.tools:
            own += sum(tool.size_bytes for tool in carry.tools)
        if parent is None or parent.carry.lists is not carry.lists:
            own += sum(len(tools) for tools in carry.lists.values())
            own += sum(len(item_id) for item_id in carry.list_ids.values())
        if parent is None or parent.carry.open_calls is not carry.open_calls:
            own += _CALL_BYTES * len(carry.open_calls)
        if parent is None or parent.carry.approvals is not carry.approvals:
            own += sum(_CALL_BYTES + len(each.arguments) for each in carry.approvals.values())
        if parent is None or parent.carry.answered is not carry.answered:
            own += _CALL_BYTES * len(carry.answered)
        if self.position is not None:
            earlier = parent.position if parent is not None else None
            own += self.position.size_bytes if earlier is None else self.position.unshared_bytes(earlier)
        return own

    def __repr__(self) -> str:
        return f"<ResponseState {self.id} depth={self.depth}>"

    def __reduce__(self) -> Any:
        raise TypeError("states are not pickled")


def branch_of(response_id: str, parent: ResponseState | None, *, fork: bool) -> Branch:
    """The branch of a response: a new one for the first of a chain and for a fork."""
    if parent is None:
        return Branch(response_id)
    return Branch(response_id, parent.branch) if fork else parent.branch


def echoed_bytes(response: Response) -> int:
    """Size of the request fields that a response object repeats and that a client can make large."""
    size = len(response.tool_choice) + len(response.text.format)
    mode = response.reasoning.mode
    for text in (response.user, response.prompt_cache_key, response.safety_identifier, mode):
        if type(text) is str:
            size += len(text)
    for key, value in response.metadata.items():
        size += len(key) + len(value)
    return size


_NODE_BYTES = 1600
"""A node and its response object, without items."""
_CALL_BYTES = 200
