"""The body of ``POST /v1/chat/completions``: decodes it, and refuses by name what is not supported."""

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from slipring.base.errors import InvalidRequest, UnsupportedParameter
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


class JsonSchemaFormat(Struct, tag_field="type", tag="json_schema"):
    """The protocol's own format. UNSET fields are left out, so that its decoder names what is missing."""

    name: str | UnsetType
    schema: Raw | UnsetType
    strict: bool | UnsetType
    description: str | UnsetType


_format = msgspec.json.Decoder(ChatFormat)


def read_format(sent: Raw | UnsetType) -> Raw | UnsetType:
    """The ``text.format`` of a create request."""
    given = wire.given(sent)
    if given is None:
        return UNSET
    format = wire.decode(_format, given, where="response_format")
    if format.type != "json_schema":
        return wire.raw({"type": format.type})
    schema = format.json_schema
    if schema is None:
        raise wire.explain("Object missing required field `json_schema`", "response_format")
    return wire.raw(
        JsonSchemaFormat(
            schema.name,
            schema.schema,
            UNSET if schema.strict is None else schema.strict,
            UNSET if schema.description is None else schema.description,
        )
    )


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

    @property
    def limit_field(self) -> str:
        """The field by which the client limits the length of the answer."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def effort(self) -> Effort | None:
        """How much the model is to reason: ``none`` if any field switches reasoning off."""
        is_off = self.enable_thinking is False or (
            self.thinking is not None and self.thinking.type == "disabled"
        )
        return "none" if is_off or self._template_switch() is False else self.reasoning_effort

    def _template_switch(self) -> bool | None:
        given = short(self.chat_template_kwargs, "chat_template_kwargs", _template_arguments) or {}
        switch: bool | None = None
        for name, value in given.items():
            param = f"chat_template_kwargs.{name[:64]}"
            if name not in ("enable_thinking", "thinking"):
                raise UnsupportedParameter.at(
                    param, "only 'enable_thinking' and 'thinking' reach the template of a model"
                )
            if not isinstance(value, bool):
                raise InvalidRequest.at(param, "expected a boolean", code="invalid_type")
            switch = value if switch is None else switch and value
        return switch

    @property
    def stop_sequences(self) -> list[str]:
        given = short(self.stop, "stop", _stop)
        return [given] if isinstance(given, str) else given or []

    @property
    def top_logprobs_wanted(self) -> int | None:
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest("'top_logprobs' requires 'logprobs' to be true.", param="top_logprobs")
        return self.top_logprobs


_request: msgspec.json.Decoder[ChatRequest] = msgspec.json.Decoder(
    msgspec.defstruct("Received", [(name, Raw | UnsetType, UNSET) for name in _NEUTRAL], bases=(ChatRequest,))
)
_value = msgspec.json.Decoder()
_stop: msgspec.json.Decoder[str | list[str]] = msgspec.json.Decoder(StopSequence | StopSequences)
BIAS: msgspec.json.Decoder[dict[int, float]] = msgspec.json.Decoder(LogitBias)
METADATA: msgspec.json.Decoder[dict[str, str]] = msgspec.json.Decoder(Metadata)
MODERATION = msgspec.json.Decoder(ModerationConfig)
_template_arguments = msgspec.json.Decoder(dict[str, Any])


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
