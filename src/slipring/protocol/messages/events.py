"""The events of a streamed answer, one class per wire type."""

from msgspec import UNSET, Struct, UnsetType

from slipring.protocol import wire
from slipring.protocol.messages.answer import AppliedEdits, Block, DeltaUsage, Ending, MessageAnswer
from slipring.protocol.messages.errors import MessagesError


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
