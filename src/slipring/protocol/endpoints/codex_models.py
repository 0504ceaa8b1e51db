"""The description of a model that Codex asks for.

Codex asks for it with ``GET /v1/models?client_version=…``, or reads it from a file that its setting
``model_catalog_json`` names. All fields without a default are required by some version of Codex.
"""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from slipring.protocol.items import Effort


class EffortLevel(Struct):
    """An effort of reasoning that Codex offers to its user."""

    effort: Effort
    description: str


class TruncationPolicy(Struct):
    """How much of a tool's output Codex sends to the model."""

    limit: int
    mode: Literal["bytes", "tokens"] = "bytes"


class CodexModel(Struct, kw_only=True):
    """A model in the form of Codex' catalog."""

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
