"""The output of a tool while the tool still runs: ``response.tool_output.delta`` and ``….done``.

The pieces announce what a ``function_call_output`` or ``custom_tool_call_output`` item will contain. The item
itself is sent as always, when the tool has ended; it alone is part of the context.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from slipring.base.errors import ApiError
from slipring.protocol import wire
from slipring.protocol.client_tools import CallId

DELTA, DONE = "response.tool_output.delta", "response.tool_output.done"


class ToolOutputPiece(Struct, frozen=True):
    """A piece of the output of a call that is still open."""

    target: str
    """Id of the response that made the call; empty if the event names none."""
    call_id: str
    delta: str
    is_last: bool
    """Whether the tool has ended: nothing follows."""
    error: ApiError | None = None
    """Why the event is invalid."""


class DeltaRequest(Struct, forbid_unknown_fields=True):
    type: Literal["response.tool_output.delta"]
    response_id: Annotated[str, Meta(min_length=1)]
    call_id: CallId
    delta: str


class DoneRequest(Struct, forbid_unknown_fields=True):
    type: Literal["response.tool_output.done"]
    response_id: Annotated[str, Meta(min_length=1)]
    call_id: CallId


class _PieceHead(Struct):
    """The fields that the reply to a malformed event repeats."""

    response_id: Raw | UnsetType = UNSET
    call_id: Raw | UnsetType = UNSET


_delta = msgspec.json.Decoder(DeltaRequest)
_done = msgspec.json.Decoder(DoneRequest)
_outline = msgspec.json.Decoder(_PieceHead)


def read_piece(frame: bytes | str, *, is_last: bool) -> ToolOutputPiece:
    """Decode a frame of one of the two types. Raises only if it is not a JSON object."""
    try:
        if is_last:
            done = wire.decode(_done, frame)
            return ToolOutputPiece(done.response_id, done.call_id, "", is_last=True)
        sent = wire.decode(_delta, frame)
    except ApiError as error:
        outline = wire.decode(_outline, frame)
        return ToolOutputPiece(
            wire.text_of(outline.response_id), wire.text_of(outline.call_id), "", is_last, error
        )
    return ToolOutputPiece(sent.response_id, sent.call_id, sent.delta, is_last=False)
