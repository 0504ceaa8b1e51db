"""Sets of characters, as regular expressions name them, and how they are written within a JSON string.

What ``\\w`` or a fold of cases means beyond ASCII is llguidance's affair. So a set is known twice: what is in
it for sure, and what may be. Within ASCII, where everything lies that JSON escapes, both agree.
"""

import unicodedata
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

Ranges = tuple[tuple[int, int], ...]
"""First and last of each, in order and apart."""

LAST: Final = 0x10FFFF
_ASCII_LAST: Final = 0x7F
_FOREIGN: Final[Ranges] = ((_ASCII_LAST + 1, LAST),)
ESCAPES: Final = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
"""What JSON writes as a backslash and one more character. Other control characters it writes as ``\\u…``:
they are left out, since one character after the backslash does not tell which it is."""
_QUOTED: Final[Ranges] = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C))


def joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges in order, those that touch made one."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def others(ranges: Ranges) -> Ranges:
    """Every character that is not in the ranges."""
    found, at = [], 0
    for first, last in ranges:
        if at < first:
            found.append((at, first - 1))
        at = last + 1
    return (*found, (at, LAST)) if at <= LAST else tuple(found)


def without(ranges: Ranges, taken: Ranges) -> Ranges:
    return others(joined((*others(ranges), *taken)))


class Characters(Struct, frozen=True, cache_hash=True):
    """One character out of a set."""

    source: str
    """As it stands within the brackets of a class."""
    sure: Ranges
    maybe: Ranges
    folded: bool = False
    """Whether cases count as one."""

    def escapes(self) -> str:
        """What follows the backslash, of those that JSON escapes."""
        return "".join(letter for each, letter in ESCAPES.items() if _has(self.sure, ord(each)))

    def unescaped(self) -> Ranges:
        """Those that are in it for sure and stand for themselves in JSON."""
        return without(self.sure, _QUOTED)

    def plain(self) -> str | None:
        """A regular expression for all that stand for themselves in JSON."""
        if not without(self.maybe, _QUOTED):
            return None
        is_free = without(self.maybe, _QUOTED) == self.maybe
        found = f"[{self.source}]" if is_free else rf'[[{self.source}]--["\\\x00-\x1f]]'
        return f"(?i:{found})" if self.folded else found

    def fold(self) -> "Characters":
        """The same whatever the case."""
        sure = joined((*self.sure, *(each for pair in self.sure for each in _other_cases(*pair))))
        # Some letters beyond ASCII are other cases of those within it.
        return Characters(self.source, sure, joined((*sure, *_FOREIGN)), folded=True)


_MOST_FOLDED = 512


def _other_cases(first: int, last: int) -> list[tuple[int, int]]:
    codes = range(first, min(last, first + _MOST_FOLDED) + 1)
    cases = [other for code in codes for other in (chr(code).lower(), chr(code).upper())]
    return [(ord(other), ord(other)) for other in cases if len(other) == 1]


def _has(ranges: Ranges, code: int) -> bool:
    return any(first <= code <= last for first, last in ranges)


def one(character: str) -> Characters:
    """A character that means itself."""
    code = ord(character)
    source = character if character.isalnum() and code <= _ASCII_LAST else rf"\x{{{code:x}}}"
    return Characters(source, ((code, code),), ((code, code),))


def span(first: int, last: int) -> Characters:
    return Characters(rf"\x{{{first:x}}}-\x{{{last:x}}}", ((first, last),), ((first, last),))


def union(parts: list[Characters]) -> Characters:
    return Characters(
        "".join(part.source for part in parts),
        joined(each for part in parts for each in part.sure),
        joined(each for part in parts for each in part.maybe),
    )


def complement(characters: Characters) -> Characters:
    source = f"[^{characters.source}]"
    return Characters(source, others(characters.maybe), others(characters.sure), characters.folded)


ANY: Final = Characters(r"\x{0}-\x{10FFFF}", others(()), others(()))
NOT_A_NEWLINE: Final = complement(one("\n"))


def _known_in_ascii(source: str, codes: Iterable[int]) -> Characters:
    sure = joined((code, code) for code in codes)
    return Characters(source, sure, joined((*sure, *_FOREIGN)))


_CLASSES: Final = {
    "d": _known_in_ascii(r"\d", range(ord("0"), ord("9") + 1)),
    "w": _known_in_ascii(r"\w", (code for code in range(128) if chr(code).isalnum() or chr(code) == "_")),
    "s": _known_in_ascii(r"\s", map(ord, " \t\n\r\f\v")),
}


def named(letter: str) -> Characters | None:
    """The set of ``\\d`` and its like."""
    known = _CLASSES.get(letter.lower())
    if known is None or letter.islower():
        return known
    return Characters(f"\\{letter}", others(known.maybe), others(known.sure))


def category(name: str) -> Characters | None:
    """The set of ``\\p{name}``, for general categories in their short form."""
    if not 1 <= len(name) <= 2 or name[0] not in "LMNPSZC":
        return None
    codes = (code for code in range(128) if unicodedata.category(chr(code)).startswith(name))
    return _known_in_ascii(rf"\p{{{name}}}", codes)
