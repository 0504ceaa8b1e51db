"""Items: what a context is made of.

An ``Item`` keeps the exact JSON that the client sent or that we emitted; that text is the state of record
and is never re-encoded. ``Item.body()`` reads it as one of the typed bodies below, when somebody needs to.
Every body is checked once, on arrival, so that reading it later cannot fail.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, structs

from slipring.errors import InvalidRequest, quoted
from slipring.protocol import wire

Role = Literal["user", "assistant", "system", "developer"]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
TOOL_SEARCH = "tool_search"
"""What models call the search for tools: to them it is a function like any other."""
Name = Annotated[str, Meta(min_length=1, max_length=256)]
CallId = Annotated[str, Meta(min_length=1, max_length=256)]
ItemId = Annotated[str, Meta(max_length=512)]
"""As a client may choose it. Ids are keys of an index, and an index does not take any length."""


MOST_ITEMS = 20_000
"""In one request: while they are read, everybody else waits."""
MOST_PARTS = 20_000
"""In one item, for the same reason."""


class InputText(Struct, tag_field="type", tag="input_text"):
    text: str


class InputImage(Struct, tag_field="type", tag="input_image"):
    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None


class InputFile(Struct, tag_field="type", tag="input_file"):
    file_id: str | None = None
    file_url: str | None = None
    file_data: str | None = None
    filename: str | None = None


class OutputText(Struct, tag_field="type", tag="output_text"):
    """Text of an assistant, as clients send it back."""

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
    """What a client's tool returned: ``function_call_output`` and ``custom_tool_call_output``."""

    call_id: CallId
    output: str | list[Part]


class LoadedTools(CallOutput):
    """What a client's search for tools has found."""

    tools: Raw


class SummaryPart(Struct):
    """A part where no other can be: it has to say what it is all the same."""

    type: Literal["summary_text"]
    text: str


class ThoughtPart(Struct):
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
    """As the last item of an input: make nothing but a compaction."""


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
    """A search that names no call is one that the client had no part in."""
    if execution == "client":
        raise msgspec.ValidationError("Object missing required field `call_id`")


class Carried(Struct):
    """An item of a known type that is kept and replayed, but that nothing here looks into."""


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
}
CARRIED_TYPES = frozenset(
    {
        "agent_message",
        "apply_patch_call",
        "apply_patch_call_output",
        "code_interpreter_call",
        "computer_call",
        "computer_call_output",
        "file_search_call",
        "image_generation_call",
        "local_shell_call",
        "local_shell_call_output",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "multi_agent_call",
        "multi_agent_call_output",
        "program",
        "program_output",
        "shell_call",
        "shell_call_output",
        "web_search_call",
    }
)


FORMS: dict[str, type[Struct]] = {
    **BODIES,
    "tool_search_call": ToolSearchCall,
    "tool_search_output": ToolSearchOutput,
}
"""How items of each type are written."""


class _SearchDecoder:
    """Reads the items of a search for tools as what they are to a model."""

    def __init__(self, kind: type[ToolSearchCall | ToolSearchOutput]) -> None:
        self._decoder = msgspec.json.Decoder(kind)

    def decode(self, data: bytes | str, /) -> Body:
        return self._decoder.decode(data).read()


_DECODERS: dict[str, wire.Decoder[Body]] = {
    **{name: msgspec.json.Decoder(body) for name, body in BODIES.items()},
    **{name: msgspec.json.Decoder(Carried) for name in CARRIED_TYPES},
    "tool_search_call": _SearchDecoder(ToolSearchCall),
    "tool_search_output": _SearchDecoder(ToolSearchOutput),
}
SUPPORTED_TYPES = frozenset(_DECODERS) - CARRIED_TYPES


class Item(Struct, frozen=True, gc=False):
    """One item as it travelled: its type, its ids, and its JSON."""

    type: str
    raw: bytes
    id: str | None = None
    call_id: str | None = None
    opened: "tuple[Item, ...] | None" = None
    """For an item whose content is sealed: what it stands for in a context. Nobody but us can read it."""

    def body(self) -> Body:
        return _DECODERS[self.type].decode(self.raw)

    @property
    def size_bytes(self) -> int:
        """What this item costs in memory: its text and the objects around it."""
        size = len(self.raw) + 200
        return size if self.opened is None else size + sum(item.size_bytes for item in self.opened)


class _Outline(Struct):
    """The fields that say what an item is, before it is known what it is."""

    type: str | None = None
    role: str | None = None
    id: ItemId | None = None
    call_id: str | None = None


class _Long(_Outline):
    """The same, and the fields that may be lists of parts; whether ``type`` and ``id`` are there at all."""

    type: str | UnsetType | None = UNSET  # type: ignore[assignment]
    id: ItemId | UnsetType | None = UNSET  # type: ignore[assignment]
    content: Raw | UnsetType = UNSET
    output: Raw | UnsetType = UNSET
    summary: Raw | UnsetType = UNSET


_outline = msgspec.json.Decoder(_Outline)
_long = msgspec.json.Decoder(_Long)
_fields = msgspec.json.Decoder(dict[str, Raw])
_input = msgspec.json.Decoder(str | list[Raw])


def read_input(data: Raw | UnsetType) -> tuple[Item, ...]:
    """Read a request's ``input``: text, a list of items, or nothing."""
    sent = wire.given(data)
    if sent is None:
        return ()
    wire.require_few(sent, MOST_ITEMS, "input", "items")
    value = wire.decode(_input, sent, where="input")
    return (user_message(value),) if isinstance(value, str) else read_items(value)


def read_items(raws: Sequence[Raw]) -> tuple[Item, ...]:
    """Read the items of an ``input``."""
    if len(raws) > MOST_ITEMS:
        raise wire.too_many(MOST_ITEMS, "input", "items")
    return tuple(
        [_read_known(bytes(raw)) or read_item(bytes(raw), f"input[{n}]") for n, raw in enumerate(raws)]
    )


def _read_known(raw: bytes) -> Item | None:
    """Read an item of the usual kind; None where it has to be looked at more closely."""
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
    """Read and check one item; errors name the field below ``where``."""
    outline = (
        wire.decode(_outline, raw, where=where) if len(raw) < wire.LONG_BYTES else _read_long(raw, where)
    )
    kind = outline.type
    if kind is None:
        kind, raw = _name_untyped(outline, raw, where)
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise _refusal(kind, where)
    wire.decode(decoder, raw, where=where)
    return Item(type=kind, raw=raw, id=outline.id, call_id=outline.call_id)


def _read_long(raw: bytes, where: str) -> _Outline:
    """What an item is. One with too many parts is refused before they are decoded. One that names its type or
    its id and leaves it null is refused too: to write another one in, all its fields would be decoded."""
    outline = wire.decode(_long, raw, where=where)
    for name in ("type", "id"):
        if getattr(outline, name) is None:
            param = f"{where}.{name}"
            raise InvalidRequest(f"Invalid '{param}': must be a string in an item this long.", param=param)
    for name in ("content", "output", "summary"):
        if (sent := wire.given(getattr(outline, name))) is not None:
            wire.require_few(sent, MOST_PARTS, f"{where}.{name}", "parts")
    return _Outline(outline.type or None, outline.role, outline.id or None, outline.call_id)


def _name_untyped(outline: _Outline, raw: bytes, where: str) -> tuple[str, bytes]:
    """Messages and references may leave out their ``type``; write it in, so that it is always there."""
    if outline.role is not None:
        kind = "message"
    elif outline.id is not None:
        kind = "item_reference"
    else:
        param = f"{where}.type"
        raise InvalidRequest(
            f"Missing required parameter: '{param}'.",
            param=param,
            code="missing_required_parameter",
        )
    # A long one has no such field, not even null.
    return kind, _with_field(raw, "type", kind, is_new=len(raw) >= wire.LONG_BYTES)


def _with_field(raw: bytes, name: str, value: str, *, is_new: bool) -> bytes:
    """An object with this field. ``is_new``: it has none of that name. Then it is not decoded: it may have a
    great many others."""
    if is_new:
        return b'{"%b":%b,' % (name.encode(), wire.encode(value)) + raw.lstrip()[1:]
    fields = _fields.decode(raw)
    fields.pop(name, None)
    return wire.encode({name: value, **fields})


def _refusal(kind: str, where: str) -> InvalidRequest:
    param = f"{where}.type"
    known = ", ".join(f"'{name}'" for name in sorted(SUPPORTED_TYPES))
    return InvalidRequest(
        f"Invalid '{param}': {quoted(kind)} is not a known item type. Known are {known}"
        " and the items of hosted tools.",
        param=param,
    )


def with_id(item: Item, item_id: str) -> Item:
    """The item with its id written in, for lists: clients may have sent it without."""
    if item.id == item_id:
        return item
    is_new = item.id is None and len(item.raw) >= wire.LONG_BYTES
    return structs.replace(item, raw=_with_field(item.raw, "id", item_id, is_new=is_new), id=item_id)


def in_context(items: Iterable[Item]) -> Iterator[Item]:
    """Items as a model is to be told them: sealed ones give way to what they stand for."""
    for item in items:
        if item.opened is None:
            yield item
        else:
            yield from item.opened


def last_compaction(items: Sequence[Item]) -> int | None:
    """Where the newest compaction lies."""
    for index in range(len(items) - 1, -1, -1):
        if items[index].type == "compaction":
            return index
    return None


def kept_tools(item: Item) -> Item | None:
    """What is left of an item where a context is cut short: the tools that it has brought, if any."""
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


def plain_text(content: str | Iterable[Part]) -> str:
    """The text of a content, parts joined; parts without text are left out."""
    if isinstance(content, str):
        return content
    return "".join(
        part.refusal if isinstance(part, Refusal) else part.text
        for part in content
        if not isinstance(part, InputImage | InputFile)
    )
