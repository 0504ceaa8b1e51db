"""Converts items to chat messages, the input of chat templates, with marks where pictures are.

Consecutive items of the assistant (reasoning, text, calls) become one message. A tool output names the call
that it answers. ``MessageBuilder`` keeps the pending calls and counts calls, so that a delta converts to the
same messages as within the whole context.

In ``ChatMessage.content`` a mark stands for each picture, at its place in the text. A mark has the number of
the picture among those of the messages that are written. What a template is given in its place, a text or a
part of a content, is the ``PictureForm`` that it takes.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, structs

from slipring.core.chain.instructions_and_tools import Head
from slipring.prompts.parsing.answer_writer import Call, answer_pieces
from slipring.prompts.parsing.output_format import OutputFormat
from slipring.prompts.templates.jinja_engines import YieldingList, to_json
from slipring.prompts.tool_definitions import (
    describe,
    describe_format,
    describe_found,
    flat_name,
    read_object,
)
from slipring.protocol.items.item_pictures import Picture, pictures
from slipring.protocol.items.items import (
    AdditionalTools,
    CallOutput,
    CustomToolCall,
    FunctionCall,
    InputImage,
    Item,
    LoadedTools,
    Message,
    Part,
    Reasoning,
    may_have_images,
    plain_text,
    short_id,
)
from slipring.protocol.requests import TextFormat
from slipring.protocol.tools.toolset import Toolset

_PICTURE_MARK = re.compile("\ufdd0([0-9]{1,6})\ufdd1")
"""Between two noncharacters, which no text has that is meant for others."""
Role = Literal["system", "user", "assistant", "tool"]
PICTURE_ROLES: tuple[Role, ...] = ("user", "tool", "system")
"""Of messages that clients put pictures into."""


class PictureForm(Struct, frozen=True, kw_only=True):
    """What a template is given for a picture, and what it writes for one."""

    part: Mapping[str, Any] | None = None
    """The part of a content that is a list; None: the content is text."""
    text: str = ""
    """What stands for a picture in a text; empty: its mark."""
    id: int | None = None
    """Of the control token that the template writes once for a picture; None: it writes the mark."""
    are_numbered: bool = False
    """Whether it writes another text for a picture after others."""
    roles: tuple[Role, ...] = ()
    """Of the messages in which it writes pictures."""


PICTURE_PARTS = (
    PictureForm(part={"type": "image"}),
    PictureForm(part={"type": "image_url", "image_url": {"url": ""}}),
)
"""The forms that templates take, in the order in which they are tried."""
INLINE_PICTURES = PictureForm()
"""Marks stay in the text, for an engine that is sent text with marks of its own."""


def picture_mark(number: int) -> str:
    """What stands for a picture in the text of a message."""
    return f"\ufdd0{number}\ufdd1"


def unmarked(text: str) -> str:
    """A text of a client, in which nothing passes for a mark."""
    return text.replace("\ufdd0", "\ufffd") if "\ufdd0" in text else text


def has_picture_marks(text: str) -> bool:
    return "\ufdd0" in text and _PICTURE_MARK.search(text) is not None


def split_picture_marks(text: str) -> Iterator[str | int]:
    """The parts of a text: texts, and the numbers of the pictures between them."""
    for place, piece in enumerate(_PICTURE_MARK.split(text)):
        if place % 2:
            yield int(piece)
        elif piece:
            yield piece


def moved_picture_marks(text: str) -> tuple[str, str]:
    """A text without its marks, and the marks."""
    return _PICTURE_MARK.sub("", text), "".join(found[0] for found in _PICTURE_MARK.finditer(text))


def written_content(content: str, text: Callable[[str], str], form: PictureForm | None) -> str | list[Any]:
    """The content of a message for a template. ``text`` is applied to all of it but the pictures."""
    if form is None or not has_picture_marks(content):
        return text(content)
    pieces: Sequence[str | int] = list(split_picture_marks(content))
    if form.part is None:
        return "".join(
            text(piece) if isinstance(piece, str) else form.text or picture_mark(piece) for piece in pieces
        )
    return [
        {"type": "text", "text": text(piece)} if isinstance(piece, str) else {**form.part} for piece in pieces
    ]


_THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""Templates read thoughts under different names."""
_ADDED_TOOLS = "From now on you can also call these tools:"
Dict = dict[str, Any]


class ChatCall(Struct, frozen=True):
    """A call as templates read it. Calls to custom tools have one argument, ``input``."""

    id: str
    name: str
    arguments: Dict | str
    """Text if it is not a JSON object."""

    @property
    def values(self) -> Dict:
        """The arguments as an object. Text becomes the argument ``input``."""
        return {"input": self.arguments} if isinstance(self.arguments, str) else self.arguments


class ChatMessage(Struct, frozen=True, kw_only=True):
    """One message of a conversation."""

    role: Role
    content: str = ""
    """With the marks of pictures."""
    thoughts: str = ""
    calls: tuple[ChatCall, ...] = ()
    call_id: str = ""
    name: str = ""
    """The tool's name, in a tool output whose call is known."""
    thought_numbers: tuple[int, ...] | UnsetType = UNSET
    """Of the reasoning items that ``thoughts`` comes from, counted from zero in the context."""

    def as_dict(
        self, text: Callable[[str], str], value: Callable[[Any], Any], fields: "MessageFields"
    ) -> Dict:
        """Return a new dict for a template, which may change it. ``text`` and ``value`` are applied to all
        strings and JSON values that come from clients or models."""
        content = written_content(self.content, text, fields.picture)
        message: Dict = {
            "role": self.role,
            "content": YieldingList(content) if isinstance(content, list) else content,
        }
        if self.thoughts and fields.thought_blocks:
            message["content"] = YieldingList([{"type": "thinking", "thinking": text(self.thoughts)}])
            if self.content:
                message["content"].append({"type": "text", "text": text(self.content)})
        elif self.thoughts:
            message |= dict.fromkeys(_THOUGHT_FIELDS, text(self.thoughts))
        if self.calls and fields.calls_as_text is not None:
            message["content"] = self._content_with_calls(text, fields.calls_as_text)
        elif self.calls:
            if fields.null_content and not self.content:
                message["content"] = None
            message["tool_calls"] = YieldingList(
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": text(call.name), "arguments": fields.arguments(call, value)},
                }
                for call in self.calls
            )
        if self.role == "tool":
            message["tool_call_id"] = self.call_id
            if self.name:
                message["name"] = text(self.name)
        return message

    def _content_with_calls(self, text: Callable[[str], str], format: OutputFormat) -> str:
        """The content followed by the calls as the model writes them, whose marks may be control tokens."""
        calls = [Call(each.name, each.values) for each in self.calls]
        pieces = answer_pieces(format, text=self.content, calls=calls)
        return "".join(piece.text if piece.is_mark else text(piece.text) for piece in pieces)


class MessageFields(Struct, frozen=True, kw_only=True):
    """How a template takes what messages hold."""

    thought_blocks: bool = False
    """Thoughts are a part of the content, instead of fields."""
    text_arguments: bool = False
    """The arguments of calls are JSON text, instead of values."""
    broken_arguments: bool = False
    """Arguments that are not a JSON object are passed as text, as the model wrote them, instead of as an
    object with the argument ``input``."""
    null_content: bool = False
    """The content of a message without text is null, if it has calls."""
    calls_as_text: OutputFormat | None = None
    """Calls are a part of the content, in this format, because the template does not write them."""
    picture: PictureForm | None = None
    """How it takes pictures; None: not at all."""

    def arguments(self, call: ChatCall, value: Callable[[Any], Any]) -> Any:
        arguments = call.arguments if self.broken_arguments else call.values
        if self.text_arguments and not isinstance(arguments, str):
            return to_json(value(arguments))
        return value(arguments)


class PendingCall(Struct, frozen=True, array_like=True):
    """A call whose output is missing."""

    name: str
    id: str
    """The call's id in templates."""


PendingCalls = Mapping[str, PendingCall]
"""The calls whose outputs are missing, by ``call_id``."""


class MessageBuilder:
    """Converts items to messages.

    ``pending``: calls of earlier items that may be answered. ``calls``: how many calls there are in earlier
    items; None: ids do not count them. ``ids``: the ids that the model gave to the calls that are added.
    ``text_before_calls``: see ``MessageForms``. ``thoughts``: how many reasoning items there are before.
    """

    def __init__(
        self,
        pending: PendingCalls,
        calls: int | None = None,
        ids: Sequence[str] = (),
        *,
        text_before_calls: bool = True,
        thoughts: int = 0,
    ) -> None:
        self.messages: list[ChatMessage] = []
        self.pictures: list[Picture] = []
        """Of the messages: the marks in their texts number these."""
        self.thoughts = thoughts
        """How many reasoning items there are up to here."""
        self.earlier_thoughts = 0
        """How many there are before the last message of the user or a developer; 0 if none was added."""
        self._pending = dict(pending)
        self.calls = calls
        self._ids = list(reversed(ids))
        self._text_before_calls = text_before_calls

    @property
    def pending(self) -> PendingCalls:
        return self._pending

    def add(self, items: Iterable[Item]) -> "MessageBuilder":
        """Convert items and append them to ``messages``. Returns the builder."""
        for item in items:
            body = item.body()
            if isinstance(body, Message):
                self._add_message(body, self._text(body.content, item))
            elif isinstance(body, Reasoning):
                if thought := body.thought:
                    numbers = (self.thoughts,)
                    self.messages.append(
                        ChatMessage(role="assistant", thoughts=thought, thought_numbers=numbers)
                    )
                self.thoughts += 1
            elif isinstance(body, FunctionCall):
                self._add_call(body, _arguments(body.arguments))
            elif isinstance(body, CustomToolCall):
                self._add_call(body, {"input": body.input})
            elif isinstance(body, CallOutput):
                self._add_output(body, self._text(body.output, item))
            elif isinstance(body, AdditionalTools):
                self.earlier_thoughts = self.thoughts
                lines = [describe(tool) for tool in Toolset.brought(body.tools).callables]
                self.messages.append(
                    ChatMessage(role="system", content=unmarked("\n".join((_ADDED_TOOLS, *lines))))
                )
        self.messages = _merge_assistant(self.messages)
        if not self._text_before_calls:
            self.messages = [_text_as_thought(each) if each.calls else each for each in self.messages]
        return self

    def _text(self, content: str | list[Part], item: Item) -> str:
        """The text of a content, with a mark for each picture."""
        found = pictures(item) if may_have_images(item) else ()
        if not found:
            return unmarked(plain_text(content))
        assert isinstance(content, list), "only parts hold pictures"
        numbers = iter(range(len(self.pictures), len(self.pictures) + len(found)))
        self.pictures += found
        return "".join(
            picture_mark(next(numbers)) if isinstance(part, InputImage) else unmarked(plain_text([part]))
            for part in content
        )

    def _add_message(self, message: Message, text: str) -> None:
        if message.role == "assistant":
            self.messages.append(ChatMessage(role="assistant", content=text))
        else:
            self.earlier_thoughts = self.thoughts
            role: Literal["user", "system"] = "user" if message.role == "user" else "system"
            self.messages.append(ChatMessage(role=role, content=text))

    def _add_call(self, call: FunctionCall | CustomToolCall, arguments: Dict | str) -> None:
        name = flat_name(call)
        id = self._next_id(call.call_id, name)
        self._pending[call.call_id] = PendingCall(name, id)
        self.messages.append(ChatMessage(role="assistant", calls=(ChatCall(id, name, arguments),)))

    def _add_output(self, output: CallOutput, written: str) -> None:
        call = self._pending.pop(output.call_id, None) or PendingCall("", short_id(output.call_id))
        text = unmarked(describe_found(output)) if isinstance(output, LoadedTools) else written
        self.messages.append(ChatMessage(role="tool", content=text, call_id=call.id, name=call.name))

    def _next_id(self, call_id: str, name: str) -> str:
        if self._ids:
            return self._ids.pop()
        if self.calls is None:
            return short_id(call_id)
        self.calls += 1
        return f"functions.{name}:{self.calls - 1}"


def head_messages(head: Head, format: TextFormat, tools: str = "") -> list[ChatMessage]:
    """Instructions, the answer format and ``tools``, a description of tools, as the first system message;
    empty if there are none."""
    parts = [head.instructions] if head.instructions else []
    if tools:
        parts.append(tools)
    if format.kind != "text":
        parts.append(describe_format(format))
    return [ChatMessage(role="system", content=unmarked("\n\n".join(parts)))] if parts else []


def _merge_assistant(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """Merge each run of assistant messages into one."""
    merged: list[ChatMessage] = []
    for is_assistant, group in groupby(messages, lambda message: message.role == "assistant"):
        run = list(group)
        merged += [_merge(run)] if is_assistant else run
    return merged


def _merge(messages: list[ChatMessage]) -> ChatMessage:
    if len(messages) == 1:
        return messages[0]
    return ChatMessage(
        role="assistant",
        content="\n".join(message.content for message in messages if message.content),
        thoughts="\n".join(message.thoughts for message in messages if message.thoughts),
        calls=tuple(call for message in messages for call in message.calls),
        thought_numbers=tuple(number for message in messages for number in message.thought_numbers or ())
        or UNSET,
    )


def _text_as_thought(message: ChatMessage) -> ChatMessage:
    thoughts = "\n".join(filter(None, (message.thoughts, message.content)))
    return structs.replace(message, content="", thoughts=thoughts)


def _arguments(text: str) -> Dict | str:
    if not text.strip():
        return {}
    value = read_object(text)
    return text if value is None else value
