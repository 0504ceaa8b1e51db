"""Sets of characters in regular expressions, and their spelling within a JSON string.

Which characters beyond ASCII belong to ``\\w`` or differ only in case is up to llguidance. So a set has two
bounds: the characters that it certainly contains, and those that it possibly contains. Within ASCII, which
has all characters that JSON escapes, both are equal.
"""

import unicodedata
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

Ranges = tuple[tuple[int, int], ...]
"""First and last code of each range, sorted, without overlaps."""

LAST_CODE: Final = 0x10FFFF
_ASCII_LAST: Final = 0x7F
_NOT_ASCII: Final[Ranges] = ((_ASCII_LAST + 1, LAST_CODE),)
JSON_ESCAPES: Final = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
"""The characters that JSON writes as a backslash and one letter. Other control characters are not supported:
JSON writes them as ``\\u…``, which one letter after the backslash does not identify."""
_ESCAPED: Final[Ranges] = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C))


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Sort ranges, and merge those that overlap or touch."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def invert_ranges(ranges: Ranges) -> Ranges:
    """All codes that are not in the ranges."""
    inverted, at = [], 0
    for first, last in ranges:
        if at < first:
            inverted.append((at, first - 1))
        at = last + 1
    return (*inverted, (at, LAST_CODE)) if at <= LAST_CODE else tuple(inverted)


def subtract_ranges(ranges: Ranges, removed: Ranges) -> Ranges:
    return invert_ranges(merge_ranges((*invert_ranges(ranges), *removed)))


class CharacterSet(Struct, frozen=True, cache_hash=True):
    """A set that one character of a text is in."""

    source: str
    """The set as written within the brackets of a character class."""
    certain: Ranges
    possible: Ranges
    ignores_case: bool = False
    """Whether upper and lower case are equal."""

    def escapes(self) -> str:
        """The letters that follow the backslash, for the certain members that JSON escapes."""
        return "".join(letter for each, letter in JSON_ESCAPES.items() if _contains(self.certain, ord(each)))

    def unescaped(self) -> Ranges:
        """The certain members that JSON does not escape."""
        return subtract_ranges(self.certain, _ESCAPED)

    def plain(self) -> str | None:
        """A regular expression of the members that JSON does not escape; None if there are none."""
        if not subtract_ranges(self.possible, _ESCAPED):
            return None
        needs_no_escape = subtract_ranges(self.possible, _ESCAPED) == self.possible
        pattern = f"[{self.source}]" if needs_no_escape else rf'[[{self.source}]--["\\\x00-\x1f]]'
        return f"(?i:{pattern})" if self.ignores_case else pattern

    def ignore_case(self) -> "CharacterSet":
        """The set with both cases of its letters."""
        certain = merge_ranges(
            (*self.certain, *(each for pair in self.certain for each in _other_cases(*pair)))
        )
        # Some letters beyond ASCII are the other case of an ASCII letter.
        return CharacterSet(self.source, certain, merge_ranges((*certain, *_NOT_ASCII)), ignores_case=True)


_MAX_CASED_CODES = 512
"""Codes of a range whose other cases are looked up."""


def _other_cases(first: int, last: int) -> list[tuple[int, int]]:
    codes = range(first, min(last, first + _MAX_CASED_CODES) + 1)
    cases = [other for code in codes for other in (chr(code).lower(), chr(code).upper())]
    return [(ord(other), ord(other)) for other in cases if len(other) == 1]


def _contains(ranges: Ranges, code: int) -> bool:
    return any(first <= code <= last for first, last in ranges)


def single(character: str) -> CharacterSet:
    """The set of one character."""
    code = ord(character)
    source = character if character.isalnum() and code <= _ASCII_LAST else rf"\x{{{code:x}}}"
    return CharacterSet(source, ((code, code),), ((code, code),))


def code_range(first: int, last: int) -> CharacterSet:
    return CharacterSet(rf"\x{{{first:x}}}-\x{{{last:x}}}", ((first, last),), ((first, last),))


def union(parts: list[CharacterSet]) -> CharacterSet:
    return CharacterSet(
        "".join(part.source for part in parts),
        merge_ranges(each for part in parts for each in part.certain),
        merge_ranges(each for part in parts for each in part.possible),
    )


def complement(characters: CharacterSet) -> CharacterSet:
    source = f"[^{characters.source}]"
    return CharacterSet(
        source, invert_ranges(characters.possible), invert_ranges(characters.certain), characters.ignores_case
    )


ANY: Final = CharacterSet(r"\x{0}-\x{10FFFF}", invert_ranges(()), invert_ranges(()))
NOT_A_NEWLINE: Final = complement(single("\n"))


def _known_in_ascii(source: str, codes: Iterable[int]) -> CharacterSet:
    certain = merge_ranges((code, code) for code in codes)
    return CharacterSet(source, certain, merge_ranges((*certain, *_NOT_ASCII)))


_CLASSES: Final = {
    "d": _known_in_ascii(r"\d", range(ord("0"), ord("9") + 1)),
    "w": _known_in_ascii(r"\w", (code for code in range(128) if chr(code).isalnum() or chr(code) == "_")),
    "s": _known_in_ascii(r"\s", map(ord, " \t\n\r\f\v")),
}


def class_escape(letter: str) -> CharacterSet | None:
    """The set of an escape such as ``\\d``; None if ``letter`` is not one."""
    known = _CLASSES.get(letter.lower())
    if known is None or letter.islower():
        return known
    return CharacterSet(f"\\{letter}", invert_ranges(known.possible), invert_ranges(known.certain))


def unicode_category(name: str) -> CharacterSet | None:
    """The set of ``\\p{name}``; None unless ``name`` is a general category in its short form."""
    if not 1 <= len(name) <= 2 or name[0] not in "LMNPSZC":
        return None
    codes = (code for code in range(128) if unicodedata.category(chr(code)).startswith(name))
    return _known_in_ascii(rf"\p{{{name}}}", codes)
