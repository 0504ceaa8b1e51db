"""A streamed chat completion: makes chunks of the events of its choices.

Each choice is a response of its own. The lane of an event is the index of its choice.
"""

from collections.abc import Callable
from typing import Any, cast

from msgspec import UNSET, UnsetType

from slipring.protocol import wire
from slipring.protocol.chat_completions import completion
from slipring.protocol.chat_completions.completion import (
    AnswerForm,
    ChatChunk,
    ChoiceLogprobs,
    ChunkChoice,
    ChunkDelta,
    CompletionUsage,
    CustomDelta,
    FunctionDelta,
    ToolCallDelta,
    block,
    completion_id,
    moderation_of,
    usage_of,
)
from slipring.protocol.chat_completions.error_paths import Places
from slipring.protocol.events import (
    PADDED,
    Completed,
    Created,
    CustomToolCallInputDelta,
    ErrorAnswer,
    ErrorBody,
    Event,
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
from slipring.protocol.items import SEPARATOR
from slipring.protocol.responses import CustomToolCallItem, FunctionCallItem, Usage

_NOWHERE = (-1, -1)
_EMPTY_DELTA = b'"delta":{}'
_ERROR_TYPES = {
    "invalid_prompt": "invalid_request_error",
    "context_length_exceeded": "invalid_request_error",
    "model_not_found": "invalid_request_error",
    "insufficient_quota": "rate_limit_error",
    "rate_limit_exceeded": "rate_limit_error",
}
"""By the code of a failed response; all others are faults of the server."""


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
        found = completion.of_event(event.logprobs) if self._form.logprobs else None
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
        found = completion.annotation_of(event.annotation)
        return b"" if found is None else self._chunk(choice, ChunkDelta(annotations=[found]))

    def item(self, choice: _ChoiceState, event: OutputItemAdded) -> bytes:
        """The beginning of a call: its id and its name."""
        item = event.item
        if not isinstance(item, FunctionCallItem | CustomToolCallItem):
            return b""
        choice.call_index += 1
        begun = ToolCallDelta(choice.call_index, completion.call_id(choice.response_id, item.call_id))
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
        reason = completion.finish_reason(response, self._form, has_calls=choice.call_index >= 0)
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
        kind = _ERROR_TYPES.get(error.code, "server_error")
        body = ErrorBody(kind, error.code, error.message, None)
        return block(ErrorAnswer(self._places.renamed(body)))

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
