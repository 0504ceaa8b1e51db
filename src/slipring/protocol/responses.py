"""The response object and its output items, as sent.

A key is null or absent where OpenAI's is: some clients know a field as absent, and refuse a null. Large parts
that repeat (tools, instructions, finished items) are raw JSON: encoded once, then spliced into each event
that contains the response.
"""

from typing import Literal, get_args

from msgspec import UNSET, Raw, Struct, UnsetType

from slipring.protocol.items.hosted_items import CallError, CallStatus, CodeStatus, SearchStatus
from slipring.protocol.tools.client_tools import (
    ComputerAction,
    FileOperation,
    LocalShellAction,
    SafetyCheck,
    ShellAction,
)
from slipring.protocol.tools.mcp_tools import ListedTool

Status = Literal["in_progress", "completed", "failed", "incomplete", "cancelled", "queued"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
IncompleteReason = Literal["max_output_tokens", "content_filter", "max_messages", "steered"]


class TopLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]


class Logprob(Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class OutputTextPart(Struct, tag_field="type", tag="output_text"):
    text: str = ""
    annotations: list[Raw] = []
    logprobs: list[Logprob] = []


class RefusalPart(Struct, tag_field="type", tag="refusal"):
    refusal: str = ""


class ReasoningTextPart(Struct, tag_field="type", tag="reasoning_text"):
    text: str = ""


class SummaryTextPart(Struct, tag_field="type", tag="summary_text"):
    text: str = ""


class OutputMessage(Struct, tag_field="type", tag="message"):
    id: str
    status: ItemStatus
    content: list[OutputTextPart | RefusalPart]
    role: Literal["assistant"] = "assistant"


class ReasoningItem(Struct, tag_field="type", tag="reasoning"):
    id: str
    summary: list[SummaryTextPart]
    content: list[ReasoningTextPart] | UnsetType = UNSET
    encrypted_content: str | UnsetType = UNSET


class FunctionCallItem(Struct, tag_field="type", tag="function_call"):
    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus
    namespace: str | UnsetType = UNSET


class CustomToolCallItem(Struct, tag_field="type", tag="custom_tool_call"):
    id: str
    call_id: str
    name: str
    input: str
    status: ItemStatus
    namespace: str | UnsetType = UNSET


class ToolSearchCallItem(Struct, tag_field="type", tag="tool_search_call"):
    """The model asks the client to search for tools."""

    id: str
    call_id: str
    arguments: Raw
    status: ItemStatus
    execution: Literal["client"] = "client"


class ShellCallItem(Struct, tag_field="type", tag="shell_call"):
    """Commands that the client runs in a shell."""

    id: str
    call_id: str
    action: ShellAction
    status: ItemStatus


class LocalShellCallItem(Struct, tag_field="type", tag="local_shell_call"):
    """A program that the client runs."""

    id: str
    call_id: str
    action: LocalShellAction
    status: ItemStatus


class ApplyPatchCallItem(Struct, tag_field="type", tag="apply_patch_call"):
    """A change of a file that the client makes."""

    id: str
    call_id: str
    operation: FileOperation
    status: Literal["in_progress", "completed"]


class ComputerCallItem(Struct, tag_field="type", tag="computer_call"):
    """What the client does at a computer: ``actions`` of ``computer``, ``action`` of the preview tool."""

    id: str
    call_id: str
    status: ItemStatus
    action: ComputerAction | UnsetType = UNSET
    actions: list[ComputerAction] | UnsetType = UNSET
    pending_safety_checks: list[SafetyCheck] = []


class CompactionItem(Struct, tag_field="type", tag="compaction"):
    """Replaces the items before it; only this server can decrypt it."""

    id: str
    encrypted_content: str


class McpListToolsItem(Struct, tag_field="type", tag="mcp_list_tools"):
    """The tools that an MCP server listed."""

    id: str
    server_label: str
    tools: list[ListedTool]
    error: str | UnsetType = UNSET


class McpCallItem(Struct, tag_field="type", tag="mcp_call"):
    """A call that the server ran."""

    id: str
    server_label: str
    name: str
    arguments: str
    status: CallStatus
    output: str | None = None
    error: CallError | None = None
    approval_request_id: str | None = None


class McpApprovalRequestItem(Struct, tag_field="type", tag="mcp_approval_request"):
    """A call that the server runs only if the client approves it."""

    id: str
    server_label: str
    name: str
    arguments: str


class SearchSource(Struct, tag_field="type", tag="url"):
    url: str


class SearchAction(Struct, tag_field="type", tag="search"):
    query: str
    queries: list[str]
    sources: list[SearchSource] | UnsetType = UNSET


class WebSearchCallItem(Struct, tag_field="type", tag="web_search_call"):
    """A search that the server ran."""

    id: str
    status: SearchStatus
    action: SearchAction | UnsetType = UNSET
    """Absent while the model writes it."""


class FoundPassage(Struct):
    """A part of a file that a search has found. Clients accept no nulls in it."""

    text: str
    file_id: str = ""
    filename: str = ""
    score: float = 0.0
    attributes: dict[str, str | float | bool] = {}


class FileSearchCallItem(Struct, tag_field="type", tag="file_search_call"):
    """A search in files that the server ran."""

    id: str
    status: SearchStatus
    queries: list[str]
    results: list[FoundPassage] | None = None


class CodeLogs(Struct, tag_field="type", tag="logs"):
    logs: str


class CodeInterpreterCallItem(Struct, tag_field="type", tag="code_interpreter_call"):
    """Code that the server ran."""

    id: str
    status: CodeStatus
    code: str
    container_id: str
    outputs: list[CodeLogs] | None = None


OutputItem = (
    OutputMessage
    | ReasoningItem
    | FunctionCallItem
    | CustomToolCallItem
    | ToolSearchCallItem
    | ShellCallItem
    | LocalShellCallItem
    | ApplyPatchCallItem
    | ComputerCallItem
    | CompactionItem
    | McpListToolsItem
    | McpCallItem
    | McpApprovalRequestItem
    | WebSearchCallItem
    | FileSearchCallItem
    | CodeInterpreterCallItem
)


class CacheWriteDetails(Struct):
    """Tokens that were written to a cache, by the lifetime that the request asks for."""

    ttl_30m_tokens: int = 0
    ttl_12h_tokens: int = 0


class InputTokensDetails(Struct):
    cached_tokens: int
    cache_write_tokens: int
    cache_write_tokens_details: CacheWriteDetails | UnsetType = UNSET
    """Absent in responses that earlier versions have stored."""


class OutputTokensDetails(Struct):
    reasoning_tokens: int


class Usage(Struct):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(Struct):
    code: str
    message: str


class TemporaryError(ResponseError, dict=True):
    """The error of a response that may succeed later. It looks the same on the wire; where headers are sent,
    they say when to try again."""

    @property
    def retry_after_s(self) -> float | None:
        """Seconds after which a retry makes sense, if known."""
        return self.__dict__.get(_RETRY_AFTER)

    def after(self, retry_after_s: float | None) -> "TemporaryError":
        """Set when to try again; returns the error."""
        self.__dict__[_RETRY_AFTER] = retry_after_s
        return self


class Outage(TemporaryError):
    """Something that the response needs is not available for now: where a status is sent, it is 503."""


class ConnectorFailure(ResponseError):
    """An MCP server that the response needs has failed: where a status is sent, it is 424."""


class RateLimit(TemporaryError):
    """There is too much to do, for this client or for the engine."""


_RETRY_AFTER = "retry_after_s"


class IncompleteDetails(Struct):
    reason: IncompleteReason | None
    """None for a reason that the API has no name for."""

    @classmethod
    def of(cls, reason: str) -> "IncompleteDetails":
        return cls(next((known for known in get_args(IncompleteReason) if known == reason), None))


class ReasoningEcho(Struct):
    effort: str | None = None
    summary: str | None = None
    context: str | UnsetType = UNSET
    mode: str | UnsetType = UNSET


class TextEcho(Struct):
    format: Raw
    verbosity: str = "medium"


class ConversationEcho(Struct):
    id: str


class ResponseModerationResult(Struct, tag_field="type", tag="moderation_result"):
    """What safety checks found in the input or in the output of a response."""

    model: str
    """The names of the checks."""
    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[Literal["text", "image"]]]


class ResponseModerationError(Struct, tag_field="type", tag="error"):
    """A safety check gave no answer."""

    code: str
    message: str


class ResponseModeration(Struct):
    """What safety checks found in a response."""

    input: ResponseModerationResult | ResponseModerationError
    output: ResponseModerationResult | ResponseModerationError


MissReason = Literal[
    "model_changed",
    "tools_changed",
    "text_format_changed",
    "reasoning_effort_changed",
    "context_compacted",
    "input_changed",
]
"""Why a context does not begin like another one. The API has more, which change no prompt here."""


class CacheMiss(Struct, tag_field="type", tag="cache_miss"):
    """The context departs from the compared one before its end."""

    reason: MissReason
    cache_missed_tokens: int
    """Estimated tokens from where it departs."""
    comparison_reusable_tokens: int
    """Estimated tokens before that."""


class CacheHit(Struct, tag_field="type", tag="cache_hit"): ...


class ComparedNotFound(Struct, tag_field="type", tag="comparison_response_not_found"): ...


class DiagnosticsUnavailable(Struct, tag_field="type", tag="unavailable"): ...


CacheDiagnostics = CacheMiss | CacheHit | ComparedNotFound | DiagnosticsUnavailable


class InputTransformation(Struct):
    """A reasoning item of the context that the model does not read."""

    id: str
    type: Literal["reasoning"] = "reasoning"
    action: Literal["removed"] = "removed"
    reason: Literal["turn_boundary"] = "turn_boundary"
    """The API has more, for thoughts of other models, users and contexts: none is removed here for these."""


class Response(Struct, gc=False):
    """The object in ``response.created``, ``response.in_progress`` and every terminal event.

    It never forms cycles, so ``gc=False`` spares the collector: every cached state has one.
    """

    id: str
    created_at: int
    model: str
    instructions: Raw
    previous_response_id: str | None
    tools: Raw
    tool_choice: Raw
    parallel_tool_calls: bool
    reasoning: ReasoningEcho
    text: TextEcho
    store: bool
    metadata: dict[str, str]
    truncation: str
    temperature: float
    top_p: float
    top_logprobs: int
    presence_penalty: float
    frequency_penalty: float
    service_tier: str
    max_output_tokens: int | None
    max_tool_calls: int | None
    prompt_cache_key: str | None
    safety_identifier: str | None
    user: str | None
    status: Status = "in_progress"
    output: list[Raw] = []
    usage: Usage | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    completed_at: int | None = None
    background: bool = False
    conversation: ConversationEcho | UnsetType = UNSET
    moderation: ResponseModeration | UnsetType = UNSET
    stop_sequence: str | UnsetType = UNSET
    """The one of the request's ``stop`` before which the text ends. Not in the API."""
    prompt_tokens: int | UnsetType = UNSET
    """The tokens of the context, when the response is created, if they are known then. Not in the API."""
    prompt_cache_diagnostics: CacheDiagnostics | UnsetType = UNSET
    input_transformations: list[InputTransformation] | UnsetType = UNSET
    object: Literal["response"] = "response"
