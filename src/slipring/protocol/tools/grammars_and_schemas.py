"""Grammars and JSON schemas that a request defines, with bounds on their number and size.

Nothing is compiled here. ``Definitions`` collects the grammars of one request, each with the name of its
field, so that an engine's compiler can check them before the request is accepted.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw, Struct, UnsetType, structs

from slipring.base.errors import InvalidRequest
from slipring.protocol import wire

_TOTAL_FACTOR = 2
"""The grammars of a request may have this many times ``max_grammar_bytes`` in total."""


class Grammar(Struct, frozen=True, tag_field="type", tag="grammar"):
    """The ``format`` of a custom tool: which inputs its calls may have."""

    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Meta(min_length=1)]


class _FormatType(Struct):
    type: Literal["text", "grammar"]


_format_type = msgspec.json.Decoder(_FormatType)
_grammar = msgspec.json.Decoder(Grammar)


def read_grammar(data: Raw | UnsetType, where: str) -> Grammar | None:
    """Decode a custom tool's ``format``; None if it allows any text. The definition itself is not parsed."""
    sent = wire.given(data)
    if sent is None or wire.decode(_format_type, sent, where=where).type == "text":
        return None
    return wire.decode(_grammar, bytes(sent), where=where)


class Compilable(Struct, frozen=True):
    """A grammar to compile before the request is accepted; ``param`` names its field in error messages."""

    param: str
    grammar: Grammar


class Definitions(Struct, kw_only=True):
    """Collects the grammars of one request, and raises ``InvalidRequest`` where a bound is exceeded."""

    max_grammars: int
    max_grammar_bytes: int
    max_schema_bytes: int
    ignored_tools: frozenset[str] | None = frozenset()
    """Types of tools that a request may list although nothing here answers them; None: all."""
    size_bytes: int = 0
    """Of the grammars added so far."""
    grammars: list[Compilable] = []
    """The grammars added so far, in the order of the request."""

    def copy(self) -> "Definitions":
        """The same, to which further definitions can be added apart."""
        return structs.replace(self, grammars=list(self.grammars))

    def ignores(self, kind: str) -> bool:
        """Whether a request may list tools of this type although nothing here answers them."""
        return self.ignored_tools is None or kind in self.ignored_tools

    def add_grammar(self, grammar: Grammar, where: str) -> None:
        """Check a grammar's size and keep it for the compiler; ``where`` names the ``format`` around it."""
        param = f"{where}.definition"
        size = len(grammar.definition.encode("utf-8", "surrogatepass"))
        if size > self.max_grammar_bytes:
            raise InvalidRequest.at(
                param, f"a grammar has at most {self.max_grammar_bytes} bytes (max_grammar_bytes)"
            )
        if len(self.grammars) >= self.max_grammars:
            raise InvalidRequest.at(
                param, f"a request has at most {self.max_grammars} grammars (max_grammars)"
            )
        self.size_bytes += size
        if self.size_bytes > _TOTAL_FACTOR * self.max_grammar_bytes:
            raise InvalidRequest.at(
                param, "the grammars of the request are too large in total (max_grammar_bytes)"
            )
        self.grammars.append(Compilable(param, grammar))

    def check_schema(self, schema: Raw | UnsetType, param: str) -> None:
        """Check the size of a JSON schema. Absent and null schemas pass."""
        sent = wire.given(schema)
        if sent is not None and len(bytes(sent)) > self.max_schema_bytes:
            raise InvalidRequest.at(
                param, f"a schema has at most {self.max_schema_bytes} bytes (max_schema_bytes)"
            )
