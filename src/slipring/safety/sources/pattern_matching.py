"""Matches patterns. ``find_matches`` runs in the child process of a sandbox.

A regular expression can take for ever on a text that a client has chosen, and Python's matcher blocks all
threads meanwhile. In a child process it can be stopped.
"""

import binascii
import json
import math
import re
from base64 import urlsafe_b64decode
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import NamedTuple
from zlib import crc32

_MIN_ENTROPY_BITS = 3.0
"""Per character. Random keys of 16 characters or more have at least this; words and placeholders less."""
_BASE_62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_CHECKSUM_CHARS = 6


class _Pattern(NamedTuple):
    category: str
    regex: re.Pattern[str]
    is_valid: Callable[[str], bool] | None
    hints: tuple[str, ...]

    def matches(self, text: str) -> bool:
        if self.hints and not any(hint in text for hint in self.hints):
            return False
        if self.is_valid is None:
            return self.regex.search(text) is not None
        return any(self.is_valid(match.group()) for match in self.regex.finditer(text))


def find_matches(patterns: list[list[str]], texts: list[str]) -> list[dict[str, float]]:
    """For each text, 1 for the categories of the patterns that match. A task of the sandbox.

    A pattern is a category, a regular expression, the name of a validator or nothing, and hints: only texts
    that contain one of them can match. Without hints, any text can.
    """
    compiled = _compiled(tuple(map(tuple, patterns)))
    return [{pattern.category: 1.0 for pattern in compiled if pattern.matches(text)} for text in texts]


@cache
def _compiled(patterns: tuple[tuple[str, ...], ...]) -> list[_Pattern]:
    return [
        _Pattern(category, re.compile(regex), VALIDATORS[validator] if validator else None, tuple(hints))
        for category, regex, validator, *hints in patterns
    ]


def _has_entropy(match: str) -> bool:
    counts = Counter(match)
    bits = -sum(count / len(match) * math.log2(count / len(match)) for count in counts.values())
    return bits >= _MIN_ENTROPY_BITS


def _has_checksum(match: str) -> bool:
    """Whether the last characters are the CRC-32, in base 62, of those between them and the prefix."""
    _, _, random = match.rpartition("_")
    number, digits = crc32(random[:-_CHECKSUM_CHARS].encode()), ""
    while number:
        number, digit = divmod(number, len(_BASE_62))
        digits = _BASE_62[digit] + digits
    return random[-_CHECKSUM_CHARS:] == digits.rjust(_CHECKSUM_CHARS, "0")


def _is_luhn(match: str) -> bool:
    """Whether the digits are a number with a Luhn check digit, as on payment cards."""
    digits = [int(character) for character in match if character.isdecimal()]
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return len(digits) > 1 and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def _has_token_header(match: str) -> bool:
    """Whether the first part is the header of a signed or encrypted token."""
    encoded = match.partition(".")[0]
    try:
        header = json.loads(urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    except (binascii.Error, ValueError):
        return False
    return isinstance(header, dict) and "alg" in header


VALIDATORS: dict[str, Callable[[str], bool]] = {
    "checksum": _has_checksum,
    "entropy": _has_entropy,
    "luhn": _is_luhn,
    "token_header": _has_token_header,
}
