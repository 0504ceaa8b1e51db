"""The messages of a request as items of a context.

The bytes of an item depend on the content of its message alone, so that a history that is sent again is
recognised: text is the same as a string or as parts, ``null`` the same as an empty text, and calls are
numbered, whatever ids a client gave them. ``place`` says where each item stands in the request. A message
that is sent again in the same bytes is not translated again, if its calls and its result have the same
numbers.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from slipring.base.errors import InvalidRequest, UnsupportedParameter, quoted
from slipring.protocol import wire
from slipring.protocol.chat_completions.completion import CalledCustomTool, CalledFunction
from slipring.protocol.chat_completions.errors import (
    CALL,
    CUSTOM_CALL,
    LEGACY_CALL,
    MESSAGE,
    OUTPUT,
    THOUGHT,
    Fields,
    Place,
)
from slipring.protocol.items.items import (
    MOST_ITEMS,
    MOST_PARTS,
    InputText,
    OutputText,
    ReasoningText,
    Refusal,
    numbered_call,
)
from slipring.protocol.requests import NOTHING_KNOWN, Known, Origins, Piece
from slipring.protocol.tools.client_tools import ImageDetail

_API = b"chat "

# Messages as clients send them -------------------------------------------------------------------


class TextContent(Struct, tag_field="type", tag="text"):
    text: str


class ImageUrl(Struct):
    url: str
    detail: ImageDetail | None = None


class ImageContent(Struct, tag_field="type", tag="image_url"):
    image_url: ImageUrl | str


class FileReference(Struct):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class FileContent(Struct, tag_field="type", tag="file"):
    file: FileReference


class AudioContent(Struct, tag_field="type", tag="input_audio"): ...


Part = TextContent | ImageContent | FileContent | AudioContent | Refusal


class ChatToolCall(Struct):
    id: str | None = None
    type: Literal["function", "custom"] | None = None
    function: CalledFunction | None = None
    custom: CalledCustomTool | None = None


Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


class ChatMessage(Struct):
    """A message of any role: the union of their fields."""

    role: Role
    content: str | list[Part] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ChatToolCall] | None = None
    function_call: CalledFunction | None = None
    tool_call_id: str | None = None


class _Long(Struct):
    """The lists of a long message, whose entries are counted before they are decoded."""

    content: Raw | UnsetType = UNSET
    tool_calls: Raw | UnsetType = UNSET


_messages = msgspec.json.Decoder(list[Raw])
_message = msgspec.json.Decoder(ChatMessage)
_long = msgspec.json.Decoder(_Long)

# Items, as they are written ----------------------------------------------------------------------


class InputImage(Struct, tag_field="type", tag="input_image", omit_defaults=True):
    image_url: str
    detail: ImageDetail | None = None


class InputFile(Struct, tag_field="type", tag="input_file", omit_defaults=True):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


_Parts = list[InputText | OutputText | InputImage | InputFile | Refusal]
_Content = str | _Parts


class _Call(Struct, frozen=True):
    """A call of the history."""

    sent_id: str | None
    name: str
    is_custom: bool


class _OpenCalls:
    """The numbers of the calls that wait for a result, by id and by name, in their order."""

    def __init__(self) -> None:
        self._all: dict[int, _Call] = {}
        self._by_id: dict[str | None, dict[int, None]] = {}
        self._by_name: dict[str, dict[int, None]] = {}

    def add(self, number: int, call: _Call) -> None:
        self._all[number] = call
        self._by_id.setdefault(call.sent_id, {})[number] = None
        self._by_name.setdefault(call.name, {})[number] = None

    def take(self, number: int) -> None:
        call = self._all.pop(number)
        del self._by_id[call.sent_id][number]
        del self._by_name[call.name][number]

    def with_id(self, sent_id: str) -> int | None:
        """The first one: some clients give all calls of a message the same id."""
        return next(iter(self._by_id.get(sent_id, {})), None)

    def with_name(self, name: str) -> int | None:
        return next(iter(self._by_name.get(name, {})), None)

    def first(self) -> int | None:
        return next(iter(self._all), None)


class _Result(Struct, frozen=True):
    """The result of a call: what the message says of the call, and its number."""

    role: Role
    sent_id: str | None
    name: str | None
    number: int = -1
    is_custom: bool = False


class _Note(Struct, frozen=True):
    """What is known of a message beside its items."""

    places: tuple[tuple[str, Fields], ...]
    """Where each item stands below the message, and the names of its fields."""
    calls: tuple[_Call, ...]
    first_call: int
    """The number of the first of them."""
    result: _Result | None


class History:
    """The items of a request's messages."""

    def __init__(self, messages: Raw, known: Known = NOTHING_KNOWN) -> None:
        """``known``: what the tenant has sent before. Raises ``ApiError`` that names the field of the
        request."""
        self._calls: list[_Call] = []
        self._open_calls = _OpenCalls()
        self.pieces: list[Piece] = []
        """The messages."""
        self._origins = Origins(self.pieces)
        self._items: list[bytes] = []
        self._places: list[tuple[str, Fields]] = []
        self._result: _Result | None = None
        """Of the message that is being translated."""
        wire.require_few(messages, MOST_ITEMS, "messages", "messages")
        for index, raw in enumerate(wire.decode(_messages, messages, where="messages")):
            key = _API + raw
            piece = known.get(key)
            if not isinstance(piece, Piece) or not self._repeats(piece.note):
                piece = self._translate(key, raw, f"messages[{index}]")
            self.pieces.append(piece)
        if not any(piece.json for piece in self.pieces):
            raise InvalidRequest.at("messages", "no message has content")

    def _repeats(self, note: _Note) -> bool:
        """Take a message that was translated before as it is, if its calls and its result have the same
        numbers here."""
        if note.calls and note.first_call != len(self._calls):
            return False
        if (result := note.result) is not None:
            number = self._named_by(result)
            if number != result.number or self._calls[number].is_custom != result.is_custom:
                return False
            self._open_calls.take(number)
        for call in note.calls:
            self._open(call)
        return True

    def _translate(self, key: bytes, raw: Raw, where: str) -> Piece:
        self._items, self._places, self._result = [], [], None
        first_call = len(self._calls)
        self._add_message(_read_message(raw, where), where)
        calls = tuple(self._calls[first_call:])
        return Piece(key, tuple(self._items), _Note(tuple(self._places), calls, first_call, self._result))

    def place(self, item: int) -> Place | None:
        """Where the item with this index stands in the request; None if there are fewer."""
        found = self._origins.find(item)
        if found is None:
            return None
        index, piece, number = found
        below, fields = piece.note.places[number]
        return Place(f"messages[{index}]{below}", fields)

    @property
    def call_count(self) -> int:
        return len(self._calls)

    def sent_id(self, number: int) -> str | None:
        """The id by which the client knows a call; None if it has none."""
        return self._calls[number].sent_id if number < len(self._calls) else None

    def _add(self, item: Mapping[str, object], below: str, fields: Fields) -> None:
        """Add an item, which stands at ``below`` in its message."""
        self._items.append(wire.encode(item))
        self._places.append((below, fields))

    def _add_message(self, message: ChatMessage, where: str) -> None:
        role = message.role
        if role == "assistant":
            self._add_answer(message, where)
        elif role == "tool" or role == "function":
            self._add_output(message, where)
        else:
            content = _content(_required(message, where), where)
            self._add({"type": "message", "role": role, "content": content}, "", MESSAGE)

    def _add_answer(self, message: ChatMessage, where: str) -> None:
        for field in ("reasoning_content", "reasoning"):
            thought = getattr(message, field)
            if thought:
                text = {"type": "reasoning", "content": [ReasoningText(thought)], "summary": ()}
                self._add(text, f".{field}", THOUGHT)
                break
        content = _answer_content(message, where)
        if content:
            self._add({"type": "message", "role": "assistant", "content": content}, "", MESSAGE)
        for index, call in enumerate(message.tool_calls or ()):
            self._add_call(call, where, f".tool_calls[{index}]")
        if (function := message.function_call) is not None:
            self._add_function_call(None, function, ".function_call", LEGACY_CALL)

    def _add_call(self, call: ChatToolCall, message: str, below: str) -> None:
        function, custom = call.function, call.custom
        if call.type == "custom" or (call.type is None and function is None and custom is not None):
            if custom is None:
                raise wire.explain("Object missing required field `custom`", message + below)
            call_id = numbered_call(self._open(_Call(call.id, custom.name, is_custom=True)))
            called = {"call_id": call_id, "name": custom.name, "input": custom.input}
            self._add({"type": "custom_tool_call", **called}, below, CUSTOM_CALL)
            return
        if function is None:
            raise wire.explain("Object missing required field `function`", message + below)
        self._add_function_call(call.id, function, below, CALL)

    def _add_function_call(
        self, sent_id: str | None, function: CalledFunction, below: str, fields: Fields
    ) -> None:
        call_id = numbered_call(self._open(_Call(sent_id, function.name, is_custom=False)))
        called = {"call_id": call_id, "name": function.name, "arguments": function.arguments}
        self._add({"type": "function_call", **called}, below, fields)

    def _open(self, call: _Call) -> int:
        """A call waits for its result. Returns its number."""
        number = len(self._calls)
        self._calls.append(call)
        self._open_calls.add(number, call)
        return number

    def _add_output(self, message: ChatMessage, where: str) -> None:
        content = _content(_required(message, where), where)
        result = _Result(message.role, message.tool_call_id, message.name)
        number = self._answered(result, where)
        is_custom = self._calls[number].is_custom
        self._result = structs.replace(result, number=number, is_custom=is_custom)
        self._open_calls.take(number)
        kind = "custom_tool_call_output" if is_custom else "function_call_output"
        self._add({"type": kind, "call_id": numbered_call(number), "output": content}, "", OUTPUT)

    def _named_by(self, result: _Result) -> int | None:
        """The number of the call that a result answers: by its id, or else by the function's name, or else
        the first that waits for a result."""
        if result.role == "tool" and result.sent_id is not None:
            return self._open_calls.with_id(result.sent_id)
        if result.name is not None:
            return self._open_calls.with_name(result.name)
        return self._open_calls.first()

    def _answered(self, result: _Result, where: str) -> int:
        if result.role == "function" and result.name is None:
            raise wire.explain("Object missing required field `name`", where)
        number = self._named_by(result)
        if number is not None:
            return number
        param, named = f"{where}.tool_call_id", "call"
        if result.role == "tool" and result.sent_id is not None:
            named = f"call with the id {quoted(result.sent_id)}"
        elif result.name is not None:
            param, named = f"{where}.name", f"call of {quoted(result.name)}"
        raise InvalidRequest.at(param, f"no {named} in the messages before it waits for a result")


def _read_message(raw: Raw, where: str) -> ChatMessage:
    if len(raw) > wire.LONG_BYTES:
        long = wire.decode(_long, raw, where=where)
        for name in ("content", "tool_calls"):
            if (sent := wire.given(getattr(long, name))) is not None:
                wire.require_few(sent, MOST_PARTS, f"{where}.{name}", "parts")
    return wire.decode(_message, raw, where=where)


def _required(message: ChatMessage, where: str) -> str | list[Part]:
    if message.content is None:
        raise wire.explain("Object missing required field `content`", where)
    return message.content


def _content(content: str | list[Part], where: str) -> _Content:
    """The content of a message that is not the model's: one text, unless it has images or files."""
    if isinstance(content, str):
        return content
    if all(type(part) is TextContent for part in content):
        return "".join(part.text for part in content if isinstance(part, TextContent))
    return [_part(part, f"{where}.content[{index}]") for index, part in enumerate(content)]


def _part(part: Part, where: str) -> InputText | InputImage | InputFile:
    if isinstance(part, TextContent):
        return InputText(part.text)
    if isinstance(part, ImageContent):
        image = ImageUrl(part.image_url) if isinstance(part.image_url, str) else part.image_url
        return InputImage(image.url, None if image.detail == "auto" else image.detail)
    if isinstance(part, FileContent):
        return InputFile(part.file.file_data, part.file.file_id, part.file.filename)
    raise _unsupported_part(part, where)


def _answer_content(message: ChatMessage, where: str) -> _Content:
    """The content of an assistant's message: empty if it has none."""
    content = message.content or ""
    if isinstance(content, str):
        parts: _Parts = [OutputText(content)] if content else []
    else:
        parts = [_answer_part(part, f"{where}.content[{index}]") for index, part in enumerate(content)]
    if message.refusal:
        parts.append(Refusal(message.refusal))
    if all(type(part) is OutputText for part in parts):
        return "".join(part.text for part in parts if isinstance(part, OutputText))
    return parts


def _answer_part(part: Part, where: str) -> OutputText | Refusal:
    if isinstance(part, TextContent):
        return OutputText(part.text)
    if isinstance(part, Refusal):
        return part
    raise _unsupported_part(part, where)


def _unsupported_part(part: Part, where: str) -> UnsupportedParameter:
    kind = type(part).__struct_config__.tag
    return UnsupportedParameter(
        f"Unsupported parameter: '{where}': a message of this role has no '{kind}'."
        if not isinstance(part, AudioContent)
        else f"Unsupported parameter: '{where}': this server takes no audio.",
        param=where,
    )
