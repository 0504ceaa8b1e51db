"""Writes texts that a grammar accepts, and JSON values that a JSON schema accepts, without a model.

Both walk an llguidance matcher: its mask names the bytes that may come next, and the writer picks one. The
choice is deterministic and prefers bytes that end things. A schema or grammar can have endless texts only, so
every walk is bounded and raises ``DeadEnd`` at a bound.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from random import Random
from typing import Any

from slipring.engines.constraints.grammar_matcher import TOO_LARGE, error_of
from slipring.protocol import wire

_MAX_TEXT_BYTES = 4096
"""Length of an input of a custom tool."""
_MAX_JSON_BYTES = 32_768
_MAX_DEPTHS = (4, 8, 16, 32)
"""Nested arrays and objects in a JSON value, in the order of the attempts."""
_ORDERS = 6
"""Orders in which names and bytes are tried, for each depth."""
_CHEAP_STEPS = 2000
"""Up to so many steps, a failed attempt is repeated in another order before the depth is increased."""
_MAX_STEPS = 60_000
"""Masks, choices and tries for one JSON value, all attempts together."""

_ENDINGS = b'\n")]};,. '
_LETTERS = bytes(range(97, 123))
_DIGITS = b"2134567890"
"""2 first: it makes valid months, days and hours wherever it is allowed."""
_ORDER = bytes(dict.fromkeys(_ENDINGS + _LETTERS + _DIGITS + bytes(range(32, 127)) + bytes(range(256))))
_TEXT_ORDER = bytes(dict.fromkeys(_LETTERS + _DIGITS + b"-_. " + _ORDER)).replace(b'"', b"")
_NUMBER_ORDER = b"1234567890-.eE+"

_SCALARS = b'"' + _NUMBER_ORDER + b"tfn"
_NESTED_ORDER = _SCALARS + b"[{"
"""First bytes of values, best first. Below the root scalars come first: they end, containers may recurse."""
_ROOT_ORDER = b"{[" + _SCALARS
_NEXT = (b",", b"}", b"]")
"""Bytes that show that a number within a container may end."""
_LITERALS = {ord("t"): b"true", ord("f"): b"false", ord("n"): b"null"}

_STRINGS = tuple(
    wire.encode(sample)
    for sample in (
        *("text", "2025-01-01T12:00:00Z", "2025-01-01", "12:00:00Z", "P1D", "user@example.com"),
        *("https://example.com/", "00000000-0000-4000-8000-000000000001", "192.0.2.1", "2001:db8::1"),
        *("host.example.com", "1.0.0", "1", *("text" * count for count in (4, 16, 64, 256, 1024, 2048))),
    )
)
"""Strings that are tried before one is made up: they suit most formats and lengths and many patterns."""
_NUMBERS = tuple(
    wire.encode(sample)
    for sample in (*range(1, 101), 0, 0.5, *(10**power for power in range(3, 10)), *range(-1, -101, -1))
)
"""Numbers that are tried before one is made up."""


class DeadEnd(Exception):
    """The walk reached a bound, or the matcher accepts nothing more. The message names the reason."""


class MaskedWriter:
    """Writes one text with a matcher of its own."""

    def __init__(self, matcher: Any, max_bytes: int, max_steps: int) -> None:
        self.written = bytearray()
        self.steps = 0
        self._matcher = matcher
        self._mask: bytes | None = None
        self._followed: Counter[tuple[int, int]] = Counter()
        """How often a byte followed another."""
        self._max_bytes = max_bytes
        self._max_steps = max_steps

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

    def write(self, text: bytes) -> bool:
        """Append a text if the matcher accepts all of it; otherwise change nothing and return False."""
        if not self.accepts(text):
            return False
        if len(self.written) + len(text) > self._max_bytes:
            raise DeadEnd(f"it has more than {self._max_bytes} bytes")
        self._matcher.consume_tokens(list(text))
        self.written += text
        self._mask = None
        return True

    def accepts(self, text: bytes) -> bool:
        self._step()
        return int(self._matcher.validate_tokens(list(text))) == len(text)

    def choose(self, order: bytes) -> int:
        """Append the allowed byte that has followed the last byte least often, the first in ``order`` if
        several have; return it. Whatever can be repeated thus soon gives way to what can follow it."""
        last = self.written[-1] if self.written else -1
        allowed = [byte for byte in order if self.may(byte)]
        if not allowed:
            raise self._blocked()
        byte = min(allowed, key=lambda each: self._followed[last, each])
        self._followed[last, byte] += 1
        self.require(bytes([byte]))
        return byte

    def require(self, text: bytes) -> None:
        """Append a text. Raises ``DeadEnd`` if the matcher does not accept it."""
        if not self.write(text):
            raise self._blocked()

    def _blocked(self) -> DeadEnd:
        error = error_of(self._matcher)
        return DeadEnd(error if error.startswith(TOO_LARGE) else "nothing fits it")

    def _step(self) -> None:
        self.steps += 1
        if self.steps > self._max_steps:
            raise DeadEnd("finding it takes too many steps")


def write_text(matcher: Any) -> str | None:
    """A text that a matcher accepts, empty only if no other is found; None if not even that is accepted."""
    writer = MaskedWriter(matcher, _MAX_TEXT_BYTES, max_steps=4 * _MAX_TEXT_BYTES)
    starts_accepted = writer.is_accepted
    try:
        while not (writer.written and writer.is_accepted):
            writer.choose(_ORDER)
    except DeadEnd:
        return "" if starts_accepted else None
    return writer.written.decode("utf-8", "replace")


class JsonWriter(MaskedWriter):
    """Writes one JSON value: required properties only, strings and arrays that end as soon as they may.

    ``names``: property names to try, best first. ``bounds``: depth and steps. ``seed``: 0 for the best order
    of names and bytes, else for another one.
    """

    def __init__(self, matcher: Any, names: Sequence[str], bounds: tuple[int, int], seed: int) -> None:
        self._max_depth, max_steps = bounds
        super().__init__(matcher, _MAX_JSON_BYTES, max_steps)
        self.carried_at: tuple[int, int] | None = None
        """Where the cargo begins and ends, quotes included."""
        self._carriers: list[bytes] = []
        self._cargo = b""
        self._names = [wire.encode(name) for name in names]
        self._text_order = _TEXT_ORDER
        self._enclosing: list[set[bytes]] = []
        """The names that each open object has so far."""
        if seed:
            random = Random(seed)
            random.shuffle(self._names)
            self._text_order = bytes(random.sample(_TEXT_ORDER, len(_TEXT_ORDER)))

    def write_document(self, carriers: Sequence[str] = (), cargo: str = "") -> None:
        """Write the outermost value; if it is an object, with the string ``cargo`` in the first of the
        properties ``carriers`` that accepts it. Raises ``DeadEnd``."""
        self._carriers = [wire.encode(name) for name in carriers]
        self._cargo = wire.encode(cargo)
        self._value(b'"text"', 0)
        if not self.is_accepted:
            raise self._blocked()

    def _value(self, name: bytes, depth: int) -> None:
        """``name``: of the property that the value is for, as JSON; a free string repeats it."""
        first = next((byte for byte in (_NESTED_ORDER if depth else _ROOT_ORDER) if self.may(byte)), None)
        if first is None:
            raise self._blocked()
        if depth > self._max_depth:
            raise DeadEnd(f"it is nested more than {self._max_depth} levels deep")
        if first in b"{[":
            # Choices within a container depend on those that led to it, not on those in its siblings.
            followed = self._followed.copy()
            if first == ord("{"):
                self._object(depth)
            else:
                self._array(name, depth)
            self._followed = followed
        elif first == ord('"'):
            self._string(name)
        elif first in _LITERALS:
            self.require(_LITERALS[first])
        else:
            self._number()

    def _object(self, depth: int) -> None:
        self.require(b"{")
        names: set[bytes] = set()
        while True:
            separator = b"," if names else b""
            if not depth and self.carried_at is None and (carrier := self._carry(separator, names)):
                names.add(carrier)
                continue
            if self.may(ord("}")):
                break
            self.require(separator)
            name = self._key(names)
            names.add(name)
            self.require(b":")
            self._enclosing.append(names)
            self._value(name, depth + 1)
            self._enclosing.pop()
        self.require(b"}")

    def _array(self, name: bytes, depth: int) -> None:
        """Of one item if that may be a scalar, else as short as allowed."""
        self.require(b"[")
        is_empty = True
        while not self.may(ord("]")) or (is_empty and any(map(self.may, _SCALARS))):
            self.require(b"" if is_empty else b",")
            self._value(name, depth + 1)
            is_empty = False
        self.require(b"]")

    def _string(self, name: bytes) -> None:
        if not any(map(self.write, (name, *_STRINGS))):
            self.require(b'"')
            self._finish_string()

    def _key(self, taken: set[bytes]) -> bytes:
        """Write a name that the object does not have yet; return it as JSON.

        Names that enclosing objects have come last: they may lead to the same objects again.
        """
        self.require(b'"')
        start = len(self.written) - 1
        enclosing = {name for each in self._enclosing for name in each}
        fresh = (name for name in self._names if name not in taken and name not in enclosing)
        again = (name for name in self._names if name not in taken and name in enclosing)
        made_up = (b'"key%d"' % (len(taken) + 1),)
        if not any(self.may(name[1]) and self.write(name[1:]) for name in chain(fresh, again, made_up)):
            self._finish_string(taken, start)
        return bytes(self.written[start:])

    def _finish_string(self, taken: Iterable[bytes] = (), start: int = 0) -> None:
        """Write an open string to its end: as soon as it may end and is not ``taken``."""
        is_escaped = False
        while is_escaped or not self.may(ord('"')) or bytes(self.written[start:]) + b'"' in taken:
            order = self._text_order + b'"' if is_escaped else self._text_order
            is_escaped = self.choose(order) == ord("\\") and not is_escaped
        self.require(b'"')

    def _number(self) -> None:
        if any(self.accepts(sample + end) and self.write(sample) for sample in _NUMBERS for end in _NEXT):
            return
        self.choose(_NUMBER_ORDER)
        while not (self.is_accepted or any(self.accepts(end) for end in _NEXT)):
            self.choose(_NUMBER_ORDER)

    def _carry(self, separator: bytes, taken: set[bytes]) -> bytes | None:
        """Write the first property that may come next with the cargo in it; return its name as JSON."""
        for name in self._carriers:
            lead = separator + name + b":"
            if name not in taken and self.accepts(lead + self._cargo):
                self.require(lead)
                start = len(self.written)
                self.require(self._cargo)
                self.carried_at = start, len(self.written)
                return name
        return None


def write_json(
    matcher: Any, names: Sequence[str], carriers: Sequence[str] = (), cargo: str = ""
) -> JsonWriter:
    """Write a JSON value that a matcher accepts; return its writer. Raises ``DeadEnd`` if none is found.

    A choice that was made early can lead to values that are large or never end. So shallow values are tried
    first, and names and bytes in several orders.
    """
    steps, reason = 0, DeadEnd()
    for max_depth in _MAX_DEPTHS:
        for seed in range(_ORDERS):
            writer = JsonWriter(matcher.deep_copy(), names, (max_depth, _MAX_STEPS - steps), seed)
            try:
                writer.write_document(carriers, cargo)
            except DeadEnd as error:
                reason = reason if seed else error
            else:
                return writer
            steps += writer.steps
            if writer.steps > _CHEAP_STEPS and max_depth != _MAX_DEPTHS[-1]:
                break
    raise reason
