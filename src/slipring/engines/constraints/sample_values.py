"""JSON documents that fit a schema, and inputs that fit a custom tool's grammar, for the simulated engine.

``document_for`` and ``input_for`` run ``sample_document`` and ``sample_input`` in the sandbox, since a
client's schema or grammar can take any amount of time and memory. Those walk an llguidance matcher: its mask
names the bytes that may come next, and the walk chooses one, always in the same way. A schema or grammar may
have no finite text, so every walk is bounded.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import product
from random import Random
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from slipring.base.errors import InvalidRequest
from slipring.engines.constraints import grammar_checks
from slipring.protocol import wire
from slipring.protocol.tools.grammars_and_schemas import Grammar

if TYPE_CHECKING:  # the sandbox's process does not need it
    from slipring.engines.constraints.grammar_compiler import Compiler

_MAX_INPUT_BYTES, _MAX_DOCUMENT_BYTES = 4096, 32_768
_MAX_STEPS = 60_000
"""Masks and tries for one text, all attempts together."""
_DEPTHS, _ORDERS = (4, 8, 16, 32), range(6)
"""The attempts for a document: with so many levels of arrays and objects, each with so many orders in which
names and bytes are tried. An early choice can lead to documents that are large or never end."""
_ENDINGS = b'\n")]};,. '
_LETTERS = bytes(range(97, 123))
_DIGITS = b"2134567890"
"""2 first: it makes valid months, days and hours wherever it is allowed."""
_INPUT_BYTES = bytes(dict.fromkeys(_ENDINGS + _LETTERS + _DIGITS + bytes(range(32, 127)) + bytes(range(256))))
_STRING_BYTES = bytes(dict.fromkeys(_LETTERS + _DIGITS + b"-_. " + _INPUT_BYTES)).replace(b'"', b"")
_SCALAR_BYTES = b'"1234567890-.eE+truefalsn'
_SAMPLES = tuple(
    wire.encode(sample)
    for sample in (
        *("text", "2025-01-01T12:00:00Z", "2025-01-01", "12:00:00Z", "P1D", "user@example.com"),
        *("https://example.com/", "00000000-0000-4000-8000-000000000001", "192.0.2.1", "2001:db8::1"),
        *("host.example.com", "1.0.0", "1", *("text" * count for count in (4, 16, 64, 256, 1024, 2048))),
    )
)
"""Strings that are tried before one is made up: they suit most formats and lengths and many patterns."""
_PLACED = wire.encode(("digest=0123456789abcdef and Words " * 7)[:240])
"""A property that accepts this accepts a digest, and filler words that make it longer."""


class SampleDocument(Struct, frozen=True):
    """A JSON document, and optionally a place in it for a text."""

    plain: str
    """The document without the text."""
    before: str = ""
    """The document up to the place of the text; empty if it has no such place."""
    after: str = ""

    def with_text(self, text: str) -> str:
        """The document with the text in its place; the plain one if the text is empty or has no place."""
        if not text or not self.before:
            return self.plain
        return self.before + wire.encode(text).decode() + self.after


EMPTY_OBJECT = SampleDocument("{}")


async def document_for(
    compiler: "Compiler", tenant: str, schema: bytes | None, *, strict: bool
) -> SampleDocument:
    """A document for a schema, with a place for a text in the first property that accepts any string.

    Raises ``InvalidRequest`` if the schema is malformed, if no document is found, or if ``strict`` and it
    uses keywords that llguidance does not support. If not strict, those keywords are ignored.
    """
    if schema is None:
        return EMPTY_OBJECT
    return SampleDocument(*await compiler.run(tenant, "sample_document", schema, strict, compiler.max_states))


async def input_for(compiler: "Compiler", tenant: str, grammar: Grammar) -> str | None:
    """A text that fits a grammar; None if none is found."""
    found: str | None = await compiler.run(
        tenant, "sample_input", grammar.syntax, grammar.definition, compiler.max_states
    )
    return found


def sample_document(schema: bytes, strict: bool, max_states: int) -> tuple[str, str, str]:
    """The fields of a ``SampleDocument``. A task of the sandbox."""
    matcher = _schema_matcher(schema, strict, max_states)
    read = msgspec.json.decode(schema)
    try:
        plain = _write_document(matcher).written.decode()
    except _DeadEnd as error:
        raise InvalidRequest(f"the simulated engine finds no value for this schema: {error}.") from None
    try:
        writer = _write_document(matcher, [wire.encode(name) for name in _own_properties(read)])
    except _DeadEnd:
        return plain, "", ""
    before, found, after = bytes(writer.written).partition(_PLACED)
    return (plain, before.decode(), after.decode()) if found else (plain, "", "")


def sample_input(syntax: Literal["lark", "regex"], definition: str, max_states: int) -> str | None:
    """A text that fits a grammar, empty only if no other is found; None if there is none. A task of the
    sandbox."""
    matcher = grammar_checks.compile_grammar(Grammar(syntax, definition), max_states)
    if matcher is None:
        return None
    is_empty_accepted = matcher.is_accepting()
    walk = _Walk(matcher, _MAX_INPUT_BYTES, _MAX_STEPS)
    try:
        while not (walk.written and walk.is_accepted):
            walk.choose(_INPUT_BYTES)
    except _DeadEnd:
        return "" if is_empty_accepted else None
    return walk.written.decode("utf-8", "replace")


def _schema_matcher(schema: bytes, strict: bool, max_states: int) -> Any:
    try:
        matcher = grammar_checks.compile_schema(schema, max_states)
        if not strict and matcher.get_error():
            matcher = grammar_checks.compile_schema(schema, max_states, lenient=True)
        error = grammar_checks.error_of(matcher)
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


class _DeadEnd(Exception):
    """The walk reached a bound, or the matcher accepts nothing more. The message names the reason."""


class _Walk:
    """Writes one text by a matcher of its own."""

    def __init__(self, matcher: Any, max_bytes: int, max_steps: int) -> None:
        self.written = bytearray()
        self.steps_left = max_steps
        self._matcher = matcher
        self._mask: bytes | None = None
        self._followed: Counter[tuple[int, int]] = Counter()
        """How often a byte followed another."""
        self._max_bytes = max_bytes

    @property
    def is_accepted(self) -> bool:
        """Whether the text is complete as it is."""
        return bool(self._matcher.is_accepting())

    def may(self, byte: int) -> bool:
        """Whether a byte may come next."""
        if self._mask is None:
            self._step()
            self._mask = self._matcher.compute_bitmask()
        return bool(self._mask[byte >> 3] >> (byte & 7) & 1)

    def accepts(self, text: bytes) -> bool:
        self._step()
        return int(self._matcher.validate_tokens(list(text))) == len(text)

    def write(self, text: bytes) -> bool:
        """Append a text if the matcher accepts all of it; otherwise change nothing and return False."""
        if not self.accepts(text):
            return False
        if len(self.written) + len(text) > self._max_bytes:
            raise _DeadEnd(f"it has more than {self._max_bytes} bytes")
        self._matcher.consume_tokens(list(text))
        self.written += text
        self._mask = None
        return True

    def require(self, text: bytes) -> None:
        if not self.write(text):
            raise self._blocked()

    def choose(self, order: bytes) -> int:
        """Append the allowed byte that has followed the last byte least often, the first in ``order`` if
        several have; return it. Whatever can be repeated thus soon gives way to what can follow it."""
        last = self.written[-1] if self.written else -1
        byte = min(filter(self.may, order), key=lambda each: self._followed[last, each], default=None)
        if byte is None:
            raise self._blocked()
        self._followed[last, byte] += 1
        self.require(bytes([byte]))
        return byte

    def _blocked(self) -> _DeadEnd:
        error = grammar_checks.error_of(self._matcher)
        return _DeadEnd(error if error.startswith(grammar_checks.TOO_LARGE) else "nothing fits it")

    def _step(self) -> None:
        self.steps_left -= 1
        if self.steps_left < 0:
            raise _DeadEnd("finding it takes too many steps")


class _DocumentWriter(_Walk):
    """Writes one JSON value: no optional properties; strings and arrays that end as soon as they may.

    ``carriers``: properties of the outermost object; the first that accepts ``_PLACED`` gets it. ``order``: 0
    for the best order of bytes, else another one.
    """

    def __init__(
        self, matcher: Any, carriers: Sequence[bytes], *, max_depth: int, order: int, max_steps: int
    ) -> None:
        super().__init__(matcher, _MAX_DOCUMENT_BYTES, max_steps)
        self._max_depth = max_depth
        shuffled = bytes(Random(order).sample(_STRING_BYTES, len(_STRING_BYTES)))
        self._string_bytes = shuffled if order else _STRING_BYTES
        self._carriers = carriers

    def write_value(self, name: bytes, depth: int) -> None:
        """Write a value. ``name``: of its property, as JSON, which a free string repeats."""
        # Scalars first: they end, containers may recurse. But a whole document is a container if it may be.
        order = b"{[" + _SCALAR_BYTES if not depth else _SCALAR_BYTES + b"[{"
        first = next(filter(self.may, order), None)
        if first is None:
            raise self._blocked()
        if depth > self._max_depth:
            raise _DeadEnd(f"it is nested more than {self._max_depth} levels deep")
        if first == ord('"'):
            if not any(map(self.write, (name, *_SAMPLES))):
                self._string(())
        elif first not in b"{[":
            self.choose(_SCALAR_BYTES)
            while not (self.is_accepted or any(map(self.may, b",}]"))):
                self.choose(_SCALAR_BYTES)
        else:
            # Choices within a container depend on those that led to it, not on those in its siblings.
            followed = self._followed.copy()
            self.require(bytes([first]))
            if first == ord("{"):
                self._members(depth)
            else:
                self._items(name, depth)
            self._followed = followed

    def _members(self, depth: int) -> None:
        names: list[bytes] = []
        while True:
            separator = b"," if names else b""
            fitting = (each for each in self._carriers if self.accepts(separator + each + b":" + _PLACED))
            carrier = next(fitting, None) if not depth else None
            if carrier is not None:
                self.require(separator + carrier + b":" + _PLACED)
                names.append(carrier)
                self._carriers = ()
            elif self.may(ord("}")):
                break
            else:
                self.require(separator)
                followed = self._followed.copy()
                names.append(self._string(names))
                self._followed = followed  # the same names may be written again, deeper
                self.require(b":")
                self.write_value(names[-1], depth + 1)
        self.require(b"}")

    def _items(self, name: bytes, depth: int) -> None:
        """One item if that may be a scalar, else as few as allowed."""
        is_empty = True
        while not self.may(ord("]")) or (is_empty and any(map(self.may, _SCALAR_BYTES))):
            self.require(b"" if is_empty else b",")
            self.write_value(name, depth + 1)
            is_empty = False
        self.require(b"]")

    def _string(self, taken: Sequence[bytes]) -> bytes:
        """Write a string that is not ``taken`` and ends as soon as it may; return it as JSON."""
        start, is_escaped = len(self.written), False
        self.require(b'"')
        while is_escaped or not self.may(ord('"')) or bytes(self.written[start:]) + b'"' in taken:
            order = self._string_bytes + b'"' if is_escaped else self._string_bytes
            is_escaped = self.choose(order) == ord("\\") and not is_escaped
        self.require(b'"')
        return bytes(self.written[start:])


def _write_document(matcher: Any, carriers: Sequence[bytes] = ()) -> _DocumentWriter:
    """Write a document that a matcher accepts; return its writer. Raises ``_DeadEnd`` if none is found."""
    steps, reason = _MAX_STEPS, _DeadEnd()
    for max_depth, order in product(_DEPTHS, _ORDERS):
        copy = matcher.deep_copy()
        writer = _DocumentWriter(copy, carriers, max_depth=max_depth, order=order, max_steps=steps)
        try:
            writer.write_value(b'"text"', 0)
            if writer.is_accepted:
                return writer
        except _DeadEnd as error:
            reason = reason if order else error
        steps = writer.steps_left
    raise reason
