"""``response_format`` of a request as the protocol's own text format."""

from typing import Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from slipring.protocol import wire


class ChatSchema(Struct, omit_defaults=True):
    """A ``json_schema`` as a client sends it. Its fields are checked where the protocol's own format is."""

    name: str | UnsetType = UNSET
    schema: Raw | UnsetType = UNSET
    strict: bool | UnsetType | None = UNSET
    description: str | UnsetType | None = UNSET


class ChatFormat(Struct):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: ChatSchema | None = None


class JsonSchemaFormat(Struct, tag_field="type", tag="json_schema"):
    """The protocol's own format. UNSET fields are left out, so that its decoder names what is missing."""

    name: str | UnsetType
    schema: Raw | UnsetType
    strict: bool | UnsetType
    description: str | UnsetType


_format = msgspec.json.Decoder(ChatFormat)


def read_format(sent: Raw | UnsetType) -> Raw | UnsetType:
    """The ``text.format`` of a create request."""
    given = wire.given(sent)
    if given is None:
        return UNSET
    format = wire.decode(_format, given, where="response_format")
    if format.type != "json_schema":
        return wire.raw({"type": format.type})
    schema = format.json_schema
    if schema is None:
        raise wire.explain("Object missing required field `json_schema`", "response_format")
    return wire.raw(
        JsonSchemaFormat(
            schema.name,
            schema.schema,
            UNSET if schema.strict is None else schema.strict,
            UNSET if schema.description is None else schema.description,
        )
    )
