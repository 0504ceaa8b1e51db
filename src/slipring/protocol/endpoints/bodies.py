"""JSON bodies of the endpoints beside ``/v1/responses``, as they are read and as they are written.

They belong to compacting, conversations, moderations, pages of items, token counts, deletions, models, lists
of turns, and health. Codex asks for models in a form of its own with ``GET /v1/models?client_version=…``, or
reads it from a file that its setting ``model_catalog_json`` names.
"""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from slipring.base.errors import UnsupportedParameter
from slipring.protocol import wire
from slipring.protocol.items.items import MOST_ITEMS, Effort
from slipring.protocol.requests import (
    CreateRequest,
    Metadata,
    PromptCacheOptions,
    ReasoningConfig,
    ServiceTier,
    TextConfig,
)
from slipring.protocol.responses import Usage
from slipring.protocol.turn_report import TurnReport

_TRIGGER = b'{"type":"compaction_trigger"}'
_MOST_NEW_ITEMS = 20
_NewItems = Annotated[list[Raw], Meta(max_length=_MOST_NEW_ITEMS)]
_MOST_INPUTS = 256
MODERATION_CATEGORIES: Final = (
    *("harassment", "harassment/threatening", "hate", "hate/threatening", "illicit", "illicit/violent"),
    *("self-harm", "self-harm/instructions", "self-harm/intent", "sexual", "sexual/minors"),
    *("violence", "violence/graphic"),
)
"""The categories of the API. Clients with strict types expect all of them in every result."""


class CompactRequest(Struct):
    """A subset of a create's fields, with the same meaning."""

    model: str
    input: Raw | UnsetType = UNSET
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Raw | UnsetType = UNSET
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningConfig | None = None
    text: TextConfig | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    service_tier: ServiceTier | None = None

    def as_create(self) -> CreateRequest:
        """The equivalent create: the same context with a ``compaction_trigger`` as its last item."""
        return CreateRequest(
            model=self.model,
            input=_triggered(self.input),
            instructions=self.instructions,
            previous_response_id=self.previous_response_id,
            tools=self.tools,
            parallel_tool_calls=self.parallel_tool_calls,
            reasoning=self.reasoning,
            text=self.text,
            prompt_cache_key=self.prompt_cache_key,
            service_tier=self.service_tier,
            store=False,
        )


class Window(Struct):
    """A compacted context, to be sent as the input of a new chain."""

    id: str
    created_at: int
    output: list[Raw]
    usage: Usage
    object: Literal["response.compaction"] = "response.compaction"


_compact_request = msgspec.json.Decoder(CompactRequest)
_compact_input = msgspec.json.Decoder(str | list[Raw])


def read_compact(body: bytes) -> CompactRequest:
    return wire.decode(_compact_request, body)


def _triggered(data: Raw | UnsetType) -> Raw:
    sent = wire.given(data)
    if sent is not None:
        wire.require_few(sent, MOST_ITEMS, "input", "items")
    value = wire.decode(_compact_input, sent, where="input") if sent is not None else []
    items = [wire.raw({"role": "user", "content": value})] if isinstance(value, str) else value
    return Raw(b"[" + b",".join([*map(bytes, items), _TRIGGER]) + b"]")


class CreateConversation(Struct):
    items: _NewItems | None = None
    metadata: Metadata | None = None


class UpdateConversation(Struct):
    metadata: Metadata | None


class AddItems(Struct):
    items: _NewItems


class ConversationObject(Struct):
    id: str
    created_at: int
    metadata: dict[str, str]
    object: Literal["conversation"] = "conversation"


class _ConversationFields(Struct):
    items: Raw | UnsetType = UNSET
    metadata: Raw | UnsetType = UNSET


_conversation_fields = msgspec.json.Decoder(_ConversationFields)
_new_conversation = msgspec.json.Decoder(CreateConversation)
_conversation_update = msgspec.json.Decoder(UpdateConversation)
_added_items = msgspec.json.Decoder(AddItems)


def read_creation(body: bytes) -> CreateConversation:
    _refuse_long_fields(body)
    return wire.decode(_new_conversation, body)


def read_update(body: bytes) -> UpdateConversation:
    _refuse_long_fields(body)
    return wire.decode(_conversation_update, body)


def read_addition(body: bytes) -> AddItems:
    _refuse_long_fields(body)
    return wire.decode(_added_items, body)


def _refuse_long_fields(body: bytes) -> None:
    """Refuse fields that would take long to decode, without decoding them."""
    if len(body) <= wire.LONG_BYTES:
        return
    fields = wire.decode(_conversation_fields, body)
    if (metadata := wire.given(fields.metadata)) is not None:
        wire.require_short(metadata, "metadata")
    if (items := wire.given(fields.items)) is not None:
        wire.require_few(items, _MOST_NEW_ITEMS, "items", "items")


class ModerationRequest(Struct):
    input: Raw
    model: str | None = None


class TextPart(Struct, tag_field="type", tag="text"):
    text: str


class ImagePart(Struct, tag_field="type", tag="image_url"):
    image_url: Raw


Inputs = str | Annotated[list[str], Meta(min_length=1, max_length=_MOST_INPUTS)]
Parts = Annotated[list[TextPart | ImagePart], Meta(min_length=1, max_length=_MOST_INPUTS)]


class ModerationResult(Struct):
    """What the checks say about one input."""

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[Literal["text"]]]
    """Empty for categories of the API that no check reports."""

    @classmethod
    def of(cls, scores: dict[str, float], flagged: set[str]) -> "ModerationResult":
        """A result with all categories of the API, and those that checks report besides."""
        names = (*MODERATION_CATEGORIES, *(name for name in scores if name not in MODERATION_CATEGORIES))
        return cls(
            flagged=bool(flagged),
            categories={name: name in flagged for name in names},
            category_scores={name: scores.get(name, 0.0) for name in names},
            category_applied_input_types={name: ["text"] if name in scores else [] for name in names},
        )


class ModerationAnswer(Struct):
    id: str
    model: str
    results: list[ModerationResult]


_moderation_request = msgspec.json.Decoder(ModerationRequest)
_moderation_inputs: msgspec.json.Decoder[str | list[str]] = msgspec.json.Decoder(Inputs)
_moderation_parts: msgspec.json.Decoder[list[TextPart | ImagePart]] = msgspec.json.Decoder(Parts)


def read_moderation(body: bytes) -> ModerationRequest:
    return wire.decode(_moderation_request, body)


def read_moderation_texts(given: Raw) -> list[str]:
    """The texts to classify, one for each result. A list of parts is one input."""
    data = bytes(given)
    if not data.removeprefix(b"[").lstrip().startswith(b"{"):
        inputs = wire.decode(_moderation_inputs, data, where="input")
        return [inputs] if isinstance(inputs, str) else inputs
    texts = []
    for index, part in enumerate(wire.decode(_moderation_parts, data, where="input")):
        if isinstance(part, ImagePart):
            raise UnsupportedParameter(
                f"Unsupported value: 'input[{index}]' is an image, and this server's checks read text.",
                param=f"input[{index}]",
            )
        texts.append(part.text)
    return ["\n".join(texts)]


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
