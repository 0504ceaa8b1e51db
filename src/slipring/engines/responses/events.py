"""The events of an upstream. Each is decoded once, when it arrives."""

from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from slipring.base.errors import ServerError
from slipring.base.surrogates import repaired

TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})
"""The types of events that end a response."""


class EventLogprob(Struct, gc=False):
    token: str = ""
    logprob: float = 0.0
    bytes: list[int] | None = None


class EventTokenLogprobs(EventLogprob, gc=False):
    top_logprobs: list[EventLogprob] = []


class Event(Struct, gc=False):
    """The fields that are used of all types of events together. Parts that only some need stay raw."""

    type: str = ""
    stream_id: str | None = None
    output_index: int | None = None
    item_id: str | None = None
    content_index: int = 0
    summary_index: int = 0
    delta: str = ""
    text: str = ""
    refusal: str = ""
    arguments: str = ""
    input: str = ""
    partial_image_index: int = 0
    partial_image_b64: str = ""
    size: str | UnsetType = UNSET
    quality: str | UnsetType = UNSET
    background: str | UnsetType = UNSET
    output_format: str | UnsetType = UNSET
    logprobs: list[EventTokenLogprobs] | None = None
    annotation: Raw = Raw(b"{}")
    item: Raw = Raw(b"{}")
    response: Raw = Raw(b"{}")
    # Of errors, in any of their forms: a frame, a flat event. ``code`` is also that of a program.
    error: Any = None
    code: Any = None
    message: Any = None
    param: Any = None
    headers: Any = None
    status: Any = None
    status_code: Any = None


class OtherEvent(Event, gc=False):
    """An event whose fields have other types than those above: of a type that is not used, or malformed."""


class _EventHead(Struct):
    type: str = ""
    stream_id: str | None = None
    object: Any = None


_event = msgspec.json.Decoder(Event)
_outline = msgspec.json.Decoder(_EventHead)


def decode_event(payload: bytes | str) -> Event:
    """Decode an event. Raises ``ServerError`` if the payload is no JSON object.

    An upstream that does not stream sends a response or an error instead: it becomes the event that has it.
    """
    try:
        event = _event.decode(payload)
        return event if event.type else _untyped(event, payload)
    except msgspec.ValidationError:
        pass
    except msgspec.DecodeError as error:
        sent = payload.encode() if isinstance(payload, str) else payload
        whole = repaired(sent)
        if whole == sent:
            raise ServerError("The engine's answer cannot be read.") from error
        return decode_event(whole)
    except (UnicodeError, RecursionError) as error:
        raise ServerError("The engine's answer cannot be read.") from error
    try:
        outline = _outline.decode(payload)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ServerError("The engine's answer cannot be read.") from error
    return OtherEvent(outline.type, outline.stream_id)


def _untyped(event: Event, payload: bytes | str) -> Event:
    if event.error is not None or event.message is not None:
        event.type = "error"
    elif _outline.decode(payload).object == "response":
        response = Raw(payload.encode() if isinstance(payload, str) else bytes(payload))
        return Event(type="response.completed", response=response)
    return event
