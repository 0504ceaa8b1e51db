"""Matches patterns and PII recognizers. These functions run in the child process of a sandbox.

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
from typing import Any
from zlib import crc32

from slipring.errors import InvalidRequest

_MIN_ENTROPY_BITS = 3.0
"""Per character. Random keys of 16 characters or more have at least this; words and placeholders less."""
_BASE_62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_CHECKSUM_CHARS = 6

_Pattern = tuple[str, re.Pattern[str], Callable[[str], bool] | None]


def find_matches(patterns: list[list[str]], texts: list[str]) -> list[dict[str, float]]:
    """For each text, 1 for the categories of the patterns that match. A pattern is a category, a regular
    expression and the name of a validator or nothing. A task of the sandbox."""
    compiled = _compiled(tuple(map(tuple, patterns)))
    return [
        {category: 1.0 for category, regex, is_valid in compiled if _matches(regex, is_valid, text)}
        for text in texts
    ]


@cache
def _compiled(patterns: tuple[tuple[str, ...], ...]) -> list[_Pattern]:
    return [
        (category, re.compile(regex), VALIDATORS[validator] if validator else None)
        for category, regex, validator in patterns
    ]


def _matches(regex: re.Pattern[str], is_valid: Callable[[str], bool] | None, text: str) -> bool:
    if is_valid is None:
        return regex.search(text) is not None
    return any(is_valid(match.group()) for match in regex.finditer(text))


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


def find_personal_data(recognizers: list[str], texts: list[str]) -> list[dict[str, float]]:
    """For each text, the highest score of each kind of personal data that Presidio's recognizers find. A task
    of the sandbox."""
    loaded = _recognizers(tuple(recognizers))
    return [_personal_data(loaded, text) for text in texts]


def _personal_data(recognizers: list[Any], text: str) -> dict[str, float]:
    scores: dict[str, float] = {}
    for recognizer in recognizers:
        for found in recognizer.analyze(text, recognizer.supported_entities, None):
            kind = found.entity_type
            scores[kind] = max(scores.get(kind, 0.0), min(max(float(found.score), 0.0), 1.0))
    return scores


@cache
def _recognizers(names: tuple[str, ...]) -> list[Any]:
    from presidio_analyzer import predefined_recognizers
    from tldextract import TLDExtract, tldextract

    # By default it downloads a list when it is first used. It brings one that is good enough.
    tldextract.TLD_EXTRACTOR = TLDExtract(cache_dir=None, suffix_list_urls=())
    for name in names:
        if not name.endswith("Recognizer") or not hasattr(predefined_recognizers, name):
            raise InvalidRequest(f"settings.recognizers: Presidio has no {name}")
    return [getattr(predefined_recognizers, name)() for name in names]
