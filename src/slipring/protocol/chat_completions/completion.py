"""A chat completion, whole and in chunks: its choices with their messages, calls and logprobs, its usage,
and what safety checks found.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from slipring.protocol import wire
from slipring.protocol.events import EventLogprob
from slipring.protocol.items import SEPARATOR
from slipring.protocol.responses import (
    CustomToolCallItem,
    FunctionCallItem,
    Logprob,
    OutputMessage,
    OutputTextPart,
    ReasoningItem,
    RefusalPart,
    Response,
    ResponseModeration,
    ResponseModerationError,
    ResponseModerationResult,
    Usage,
)

_REPLACED = "\ufffd"


class TokenAlternative(Struct):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TokenAlternative]


class ChoiceLogprobs(Struct):
    content: list[TokenLogprob]
    refusal: None = None


def of_tokens(logprobs: Sequence[Logprob]) -> list[TokenLogprob]:
    return [
        TokenLogprob(
            each.token,
            each.logprob,
            each.bytes,
            [TokenAlternative(top.token, top.logprob, top.bytes) for top in each.top_logprobs],
        )
        for each in logprobs
    ]


def of_event(logprobs: Sequence[EventLogprob]) -> ChoiceLogprobs:
    """The logprobs of a delta, whose tokens come without their bytes."""
    return ChoiceLogprobs(
        [
            TokenLogprob(
                each.token,
                each.logprob,
                _bytes_of(each.token),
                [TokenAlternative(top.token, top.logprob, _bytes_of(top.token)) for top in each.top_logprobs],
            )
            for each in logprobs
        ]
    )


def _bytes_of(token: str) -> list[int] | None:
    """The bytes of a token; None if it is a part of a character, which its text does not show."""
    return None if _REPLACED in token else list(token.encode())


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
                    tokens += of_tokens(part.logprobs)
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


_ID = "chatcmpl-"


def completion_id(response: Response) -> str:
    return _ID + response.id.partition("_")[2]


class PromptTokensDetails(Struct):
    cached_tokens: int
    cache_write_tokens: int
    audio_tokens: int = 0


class CompletionTokensDetails(Struct):
    reasoning_tokens: int
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class CompletionUsage(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


def usage_of(choices: Sequence[Usage], prompt: Usage | None = None) -> CompletionUsage:
    """The usage of a completion with these choices, which have the same prompt. ``prompt``: of the job that
    processed it for all of them, if that was one of its own: what it found in a cache is what the whole
    completion found there."""
    asked = choices[0] if prompt is None else prompt
    written = sum(choice.output_tokens for choice in choices)
    return CompletionUsage(
        prompt_tokens=choices[0].input_tokens,
        completion_tokens=written,
        total_tokens=choices[0].input_tokens + written,
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=asked.input_tokens_details.cached_tokens,
            cache_write_tokens=asked.input_tokens_details.cache_write_tokens,
        ),
        completion_tokens_details=CompletionTokensDetails(
            reasoning_tokens=sum(choice.output_tokens_details.reasoning_tokens for choice in choices)
        ),
    )


class ModerationResults(Struct, tag_field="type", tag="moderation_results"):
    model: str
    results: list[ResponseModerationResult]


class Moderation(Struct):
    input: ModerationResults | ResponseModerationError
    output: ModerationResults | ResponseModerationError


def moderation_of(found: ResponseModeration) -> Moderation:
    return Moderation(_side(found.input), _side(found.output))


def _side(
    found: ResponseModerationResult | ResponseModerationError,
) -> ModerationResults | ResponseModerationError:
    return found if isinstance(found, ResponseModerationError) else ModerationResults(found.model, [found])


class ChatCompletion(Struct):
    """The whole answer to a request."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: CompletionUsage | None
    service_tier: str
    system_fingerprint: str
    metadata: dict[str, str] | UnsetType = UNSET
    moderation: Moderation | UnsetType = UNSET
    object: Literal["chat.completion"] = "chat.completion"


class FunctionDelta(Struct, gc=False):
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class CustomDelta(Struct, gc=False):
    name: str | UnsetType = UNSET
    input: str | UnsetType = UNSET


class ToolCallDelta(Struct, gc=False):
    """A piece of a call. The first one has its id, its type and its name."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET
    function: FunctionDelta | UnsetType = UNSET
    custom: CustomDelta | UnsetType = UNSET


class ChunkDelta(Struct, gc=False):
    """What a chunk adds to the message of its choice."""

    content: str | UnsetType | None = UNSET
    role: Literal["assistant"] | UnsetType = UNSET
    refusal: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
    function_call: FunctionDelta | UnsetType = UNSET
    annotations: list[Annotation] | UnsetType = UNSET


class ChunkChoice(Struct, gc=False):
    index: int
    delta: ChunkDelta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason | None = None


class ChatChunk(Struct, gc=False):
    id: str
    created: int
    model: str
    service_tier: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: CompletionUsage | UnsetType | None = UNSET
    """Null in all chunks but the last if the client asks for usage."""
    moderation: Moderation | UnsetType = UNSET
    obfuscation: str | UnsetType = UNSET
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


def block(document: Struct) -> bytes:
    """A chunk, or an error, as one SSE block."""
    return b"data: %b\n\n" % wire.encode(document)
