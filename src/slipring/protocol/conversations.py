"""The conversations endpoints: what is asked, and a conversation as it is answered with."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from slipring.protocol import wire
from slipring.protocol.requests import Metadata

_NewItems = Annotated[list[Raw], Meta(max_length=20)]


class CreateConversation(Struct):
    items: _NewItems | None = None
    metadata: Metadata | None = None


class UpdateConversation(Struct):
    metadata: Metadata | None


class AddItems(Struct):
    items: _NewItems


class ConversationObject(Struct):
    id: str
    created_at: int
    metadata: dict[str, str]
    object: Literal["conversation"] = "conversation"


_create = msgspec.json.Decoder(CreateConversation)
_update = msgspec.json.Decoder(UpdateConversation)
_add = msgspec.json.Decoder(AddItems)


def read_creation(body: bytes) -> CreateConversation:
    return wire.decode(_create, body)


def read_update(body: bytes) -> UpdateConversation:
    return wire.decode(_update, body)


def read_addition(body: bytes) -> AddItems:
    return wire.decode(_add, body)
