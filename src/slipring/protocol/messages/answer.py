"""The answer to a request: the message with its content blocks, why it ended, and its usage."""

from typing import Literal, Self

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from slipring.protocol import responses, wire
from slipring.protocol.items import FunctionCall, Item, Message, Reasoning, Refusal, read_item
from slipring.protocol.messages import hosted_calls
from slipring.protocol.messages.content import TextBlock
from slipring.protocol.messages.hosted_calls import HostedResult, HostedUse, input_of
from slipring.protocol.responses import Response

StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal", "model_context_window_exceeded"
]
EMPTY = Raw(b"{}")
_PARAGRAPH = "\n\n"
_LONGEST_ID = 256
"""What a request may have as the id of a call."""


class ThinkingShown(Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class ToolUse(Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: Raw


Block = TextBlock | ThinkingShown | ToolUse | HostedUse | HostedResult


class ThinkingTokens(Struct):
    thinking_tokens: int


class DeltaUsage(Struct):
    """Tokens of the whole request. Those of the prompt are counted in one of three fields."""

    input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    """Always zero: every token that is processed is kept, whether a client asks for it or not."""
    cache_read_input_tokens: int = 0
    output_tokens: int = 0
    output_tokens_details: ThinkingTokens | UnsetType = UNSET

    @classmethod
    def of(cls, usage: responses.Usage | None) -> Self:
        assert usage is not None, "a response that has ended has a usage"
        cached = usage.input_tokens_details.cached_tokens
        return cls(
            input_tokens=usage.input_tokens - cached,
            cache_read_input_tokens=cached,
            output_tokens=usage.output_tokens,
            output_tokens_details=ThinkingTokens(usage.output_tokens_details.reasoning_tokens),
        )


class MessageUsage(DeltaUsage):
    service_tier: Literal["standard"] = "standard"


class AppliedEdits(Struct):
    applied_edits: list[Raw] = []


class MessageAnswer(Struct, tag_field="type", tag="message"):
    id: str
    model: str
    content: list[Block]
    usage: MessageUsage
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    role: Literal["assistant"] = "assistant"
    context_management: AppliedEdits | UnsetType = UNSET


class Ending(Struct):
    stop_reason: StopReason
    stop_sequence: str | None = None


class Wishes(Struct, frozen=True):
    """What a request asks of its answer."""

    max_tokens: int
    shows_thinking: bool = False
    omits_thoughts: bool = False
    """Whether thinking blocks have only their signatures."""
    edits_context: bool = False


def opening(response: Response, wishes: Wishes) -> MessageAnswer:
    """The message before its first block. How many tokens of its prompt are cached is not known yet; and
    nothing of them if the engine's server counts them."""
    tokens = response.prompt_tokens
    return MessageAnswer(
        id=f"msg_{response.id.removeprefix('resp_')}",
        model=response.model,
        content=[],
        usage=MessageUsage(input_tokens=0 if isinstance(tokens, UnsetType) else tokens),
        context_management=AppliedEdits() if wishes.edits_context else UNSET,
    )


def answer_of(response: Response, wishes: Wishes) -> MessageAnswer:
    """The whole message."""
    answer = opening(response, wishes)
    for raw in response.output:
        answer.content += blocks_of(read_item(bytes(raw), ""), wishes, response.id)
    ending = ending_of(response, wishes)
    answer.stop_reason, answer.stop_sequence = ending.stop_reason, ending.stop_sequence
    answer.usage = MessageUsage.of(response.usage)
    return answer


def tool_use_id(response_id: str, own_id: str) -> str:
    """The id of a call as the client gets it: no other answer has it. ``own_id``: its id in the context."""
    return f"toolu_{response_id.removeprefix('resp_')}_{own_id.removeprefix('call_')}"[:_LONGEST_ID]


def blocks_of(item: Item, wishes: Wishes, response_id: str) -> list[Block]:
    """The blocks of an output item; none if the request did not ask for such."""
    if item.type in hosted_calls.TYPES:
        return [hosted_calls.use_of(item), hosted_calls.result_of(item)]
    body = item.body()
    if isinstance(body, Message):
        texts = [] if isinstance(body.content, str) else [_text(part) for part in body.content]
        return [TextBlock(text) for text in texts if text]
    if isinstance(body, Reasoning) and wishes.shows_thinking:
        return [
            ThinkingShown("" if wishes.omits_thoughts else thought_of(body), body.encrypted_content or "")
        ]
    if isinstance(body, FunctionCall):
        return [ToolUse(tool_use_id(response_id, body.call_id), body.name, input_of(body.arguments))]
    return []


def _text(part: object) -> str:
    return part.refusal if isinstance(part, Refusal) else getattr(part, "text", "")


def thought_of(reasoning: Reasoning) -> str:
    """What a client may read of a thought: all of it, or else its summary."""
    return reasoning.thought or _PARAGRAPH.join(part.text for part in reasoning.summary)


def ending_of(response: Response, wishes: Wishes) -> Ending:
    """Why the answer ended."""
    details = response.incomplete_details
    if details is not None and details.reason == "content_filter":
        return Ending("refusal")
    if details is not None and details.reason == "max_output_tokens":
        assert response.usage is not None
        is_spent = response.usage.output_tokens >= wishes.max_tokens
        return Ending("max_tokens" if is_spent else "model_context_window_exceeded")
    kinds = _Kinds.of(response.output)
    if kinds.calls:
        return Ending("tool_use")
    if not isinstance(response.stop_sequence, UnsetType):
        return Ending("stop_sequence", response.stop_sequence)
    return Ending("refusal" if kinds.refuses else "end_turn")


class _PartKind(Struct):
    type: str = ""


class _Outline(Struct):
    type: str
    status: str | None = None
    content: list[_PartKind] | None = None


_outline = msgspec.json.Decoder(_Outline)


class _Kinds(Struct):
    """What an answer has."""

    calls: bool = False
    """Whether the client has to run a call."""
    refuses: bool = False

    @classmethod
    def of(cls, output: list[Raw]) -> "_Kinds":
        outlines = [wire.decode(_outline, raw) for raw in output]
        return cls(
            calls=any(each.type == "function_call" and each.status == "completed" for each in outlines),
            refuses=any(part.type == "refusal" for each in outlines for part in each.content or ()),
        )
