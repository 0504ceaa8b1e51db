"""Frames: what a client sends on a socket, told apart.

Owns which events there are and what becomes of a frame that cannot be read: it is still known which lane or
response it was about, as far as it says so. Knows nothing of what is then done about it.
"""

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from slipring.core.betas import Betas
from slipring.errors import ApiError, InvalidRequest, quoted
from slipring.protocol import append, requests, steer, wire
from slipring.protocol.items import Item
from slipring.protocol.requests import CreateRequest

CREATE, STEER = "response.create", "response.steer"
APPEND, INJECT = "response.append", "response.inject"
_IGNORED_TYPES = frozenset({"response.processed"})
"""Sent by some clients as an acknowledgement; nothing is to be done or said about it."""
_id = msgspec.json.Decoder(str)
_NOTHING = Raw(b'""')
_NO_ITEMS = Raw(b"[]")
_HINTS = {
    APPEND: " That one needs the header 'OpenAI-Beta: slipring_rollout=v1' on the upgrade.",
    INJECT: " That one needs the header 'OpenAI-Beta: responses_multi_agent=v1' on the upgrade.",
}


class Create(Struct, frozen=True):
    """A response is asked for."""

    request: CreateRequest
    size_bytes: int
    error: ApiError | None = None
    """Why it cannot be served, where the frame alone says so: the refusal has its place in the lane."""


class Steer(Struct, frozen=True):
    """Something is added to a response that is being made."""

    target: str
    """The response's id; empty where none was named."""
    input: Raw
    """As it was sent: whatever cannot be used is given back."""
    items: tuple[Item, ...]
    size_bytes: int
    error: ApiError | None = None


class Append(Struct, frozen=True):
    """What a client owes to a response that is being made, or some of it."""

    target: str
    """The response's id; empty where none was named."""
    input: Raw
    """As it was sent: whatever cannot be used is given back."""
    items: tuple[Item, ...]
    size_bytes: int
    injects: bool
    """Whether it came as an injection, and is to be answered as one."""
    error: ApiError | None = None
    is_malformed: bool = False
    """Whether the event is none at all, and not only one that cannot be used."""


Asked = Create | Steer | Append


def read(frame: bytes | str, betas: Betas) -> Asked | None:
    """What a frame asks for; None: nothing. Raises what is to be said about one that asks for nothing known.
    ``betas``: which events beyond those of the API are known."""
    try:
        if isinstance(frame, bytes):
            wire.require_text(frame)
        request = requests.read_create(frame)
        kind = request.type
        if kind == CREATE:
            requests.require_streaming(request)
            return Create(request, _size(frame))
    except ApiError as error:
        try:
            outline = requests.read_outline(frame)
        except ApiError:
            raise error from None
        kind = outline.type
        if kind == CREATE:
            return _unread(frame, outline, error)
    return _read_other(frame, kind, betas)


class Read(Struct, frozen=True):
    """What a frame asks for, or why that cannot be said."""

    asked: Asked | None
    error: ApiError | None = None

    def result(self) -> Asked | None:
        if self.error is not None:
            raise self.error
        return self.asked


def read_ahead(frame: bytes | str, betas: Betas) -> Read:
    """Read a frame and all items in it: for large ones, where reading does not keep others waiting."""
    try:
        asked = read(frame, betas)
    except ApiError as error:
        return Read(None, error)
    if isinstance(asked, Create) and asked.error is None:
        try:
            _ = asked.request.items
        except ApiError as error:
            asked = Create(asked.request, asked.size_bytes, error)
    return Read(asked)


def _unread(frame: bytes | str, outline: requests.Outline, error: ApiError) -> Create:
    """A create whose body is wrong: enough of it to answer on its lane, in that lane's order."""
    previous = outline.previous_response_id
    request = CreateRequest(
        stream_id=outline.stream_id, previous_response_id=previous if isinstance(previous, str) else None
    )
    return Create(request, _size(frame), error)


def _read_other(frame: bytes | str, kind: object, betas: Betas) -> Steer | Append | None:
    supported = _supported(betas)
    if kind in supported:
        if isinstance(frame, bytes):
            wire.require_text(frame)  # what is no text cannot be given back either
        return _read_steer(frame) if kind == STEER else _read_append(frame, injects=kind == INJECT)
    if isinstance(kind, str) and kind in _IGNORED_TYPES:
        return None
    said = (
        f"Unsupported event type: {quoted(kind)}."
        if isinstance(kind, str)
        else "The event's 'type' must be a string."
    )
    *names, last = (f"'{name}'" for name in (CREATE, *supported))
    hint = _HINTS.get(kind, "") if isinstance(kind, str) else ""
    raise InvalidRequest(
        f"{said} Supported are {', '.join(names)} and {last}.{hint}",
        param="type",
        code="unsupported_event_type",
    )


def _supported(betas: Betas) -> list[str]:
    """The events beside a create."""
    return [STEER, *([APPEND] if betas.rollout else []), *([INJECT] if betas.inject else [])]


def _read_append(frame: bytes | str, *, injects: bool) -> Append:
    size_bytes = _size(frame)
    outline = append.read_outline(frame)
    # Copied: what waits should not hold its frame.
    given = _NO_ITEMS if outline.input is UNSET else Raw(bytes(outline.input))
    try:
        target, items = append.read_append(frame)
    except ApiError as error:
        return Append(_named(outline.response_id), given, (), size_bytes, injects, error, is_malformed=True)
    try:
        append.require_answers(items)
    except ApiError as error:
        return Append(target, given, items, size_bytes, injects, error)
    return Append(target, given, items, size_bytes, injects)


def _read_steer(frame: bytes | str) -> Steer:
    try:
        request, items = steer.read_steer(frame)
    except ApiError as error:
        outline = steer.read_outline(frame)
        given = _NOTHING if outline.input is UNSET else Raw(bytes(outline.input))
        return Steer(_named(outline.previous_response_id), given, (), _size(frame), error)
    # Copied: what waits should not hold its frame.
    return Steer(request.previous_response_id, Raw(bytes(request.input)), items, _size(frame))


def _named(sent: Raw | UnsetType) -> str:
    """The response that an event names which may be wrong in any way; empty: none."""
    try:
        return "" if isinstance(sent, UnsetType) else _id.decode(sent)
    except msgspec.DecodeError:
        return ""


def _size(frame: bytes | str) -> int:
    return len(frame.encode() if isinstance(frame, str) and not frame.isascii() else frame)
