"""Events: what a server says about a response, one class per wire type.

``response.output_text.delta`` is ``OutputTextDelta``. ``stream_id`` is left out on the default lane.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

from msgspec import UNSET, Raw, Struct, UnsetType, defstruct

from slipring.errors import ApiError
from slipring.protocol.responses import (
    Logprob,
    OutputItem,
    OutputTextPart,
    ReasoningTextPart,
    RefusalPart,
    Response,
    SummaryTextPart,
)
from slipring.protocol.timing import TurnReport

Part = OutputTextPart | RefusalPart | ReasoningTextPart


class Event(Struct, tag_field="type", kw_only=True, gc=False):
    """What all events share. They never form cycles, so the collector need not look at them."""

    sequence_number: int
    stream_id: str | UnsetType = UNSET


class ResponseEvent(Event, kw_only=True):
    """An event that carries the whole response object."""

    response: Response


class Created(ResponseEvent, tag="response.created"): ...


class Queued(ResponseEvent, tag="response.queued"): ...


class InProgress(ResponseEvent, tag="response.in_progress"): ...


class Completed(ResponseEvent, tag="response.completed"): ...


class Incomplete(ResponseEvent, tag="response.incomplete"): ...


class Failed(ResponseEvent, tag="response.failed"): ...


TERMINAL = (Completed, Incomplete, Failed)


class ItemEvent(Event, kw_only=True):
    output_index: int


class OutputItemAdded(ItemEvent, tag="response.output_item.added", kw_only=True):
    item: OutputItem | Raw
    """Raw where it is a client's own, and as whole as it will be."""


class OutputItemDone(ItemEvent, tag="response.output_item.done", kw_only=True):
    item: Raw


class PartEvent(ItemEvent, kw_only=True):
    item_id: str
    content_index: int


class ContentPartAdded(PartEvent, tag="response.content_part.added", kw_only=True):
    part: Part


class ContentPartDone(PartEvent, tag="response.content_part.done", kw_only=True):
    part: Part


class SpokenTopLogprob(Struct):
    token: str
    logprob: float


class SpokenLogprob(Struct):
    """A logprob as the events about text have it; the finished part alone has the token's bytes too."""

    token: str
    logprob: float
    top_logprobs: list[SpokenTopLogprob]

    @classmethod
    def of(cls, logprob: Logprob) -> "SpokenLogprob":
        top = [SpokenTopLogprob(token=other.token, logprob=other.logprob) for other in logprob.top_logprobs]
        return cls(token=logprob.token, logprob=logprob.logprob, top_logprobs=top)


class OutputTextDelta(PartEvent, tag="response.output_text.delta", kw_only=True):
    delta: str
    logprobs: list[SpokenLogprob]


class OutputTextDone(PartEvent, tag="response.output_text.done", kw_only=True):
    text: str
    logprobs: list[SpokenLogprob]


class OutputTextAnnotationAdded(PartEvent, tag="response.output_text.annotation.added", kw_only=True):
    annotation_index: int
    annotation: Raw


class RefusalDelta(PartEvent, tag="response.refusal.delta", kw_only=True):
    delta: str


class RefusalDone(PartEvent, tag="response.refusal.done", kw_only=True):
    refusal: str


class ReasoningTextDelta(PartEvent, tag="response.reasoning_text.delta", kw_only=True):
    delta: str


class ReasoningTextDone(PartEvent, tag="response.reasoning_text.done", kw_only=True):
    text: str


class SummaryEvent(ItemEvent, kw_only=True):
    item_id: str
    summary_index: int


class ReasoningSummaryPartAdded(SummaryEvent, tag="response.reasoning_summary_part.added", kw_only=True):
    part: SummaryTextPart


class ReasoningSummaryPartDone(SummaryEvent, tag="response.reasoning_summary_part.done", kw_only=True):
    part: SummaryTextPart


class ReasoningSummaryTextDelta(SummaryEvent, tag="response.reasoning_summary_text.delta", kw_only=True):
    delta: str


class ReasoningSummaryTextDone(SummaryEvent, tag="response.reasoning_summary_text.done", kw_only=True):
    text: str


class CallEvent(ItemEvent, kw_only=True):
    item_id: str


class FunctionCallArgumentsDelta(CallEvent, tag="response.function_call_arguments.delta", kw_only=True):
    delta: str


class FunctionCallArgumentsDone(CallEvent, tag="response.function_call_arguments.done", kw_only=True):
    arguments: str


class CustomToolCallInputDelta(CallEvent, tag="response.custom_tool_call_input.delta", kw_only=True):
    delta: str


class CustomToolCallInputDone(CallEvent, tag="response.custom_tool_call_input.done", kw_only=True):
    input: str


class CompactionCompacting(ItemEvent, tag="response.compaction.compacting", kw_only=True):
    item_id: str


PADDED: dict[type[Event], Callable[..., Any]] = {
    kind: defstruct(
        f"Padded{kind.__name__}",
        [("obfuscation", str)],
        bases=(kind,),
        tag=kind.__struct_config__.tag,
        kw_only=True,
        gc=False,
    )
    for kind in (
        OutputTextDelta,
        RefusalDelta,
        ReasoningTextDelta,
        ReasoningSummaryTextDelta,
        FunctionCallArgumentsDelta,
        CustomToolCallInputDelta,
    )
}
"""Deltas with random characters that hide their length: kinds of their own, so that nobody else pays."""


class SteerRef(Struct):
    """What a client added to a response, by the id that it was given here."""

    previous_response_id: str
    id: str | UnsetType = UNSET
    input: Raw | UnsetType = UNSET
    """As it was sent, where it is given back."""


class SteerAccepted(Event, tag="response.steer.accepted", kw_only=True):
    steer: SteerRef


class RequiredInput(Struct):
    """What a client has to send before a response can be continued: the result is left for it to add."""

    type: str
    call_id: str
    name: str | UnsetType = UNSET
    """Of functions."""
    execution: Literal["client"] | UnsetType = UNSET
    """Of searches for tools."""


class SteerPending(Event, tag="response.steer.pending", kw_only=True):
    steer: SteerRef
    required_input: list[RequiredInput]
    reason: Literal["waiting_for_required_input"] = "waiting_for_required_input"


SteerErrorCode = Literal[
    "response_not_found",
    "invalid_input",
    "steering_not_supported",
    "too_many_pending_steers",
    "response_already_completed",
    "response_not_active",
    "successor_creation_failed",
]


class SteerErrorBody(Struct):
    code: SteerErrorCode
    message: str
    type: Literal["invalid_request_error"] = "invalid_request_error"


class SteerFailed(Event, tag="response.steer.failed", kw_only=True):
    steer: SteerRef
    error: SteerErrorBody


class Done(Event, tag="response.done", kw_only=True):
    """A rollout waits for its client. Not of the API: only for clients that asked for one."""

    response_id: str
    required_input: list[RequiredInput]


AppendErrorCode = Literal[
    "response_not_found",
    "invalid_input",
    "append_not_supported",
    "too_much_pending_input",
    "response_already_completed",
    "response_not_active",
]


class AppendErrorBody(Struct):
    code: AppendErrorCode
    message: str
    param: str | None = None
    type: Literal["invalid_request_error"] = "invalid_request_error"


class AppendFailed(Event, tag="response.append.failed", kw_only=True):
    """What was to be added to a rollout is given back. Not of the API either."""

    response_id: str
    input: Raw
    """As it was sent."""
    error: AppendErrorBody


class InjectCreated(Event, tag="response.inject.created", kw_only=True):
    response_id: str


InjectErrorCode = Literal["response_already_completed", "response_not_found"]


class InjectErrorBody(Struct):
    code: InjectErrorCode
    message: str


class InjectFailed(Event, tag="response.inject.failed", kw_only=True):
    response_id: str
    input: Raw
    """As it was sent."""
    error: InjectErrorBody


class Timing(Event, tag="slipring.timing", kw_only=True):
    """Where the time of the response before it went. Not of the API: only for clients that asked."""

    timing: TurnReport


class ErrorBody(Struct):
    """An error as HTTP bodies and WebSocket frames nest it."""

    type: str
    code: str
    message: str
    param: str | None
    headers: dict[str, str] | UnsetType = UNSET
    """On a socket, what would be headers over HTTP."""

    @classmethod
    def of(cls, error: ApiError) -> "ErrorBody":
        seconds = error.retry_after_s
        headers = UNSET if seconds is None else {"retry-after": str(math.ceil(seconds))}
        return cls(
            type=error.type, code=error.code, message=error.message, param=error.param, headers=headers
        )


class ErrorAnswer(Struct):
    """The body of every HTTP answer that is a refusal."""

    error: ErrorBody


class Error(Event, tag="error", kw_only=True):
    """A request that was refused before its response existed, or a notice about the connection.

    On a socket this is the frame; over HTTP it becomes a status and a body. ``status`` is always there: there
    are clients that wait forever without it.
    """

    status: int
    error: ErrorBody

    @classmethod
    def of(cls, error: ApiError, lane: str | None = None) -> "Error":
        return cls(
            sequence_number=0,
            stream_id=UNSET if lane is None else lane,
            status=error.status,
            error=ErrorBody.of(error),
        )
