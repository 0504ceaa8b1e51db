"""JSON bodies of answers of the endpoints beside ``/v1/responses``: pages of items, token counts, deletions,
models, lists of turns, and health. Codex asks for models in a form of its own with
``GET /v1/models?client_version=…``, or reads it from a file that its setting ``model_catalog_json`` names.
"""

from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from slipring.protocol.items.items import Effort
from slipring.protocol.turn_report import TurnReport


class EffortLevel(Struct):
    """An effort of reasoning that Codex offers to its user."""

    effort: Effort
    description: str


class TruncationPolicy(Struct):
    """How much of a tool's output Codex sends to the model."""

    limit: int
    mode: Literal["bytes", "tokens"] = "bytes"


class CodexModel(Struct, kw_only=True):
    """A model in the form of Codex' catalog. All fields without a default are required by some version."""

    slug: str
    display_name: str
    description: str
    base_instructions: str
    supported_reasoning_levels: list[EffortLevel]
    visibility: Literal["list", "hide"]
    priority: int
    """The model with the lowest number is the default."""
    truncation_policy: TruncationPolicy
    input_modalities: list[Literal["text", "image"]]
    context_window: int | UnsetType = UNSET
    """In tokens. Codex compacts a context that fills nine tenths of it."""
    max_context_window: int | UnsetType = UNSET
    """The most that a user of Codex can set."""
    default_reasoning_level: Effort | UnsetType = UNSET
    shell_type: Literal["unified_exec"] = "unified_exec"
    supported_in_api: Literal[True] = True
    supports_parallel_tool_calls: Literal[True] = True
    supports_reasoning_summaries: Literal[True] = True
    """Whether Codex sends settings of reasoning, the effort among them."""
    support_verbosity: Literal[False] = False
    experimental_supported_tools: list[str] = []
    include_apps_usage_instructions: Literal[False] = False


class ItemPage(Struct):
    """One page of a list of items."""

    data: list[Raw]
    first_id: str
    last_id: str
    has_more: bool
    object: Literal["list"] = "list"


class DeletedResponse(Struct):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class DeletedConversation(Struct):
    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: Literal[True] = True


class InputTokens(Struct):
    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class ModelObject(Struct):
    id: str
    created: int
    owned_by: str
    input_modalities: list[Literal["text", "image"]]
    """What the model takes. Not a field of the API's."""
    object: Literal["model"] = "model"


class ModelList(Struct):
    data: list[ModelObject]
    object: Literal["list"] = "list"
    models: list[CodexModel] | UnsetType = UNSET
    """Only for Codex, which asks for its own form with ``client_version``."""


class TurnList(Struct):
    data: list[TurnReport]
    object: Literal["list"] = "list"


class EngineHealth(Struct):
    name: str
    trouble: str | None
    sessions: str | None = None
    """How turns use sessions of its server, in one line; None for engines that have none."""


class CheckHealth(Struct):
    name: str
    trouble: str | None
    """Why it gives no answers at present; None if it does."""


class Readiness(Struct):
    """Whether a load balancer should send new clients here."""

    status: Literal["ready", "not_ready"]


class TraceCounts(Struct):
    """Sampled turns by what became of their spans."""

    delivered: int = 0
    dropped: int = 0
    """The collector could not be reached, or was too slow."""


class Health(Struct):
    status: Literal["ok", "degraded", "draining"]
    version: str
    pid: int
    engines: list[EngineHealth]
    store: str
    store_trouble: str | None
    """Why the store cannot be used at present; None if it can. Requests with ``store: false`` are served."""
    connections: int
    render_fallbacks: dict[str, int]
    trouble: str | None
    """Why new clients are refused; None if they are not."""
    traces: TraceCounts | None
    """None if turns are not traced."""
    checks: list[CheckHealth]
