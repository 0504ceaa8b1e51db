"""Grammars of custom tools: what the input of a call may be. Read here, compiled elsewhere."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw, Struct, UnsetType

from slipring.protocol import wire


class Grammar(Struct, frozen=True, tag_field="type", tag="grammar"):
    """The format of a custom tool's input."""

    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Meta(min_length=1)]


class _Kind(Struct):
    type: Literal["text", "grammar"]


_kind = msgspec.json.Decoder(_Kind)
_grammar = msgspec.json.Decoder(Grammar)


def read_grammar(data: Raw | UnsetType, where: str) -> Grammar | None:
    """The grammar of a ``format``; None: any text will do. Does not ask whether it means anything."""
    sent = wire.given(data)
    if sent is None or wire.decode(_kind, sent, where=where).type == "text":
        return None
    return wire.decode(_grammar, bytes(sent), where=where)
