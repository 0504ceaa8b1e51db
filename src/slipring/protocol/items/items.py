"""Items: the messages, tool calls, tool outputs and reasoning that make up a context.

An ``Item`` keeps the exact JSON that the client sent or the server emitted. That JSON is what is stored and
replayed; it is never re-encoded. ``Item.body()`` decodes it into one of the typed bodies below. Every body is
validated once, on arrival, so decoding it later cannot fail.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, structs

from slipring.base.errors import InvalidRequest, quoted
from slipring.protocol import wire
from slipring.protocol.items.hosted_items import (
    CodeInterpreterCall,
    FileSearchCall,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpListTools,
    WebSearchCall,
)
from slipring.protocol.tools.client_tools import (
    ApplyPatchCall,
    ApplyPatchCallOutput,
    CallId,
    ComputerCall,
    ComputerCallOutput,
    ImageDetail,
    LocalShellCall,
    LocalShellCallOutput,
    ShellCall,
    ShellCallOutput,
)

F = TypeVar("F")
Role = Literal["user", "assistant", "system", "developer"]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
TOOL_SEARCH = "tool_search"
"""The name under which a model calls tool search: models see it as an ordinary function."""
Name = Annotated[str, Meta(min_length=1, max_length=256)]
ItemId = Annotated[str, Meta(max_length=512)]
"""An id chosen by a client. Bounded because stores index it."""

SEPARATOR = "\n\n"
"""Between the texts of several items of an answer where an API has one text for all of them."""
MOST_ITEMS = 20_000
"""Per request. Reading more would block the event loop for too long."""
MOST_PARTS = 20_000
"""Per item, for the same reason."""

_ESCAPED_LETTER = re.compile(rb"\\u00[4-7]")

CALL_OF_OUTPUT = {
    "function_call_output": "function_call",
    "custom_tool_call_output": "custom_tool_call",
    "computer_call_output": "computer_call",
    "shell_call_output": "shell_call",
    "local_shell_call_output": "local_shell_call",
    "apply_patch_call_output": "apply_patch_call",
    "tool_search_output": "tool_search_call",
}
"""Item types with which a client answers a call, and the type of the call."""


FileDetail = Literal["auto", "low", "high"]


class InputText(Struct, tag_field="type", tag="input_text"):
    text: str


class InputImage(Struct, tag_field="type", tag="input_image"):
    image_url: str | None = None
    file_id: str | None = None
    detail: ImageDetail | None = None


class InputFile(Struct, tag_field="type", tag="input_file"):
    file_id: str | None = None
    file_url: str | None = None
    file_data: str | None = None
    filename: str | None = None
    detail: FileDetail | None = None


class OutputText(Struct, tag_field="type", tag="output_text"):
    """Assistant text that a client sends back as input."""

    text: str


class Refusal(Struct, tag_field="type", tag="refusal"):
    refusal: str


class SummaryText(Struct, tag_field="type", tag="summary_text"):
    text: str


class ReasoningText(Struct, tag_field="type", tag="reasoning_text"):
    text: str


Part = InputText | InputImage | InputFile | OutputText | Refusal | SummaryText | ReasoningText


class Message(Struct):
    role: Role
    content: str | list[Part]
    phase: Literal["commentary", "final_answer"] | None = None


class FunctionCall(Struct):
    call_id: CallId
    name: Name
    arguments: str
    namespace: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    asynchronous: bool | None = msgspec.field(name="async", default=None)


class CustomToolCall(Struct):
    call_id: CallId
    name: Name
    input: str
    namespace: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    asynchronous: bool | None = msgspec.field(name="async", default=None)


class CallOutput(Struct):
    """The body of ``function_call_output`` and ``custom_tool_call_output``."""

    call_id: CallId
    output: str | list[Part]


class LoadedTools(CallOutput):
    """The tools that a client found for a tool search, as the output of that call."""

    tools: Raw


class SummaryPart(Struct):
    """The only part type that ``summary`` may hold. The API requires its ``type`` nevertheless."""

    type: Literal["summary_text"]
    text: str


class ThoughtPart(Struct):
    """The only part type that ``content`` of reasoning may hold."""

    type: Literal["reasoning_text"]
    text: str


class Reasoning(Struct):
    summary: list[SummaryPart] = []
    content: list[ThoughtPart] | None = None
    encrypted_content: str | None = None

    @property
    def thought(self) -> str:
        return "".join(part.text for part in self.content or ())


class ItemReference(Struct):
    id: Annotated[str, Meta(min_length=1, max_length=512)]


class AdditionalTools(Struct):
    tools: Raw


class ReasoningUpdate(Struct):
    effort: Effort | None = None


class TextUpdate(Struct):
    format: Raw | UnsetType = UNSET


class ConfigurationUpdate(Struct):
    reasoning: ReasoningUpdate | None = None
    text: TextUpdate | None = None


class Compaction(Struct):
    encrypted_content: str


class CompactionTrigger(Struct):
    """The last item of an input that requests a compaction and no answer."""


class ToolSearchCall(Struct):
    arguments: Raw
    call_id: CallId | None = None
    execution: Literal["server", "client"] | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None

    def read(self) -> "Body":
        if self.call_id is None:
            _require_server(self.execution)
            return Carried()
        sent = bytes(self.arguments)
        arguments = msgspec.json.decode(sent, type=str) if sent.startswith(b'"') else sent.decode()
        return FunctionCall(self.call_id, TOOL_SEARCH, arguments, status=self.status)


class ToolSearchOutput(Struct):
    tools: Raw
    call_id: CallId | None = None
    execution: Literal["server", "client"] | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None

    def read(self) -> "Body":
        if self.call_id is None:
            _require_server(self.execution)
            return AdditionalTools(self.tools)
        return LoadedTools(self.call_id, bytes(self.tools).decode(), self.tools)


def _require_server(execution: str | None) -> None:
    """A tool search without ``call_id`` ran on the server, so ``execution`` must not be ``client``."""
    if execution == "client":
        raise msgspec.ValidationError("Object missing required field `call_id`")


class Carried(Struct):
    """The body of item types that are stored and replayed but never interpreted."""


Body = (
    Message
    | FunctionCall
    | CustomToolCall
    | CallOutput
    | LoadedTools
    | Reasoning
    | ItemReference
    | AdditionalTools
    | ConfigurationUpdate
    | Compaction
    | CompactionTrigger
    | McpListTools
    | McpCall
    | McpApprovalRequest
    | McpApprovalResponse
    | WebSearchCall
    | FileSearchCall
    | CodeInterpreterCall
    | Carried
)

BODIES: dict[str, type[Body]] = {
    "message": Message,
    "function_call": FunctionCall,
    "function_call_output": CallOutput,
    "custom_tool_call": CustomToolCall,
    "custom_tool_call_output": CallOutput,
    "reasoning": Reasoning,
    "item_reference": ItemReference,
    "additional_tools": AdditionalTools,
    "configuration_update": ConfigurationUpdate,
    "compaction": Compaction,
    "compaction_summary": Compaction,
    "compaction_trigger": CompactionTrigger,
    "mcp_list_tools": McpListTools,
    "mcp_call": McpCall,
    "mcp_approval_request": McpApprovalRequest,
    "mcp_approval_response": McpApprovalResponse,
    "web_search_call": WebSearchCall,
    "file_search_call": FileSearchCall,
    "code_interpreter_call": CodeInterpreterCall,
}
CARRIED_TYPES = frozenset(
    {
        *("agent_message", "image_generation_call", "multi_agent_call", "multi_agent_call_output"),
        *("program", "program_output"),
    }
)


ClientCall = ShellCall | LocalShellCall | ApplyPatchCall | ComputerCall
ClientOutput = ShellCallOutput | LocalShellCallOutput | ApplyPatchCallOutput
_CLIENT_CALLS: dict[str, type[ClientCall]] = {
    "computer_call": ComputerCall,
    "shell_call": ShellCall,
    "local_shell_call": LocalShellCall,
    "apply_patch_call": ApplyPatchCall,
}
_CLIENT_OUTPUTS: dict[str, type[ClientOutput]] = {
    "shell_call_output": ShellCallOutput,
    "local_shell_call_output": LocalShellCallOutput,
    "apply_patch_call_output": ApplyPatchCallOutput,
}
FORMS: dict[str, type[Struct]] = {
    **BODIES,
    **_CLIENT_CALLS,
    **_CLIENT_OUTPUTS,
    "computer_call_output": ComputerCallOutput,
    "tool_search_call": ToolSearchCall,
    "tool_search_output": ToolSearchOutput,
}
"""The wire form of every interpreted item type."""


class _TranslatingDecoder(Generic[F]):
    """Decodes the wire form of an item into the body that a model sees."""

    def __init__(self, form: type[F], translate: Callable[[F], Body]) -> None:
        self._decoder = msgspec.json.Decoder(form)
        self._translate = translate

    def decode(self, data: bytes | str, /) -> Body:
        return self._translate(self._decoder.decode(data))


def _function_call(call: ClientCall) -> Body:
    return FunctionCall(call.call_id, call.function, call.arguments, status=call.status)


def _text_output(output: ClientOutput) -> Body:
    return CallOutput(output.call_id, output.text)


def _image_output(answer: ComputerCallOutput) -> Body:
    shown = answer.output
    return CallOutput(answer.call_id, [InputImage(shown.image_url, shown.file_id, shown.detail)])


_DECODERS: dict[str, wire.Decoder[Body]] = {
    **{name: _TranslatingDecoder(form, _function_call) for name, form in _CLIENT_CALLS.items()},
    **{name: _TranslatingDecoder(form, _text_output) for name, form in _CLIENT_OUTPUTS.items()},
    **{name: msgspec.json.Decoder(body) for name, body in BODIES.items()},
    **{name: msgspec.json.Decoder(Carried) for name in CARRIED_TYPES},
    "computer_call_output": _TranslatingDecoder(ComputerCallOutput, _image_output),
    "tool_search_call": _TranslatingDecoder(ToolSearchCall, ToolSearchCall.read),
    "tool_search_output": _TranslatingDecoder(ToolSearchOutput, ToolSearchOutput.read),
}
SUPPORTED_TYPES = frozenset(_DECODERS) - CARRIED_TYPES

_DIGEST_BYTES = 16
_OBJECT_BYTES = 600
"""The objects of an item without its JSON: itself, its ids, and what is computed of it and kept. As measured,
520 to 660 bytes in a chain of calls and outputs."""


class Item(Struct, frozen=True, dict=True):
    """One item: its type, its ids and its exact JSON. Its ``__dict__`` has what was computed of it before."""

    type: str
    raw: bytes
    id: str | None = None
    call_id: str | None = None
    opened: "tuple[Item, ...] | None" = None
    """The items that replace it in a context: the content of a sealed item, or the call and the output that a
    model sees of a hosted call. None if models see the item itself."""

    def body(self) -> Body:
        """Decode the JSON."""
        return _DECODERS[self.type].decode(self.raw)

    @property
    def sent(self) -> bytes:
        """The JSON as a client sent it, if that is known; ``raw`` may have a type that was left out there."""
        sent: bytes = self.__dict__.get("sent_raw", self.raw)
        return sent

    @property
    def size_bytes(self) -> int:
        """Memory in use: the JSON and what is kept with it."""
        size = len(self.raw) + _OBJECT_BYTES
        return size if self.opened is None else size + sum(item.size_bytes for item in self.opened)


T = TypeVar("T")


def computed_once(compute: Callable[[Item], T]) -> Callable[[Item], T]:
    """Keep what a function computes of an item with the item."""
    name = compute.__name__

    @wraps(compute)
    def computed(item: Item) -> T:
        value: T
        try:  # costs nothing if it was computed before, as for all items of a history that is sent again
            value = item.__dict__[name]
        except KeyError:
            value = item.__dict__[name] = compute(item)
        return value

    return computed


class _ItemHead(Struct):
    """The fields that identify an item of any type."""

    type: str | None = None
    role: str | None = None
    id: ItemId | None = None
    call_id: str | None = None


class _Long(_ItemHead):
    """Also the fields that may hold lists of parts. ``UNSET`` distinguishes absent from null."""

    type: str | UnsetType | None = UNSET  # type: ignore[assignment]
    id: ItemId | UnsetType | None = UNSET  # type: ignore[assignment]
    content: Raw | UnsetType = UNSET
    output: Raw | UnsetType = UNSET
    summary: Raw | UnsetType = UNSET


_outline = msgspec.json.Decoder(_ItemHead)
_long = msgspec.json.Decoder(_Long)
_fields = msgspec.json.Decoder(dict[str, Raw])
_input = msgspec.json.Decoder(str | list[Raw])


_NONE_KNOWN: Mapping[bytes, object] = {}


def read_input(data: Raw | UnsetType, known: Mapping[bytes, object] = _NONE_KNOWN) -> tuple[Item, ...]:
    """Read a request's ``input``: a string, a list of items, or absent (no items). ``known``: what was read
    before, by its bytes, items among it."""
    sent = wire.given(data)
    if sent is None:
        return ()
    wire.require_few(sent, MOST_ITEMS, "input", "items")
    value = wire.decode(_input, sent, where="input")
    return (user_message(value),) if isinstance(value, str) else read_items(value, known)


def read_items(
    raws: Sequence[Raw | bytes], known: Mapping[bytes, object] = _NONE_KNOWN, *, first: int = 0
) -> tuple[Item, ...]:
    """Read the items of an ``input`` list, of which the first one has this index; errors name the item.
    ``known``: as for ``read_input``."""
    if len(raws) > MOST_ITEMS:
        raise wire.too_many(MOST_ITEMS, "input", "items")
    items: list[Item] = []
    find = known.get  # looked up once: with a history that is sent again, there is little else to do
    for index, sent in enumerate(raws, first):
        raw = bytes(sent)
        found = find(raw)
        item = found if isinstance(found, Item) else _read_common(raw)
        if item is None:
            item = read_item(raw, f"input[{index}]")
            if item.raw is not raw:
                item.__dict__["sent_raw"] = raw
        items.append(item)
    return tuple(items)


def _read_common(raw: bytes) -> Item | None:
    """Fast path for short, valid items with a ``type``; None for all others, which ``read_item`` reads."""
    if len(raw) > wire.LONG_BYTES:
        return None
    try:
        outline = _outline.decode(raw)
        if outline.type is None:
            return None
        _DECODERS[outline.type].decode(raw)
    except (msgspec.DecodeError, UnicodeError, KeyError, RecursionError):
        return None
    return Item(outline.type, raw, outline.id, outline.call_id)


def read_item(raw: bytes, where: str) -> Item:
    """Read and validate one item; errors name the field below ``where``."""
    outline = (
        wire.decode(_outline, raw, where=where) if len(raw) < wire.LONG_BYTES else _read_long(raw, where)
    )
    kind = outline.type
    if kind is None:
        kind, raw = _name_untyped(outline, raw, where)
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise _refusal(kind, where)
    call_id = outline.call_id
    if kind == "local_shell_call_output" and call_id is None and outline.id is not None:
        # The API's type has no ``call_id``: there, ``id`` is that of the call.
        call_id, raw = outline.id, _with_field(raw, "call_id", outline.id, is_new=False)
    wire.decode(decoder, raw, where=where)
    return Item(type=kind, raw=raw, id=outline.id, call_id=call_id)


def _read_long(raw: bytes, where: str) -> _ItemHead:
    """Read the outline of a long item. Too many parts are refused before they are decoded.

    A ``type`` or ``id`` of null is refused too: replacing it would require decoding all fields.
    """
    outline = wire.decode(_long, raw, where=where)
    for name in ("type", "id"):
        if getattr(outline, name) is None:
            param = f"{where}.{name}"
            raise InvalidRequest.at(param, "must be a string in a long item")
    for name in ("content", "output", "summary"):
        if (sent := wire.given(getattr(outline, name))) is not None:
            wire.require_few(sent, MOST_PARTS, f"{where}.{name}", "parts")
    return _ItemHead(outline.type or None, outline.role, outline.id or None, outline.call_id)


def _name_untyped(outline: _ItemHead, raw: bytes, where: str) -> tuple[str, bytes]:
    """Infer the type of a message or reference that was sent without one, and add it to the JSON."""
    if outline.role is not None:
        kind = "message"
    elif outline.id is not None:
        kind = "item_reference"
    else:
        raise wire.missing(f"{where}.type")
    # _read_long has refused long items with a null type.
    return kind, _with_field(raw, "type", kind, is_new=len(raw) >= wire.LONG_BYTES)


def _with_field(raw: bytes, name: str, value: str, *, is_new: bool) -> bytes:
    """Set a field of a JSON object. With ``is_new``, the object is known to lack the field: it is prepended
    without decoding the others, which may be many."""
    if is_new:
        return b'{"%b":%b,' % (name.encode(), wire.encode(value)) + raw.lstrip()[1:]
    fields = _fields.decode(raw)
    fields.pop(name, None)
    return wire.encode({name: value, **fields})


def _refusal(kind: str, where: str) -> InvalidRequest:
    param = f"{where}.type"
    known = ", ".join(f"'{name}'" for name in sorted(SUPPORTED_TYPES))
    return InvalidRequest.at(
        param,
        f"{quoted(kind)} is not a known item type. Known types are {known} and the items of hosted tools",
    )


def renamed(item: Item, item_id: str) -> Item:
    """The item under this id, with the same JSON, and with all that was computed of that."""
    found = structs.replace(item, id=item_id)
    found.__dict__.update(item.__dict__)
    return found


def opened_with(item: Item, opened: "tuple[Item, ...] | None") -> Item:
    """The item with these in its place, with the same JSON, and with all that was computed of that."""
    found = structs.replace(item, opened=opened)
    found.__dict__.update(item.__dict__)
    return found


@computed_once
def raw_digest(item: Item) -> bytes:
    """The digest of the JSON."""
    return hashlib.blake2b(item.raw, digest_size=_DIGEST_BYTES).digest()


def with_id(item: Item, item_id: str) -> Item:
    """The item with this id in its JSON too: clients may send items without ids, but lists show them."""
    if item.id == item_id:
        return item
    is_new = item.id is None and len(item.raw) >= wire.LONG_BYTES
    return structs.replace(item, raw=_with_field(item.raw, "id", item_id, is_new=is_new), id=item_id)


def in_context(items: Iterable[Item]) -> Iterator[Item]:
    """Items as a model sees them: sealed and hosted items are replaced by what they stand for."""
    for item in items:
        if item.opened is None:
            yield item
        else:
            yield from item.opened


def shown(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """``in_context``, for items of which seldom one is replaced: then they are what models see."""
    for item in items:
        if item.opened is not None:
            return tuple(in_context(items))
    return items


def last_compaction(items: Sequence[Item]) -> int | None:
    """Index of the newest compaction, or None."""
    for index in range(len(items) - 1, -1, -1):
        if items[index].type == "compaction":
            return index
    return None


def kept_tools(item: Item) -> Item | None:
    """The tools that an item adds to its context, as an ``additional_tools`` item; None if it adds none.

    Keeps those tools available after the item itself was dropped from the context.
    """
    if item.type == "additional_tools":
        return item
    if item.type != "tool_search_output":
        return None
    body = item.body()
    assert isinstance(body, LoadedTools | AdditionalTools)
    raw = wire.encode({"type": "additional_tools", "role": "developer", "tools": body.tools})
    return Item(type="additional_tools", raw=raw)


def user_message(text: str) -> Item:
    content = wire.encode(text)
    return Item(type="message", raw=b'{"type":"message","role":"user","content":' + content + b"}")


@computed_once
def may_be_models(item: Item) -> bool:
    """Whether the item may be one that a model has written. May be wrong for a message that only mentions the
    role of a model, which does no harm where this is asked."""
    return item.type != "message" or b'"assistant"' in item.raw


@computed_once
def may_have_images(item: Item) -> bool:
    """Whether an item may have images or files; decides without decoding it.

    Also True if its JSON escapes a letter or an underscore, which may be one of a type's name. No common
    encoder does that: such an item is to be decoded.
    """
    raw = item.raw
    if item.type == "computer_call_output":
        return True
    if b'"input_' in raw and (b'"input_image"' in raw or b'"input_file"' in raw):
        return True
    # A single byte is found several times faster than a longer pattern.
    return b"\\" in raw and b"\\u00" in raw and _ESCAPED_LETTER.search(raw) is not None


def plain_text(content: str | Iterable[Part]) -> str:
    """The text of a content, parts concatenated; images and files are left out."""
    if isinstance(content, str):
        return content
    return "".join(
        part.refusal if isinstance(part, Refusal) else part.text
        for part in content
        if not isinstance(part, InputImage | InputFile)
    )


def numbered_call(number: int) -> str:
    """The id of a call that is known by its number in a context, and not by an id of its own."""
    return f"call_{number}"


def short_id(call_id: str) -> str:
    """A call's id for models: nine hexadecimal digits, a form that all chat templates accept."""
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]
