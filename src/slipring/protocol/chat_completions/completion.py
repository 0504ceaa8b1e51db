"""A chat completion, whole and in chunks: its usage, what safety checks found, and its choices."""

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from slipring.protocol import wire
from slipring.protocol.chat_completions.answer import Annotation, ChatChoice, FinishReason
from slipring.protocol.chat_completions.logprobs import ChoiceLogprobs
from slipring.protocol.responses import (
    Response,
    ResponseModeration,
    ResponseModerationError,
    ResponseModerationResult,
    Usage,
)

_ID = "chatcmpl-"


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
