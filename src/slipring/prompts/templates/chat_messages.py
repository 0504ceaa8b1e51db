"""Items as chat messages: the form that chat templates read.

One message of an assistant holds what it thought, said and called, so that consecutive items of it are put
together; a tool's output names the call that it answers. ``Folder`` knows the calls that wait for their
outputs, so that a delta is read as it would be within the whole.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any, Literal

import msgspec
from msgspec import Struct

from slipring.core.chain.head import Head
from slipring.errors import InvalidRequest
from slipring.prompts.templates.jinja import Yielding
from slipring.prompts.tool_definitions import describe, describe_format, describe_found
from slipring.protocol.items import (
    AdditionalTools,
    CallOutput,
    CustomToolCall,
    FunctionCall,
    Item,
    LoadedTools,
    Message,
    Reasoning,
    plain_text,
)
from slipring.protocol.requests import TextFormat
from slipring.protocol.tools import CallableTool, Toolset

_DEEPEST = 100
"""How far JSON may nest that a template walks through."""
_MOST_VALUES = 100_000
"""How many values JSON may have that a template is given as such: it is decoded, and written, in one step."""
_ADDED_TOOLS = "From now on you can also call these tools:"
Dict = dict[str, Any]
_object = msgspec.json.Decoder(Dict)


class ChatCall(Struct, frozen=True):
    """A call as templates know it. Calls of custom tools have one argument, ``input``."""

    id: str
    name: str
    arguments: Dict | str
    """Text where it is no JSON object."""


class ChatMessage(Struct, frozen=True, kw_only=True):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thoughts: str = ""
    calls: tuple[ChatCall, ...] = ()
    call_id: str = ""
    name: str = ""
    """Of a tool that answers, where its call is known."""

    def as_dict(self, text: Callable[[str], str], value: Callable[[Any], Any]) -> Dict:
        """The form that templates read, made anew: they may change it. ``text`` and ``value`` treat what
        clients and models said."""
        written: Dict = {"role": self.role, "content": text(self.content)}
        if self.thoughts:
            written["reasoning_content"] = text(self.thoughts)
        if self.calls:
            written["tool_calls"] = Yielding(
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": text(call.name), "arguments": value(call.arguments)},
                }
                for call in self.calls
            )
        if self.role == "tool":
            written["tool_call_id"] = self.call_id
            if self.name:
                written["name"] = text(self.name)
        return written


Names = Mapping[str, str]
"""Names of calls that wait for their outputs, by ``call_id``."""


class Folder:
    """Reads items into messages."""

    def __init__(self, names: Names) -> None:
        self.messages: list[ChatMessage] = []
        self._names = dict(names)

    @property
    def names(self) -> Names:
        return self._names

    def read(self, items: Iterable[Item]) -> "Folder":
        for item in items:
            body = item.body()
            if isinstance(body, Message):
                self._read_message(body)
            elif isinstance(body, Reasoning):
                thought = body.thought
                if thought:
                    self.messages.append(ChatMessage(role="assistant", thoughts=thought))
            elif isinstance(body, FunctionCall):
                self._call(body, _arguments(body.arguments))
            elif isinstance(body, CustomToolCall):
                self._call(body, {"input": body.input})
            elif isinstance(body, CallOutput):
                self._answer(body)
            elif isinstance(body, AdditionalTools):
                lines = [describe(tool) for tool in Toolset.brought(body.tools).callables]
                self.messages.append(ChatMessage(role="system", content="\n".join((_ADDED_TOOLS, *lines))))
        self.messages = _joined(self.messages)
        return self

    def _read_message(self, message: Message) -> None:
        text = plain_text(message.content)
        if message.role == "assistant":
            self.messages.append(ChatMessage(role="assistant", content=text))
        else:
            role: Literal["user", "system"] = "user" if message.role == "user" else "system"
            self.messages.append(ChatMessage(role=role, content=text))

    def _call(self, call: FunctionCall | CustomToolCall, arguments: Dict | str) -> None:
        name = f"{call.namespace}__{call.name}" if call.namespace else call.name
        self._names[call.call_id] = name
        self.messages.append(
            ChatMessage(role="assistant", calls=(ChatCall(short_id(call.call_id), name, arguments),))
        )

    def _answer(self, output: CallOutput) -> None:
        name = self._names.pop(output.call_id, "")
        text = describe_found(output) if isinstance(output, LoadedTools) else plain_text(output.output)
        self.messages.append(
            ChatMessage(
                role="tool",
                content=text,
                call_id=short_id(output.call_id),
                name=name,
            )
        )


def _joined(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """The messages in which an assistant speaks only once at a time."""
    joined: list[ChatMessage] = []
    for speaks, group in groupby(messages, lambda message: message.role == "assistant"):
        said = list(group)
        joined += [_one(said)] if speaks else said
    return joined


def _one(messages: list[ChatMessage]) -> ChatMessage:
    """What an assistant says in one turn, from messages that each say a part of it."""
    if len(messages) == 1:
        return messages[0]
    return ChatMessage(
        role="assistant",
        content="\n".join(message.content for message in messages if message.content),
        thoughts="\n".join(message.thoughts for message in messages if message.thoughts),
        calls=tuple(call for message in messages for call in message.calls),
    )


def short_id(call_id: str) -> str:
    """A call's id for templates: nine letters and digits, the one form that all of them take."""
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def read_object(text: str) -> Dict | None:
    """A JSON object that is not nested too deeply to walk through, and has not too many values for it."""
    if sum(map(text.count, ",[{")) > _MOST_VALUES:  # at least as many as there are values
        return None
    try:
        value = _object.decode(text.encode())
    except (ValueError, RecursionError):
        return None
    return value if _is_shallow(value, _DEEPEST) else None


def _arguments(text: str) -> Dict | str:
    if not text.strip():
        return {}
    value = read_object(text)
    return text if value is None else value


def _is_shallow(value: object, room: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return room > 0 and all(_is_shallow(each, room - 1) for each in inner)


def head_messages(head: Head, format: TextFormat) -> list[ChatMessage]:
    """Instructions and the format of answers, as the system's first message."""
    parts = [head.instructions] if head.instructions else []
    if format.kind != "text":
        parts.append(describe_format(format))
    return [ChatMessage(role="system", content="\n\n".join(parts))] if parts else []


def tool_definitions(tools: Iterable[CallableTool]) -> list[Dict]:
    """Tools as templates read them."""
    definitions = []
    for tool in tools:
        definition = read_object(describe(tool))
        if definition is None:
            raise InvalidRequest(
                "Invalid 'tools': the schema of a tool is nested too deeply, or too large.", param="tools"
            )
        definitions.append(definition)
    return definitions
