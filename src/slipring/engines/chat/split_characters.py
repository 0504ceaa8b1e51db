"""Characters that a server splits between two chunks: each has an escaped half of a surrogate pair."""

import json
from typing import Any

import msgspec

Halves = dict[str, str]
"""The first halves that a chunk ends with, by their places in it."""


def joined(payload: bytes, earlier: Halves) -> tuple[bytes, Halves]:
    """A chunk with what the one before it began, and the halves that it ends with itself. Raises
    ``ValueError`` if it is not JSON."""
    halves: Halves = {}

    def whole(value: Any, place: str) -> Any:
        if isinstance(value, dict):
            return {name: whole(each, f"{place}.{name}") for name, each in value.items()}
        if isinstance(value, list):
            return [whole(each, f"{place}.{index}") for index, each in enumerate(value)]
        if not isinstance(value, str):
            return value
        text = earlier.get(place, "") + value
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, halves[place] = text[:-1], text[-1]
        # Halves that belong together become one character, others are replaced.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    return msgspec.json.encode(whole(json.loads(payload), "")), halves
