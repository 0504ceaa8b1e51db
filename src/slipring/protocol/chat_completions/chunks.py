"""The chunks of a streamed chat completion."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from slipring.protocol import wire
from slipring.protocol.chat_completions.answer import Annotation, FinishReason
from slipring.protocol.chat_completions.logprobs import ChoiceLogprobs
from slipring.protocol.chat_completions.moderation import Moderation
from slipring.protocol.chat_completions.usage import CompletionUsage


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
