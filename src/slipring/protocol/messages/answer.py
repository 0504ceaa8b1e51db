"""The answer to a request of the Messages API, whole and as a stream: its blocks, why it ended, its usage.

In a stream, one block is open at a time. The result of a call that the server runs may arrive while the model
writes something else: its block waits until the open one is closed.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from slipring.base.errors import ServerError
from slipring.protocol import events, responses, wire
from slipring.protocol.endpoints.translation import failure_of
from slipring.protocol.events import Event
from slipring.protocol.items.items import FunctionCall, Item, Message, Reasoning, Refusal, read_item
from slipring.protocol.messages.content import (
    HOSTED_TYPES,
    HostedResult,
    HostedUse,
    TextBlock,
    hosted_result,
    hosted_use,
    input_of,
)
from slipring.protocol.messages.errors import Fields, MessagesError, body_of
from slipring.protocol.messages.json_prefix import JsonPrefix
from slipring.protocol.responses import FunctionCallItem, OutputTextPart, ReasoningItem, RefusalPart, Response

StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal", "model_context_window_exceeded"
]
_NO_INPUT = Raw(b"{}")
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
    if item.type in HOSTED_TYPES:
        return [hosted_use(item), hosted_result(item)]
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


class MessageStart(Struct, tag_field="type", tag="message_start"):
    message: MessageAnswer


class ContentBlockStart(Struct, tag_field="type", tag="content_block_start"):
    index: int
    content_block: Block


class TextDelta(Struct, tag_field="type", tag="text_delta", gc=False):
    text: str


class ThinkingDelta(Struct, tag_field="type", tag="thinking_delta", gc=False):
    thinking: str


class SignatureDelta(Struct, tag_field="type", tag="signature_delta", gc=False):
    signature: str


class InputJsonDelta(Struct, tag_field="type", tag="input_json_delta", gc=False):
    partial_json: str


Delta = TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class ContentBlockDelta(Struct, tag_field="type", tag="content_block_delta", gc=False):
    index: int
    delta: Delta


class ContentBlockStop(Struct, tag_field="type", tag="content_block_stop"):
    index: int


class MessageDelta(Struct, tag_field="type", tag="message_delta"):
    delta: Ending
    usage: DeltaUsage
    context_management: AppliedEdits | UnsetType = UNSET


class MessageStop(Struct, tag_field="type", tag="message_stop"): ...


class Ping(Struct, tag_field="type", tag="ping"): ...


MessagesEvent = (
    MessageStart
    | ContentBlockStart
    | ContentBlockDelta
    | ContentBlockStop
    | MessageDelta
    | MessageStop
    | Ping
    | MessagesError
)


_openings: dict[type, bytes] = {}
"""The bytes before the JSON of an event, by its class."""


def block(event: MessagesEvent) -> bytes:
    """An event as one SSE block."""
    kind = type(event)
    opening = _openings.get(kind)
    if opening is None:
        opening = _openings[kind] = f"event: {kind.__struct_config__.tag}\ndata: ".encode()
    return b"%b%b\n\n" % (opening, wire.encode(event))


PING = block(Ping())


class _Sealed(Struct):
    encrypted_content: str = ""


_sealed = msgspec.json.Decoder(_Sealed)


class AnswerStream:
    """Turns the events of one turn into those of the API."""

    def __init__(self, wishes: Wishes, fields: Fields, request_id: str) -> None:
        self._wishes = wishes
        self._fields = fields
        self._request_id = request_id
        self._response_id = ""
        self._index = -1
        """Of the block that was opened last."""
        self._is_open = False
        self._waiting: list[Block] = []
        """Whole blocks that follow the open one."""
        self._thinks_in: type[Event] | None = None
        """The kind of deltas that the open thinking block takes; None: not known yet."""
        self._input = JsonPrefix()
        """What has been sent of the input of the open call."""

    def frames(self, event: Event) -> bytes:
        """The SSE blocks of an event; empty if it has none."""
        write = self._writers.get(type(event))
        return b"" if write is None else write(self, event)

    def _started(self, event: events.Created) -> bytes:
        self._response_id = event.response.id
        return block(MessageStart(opening(event.response, self._wishes)))

    def _part_added(self, event: events.ContentPartAdded) -> bytes:
        return self._open(TextBlock("")) if isinstance(event.part, OutputTextPart | RefusalPart) else b""

    def _part_done(self, event: events.ContentPartDone) -> bytes:
        return self._close() if isinstance(event.part, OutputTextPart | RefusalPart) else b""

    def _text(self, event: events.OutputTextDelta | events.RefusalDelta) -> bytes:
        # Hot path: one event per token.
        return block(ContentBlockDelta(self._index, TextDelta(event.delta)))

    def _thought(self, event: events.ReasoningTextDelta | events.ReasoningSummaryTextDelta) -> bytes:
        if not self._wishes.shows_thinking or self._wishes.omits_thoughts:
            return b""
        if self._thinks_in is None:
            self._thinks_in = type(event)
        if self._thinks_in is not type(event):
            return b""  # a client gets the thought or its summary, not both
        return self._delta(ThinkingDelta(event.delta))

    def _summary_part(self, event: events.ReasoningSummaryPartAdded) -> bytes:
        if event.summary_index and self._thinks_in is events.ReasoningSummaryTextDelta:
            return self._delta(ThinkingDelta(_PARAGRAPH))
        return b""

    def _arguments(self, event: events.FunctionCallArgumentsDelta) -> bytes:
        accepted = self._input.accept(event.delta)
        return self._delta(InputJsonDelta(accepted)) if accepted else b""

    def _item_added(self, event: events.OutputItemAdded) -> bytes:
        item = event.item
        if isinstance(item, FunctionCallItem):
            self._input = JsonPrefix()
            sent_id = tool_use_id(self._response_id, item.call_id)
            return self._open(ToolUse(sent_id, item.name, _NO_INPUT))
        if isinstance(item, ReasoningItem) and self._wishes.shows_thinking:
            self._thinks_in = None
            return self._open(ThinkingShown("", ""))
        return b""

    def _item_done(self, event: events.OutputItemDone) -> bytes:
        raw = bytes(event.item)
        kind = wire.type_of(raw)
        if kind == "function_call":
            return self._close()
        if kind == "reasoning" and self._wishes.shows_thinking:
            return self._delta(SignatureDelta(_sealed.decode(raw).encrypted_content)) + self._close()
        if kind in HOSTED_TYPES:
            return self._hosted(read_item(raw, ""))
        return b""

    def _hosted(self, item: Item) -> bytes:
        """The blocks of a call that the server has run."""
        self._waiting += (hosted_use(item), hosted_result(item))
        return b"" if self._is_open else self._waited()

    def _ended(self, event: events.Completed | events.Incomplete) -> bytes:
        response = event.response
        edits = AppliedEdits() if self._wishes.edits_context else UNSET
        ending = ending_of(response, self._wishes)
        return block(MessageDelta(ending, DeltaUsage.of(response.usage), edits)) + block(MessageStop())

    def _failed(self, event: events.Failed) -> bytes:
        error = event.response.error
        failure = ServerError() if error is None else failure_of(error)
        return block(body_of(failure, self._fields, self._request_id))

    def _open(self, shown: Block) -> bytes:
        self._index += 1
        self._is_open = True
        return block(ContentBlockStart(self._index, shown))

    def _delta(self, delta: Delta) -> bytes:
        return block(ContentBlockDelta(self._index, delta))

    def _close(self) -> bytes:
        self._is_open = False
        return block(ContentBlockStop(self._index)) + self._waited()

    def _waited(self) -> bytes:
        """The blocks that have waited for the open one."""
        waiting, self._waiting = self._waiting, []
        return b"".join(self._whole(each) for each in waiting)

    def _whole(self, shown: Block) -> bytes:
        """A block that is complete."""
        written = b""
        if isinstance(shown, HostedUse):
            written, shown.input = bytes(shown.input), _NO_INPUT
        frames = self._open(shown)
        if written:
            frames += self._delta(InputJsonDelta(written.decode()))
        return frames + self._close()

    _writers: ClassVar[dict[type[Event], Callable[["AnswerStream", Any], bytes]]] = {
        events.Created: _started,
        events.ContentPartAdded: _part_added,
        events.ContentPartDone: _part_done,
        events.OutputTextDelta: _text,
        events.RefusalDelta: _text,
        events.ReasoningTextDelta: _thought,
        events.ReasoningSummaryTextDelta: _thought,
        events.ReasoningSummaryPartAdded: _summary_part,
        events.FunctionCallArgumentsDelta: _arguments,
        events.OutputItemAdded: _item_added,
        events.OutputItemDone: _item_done,
        events.Completed: _ended,
        events.Incomplete: _ended,
        events.Failed: _failed,
    }
