"""What a client sends while its response runs: ``response.steer``, ``append``, ``inject``, ``tool_output``.

``response.append`` and ``response.inject`` carry the same fields; they differ in the events that answer them.
All are read more strictly than a create: unknown keys are refused, a steer holds user messages only, an
append holds outputs of tool calls only. A malformed event still yields a value, with its ``error`` set and
the input as received, so that the server can return the input to the client.

``response.tool_output.delta`` and ``….done`` announce, while a tool still runs, what its
``function_call_output`` or ``custom_tool_call_output`` item will contain. The item itself is sent as always,
when the tool has ended; it alone is part of the context.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from slipring.base.errors import ApiError, InvalidRequest, quoted
from slipring.protocol import wire
from slipring.protocol.items import items
from slipring.protocol.items.items import CALL_OF_OUTPUT, InputFile, InputImage, InputText, Item
from slipring.protocol.tools.client_tools import CallId

TOOL_OUTPUT_DELTA, TOOL_OUTPUT_DONE = "response.tool_output.delta", "response.tool_output.done"


class Steer(Struct, frozen=True):
    """User messages for the response that follows a running one."""

    target: str
    """Id of the running response; empty if the event names none."""
    input: Raw
    """As received, to be returned if it cannot be used."""
    items: tuple[Item, ...]
    size_bytes: int
    """Of the whole frame."""
    error: ApiError | None = None


class Append(Struct, frozen=True):
    """Outputs of tool calls for a running rollout."""

    target: str
    """Id of the running response; empty if the event names none."""
    input: Raw
    """As received, to be returned if it cannot be used."""
    items: tuple[Item, ...]
    size_bytes: int
    """Of the whole frame."""
    injects: bool
    """Whether it arrived as ``response.inject`` and is answered with that event's replies."""
    error: ApiError | None = None
    is_malformed: bool = False
    """Whether the event could not be decoded. An event that decodes may still have an ``error``."""


class SteerRequest(Struct, forbid_unknown_fields=True):
    type: Literal["response.steer"]
    previous_response_id: Annotated[str, Meta(min_length=1)]
    input: Raw


class AppendRequest(Struct, forbid_unknown_fields=True):
    type: Literal["response.append", "response.inject"]
    response_id: Annotated[str, Meta(min_length=1)]
    input: Annotated[list[Raw], Meta(min_length=1)]


class _UserMessage(Struct, forbid_unknown_fields=True):
    role: Literal["user"]
    content: str | list[InputText | InputImage | InputFile]
    type: Literal["message"] = "message"


class _InputOutline(Struct):
    """The fields that the reply to a malformed event repeats."""

    previous_response_id: Raw | UnsetType = UNSET
    response_id: Raw | UnsetType = UNSET
    input: Raw | UnsetType = UNSET


_steer = msgspec.json.Decoder(SteerRequest)
_append = msgspec.json.Decoder(AppendRequest)
_message = msgspec.json.Decoder(_UserMessage)
_outline = msgspec.json.Decoder(_InputOutline)
_input = msgspec.json.Decoder(str | list[Raw])
_NO_TEXT = Raw(b'""')
_NO_ITEMS = Raw(b"[]")


def read_steer(frame: bytes | str, size_bytes: int) -> Steer:
    """Decode a ``response.steer`` frame. Raises only if the frame is not a JSON object."""
    try:
        request, messages = _read_messages(frame)
    except ApiError as error:
        outline = wire.decode(_outline, frame)
        return Steer(
            wire.text_of(outline.previous_response_id),
            _copied(outline.input, _NO_TEXT),
            (),
            size_bytes,
            error,
        )
    return Steer(
        request.previous_response_id, _copied(request.input, _NO_TEXT), messages, size_bytes=size_bytes
    )


def read_append(frame: bytes | str, size_bytes: int, *, injects: bool) -> Append:
    """Decode a ``response.append`` or ``response.inject`` frame. Raises only if it is not a JSON object."""
    outline = wire.decode(_outline, frame)
    sent = _copied(outline.input, _NO_ITEMS)
    try:
        if len(frame) > wire.LONG_BYTES and (listed := wire.given(outline.input)) is not None:
            wire.require_few(listed, items.MOST_ITEMS, "input", "items")
        request = wire.decode(_append, frame)
        outputs = items.read_items(request.input)
    except ApiError as error:
        return Append(
            wire.text_of(outline.response_id), sent, (), size_bytes, injects, error, is_malformed=True
        )
    try:
        _require_outputs(outputs)
    except ApiError as error:
        return Append(request.response_id, sent, outputs, size_bytes, injects, error)
    return Append(request.response_id, sent, outputs, size_bytes, injects)


def _read_messages(frame: bytes | str) -> tuple[SteerRequest, tuple[Item, ...]]:
    request = wire.decode(_steer, frame)
    wire.require_few(request.input, items.MOST_ITEMS, "input", "items")
    sent = wire.decode(_input, bytes(request.input), where="input")
    if not sent:
        raise InvalidRequest.at("input", "it is empty")
    if not isinstance(sent, str):
        for index, raw in enumerate(sent[: items.MOST_ITEMS]):
            wire.decode(_message, raw, where=f"input[{index}]")
    return request, items.read_input(request.input)


def _require_outputs(found: tuple[Item, ...]) -> None:
    """Refuse items that are valid but are not outputs of a call."""
    for index, item in enumerate(found):
        if item.type not in CALL_OF_OUTPUT:
            param = f"input[{index}].type"
            known = ", ".join(f"'{kind}'" for kind in CALL_OF_OUTPUT)
            raise InvalidRequest.at(
                param, f"{quoted(item.type)} is not the output of a tool call. Outputs are {known}"
            )
        if item.call_id is None:
            raise wire.explain("Object missing required field `call_id`", f"input[{index}]")


def _copied(sent: Raw | UnsetType, default: Raw) -> Raw:
    """A copy, so that a queued event does not keep its whole frame in memory."""
    return default if isinstance(sent, UnsetType) else Raw(bytes(sent))


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


class _PieceOutline(Struct):
    """The fields that the reply to a malformed event repeats."""

    response_id: Raw | UnsetType = UNSET
    call_id: Raw | UnsetType = UNSET


_delta = msgspec.json.Decoder(DeltaRequest)
_done = msgspec.json.Decoder(DoneRequest)
_piece_outline = msgspec.json.Decoder(_PieceOutline)


def read_tool_output(frame: bytes | str, *, is_last: bool) -> ToolOutputPiece:
    """Decode a frame of one of the two types. Raises only if it is not a JSON object."""
    try:
        if is_last:
            done = wire.decode(_done, frame)
            return ToolOutputPiece(done.response_id, done.call_id, "", is_last=True)
        sent = wire.decode(_delta, frame)
    except ApiError as error:
        outline = wire.decode(_piece_outline, frame)
        return ToolOutputPiece(
            wire.text_of(outline.response_id), wire.text_of(outline.call_id), "", is_last, error
        )
    return ToolOutputPiece(sent.response_id, sent.call_id, sent.delta, is_last=False)
