"""The digest of a context, by which an answer shows that the whole history was read.

    h = b"";  for each entry of the context:  h = sha256(h + kind + NUL + text + NUL)

Instructions count as ``system``, messages as their role, calls as ``call`` with name and arguments, outputs
as ``output``; everything else, ids above all, does not count. An answer carries the digest of what came
before it as the literal ``digest=`` and its first 16 hexadecimal digits.
"""

import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

_MARK = re.compile(r"digest=([0-9a-f]{16})")


class Digest:
    """Of a context that grows."""

    def __init__(self, instructions: str) -> None:
        self._state = b""
        if instructions:
            self._add("system", instructions)

    def add(self, items: Iterable[dict[str, Any]]) -> None:
        for item in items:
            kind = item.get("type", "message")
            if kind == "message":
                self._add(item["role"], text_of(item["content"]))
            elif kind == "function_call":
                self._add("call", item["name"] + item["arguments"])
            elif kind == "function_call_output":
                self._add("output", text_of(item["output"]))

    def __str__(self) -> str:
        return self._state.hex()[:16]

    def _add(self, kind: str, text: str) -> None:
        self._state = sha256(self._state + kind.encode() + b"\0" + text.encode() + b"\0").digest()


def text_of(content: object) -> str:
    """The text of all its text parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(part["text"] for part in parts if isinstance(part.get("text"), str))


def found_in(output: Iterable[dict[str, Any]]) -> str | None:
    """The digest that an answer carries."""
    for item in output:
        said = item.get("arguments") if item["type"] == "function_call" else text_of(item.get("content"))
        if found := _MARK.search(said or ""):
            return found.group(1)
    return None
