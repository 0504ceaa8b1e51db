"""The answer of one choice: its message, its calls and why it ended, from the items of a response."""

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from slipring.protocol import wire
from slipring.protocol.chat_completions import logprobs
from slipring.protocol.chat_completions.logprobs import ChoiceLogprobs, TokenLogprob
from slipring.protocol.items import SEPARATOR
from slipring.protocol.responses import (
    CustomToolCallItem,
    FunctionCallItem,
    OutputMessage,
    OutputTextPart,
    ReasoningItem,
    RefusalPart,
    Response,
)

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]
_CALL_ID_DIGITS = 24


class AnswerForm(Struct, frozen=True):
    """What a request asks of the form of its answer."""

    choices: int = 1
    """``n``."""
    usage: bool = False
    """Whether the last chunk of a stream has the usage."""
    logprobs: bool = False
    legacy: bool = False
    """Whether a call is a ``function_call``, because the request has ``functions``."""
    fingerprint: str = ""
    """``system_fingerprint``: names the version of the server."""


class CalledFunction(Struct):
    name: str
    arguments: str = ""


class CalledCustomTool(Struct):
    name: str
    input: str


class ChatFunctionCall(Struct, tag_field="type", tag="function"):
    id: str
    function: CalledFunction


class ChatCustomCall(Struct, tag_field="type", tag="custom"):
    id: str
    custom: CalledCustomTool


class UrlCitation(Struct):
    start_index: int
    end_index: int
    url: str
    title: str


class Annotation(Struct, tag_field="type", tag="url_citation"):
    url_citation: UrlCitation


class AnswerMessage(Struct):
    """The message of a choice."""

    content: str | None
    refusal: str | None
    annotations: list[Annotation]
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ChatFunctionCall | ChatCustomCall] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET
    role: Literal["assistant"] = "assistant"


class ChatChoice(Struct):
    index: int
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: FinishReason


_DECODERS: dict[
    str, msgspec.json.Decoder[OutputMessage | ReasoningItem | FunctionCallItem | CustomToolCallItem]
] = {
    "message": msgspec.json.Decoder(OutputMessage),
    "reasoning": msgspec.json.Decoder(ReasoningItem),
    "function_call": msgspec.json.Decoder(FunctionCallItem),
    "custom_tool_call": msgspec.json.Decoder(CustomToolCallItem),
}


class _UrlAnnotation(UrlCitation, tag_field="type", tag="url_citation"): ...


_annotation = msgspec.json.Decoder(_UrlAnnotation)


def annotation_of(raw: Raw) -> Annotation | None:
    """An annotation of a text; None if it is none that this API has."""
    if wire.type_of(raw) != "url_citation":
        return None
    found = _annotation.decode(raw)
    return Annotation(UrlCitation(found.start_index, found.end_index, found.url, found.title))


def call_id(response_id: str, own_id: str) -> str:
    """The id of a call as the client gets it: no other answer has it. ``own_id``: its id in the context."""
    number = own_id.rpartition("_")[2]
    return f"call_{response_id[-_CALL_ID_DIGITS:]}_{number}"[:40]


def finish_reason(response: Response, form: AnswerForm, *, has_calls: bool) -> FinishReason:
    """Why an answer has ended."""
    details = response.incomplete_details
    if details is not None:
        return "content_filter" if details.reason == "content_filter" else "length"
    if has_calls:
        return "function_call" if form.legacy else "tool_calls"
    return "stop"


class _Texts:
    """Texts that are joined to one."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def add(self, text: str) -> None:
        if text:
            self._texts.append(text)

    def whole(self) -> str | None:
        return SEPARATOR.join(self._texts) if self._texts else None


def choice_of(response: Response, index: int, form: AnswerForm) -> ChatChoice:
    """The choice that a response has become."""
    content, refusal, thoughts = _Texts(), _Texts(), _Texts()
    annotations: list[Annotation] = []
    calls: list[ChatFunctionCall | ChatCustomCall] = []
    tokens: list[TokenLogprob] = []
    for item in _items(response.output):
        if isinstance(item, OutputMessage):
            content.add("".join(part.text for part in item.content if isinstance(part, OutputTextPart)))
            refusal.add("".join(part.refusal for part in item.content if isinstance(part, RefusalPart)))
            for part in item.content:
                if isinstance(part, OutputTextPart):
                    annotations += filter(None, map(annotation_of, part.annotations))
                    tokens += logprobs.of_tokens(part.logprobs)
        elif isinstance(item, ReasoningItem):
            thoughts.add(_thought(item))
        else:
            calls.append(_call(item, response.id))
    message = AnswerMessage(content.whole(), refusal.whole(), annotations)
    if message.content is None and message.refusal is None and not calls:
        message.content = ""
    if (thought := thoughts.whole()) is not None:
        message.reasoning_content = thought
    if form.legacy and calls and isinstance(calls[0], ChatFunctionCall):
        message.function_call = calls[0].function
    elif calls:
        message.tool_calls = calls
    reason = finish_reason(response, form, has_calls=bool(calls))
    return ChatChoice(index, message, ChoiceLogprobs(tokens) if form.logprobs else None, reason)


def _items(
    output: Sequence[Raw],
) -> Iterator[OutputMessage | ReasoningItem | FunctionCallItem | CustomToolCallItem]:
    """The items that a chat completion has a place for."""
    for raw in output:
        decoder = _DECODERS.get(wire.type_of(raw))
        if decoder is not None:
            yield decoder.decode(raw)


def _thought(item: ReasoningItem) -> str:
    """The thought of a reasoning item: its text, or else its summary."""
    if item.content is not UNSET and item.content:
        return "".join(part.text for part in item.content)
    return SEPARATOR.join(part.text for part in item.summary)


def _call(item: FunctionCallItem | CustomToolCallItem, response_id: str) -> ChatFunctionCall | ChatCustomCall:
    sent_id = call_id(response_id, item.call_id)
    if isinstance(item, CustomToolCallItem):
        return ChatCustomCall(sent_id, CalledCustomTool(item.name, item.input))
    return ChatFunctionCall(sent_id, CalledFunction(item.name, item.arguments))
