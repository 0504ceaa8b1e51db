"""Conversations on the wire: the requests that create, update and extend one, and the object itself."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from slipring.protocol import wire
from slipring.protocol.requests import Metadata

_MOST_NEW_ITEMS = 20
_NewItems = Annotated[list[Raw], Meta(max_length=_MOST_NEW_ITEMS)]


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


class _ConversationFields(Struct):
    items: Raw | UnsetType = UNSET
    metadata: Raw | UnsetType = UNSET


_conversation_fields = msgspec.json.Decoder(_ConversationFields)
_new_conversation = msgspec.json.Decoder(CreateConversation)
_conversation_update = msgspec.json.Decoder(UpdateConversation)
_added_items = msgspec.json.Decoder(AddItems)


def read_creation(body: bytes) -> CreateConversation:
    _refuse_long_fields(body)
    return wire.decode(_new_conversation, body)


def read_update(body: bytes) -> UpdateConversation:
    _refuse_long_fields(body)
    return wire.decode(_conversation_update, body)


def read_addition(body: bytes) -> AddItems:
    _refuse_long_fields(body)
    return wire.decode(_added_items, body)


def _refuse_long_fields(body: bytes) -> None:
    """Refuse fields that would take long to decode, without decoding them."""
    if len(body) <= wire.LONG_BYTES:
        return
    fields = wire.decode(_conversation_fields, body)
    if (metadata := wire.given(fields.metadata)) is not None:
        wire.require_short(metadata, "metadata")
    if (items := wire.given(fields.items)) is not None:
        wire.require_few(items, _MOST_NEW_ITEMS, "items", "items")
