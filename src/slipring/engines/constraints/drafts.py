"""Documents that fit a JSON schema and inputs that fit a custom tool's grammar.

The engine calls ``draft`` and ``input_for``. They run ``draft_document`` and ``draft_input`` in the sandbox,
since a client's schema or grammar can take any amount of time and memory.
"""

from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from slipring.base.errors import InvalidRequest
from slipring.engines.constraints import grammar_matcher
from slipring.engines.constraints.masked import DeadEnd, write_json, write_text
from slipring.protocol import wire
from slipring.protocol.definitions import Grammar

if TYPE_CHECKING:  # the sandbox's process does not need it
    from slipring.engines.constraints.grammar_compiler import Compiler

_CARGO = ("digest=0123456789abcdef and Words " * 7)[:240]
"""A property that accepts this accepts a digest, and filler words that make it longer."""


class Draft(Struct, frozen=True):
    """A JSON document, and optionally a place in it for a text."""

    plain: str
    """The document without the text."""
    before: str = ""
    """The document up to the place of the text; empty if it has no such place."""
    after: str = ""

    @property
    def carries(self) -> bool:
        return bool(self.before)

    def filled(self, text: str) -> str:
        """The document with the text in its place; the plain one if the text is empty or has no place."""
        if not text or not self.carries:
            return self.plain
        return self.before + wire.encode(text).decode() + self.after


EMPTY_OBJECT = Draft("{}")


async def draft(compiler: "Compiler", tenant: str, schema: bytes | None, *, strict: bool) -> Draft:
    """A document for a schema, with a place for a text in the first property that accepts any string.

    Raises ``InvalidRequest`` if the schema is malformed, if no value is found, or if ``strict`` and it uses
    keywords that llguidance does not support. If not strict, those keywords are ignored.
    """
    if schema is None:
        return EMPTY_OBJECT
    return Draft(*await compiler.run(tenant, "draft_document", schema, strict, compiler.max_states))


async def input_for(compiler: "Compiler", tenant: str, grammar: Grammar) -> str | None:
    """A text that fits a grammar; None if none is found."""
    found: str | None = await compiler.run(
        tenant, "draft_input", grammar.syntax, grammar.definition, compiler.max_states
    )
    return found


def draft_document(schema: bytes, strict: bool, max_states: int) -> tuple[str, str, str]:
    """The fields of a ``Draft``. A task of the sandbox."""
    matcher = _schema_matcher(schema, strict, max_states)
    read = msgspec.json.decode(schema)
    names = _property_names(read)
    try:
        plain = write_json(matcher, names).written.decode()
    except DeadEnd as error:
        raise InvalidRequest(f"the simulated engine finds no value for this schema: {error}.") from None
    try:
        writer = write_json(matcher, names, carriers=_own_properties(read), cargo=_CARGO)
    except DeadEnd:
        return plain, "", ""
    if writer.carried_at is None:
        return plain, "", ""
    start, end = writer.carried_at
    return plain, writer.written[:start].decode(), writer.written[end:].decode()


def draft_input(syntax: Literal["lark", "regex"], definition: str, max_states: int) -> str | None:
    """A text that fits a grammar; None if none is found. A task of the sandbox."""
    matcher = grammar_matcher.compile_grammar(Grammar(syntax, definition), max_states)
    return write_text(matcher) if matcher is not None else None


def _schema_matcher(schema: bytes, strict: bool, max_states: int) -> Any:
    try:
        matcher = grammar_matcher.compile_schema(schema, max_states)
        if not strict and matcher.get_error():
            matcher = grammar_matcher.compile_schema(schema, max_states, lenient=True)
        error = grammar_matcher.error_of(matcher)
    except ValueError as refused:
        error = str(refused)
    if error:
        # llguidance advises on its own options after the reason.
        reason = error.partition(". Enable ")[0]
        raise InvalidRequest(f"the simulated engine cannot use this schema: {reason}.")
    return matcher


def _own_properties(schema: Any) -> list[str]:
    """The properties that a schema declares for the outermost object."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return list(properties) if isinstance(properties, dict) else []


def _property_names(schema: Any) -> list[str]:
    """All names that a schema requires or declares anywhere, required ones first."""
    required: list[Any] = []
    declared: list[str] = []
    waiting = [schema]
    for each in waiting:
        if isinstance(each, list):
            waiting += each
        elif isinstance(each, dict):
            waiting += each.values()
            required += names if isinstance(names := each.get("required"), list) else []
            declared += _own_properties(each)
    return list(dict.fromkeys(name for name in (*required, *declared) if isinstance(name, str)))
