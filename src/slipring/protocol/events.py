"""Events that the server sends, one class per wire type.

``response.output_text.delta`` is ``OutputTextDelta``. ``stream_id`` is omitted on the default lane.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

from msgspec import UNSET, Raw, Struct, UnsetType, defstruct

from slipring.base.errors import ApiError
from slipring.protocol.responses import (
    Logprob,
    OutputItem,
    OutputTextPart,
    ReasoningTextPart,
    RefusalPart,
    Response,
    SummaryTextPart,
)
from slipring.protocol.turn_report import TurnReport

Part = OutputTextPart | RefusalPart | ReasoningTextPart


class Event(Struct, tag_field="type", kw_only=True, gc=False):
    """Fields common to all events. Events never form cycles, so ``gc=False`` spares the collector."""

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
    """Raw for an item that the client appended, which is complete already."""


class OutputItemDone(ItemEvent, tag="response.output_item.done", kw_only=True):
    item: Raw


class PartEvent(ItemEvent, kw_only=True):
    item_id: str
    content_index: int


class ContentPartAdded(PartEvent, tag="response.content_part.added", kw_only=True):
    part: Part


class ContentPartDone(PartEvent, tag="response.content_part.done", kw_only=True):
    part: Part


class EventTopLogprob(Struct):
    token: str
    logprob: float


class EventLogprob(Struct):
    """A logprob as text events carry it. Only the finished part also has the token's bytes."""

    token: str
    logprob: float
    top_logprobs: list[EventTopLogprob]

    @classmethod
    def of(cls, logprob: Logprob) -> "EventLogprob":
        top = [EventTopLogprob(token=other.token, logprob=other.logprob) for other in logprob.top_logprobs]
        return cls(token=logprob.token, logprob=logprob.logprob, top_logprobs=top)


class OutputTextDelta(PartEvent, tag="response.output_text.delta", kw_only=True):
    delta: str
    logprobs: list[EventLogprob]


class OutputTextDone(PartEvent, tag="response.output_text.done", kw_only=True):
    text: str
    logprobs: list[EventLogprob]


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


class McpListToolsInProgress(CallEvent, tag="response.mcp_list_tools.in_progress"): ...


class McpListToolsCompleted(CallEvent, tag="response.mcp_list_tools.completed"): ...


class McpListToolsFailed(CallEvent, tag="response.mcp_list_tools.failed"): ...


class McpCallInProgress(CallEvent, tag="response.mcp_call.in_progress"):
    """Sent when a call begins, and again whenever its server reports progress."""


class McpCallArgumentsDelta(CallEvent, tag="response.mcp_call_arguments.delta", kw_only=True):
    delta: str


class McpCallArgumentsDone(CallEvent, tag="response.mcp_call_arguments.done", kw_only=True):
    arguments: str


class McpCallCompleted(CallEvent, tag="response.mcp_call.completed"): ...


class McpCallFailed(CallEvent, tag="response.mcp_call.failed"): ...


class McpCallProgress(CallEvent, tag="slipring.mcp_call.progress", kw_only=True):
    """An extension: what the server says of a call that still runs."""

    progress: float
    total: float | None
    message: str | None


class WebSearchCallInProgress(CallEvent, tag="response.web_search_call.in_progress"): ...


class WebSearchCallSearching(CallEvent, tag="response.web_search_call.searching"):
    """Sent when a search begins, and again whenever its server reports progress."""


class WebSearchCallCompleted(CallEvent, tag="response.web_search_call.completed"): ...


class FileSearchCallInProgress(CallEvent, tag="response.file_search_call.in_progress"): ...


class FileSearchCallSearching(CallEvent, tag="response.file_search_call.searching"):
    """Sent when a search begins, and again whenever its server reports progress."""


class FileSearchCallCompleted(CallEvent, tag="response.file_search_call.completed"): ...


class CodeInterpreterCallInProgress(CallEvent, tag="response.code_interpreter_call.in_progress"): ...


class CodeInterpreterCallCodeDelta(CallEvent, tag="response.code_interpreter_call_code.delta", kw_only=True):
    delta: str


class CodeInterpreterCallCodeDone(CallEvent, tag="response.code_interpreter_call_code.done", kw_only=True):
    code: str


class CodeInterpreterCallInterpreting(CallEvent, tag="response.code_interpreter_call.interpreting"):
    """Sent when the code begins to run, and again whenever its server reports progress."""


class CodeInterpreterCallCompleted(CallEvent, tag="response.code_interpreter_call.completed"): ...


class ImageGenerationCallInProgress(CallEvent, tag="response.image_generation_call.in_progress"): ...


class ImageGenerationCallGenerating(CallEvent, tag="response.image_generation_call.generating"): ...


class ImageGenerationCallPartialImage(
    CallEvent, tag="response.image_generation_call.partial_image", kw_only=True
):
    partial_image_index: int
    partial_image_b64: str
    size: str | UnsetType = UNSET
    quality: str | UnsetType = UNSET
    background: str | UnsetType = UNSET
    output_format: str | UnsetType = UNSET


class ImageGenerationCallCompleted(CallEvent, tag="response.image_generation_call.completed"): ...


class CompactionCompacting(ItemEvent, tag="response.compaction.compacting", kw_only=True):
    item_id: str


DELTAS: frozenset[type[Event]] = frozenset(
    {
        *(OutputTextDelta, RefusalDelta, ReasoningTextDelta, ReasoningSummaryTextDelta),
        *(FunctionCallArgumentsDelta, CustomToolCallInputDelta),
        *(McpCallArgumentsDelta, CodeInterpreterCallCodeDelta),
    }
)
"""Events with a piece of what the model writes: most events of a stream."""

PADDED: dict[type[Event], Callable[..., Any]] = {
    kind: defstruct(
        f"Padded{kind.__name__}",
        [("obfuscation", str)],
        bases=(kind,),
        tag=kind.__struct_config__.tag,
        kw_only=True,
        gc=False,
    )
    for kind in DELTAS
}
"""Delta events with an ``obfuscation`` field that hides their length. Separate classes, so that plain deltas
are encoded without it at no cost."""


class SteerRef(Struct):
    """A steer, by the id that the server assigned."""

    previous_response_id: str
    id: str | UnsetType = UNSET
    input: Raw | UnsetType = UNSET
    """As received; set where it is returned to the client."""


class SteerAccepted(Event, tag="response.steer.accepted", kw_only=True):
    steer: SteerRef


class RequiredInput(Struct):
    """What the client must send before the response can continue: a call output without its result, or an
    approval without the decision."""

    type: str
    call_id: str | UnsetType = UNSET
    """For outputs."""
    name: str | UnsetType = UNSET
    """For functions."""
    execution: Literal["client"] | UnsetType = UNSET
    """For tool searches."""
    approval_request_id: str | UnsetType = UNSET
    """For approvals."""


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
    """A rollout waits for its client. An extension, sent only for rollouts."""

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
    """An append was refused; its input is returned. An extension, sent only to clients that enabled
    rollouts."""

    response_id: str
    input: Raw
    """As received."""
    error: AppendErrorBody


ToolOutputErrorCode = Literal["invalid_input", "response_not_found", "call_not_open"]


class ToolOutputErrorBody(Struct):
    code: ToolOutputErrorCode
    message: str
    param: str | None = None
    type: Literal["invalid_request_error"] = "invalid_request_error"


class ToolOutputFailed(Event, tag="response.tool_output.failed", kw_only=True):
    """A piece of a tool's output was refused. An extension, sent only to clients that stream such pieces."""

    response_id: str
    call_id: str
    error: ToolOutputErrorBody


class InjectCreated(Event, tag="response.inject.created", kw_only=True):
    response_id: str


InjectErrorCode = Literal["response_already_completed", "response_not_found"]


class InjectErrorBody(Struct):
    code: InjectErrorCode
    message: str


class InjectFailed(Event, tag="response.inject.failed", kw_only=True):
    response_id: str
    input: Raw
    """As received."""
    error: InjectErrorBody


class Timing(Event, tag="slipring.timing", kw_only=True):
    """The report of the response before it. An extension, sent only to clients that enabled it."""

    timing: TurnReport


class ErrorBody(Struct):
    """The ``error`` object of HTTP bodies and WebSocket frames."""

    type: str
    code: str
    message: str
    param: str | None
    headers: dict[str, str] | UnsetType = UNSET
    """On a WebSocket, the headers that an HTTP response would have."""

    @classmethod
    def of(cls, error: ApiError) -> "ErrorBody":
        seconds = error.retry_after_s
        headers = UNSET if seconds is None else {"retry-after": str(math.ceil(seconds))}
        return cls(
            type=error.type, code=error.code, message=error.message, param=error.param, headers=headers
        )


class ErrorAnswer(Struct):
    """The body of every HTTP error response."""

    error: ErrorBody


class Error(Event, tag="error", kw_only=True):
    """A request was refused before its response existed, or the connection is about to close.

    On a WebSocket this is the frame; over HTTP it becomes a status and a body. ``status`` is always present:
    some clients wait forever without it.
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
