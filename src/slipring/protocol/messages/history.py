"""The messages of a request as items of the Responses API.

A block of an answer becomes an item of its own, and consecutive texts and images of a message one item. The
bytes of an item depend on nothing but its content: text as a string or in a block, ``cache_control``, the
order of fields, ``is_error: false`` and the ids of calls, which are numbered, make no difference. An item
that is sent again with the next request therefore has the same bytes, and is neither decoded nor rendered a
second time. A message that is sent again in the same bytes is not translated again either, if its calls and
results have the same numbers and it does not change tools.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import Raw, Struct

from slipring.base.errors import InvalidRequest, UnsupportedParameter, quoted
from slipring.protocol import wire
from slipring.protocol.items.items import MOST_ITEMS, InputText, OutputText, numbered_call
from slipring.protocol.messages import content
from slipring.protocol.messages.content import (
    AssistantBlock,
    HostedResultBlock,
    McpToolUseBlock,
    NamedTool,
    Part,
    PlacedResult,
    RedactedThinkingBlock,
    ResultBlock,
    ServerToolUseBlock,
    SystemBlock,
    TextBlock,
    ThinkingBlock,
    ToolReferenceBlock,
    ToolRemovalBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserBlock,
    arguments_of,
)
from slipring.protocol.messages.tools import LoadedTools
from slipring.protocol.requests import NOTHING_KNOWN, Known, Origins, Piece

_API = b"messages "
Opens = Callable[[str], bool]
"""Whether this server has sealed a thought, for the tenant who sends it back."""
_ERROR_CHARS = 40
"""Where the output of a failed call usually says that it has failed."""


class _Call(Struct, frozen=True, gc=False):
    """A call of the history, and where it stands."""

    number: int
    message: int
    block: int

    @property
    def own_id(self) -> str:
        """Its id in the context."""
        return numbered_call(self.number)

    @property
    def where(self) -> str:
        return f"messages[{self.message}].content[{self.block}]"


class Place(Struct, frozen=True, gc=False):
    """Where the content of an item stands in the request."""

    message: int
    blocks: tuple[int, ...]
    """The block of each part of the item; empty if the message's content is a string."""
    tools: tuple[str, ...] = ()
    """The field of each tool that the item adds."""


class _Note(Struct, frozen=True):
    """What is known of a message beside its items."""

    is_answer: bool
    """Whether the assistant has written it."""
    blocks: tuple[tuple[int, ...], ...]
    """The ``Place.blocks`` of each item."""
    calls: tuple[tuple[str, int], ...]
    """The calls that it makes: the client's id, and the block."""
    first_call: int
    """The number of the first of them."""
    results: tuple[tuple[str, int], ...]
    """The results that it has: the client's id, and the number of the call."""
    changes_tools: bool
    """Whether it adds or withdraws tools: its items then depend on those of the request."""
    added: Mapping[int, tuple[str, ...]]
    """The ``Place.tools`` of the items that add some."""


class SentMessage(Struct):
    role: Literal["user", "assistant", "system"]
    content: Raw
    clear_at: str | None = None


class Places:
    """Where the items of these messages stand in the request."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._origins = Origins(pieces)

    def find(self, item: int) -> Place | None:
        """That of the item with this index; None if there are fewer."""
        found = self._origins.find(item)
        if found is None:
            return None
        index, piece, number = found
        return Place(index, piece.note.blocks[number], piece.note.added.get(number, ()))


_messages = msgspec.json.Decoder(list[Raw])
_message = msgspec.json.Decoder(SentMessage)


class History:
    """The items of a request's messages, and where each comes from."""

    def __init__(self, opens: Opens, tools: LoadedTools, known: Known = NOTHING_KNOWN) -> None:
        """``tools``: those of the request, which messages may change. ``known``: what the tenant has sent
        before."""
        self._opens = opens
        self._tools = tools
        self._known = known
        self.pieces: list[Piece] = []
        """The messages."""
        self.call_count = 0
        """How many calls the client has run, or is to run."""
        self._waiting: dict[str, deque[_Call]] = {}
        """The calls without a result, by the client's ids."""
        self._items: list[bytes] = []
        self._blocks: list[tuple[int, ...]] = []
        self._calls: list[tuple[str, int]] = []
        self._results: list[tuple[str, int]] = []
        self._added: dict[int, tuple[str, ...]] = {}
        self._changes_tools = False
        """Of the message that is being translated."""

    def read(self, messages: Raw) -> None:
        """Add the items of all messages. Raises ``InvalidRequest``, which names the field."""
        wire.require_few(messages, MOST_ITEMS, "messages", "messages")
        sent = wire.decode(_messages, messages, where="messages")
        if len(sent) > MOST_ITEMS:
            raise wire.too_many(MOST_ITEMS, "messages", "messages")
        if not sent:
            raise InvalidRequest.at("messages", "at least one message is required")
        find, add = self._known.get, self.pieces.append
        for index, raw in enumerate(sent):
            key = _API + raw
            known = find(key)
            if isinstance(known, Piece) and self._repeats(known.note, index):
                add(known)
            else:
                add(self._translate(key, raw, index))
        if self.pieces[-1].note.is_answer:
            raise InvalidRequest.at(
                "messages",
                "this model does not support assistant message prefill. The conversation must end"
                " with a user message",
            )
        if not any(piece.json for piece in self.pieces):
            raise InvalidRequest.at("messages", "they have no content")
        self._require_results()

    def _repeats(self, note: _Note, index: int) -> bool:
        """Take a message that was translated before as it is, if its calls and results have the same numbers
        here."""
        if note.changes_tools or (note.calls and note.first_call != self.call_count):
            return False
        waiting = self._waiting
        for sent_id, number in note.results:
            if (calls := waiting.get(sent_id)) is None or calls[0].number != number:
                return False
        for sent_id, _ in note.results:
            self._take(sent_id)
        for sent_id, block in note.calls:
            self._open(sent_id, index, block)
        return True

    def _translate(self, key: bytes, raw: Raw, index: int) -> Piece:
        self._items, self._blocks, self._calls, self._results = [], [], [], []
        self._added, self._changes_tools = {}, False
        first_call = self.call_count
        message = wire.decode(_message, raw, where=f"messages[{index}]")
        self._add(index, message)
        note = _Note(
            is_answer=message.role == "assistant",
            blocks=tuple(self._blocks),
            calls=tuple(self._calls),
            first_call=first_call,
            results=tuple(self._results),
            changes_tools=self._changes_tools,
            added=self._added,
        )
        return Piece(key, tuple(self._items), note)

    def _add(self, index: int, message: SentMessage) -> None:
        where = f"messages[{index}].content"
        if message.role == "user":
            self._add_user(index, content.read_content(content.OF_USER, message.content, where), where)
        elif message.role == "assistant":
            self._add_assistant(
                index, content.read_content(content.OF_ASSISTANT, message.content, where), where
            )
        else:
            if message.clear_at not in (None, "never"):
                param = f"messages[{index}].clear_at"
                raise UnsupportedParameter.at(param, f"{quoted(message.clear_at or '')}")
            self._add_system(content.read_content(content.OF_SYSTEM, message.content, where), where)

    def _add_system(self, sent: str | list[SystemBlock], where: str) -> None:
        if isinstance(sent, str):
            self._add_message("developer", [InputText(sent)] if sent else [], ())
            return
        texts = {at: self._text_of(block, f"{where}[{at}]") for at, block in enumerate(sent)}
        said = {at: text for at, text in texts.items() if text}
        self._add_message("developer", [InputText(text) for text in said.values()], tuple(said))
        self._add_tools(len(sent) - 1)

    def _text_of(self, block: SystemBlock, where: str) -> str:
        """What the model reads of a block of the system."""
        if isinstance(block, TextBlock):
            return block.text
        self._changes_tools = True
        if isinstance(block, ToolRemovalBlock):
            self._tools.withdraw(block.tool.name, f"{where}.tool.name")
            return f"The tool {block.tool.name} is no longer available."
        if isinstance(block.tool, NamedTool):
            self._tools.add(block.tool.name, f"{where}.tool.name")
        else:
            self._tools.define(block.tool.definition, f"{where}.tool.definition")
        return ""

    def _add_user(self, index: int, sent: str | list[UserBlock], where: str) -> None:
        if isinstance(sent, str):
            self._add_message("user", [InputText(sent)] if sent else [], ())
            return
        parts: list[Part] = []
        places: list[int] = []
        for at, block in enumerate(sent):
            if isinstance(block, ToolResultBlock):
                self._add_message("user", parts, tuple(places))
                parts, places = [], []
                self._put(self._output(block, f"{where}[{at}]"), at)
                continue
            # After all results in a row: models read those of one step together.
            self._add_tools(at)
            if not isinstance(block, TextBlock) or block.text:
                new = list(content.parts_of(block, f"{where}[{at}]"))
                parts += new
                places += [at] * len(new)
        self._add_tools(len(sent) - 1)
        self._add_message("user", parts, tuple(places))

    def _add_assistant(self, index: int, sent: str | list[AssistantBlock], where: str) -> None:
        if isinstance(sent, str):
            self._add_message("assistant", [OutputText(sent)] if sent else [], ())
            return
        results = _results_in(sent, where)
        parts: list[Part] = []
        places: list[int] = []
        for at, block in enumerate(sent):
            if isinstance(block, TextBlock):
                if block.text:
                    parts.append(OutputText(block.text))
                    places.append(at)
                continue
            item = self._item(block, results, index, at)
            if item is not None:
                self._add_message("assistant", parts, tuple(places))
                parts, places = [], []
                self._put(item, at)
        self._add_message("assistant", parts, tuple(places))

    def _item(
        self, block: AssistantBlock, results: dict[str, PlacedResult], index: int, at: int
    ) -> dict[str, object] | None:
        """The item of a block that is no text; None if it has none of its own."""
        where = f"messages[{index}].content[{at}]"
        if isinstance(block, ToolUseBlock):
            arguments = arguments_of(block.input, f"{where}.input")
            self._calls.append((block.id, at))
            call_id = self._open(block.id, index, at).own_id
            return {"type": "function_call", "call_id": call_id, "name": block.name, "arguments": arguments}
        if isinstance(block, ThinkingBlock):
            return self._thought(block.signature, block.thinking)
        if isinstance(block, RedactedThinkingBlock):
            return self._thought(block.data, "")
        if isinstance(block, McpToolUseBlock | ServerToolUseBlock):
            return content.hosted_item(block, results.get(block.id), where)
        return None

    def _open(self, sent_id: str, index: int, at: int) -> _Call:
        """A call has been made, and waits for its result."""
        call = _Call(self.call_count, index, at)
        self.call_count += 1
        self._waiting.setdefault(sent_id, deque()).append(call)
        return call

    def _output(self, block: ToolResultBlock, where: str) -> dict[str, object]:
        parts = self._result_parts(content.read_result(block, where), f"{where}.content")
        if block.is_error is True:
            parts = _as_error(parts)
        call = self._answered(block.tool_use_id, f"{where}.tool_use_id")
        self._results.append((block.tool_use_id, call.number))
        output = content.joined(parts) if parts else ""
        return {"type": "function_call_output", "call_id": call.own_id, "output": output}

    def _result_parts(self, blocks: Sequence[ResultBlock], where: str) -> list[Part]:
        """What the model reads of a result."""
        parts: list[Part] = []
        found: list[str] = []
        for at, block in enumerate(blocks):
            if isinstance(block, ToolReferenceBlock):
                self._changes_tools = True
                self._tools.add(block.tool_name, f"{where}[{at}].tool_name")
                found.append(block.tool_name)
            else:
                parts += content.parts_of(block, f"{where}[{at}]")
        if found and not parts:
            parts.append(InputText(f"Tools found: {', '.join(found)}"))
        return parts

    def _answered(self, sent_id: str, param: str) -> _Call:
        """The call that a result answers: the first one with this id that waits."""
        if sent_id not in self._waiting:
            raise InvalidRequest.at(
                param,
                f"no `tool_use` before this `tool_result` has the id {quoted(sent_id)} and waits for a"
                " result",
            )
        return self._take(sent_id)

    def _take(self, sent_id: str) -> _Call:
        """The first call with this id has its result."""
        waiting = self._waiting[sent_id]
        call = waiting.popleft()
        if not waiting:
            del self._waiting[sent_id]
        return call

    def _require_results(self) -> None:
        for sent_id, (call, *_) in self._waiting.items():
            raise InvalidRequest.at(
                call.where,
                f"`tool_use` ids were found without `tool_result` blocks after them: {quoted(sent_id)}",
            )

    def _thought(self, signature: str, text: str) -> dict[str, object] | None:
        """A thought that this server has sealed is what was sealed, whatever its text says now. Any other is
        what its text says, as a thought that the client has written; nothing, if it says nothing."""
        if signature and self._opens(signature):
            return {"type": "reasoning", "summary": [], "encrypted_content": signature}
        if not text:
            return None
        return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}

    def _add_message(self, role: str, parts: Sequence[Part], blocks: tuple[int, ...]) -> None:
        if parts:
            item = {"type": "message", "role": role, "content": content.joined(parts)}
            self._items.append(wire.encode(item))
            self._blocks.append(blocks)

    def _add_tools(self, at: int) -> None:
        """Add the tools that blocks up to this one have loaded."""
        if (added := self._tools.take()) is not None:
            self._added[len(self._items)] = added.places
            self._put(added.item, max(at, 0))

    def _put(self, item: dict[str, object], at: int) -> None:
        self._items.append(wire.encode(item))
        self._blocks.append((at,))


def _results_in(blocks: Sequence[AssistantBlock], where: str) -> dict[str, PlacedResult]:
    """The results of calls that a server has run, by the id of the call."""
    return {
        block.tool_use_id: PlacedResult(block, f"{where}[{at}].content")
        for at, block in enumerate(blocks)
        if isinstance(block, HostedResultBlock)
    }


def _as_error(parts: list[Part]) -> list[Part]:
    """The output of a call that failed, with a word that says so, unless it begins with one itself."""
    first = parts[0] if parts else InputText("")
    if isinstance(first, InputText) and "error" in first.text[:_ERROR_CHARS].lower():
        return parts
    if isinstance(first, InputText):
        return [InputText(f"Error: {first.text}".rstrip()), *parts[1:]]
    return [InputText("Error:"), *parts]
