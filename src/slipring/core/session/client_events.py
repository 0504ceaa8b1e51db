"""Decodes the frames that a client sends on a WebSocket, by event type, and decides what is refused at once.

A create, steer or append whose body is invalid still yields a value, with its ``error`` set: it names its
lane or response, so that the session can refuse it in the right place. Any other invalid frame is
``Refused``: it belongs to no lane, and its error waits for nothing.
"""

from msgspec import Struct

from slipring.base.errors import ApiError, InvalidJson, InvalidRequest, forget_frames, quoted
from slipring.core.betas import Betas
from slipring.protocol import live_input, requests, wire
from slipring.protocol.items.item_pictures import examine
from slipring.protocol.live_input import Append, Steer, ToolOutputPiece
from slipring.protocol.requests import NOTHING_KNOWN, CreateRequest, Known

CREATE, STEER = "response.create", "response.steer"
APPEND, INJECT = "response.append", "response.inject"
_PIECES = (live_input.TOOL_OUTPUT_DELTA, live_input.TOOL_OUTPUT_DONE)
_IGNORED_TYPES = frozenset({"response.processed"})
"""Acknowledgements that some clients send. No reply is expected."""
_HINTS = {
    APPEND: f" '{APPEND}' needs the header 'OpenAI-Beta: slipring_rollout=v1' on the upgrade.",
    INJECT: f" '{INJECT}' needs the header 'OpenAI-Beta: responses_multi_agent=v1' on the upgrade.",
    **{
        kind: f" '{kind}' needs the header 'OpenAI-Beta: slipring_tool_output=v1' on the upgrade."
        for kind in (live_input.TOOL_OUTPUT_DELTA, live_input.TOOL_OUTPUT_DONE)
    },
}


class Create(Struct, frozen=True):
    """A request for a response."""

    request: CreateRequest
    size_bytes: int
    """Of the whole frame."""
    error: ApiError | None = None
    """Why the frame is invalid. The request is refused in its lane's order."""


class Refused(Struct, frozen=True):
    """A frame that is not a JSON object, or whose type is not one that the connection has: it is refused at
    once."""

    error: ApiError


ClientEvent = Create | Steer | Append | ToolOutputPiece | Refused


def read(frame: bytes | str, betas: Betas) -> ClientEvent | None:
    """Decode a frame; None for event types that are ignored. ``betas``: those of the connection."""
    try:
        return _read(frame, betas)
    except ApiError as error:
        forget_frames(error)  # one of them has the whole frame of the client
        return Refused(error)


def _read(frame: bytes | str, betas: Betas) -> ClientEvent | None:
    data = _utf8(frame)
    try:
        if isinstance(frame, bytes):
            wire.require_text(frame)
        request = requests.read_create(data)
        kind = request.type
        if kind == CREATE:
            requests.require_streaming(request)
            return Create(request, len(data))
    except ApiError as error:
        try:
            outline = requests.read_reply_routing(data)
        except ApiError:
            raise error from None
        kind = outline.type
        if kind == CREATE:
            return _invalid_create(outline, len(data), error)
    return _read_other(data, kind, betas, is_text=isinstance(frame, str))


def read_ahead(
    frame: bytes | str, betas: Betas, *, digests: bool = False, known: Known = NOTHING_KNOWN
) -> ClientEvent | None:
    """Decode a frame including the items of a create, with their digests if these are wanted. ``known``:
    what was decoded before. For large frames, in a thread."""
    event = read(frame, betas)
    if isinstance(event, Create) and event.error is None:
        try:
            event.request.read_ahead(digests=digests, known=known)
        except ApiError as error:
            forget_frames(error)
            event = Create(event.request, event.size_bytes, error)
    elif isinstance(event, Steer | Append):
        for item in event.items:
            examine(item)
    return event


def _utf8(frame: bytes | str) -> bytes | str:
    """The frame in a form whose length is its size in bytes, and that the decoders read without a copy.

    ASCII text is such a form. Other text is encoded here, once: the decoders would encode it too.
    """
    if isinstance(frame, bytes) or frame.isascii():
        return frame
    try:
        return frame.encode()
    except UnicodeEncodeError:
        raise InvalidJson("The request is not valid UTF-8.") from None


def _invalid_create(outline: requests.ReplyRouting, size_bytes: int, error: ApiError) -> Create:
    """A create whose body is invalid, with the fields that route its refusal."""
    previous = outline.previous_response_id
    request = CreateRequest(
        stream_id=outline.stream_id, previous_response_id=previous if isinstance(previous, str) else None
    )
    forget_frames(error)
    return Create(request, size_bytes, error)


def _read_other(
    data: bytes | str, kind: object, betas: Betas, *, is_text: bool
) -> Steer | Append | ToolOutputPiece | None:
    supported = _supported(betas)
    if kind in supported:
        if not is_text and isinstance(data, bytes):
            wire.require_text(data)  # its input may have to be returned, as text
        if kind in _PIECES:
            return live_input.read_tool_output(data, is_last=kind == live_input.TOOL_OUTPUT_DONE)
        if kind == STEER:
            return live_input.read_steer(data, len(data))
        return live_input.read_append(data, len(data), injects=kind == INJECT)
    if isinstance(kind, str) and kind in _IGNORED_TYPES:
        return None
    reason = (
        f"Unsupported event type: {quoted(kind)}."
        if isinstance(kind, str)
        else "The event's 'type' must be a string."
    )
    *names, last = (f"'{name}'" for name in (CREATE, *supported))
    hint = _HINTS.get(kind, "") if isinstance(kind, str) else ""
    raise InvalidRequest(
        f"{reason} Supported types are {', '.join(names)} and {last}.{hint}",
        param="type",
        code="unsupported_event_type",
    )


def _supported(betas: Betas) -> list[str]:
    """The supported event types beside ``response.create``."""
    return [
        STEER,
        *([APPEND] if betas.rollout else []),
        *([INJECT] if betas.inject else []),
        *(_PIECES if betas.tool_output else ()),
    ]
