"""``response.steer``: what a client adds to a response while it is being made.

Stricter than a create: no key but those of the event, and nothing but messages of the user.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from slipring.errors import InvalidRequest
from slipring.protocol import items, wire
from slipring.protocol.items import InputFile, InputImage, InputText, Item


class SteerRequest(Struct, forbid_unknown_fields=True):
    type: Literal["response.steer"]
    previous_response_id: Annotated[str, Meta(min_length=1)]
    input: Raw


class _UserMessage(Struct, forbid_unknown_fields=True):
    role: Literal["user"]
    content: str | list[InputText | InputImage | InputFile]
    type: Literal["message"] = "message"


class SteerOutline(Struct):
    """What can be given back of an event that may be wrong in any way."""

    previous_response_id: Raw | UnsetType = UNSET
    input: Raw | UnsetType = UNSET


_steer = msgspec.json.Decoder(SteerRequest)
_outline = msgspec.json.Decoder(SteerOutline)
_input = msgspec.json.Decoder(str | list[Raw])
_message = msgspec.json.Decoder(_UserMessage)


def read_steer(frame: bytes | str) -> tuple[SteerRequest, tuple[Item, ...]]:
    """Decode the event and its input; errors name the field."""
    request = wire.decode(_steer, frame)
    wire.require_few(request.input, items.MOST_ITEMS, "input", "items")
    sent = wire.decode(_input, bytes(request.input), where="input")
    if not sent:
        raise InvalidRequest("Invalid 'input': there is nothing in it.", param="input")
    if not isinstance(sent, str):
        for index, raw in enumerate(sent[: items.MOST_ITEMS]):
            wire.decode(_message, raw, where=f"input[{index}]")
    return request, items.read_input(request.input)


def read_outline(frame: bytes | str) -> SteerOutline:
    """Decode what has to be said again about an event that is refused."""
    return wire.decode(_outline, frame)
