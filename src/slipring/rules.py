"""Rules that values of settings must satisfy, each with a check and the text for an error message."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition for a value that already has the right type."""

    demand: str
    holds: Callable[[Any], bool]


def _is_api_key(entry: object) -> bool:
    return isinstance(entry, str) and all(part.strip() for part in entry.split(":", 1))


ANY = Rule("", lambda value: True)
NOT_EMPTY = Rule("must not be empty", bool)
NO_EMPTY_ENTRY = Rule(
    "every entry must be a string and not empty",
    lambda entries: all(isinstance(entry, str) and entry for entry in entries),
)
API_KEYS = Rule(
    "every entry must be [TENANT:]KEY with neither part empty",
    lambda entries: all(_is_api_key(entry) for entry in entries),
)
PORT = Rule("must be from 0 to 65535", lambda number: 0 <= number <= 65535)
LOG_LEVEL = Rule(f"must be one of {', '.join(LOG_LEVELS)}", lambda name: name in LOG_LEVELS)
AT_LEAST_ONE = Rule("must be 1 or more", lambda number: number >= 1)
POSITIVE = Rule("must be finite and above 0", lambda number: 0 < number < math.inf)
NOT_NEGATIVE = Rule("must be finite and not below 0", lambda number: 0 <= number < math.inf)
