"""The body of ``POST /v1/chat/completions``: decodes it, and refuses by name what is not supported."""

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from slipring.base.errors import UnsupportedParameter
from slipring.protocol import wire
from slipring.protocol.items import Effort
from slipring.protocol.requests import (
    Metadata,
    ModerationConfig,
    PromptCacheOptions,
    ServiceTier,
    StopSequence,
    StopSequences,
)


class ChatSchema(Struct, omit_defaults=True):
    """A ``json_schema`` as a client sends it. Its fields are checked where the protocol's own format is."""

    name: str | UnsetType = UNSET
    schema: Raw | UnsetType = UNSET
    strict: bool | UnsetType | None = UNSET
    description: str | UnsetType | None = UNSET


class ChatFormat(Struct):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: ChatSchema | None = None


FORMAT = msgspec.json.Decoder(ChatFormat)
T = TypeVar("T")
MOST_CHOICES = 8
"""The largest ``n``."""
LogitBias = Annotated[
    dict[Annotated[int, Meta(ge=0)], Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=1024)
]
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "audio": (),
    "bad_words": ([],),
    "chat_template": (),
    "continue_final_message": (False,),
    "grammar": ("",),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "ignore_eos": (False,),
    "json_schema": (),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "repetition_penalty": (1,),
    "stop_token_ids": ([],),
    "structured_outputs": (),
    "web_search_options": (),
}
"""Fields that would change the answer and that no engine is given, with the values that change nothing beside
null: with any other one, the request is refused."""


class ChatStreamOptions(Struct):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ThinkingSwitch(Struct):
    """``thinking``, by which several servers switch the reasoning of a model on or off."""

    type: Literal["enabled", "disabled", "auto", "adaptive"]


class ChatRequest(Struct, dict=True):
    """A request for a chat completion."""

    messages: Raw
    model: str | None = None
    tools: Raw | UnsetType = UNSET
    tool_choice: Raw | UnsetType = UNSET
    parallel_tool_calls: bool | None = None
    functions: Raw | UnsetType = UNSET
    function_call: Raw | UnsetType = UNSET
    response_format: Raw | UnsetType = UNSET
    verbosity: Literal["low", "medium", "high"] | None = None
    reasoning_effort: Effort | None = None
    enable_thinking: bool | None = None
    thinking: ThinkingSwitch | None = None
    chat_template_kwargs: Raw | UnsetType = UNSET
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] | None = None
    stop: Raw | UnsetType = UNSET
    seed: int | None = None
    logit_bias: Raw | UnsetType = UNSET
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    stream: bool | None = None
    stream_options: ChatStreamOptions | None = None
    metadata: Raw | UnsetType = UNSET
    store: bool | None = None
    moderation: Raw | UnsetType = UNSET
    service_tier: ServiceTier | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    user: str | None = None

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def has_legacy_functions(self) -> bool:
        """Whether the request offers ``functions``, so that a call of its answer is a ``function_call``."""
        return wire.given(self.functions) is not None


_request: msgspec.json.Decoder[ChatRequest] = msgspec.json.Decoder(
    msgspec.defstruct("Received", [(name, Raw | UnsetType, UNSET) for name in _NEUTRAL], bases=(ChatRequest,))
)
_value = msgspec.json.Decoder()
STOP: msgspec.json.Decoder[str | list[str]] = msgspec.json.Decoder(StopSequence | StopSequences)
BIAS: msgspec.json.Decoder[dict[int, float]] = msgspec.json.Decoder(LogitBias)
METADATA: msgspec.json.Decoder[dict[str, str]] = msgspec.json.Decoder(Metadata)
MODERATION = msgspec.json.Decoder(ModerationConfig)
TEMPLATE_ARGUMENTS = msgspec.json.Decoder(dict[str, Any])


def read_request(body: bytes) -> ChatRequest:
    """Decode a request; errors name the field."""
    request = wire.decode(_request, body)
    for name, neutral in _NEUTRAL.items():
        sent = wire.given(getattr(request, name))
        if sent is not None and (len(sent) > 32 or wire.decode(_value, sent, where=name) not in neutral):
            raise UnsupportedParameter(
                f"Unsupported parameter: '{name}' is not supported by this server.", param=name
            )
    return request


def short(sent: Raw | UnsetType, name: str, decoder: wire.Decoder[T]) -> T | None:
    """Decode a field of bounded length; None if it is absent or null."""
    given = wire.given(sent)
    if given is None:
        return None
    wire.require_short(given, name, wire.LONG_BYTES)
    return wire.decode(decoder, given, where=name)
