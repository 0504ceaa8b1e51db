"""Removes keys and credentials from what is recorded.

Headers are never recorded, so what is left are credentials in tool definitions, and keys that occur in texts,
such as the output of a tool that prints its environment.
"""

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

REMOVED = "[removed]"
_LEAST_LENGTH = 8
"""Configured keys that are shorter may be ordinary words: they are removed only as whole words."""
_SECTION_BYTES = 32 * 1024
_LONGEST_BYTES = 4 * 1024
"""Longest key that is found wherever it is."""
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
"""Line breaks in JSON are between values: in a string they are escaped."""
_TYPES_WITH_TOOLS = frozenset({"additional_tools", "tool_search_output", "mcp_list_tools"})
_KEYS = (
    rb"(?<![A-Za-z0-9])sk-(?=[A-Za-z_.-]*[0-9])[A-Za-z0-9][A-Za-z0-9_.-]{15,}",
    rb"\b(?:gh[opusr]|github_pat|hf)_[A-Za-z0-9_]{20,}",
    rb"xox[a-z]-[A-Za-z0-9-]{10,}",
    rb"AKIA[A-Z0-9]{16}",
    rb"AIza[A-Za-z0-9_-]{30,}",
    rb"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+",
)
"""Forms of well-known API keys and tokens."""
_KEY_MARKS = (
    b"sk-",
    b"ghp_",
    b"gho_",
    b"ghu_",
    b"ghs_",
    b"ghr_",
    b"github_pat_",
    b"hf_",
    b"xox",
    b"AKIA",
    b"AIza",
    b"eyJ",
)
"""Each of these forms contains one of them."""
_HEADER_MARKS = (b"authorization", b"api-key", b"auth-token", b"bearer")
_HEADER = re.compile(
    rb"((?:authorization|x-api-key|api-key|x-auth-token)(?:\\?[\"'])?\s*[:=]\s*(?:\\?[\"'])?"
    rb"(?:(?:bearer|basic|token)\s+)?|\bbearer\s+)[A-Za-z0-9._~+/=-]{6,}",
    re.IGNORECASE,
)
"""A header with credentials, within a JSON string or not."""


class SecretRemoval:
    """Removes keys of known forms, and the given ``keys``, from JSON."""

    def __init__(self, keys: Iterable[str]) -> None:
        given = [key for key in sorted(set(keys), key=len, reverse=True) if key]
        self._keys = re.compile(b"|".join([*map(_pattern, given), *_KEYS]))
        self._marks = (*(_in_json(key) for key in given), *_KEY_MARKS)

    def item(self, kind: str, raw: bytes) -> msgspec.Raw:
        """An item without secrets, in one line."""
        if kind in _TYPES_WITH_TOOLS:
            raw = msgspec.json.encode(_without_credentials(msgspec.json.decode(raw)))
        return msgspec.Raw(self._clean(raw.translate(_ONE_LINE)))

    def value(self, value: Any) -> Any:
        """A field of a request without secrets: decoded JSON."""
        return msgspec.json.decode(self._clean(msgspec.json.encode(_without_credentials(value))))

    def text(self, text: str) -> str:
        return str(msgspec.json.decode(self._clean(msgspec.json.encode(text))))

    def _clean(self, raw: bytes) -> bytes:
        # Few texts have a mark, and finding none takes a small part of the time of a search.
        if any(mark in raw for mark in self._marks):
            raw = _replaced(self._keys, raw)
        lowered = raw.lower()
        return _replaced(_HEADER, raw) if any(mark in lowered for mark in _HEADER_MARKS) else raw


def _replaced(pattern: re.Pattern[bytes], raw: bytes) -> bytes:
    """Replace what a pattern finds, except for its group. Searches a long text in short sections, because no
    other thread runs during a search."""
    parts: list[bytes] = []
    start, size = 0, len(raw)
    while start < size:
        end = min(size, start + _SECTION_BYTES)
        found = pattern.search(raw, start, min(size, end + _LONGEST_BYTES))
        if found is None or found.start() >= end:
            parts.append(raw[start:end])
            start = end
        else:
            kept = found[1] if pattern.groups else b""
            parts += [raw[start : found.start()], kept, REMOVED.encode()]
            start = found.end()
    return b"".join(parts)


def _pattern(key: str) -> bytes:
    """A key as it occurs within a JSON string."""
    escaped = re.escape(_in_json(key))
    return escaped if len(key) >= _LEAST_LENGTH else rb"(?<![A-Za-z0-9])" + escaped + rb"(?![A-Za-z0-9])"


def _in_json(key: str) -> bytes:
    return msgspec.json.encode(key)[1:-1]


def _without_credentials(value: Any) -> Any:
    """Decoded JSON in which tools that are remote servers have no credentials."""
    if isinstance(value, list):
        return [_without_credentials(each) for each in value]
    if not isinstance(value, dict):
        return value
    # A tool without its type is refused, and recorded all the same.
    if value.get("type") == "mcp" or "server_label" in value or "server_url" in value:
        value = {name: each for name, each in value.items() if name not in ("authorization", "headers")}
        if isinstance(value.get("server_url"), str):
            value["server_url"] = _plain_url(value["server_url"])
    return {name: _without_credentials(each) for name, each in value.items()}


def _plain_url(url: str) -> str:
    """A URL without user, password, query and fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return REMOVED
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
