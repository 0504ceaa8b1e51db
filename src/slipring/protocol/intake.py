"""What a request defines, as it is read: grammars and schemas, bounded in number and size.

Nothing is compiled here. Grammars are collected, each with the field that it came in, for whoever compiles.
"""

from msgspec import Raw, Struct, UnsetType

from slipring.errors import InvalidRequest
from slipring.protocol import wire
from slipring.protocol.grammars import Grammar

_TOGETHER = 2
"""All grammars of a request may have this many times the size of the largest that is allowed."""


class Compilable(Struct, frozen=True):
    """A grammar that has to be compiled before the request can be accepted."""

    param: str
    grammar: Grammar


class Intake:
    """The definitions of one request."""

    __slots__ = ("_bytes", "_max_grammar_bytes", "_max_grammars", "_max_schema_bytes", "grammars")

    def __init__(self, *, max_grammars: int, max_grammar_bytes: int, max_schema_bytes: int) -> None:
        self._max_grammars = max_grammars
        self._max_grammar_bytes = max_grammar_bytes
        self._max_schema_bytes = max_schema_bytes
        self._bytes = 0
        self.grammars: list[Compilable] = []
        """Those that have been taken, in the order of the request."""

    def take_grammar(self, grammar: Grammar, where: str) -> None:
        """``where``: the format that it is in."""
        param = f"{where}.definition"
        size = len(grammar.definition.encode("utf-8", "surrogatepass"))
        if size > self._max_grammar_bytes:
            raise _refusal(
                param, f"a grammar has at most {self._max_grammar_bytes} bytes (max_grammar_bytes)"
            )
        if len(self.grammars) >= self._max_grammars:
            raise _refusal(param, f"a request has at most {self._max_grammars} grammars (max_grammars)")
        self._bytes += size
        if self._bytes > _TOGETHER * self._max_grammar_bytes:
            raise _refusal(param, "the grammars of the request are too large, together (max_grammar_bytes)")
        self.grammars.append(Compilable(param, grammar))

    def take_schema(self, schema: Raw | UnsetType, param: str) -> None:
        """A JSON schema, or nothing."""
        sent = wire.given(schema)
        if sent is not None and len(bytes(sent)) > self._max_schema_bytes:
            raise _refusal(param, f"a schema has at most {self._max_schema_bytes} bytes (max_schema_bytes)")


def _refusal(param: str, said: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid '{param}': {said}.", param=param)
