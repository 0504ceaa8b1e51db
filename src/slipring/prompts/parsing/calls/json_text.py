"""Builds JSON from text, so that numbers and the order of keys stay as the model wrote them."""

import json

import msgspec

Members = list[tuple[str, str]]
"""The keys of an object and their values as JSON text."""

_any = msgspec.json.Decoder()
_encode = json.JSONEncoder(ensure_ascii=False).encode  # ``json.dumps`` would make an encoder for each text


def quoted(text: str) -> str:
    """A text as a JSON string."""
    return _encode(text)


def object_text(members: Members) -> str:
    """A JSON object."""
    return "{" + ", ".join(f"{quoted(key)}: {value}" for key, value in members) + "}"


def array_text(values: list[str]) -> str:
    """A JSON array."""
    return "[" + ", ".join(values) + "]"


def type_of(text: str) -> str:
    """The type of a JSON document in the words of JSON Schema; empty if the text is not JSON."""
    try:
        value = _any.decode(text)
    except (ValueError, RecursionError):
        return ""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"
