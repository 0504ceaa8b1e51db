"""A chat completion, whole and in chunks: its choices with their messages, calls and logprobs, its usage, and
what safety checks found.

Each choice is a response of its own. The chunks of a stream are made of the events of its choices: the lane
of an event is the index of its choice.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from slipring.protocol import wire
from slipring.protocol.chat_completions.errors import Places, failure_of
from slipring.protocol.events import (
    PADDED,
    Completed,
    Created,
    CustomToolCallInputDelta,
    ErrorAnswer,
    Event,
    EventLogprob,
    Failed,
    FunctionCallArgumentsDelta,
    Incomplete,
    OutputItemAdded,
    OutputTextAnnotationAdded,
    OutputTextDelta,
    ReasoningSummaryTextDelta,
    ReasoningTextDelta,
    RefusalDelta,
    ResponseEvent,
)
from slipring.protocol.items.items import SEPARATOR
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

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]
_REPLACED = "\ufffd"
_ID = "chatcmpl-"
_CALL_ID_DIGITS = 24
_NOWHERE = (-1, -1)
_EMPTY_DELTA = b'"delta":{}'


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


def logprobs_of_tokens(logprobs: Sequence[Logprob]) -> list[TokenLogprob]:
    return [
        TokenLogprob(
            each.token,
            each.logprob,
            each.bytes,
            [TokenAlternative(top.token, top.logprob, top.bytes) for top in each.top_logprobs],
        )
        for each in logprobs
    ]


def logprobs_of_event(logprobs: Sequence[EventLogprob]) -> ChoiceLogprobs:
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
                    tokens += logprobs_of_tokens(part.logprobs)
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


class _Joined:
    """A text that is made of several ones, each with a place of its own in the response."""

    __slots__ = ("place",)

    def __init__(self) -> None:
        self.place = _NOWHERE
        """Of the piece that came last."""

    def piece(self, text: str, place: tuple[int, int]) -> str:
        """A piece as it is sent: after a separator if it begins another text."""
        if place == self.place or not text:
            return text
        is_first = self.place == _NOWHERE
        self.place = place
        return text if is_first else SEPARATOR + text


class _ChoiceState:
    """What the chunks of one choice depend on."""

    __slots__ = (
        *("call_index", "content", "head", "index", "refusal", "response_id"),
        *("tail", "thinks_in", "thought"),
    )

    def __init__(self, index: int) -> None:
        self.index = index
        self.response_id = ""
        self.call_index = -1
        """Of the call that began last."""
        self.content, self.refusal, self.thought = _Joined(), _Joined(), _Joined()
        self.head = self.tail = b""
        """What is around the delta in a chunk, once the choice has begun: few chunks differ in more."""
        self.thinks_in: tuple[int, type[Event]] = (-1, Event)
        """The item of the last thought, and the kind of deltas that the client gets of it."""

    def takes(self, output_index: int, kind: type[Event]) -> bool:
        """Whether the client gets deltas of a kind: of each item, the thought or its summary, not both."""
        if self.thinks_in[0] != output_index:
            self.thinks_in = (output_index, kind)
        return self.thinks_in[1] is kind


class CompletionStream:
    """The chunks of one completion."""

    def __init__(self, form: AnswerForm, places: Places) -> None:
        """``places``: where the fields of the request stand, for the error that may end the stream."""
        self._form = form
        self._places = places
        self._choices = [_ChoiceState(index) for index in range(form.choices)]
        self._no_usage: UnsetType | None = None if form.usage else UNSET
        """``usage`` of all chunks but the last."""
        self._id = self._model = self._tier = ""
        self._created = 0
        self._used: list[Usage] = []
        self._running = form.choices
        self.prompt: Usage | None = None
        """The usage of the job that processed the prompt for all choices, if there was one."""
        self.has_failed = False
        """Whether the stream has ended with an error."""
        self.obfuscation: str | UnsetType = UNSET
        """The padding of the chunk that is being written."""

    def frames(self, event: Event) -> bytes:
        """The SSE blocks for an event; empty if it has none."""
        write = _WRITERS.get(type(event))
        if write is None:
            return b""
        lane = event.stream_id
        return write(self, self._choices[0 if lane is UNSET else int(lane)], event)

    def created(self, choice: _ChoiceState, event: Created) -> bytes:
        response = event.response
        is_new = not choice.response_id
        choice.response_id = response.id
        if not self._id:
            self._id, self._created = completion_id(response), response.created_at
            self._model, self._tier = response.model, response.service_tier
        empty = block(self._of([ChunkChoice(choice.index, ChunkDelta())]))
        before, choice.tail = empty.split(_EMPTY_DELTA)
        choice.head = before + _EMPTY_DELTA[:-2]
        # The first choice begins with the turn that processes the prompt for all.
        return self._chunk(choice, ChunkDelta("", "assistant", None)) if is_new else b""

    def text(self, choice: _ChoiceState, event: OutputTextDelta) -> bytes:
        text = choice.content.piece(event.delta, (event.output_index, 0))
        found = logprobs_of_event(event.logprobs) if self._form.logprobs else None
        return self._chunk(choice, ChunkDelta(text), found)

    def refusal(self, choice: _ChoiceState, event: RefusalDelta) -> bytes:
        text = choice.refusal.piece(event.delta, (event.output_index, 0))
        return self._chunk(choice, ChunkDelta(refusal=text))

    def thought(self, choice: _ChoiceState, event: ReasoningTextDelta) -> bytes:
        if not choice.takes(event.output_index, ReasoningTextDelta):
            return b""
        text = choice.thought.piece(event.delta, (event.output_index, 0))
        return self._chunk(choice, ChunkDelta(reasoning_content=text))

    def summary(self, choice: _ChoiceState, event: ReasoningSummaryTextDelta) -> bytes:
        if not choice.takes(event.output_index, ReasoningSummaryTextDelta):
            return b""
        text = choice.thought.piece(event.delta, (event.output_index, event.summary_index))
        return self._chunk(choice, ChunkDelta(reasoning_content=text))

    def annotation(self, choice: _ChoiceState, event: OutputTextAnnotationAdded) -> bytes:
        found = annotation_of(event.annotation)
        return b"" if found is None else self._chunk(choice, ChunkDelta(annotations=[found]))

    def item(self, choice: _ChoiceState, event: OutputItemAdded) -> bytes:
        """The beginning of a call: its id and its name."""
        item = event.item
        if not isinstance(item, FunctionCallItem | CustomToolCallItem):
            return b""
        choice.call_index += 1
        begun = ToolCallDelta(choice.call_index, call_id(choice.response_id, item.call_id))
        if isinstance(item, CustomToolCallItem):
            begun.type, begun.custom = "custom", CustomDelta(item.name, "")
        elif self._form.legacy:
            return self._chunk(choice, ChunkDelta(function_call=FunctionDelta(item.name, "")))
        else:
            begun.type, begun.function = "function", FunctionDelta(item.name, "")
        return self._chunk(choice, ChunkDelta(tool_calls=[begun]))

    def arguments(self, choice: _ChoiceState, event: FunctionCallArgumentsDelta) -> bytes:
        piece = FunctionDelta(arguments=event.delta)
        if self._form.legacy:
            return self._chunk(choice, ChunkDelta(function_call=piece))
        return self._chunk(choice, ChunkDelta(tool_calls=[ToolCallDelta(choice.call_index, function=piece)]))

    def input(self, choice: _ChoiceState, event: CustomToolCallInputDelta) -> bytes:
        piece = CustomDelta(input=event.delta)
        return self._chunk(choice, ChunkDelta(tool_calls=[ToolCallDelta(choice.call_index, custom=piece)]))

    def ended(self, choice: _ChoiceState, event: ResponseEvent) -> bytes:
        """The last chunk of a choice, and after that of the last one the usage of all."""
        response = event.response
        reason = finish_reason(response, self._form, has_calls=choice.call_index >= 0)
        chunk = self._of([ChunkChoice(choice.index, ChunkDelta(), None, reason)])
        if (found := response.moderation) is not UNSET:
            chunk.moderation = moderation_of(found)
        self._running -= 1
        if response.usage is not None:
            self._used.append(response.usage)
        blocks = block(chunk)
        if self._no_usage is None and not self._running and self._used:
            blocks += block(self._of([], usage_of(self._used, self.prompt)))
        return blocks

    def failed(self, choice: _ChoiceState, event: Failed) -> bytes:
        """An error in place of the rest of the stream."""
        error = event.response.error
        assert error is not None
        self.has_failed = True
        return block(ErrorAnswer(self._places.renamed(failure_of(error))))

    def _chunk(self, choice: _ChoiceState, delta: ChunkDelta, found: ChoiceLogprobs | None = None) -> bytes:
        if found is None and self.obfuscation is UNSET:
            return b"%b%b%b" % (choice.head, wire.encode(delta), choice.tail)
        return block(self._of([ChunkChoice(choice.index, delta, found)]))

    def _of(self, choices: list[ChunkChoice], usage: CompletionUsage | None = None) -> ChatChunk:
        return ChatChunk(
            self._id,
            self._created,
            self._model,
            self._tier,
            self._form.fingerprint,
            choices,
            self._no_usage if usage is None else usage,
            obfuscation=self.obfuscation,
        )


_Writer = Callable[[CompletionStream, _ChoiceState, Any], bytes]
_WRITERS: dict[type[Event], _Writer] = {
    Created: CompletionStream.created,
    OutputTextDelta: CompletionStream.text,
    RefusalDelta: CompletionStream.refusal,
    ReasoningTextDelta: CompletionStream.thought,
    ReasoningSummaryTextDelta: CompletionStream.summary,
    OutputTextAnnotationAdded: CompletionStream.annotation,
    OutputItemAdded: CompletionStream.item,
    FunctionCallArgumentsDelta: CompletionStream.arguments,
    CustomToolCallInputDelta: CompletionStream.input,
    Completed: CompletionStream.ended,
    Incomplete: CompletionStream.ended,
    Failed: CompletionStream.failed,
}


def _padded(write: _Writer) -> _Writer:
    """Writes the chunk of a padded event with its padding."""

    def write_padded(stream: CompletionStream, choice: _ChoiceState, event: Any) -> bytes:
        stream.obfuscation = event.obfuscation
        try:
            return write(stream, choice, event)
        finally:
            stream.obfuscation = UNSET

    return write_padded


for _kind, _padded_kind in PADDED.items():
    if _kind in _WRITERS:
        _WRITERS[cast(type[Event], _padded_kind)] = _padded(_WRITERS[_kind])
