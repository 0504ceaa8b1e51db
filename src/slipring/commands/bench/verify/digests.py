"""The digest of a context, with which an answer proves that the server read the whole history.

    h = b"";  for each entry of the context:  h = sha256(h + kind + NUL + text + NUL)

Instructions are entries of kind ``system``, messages of the kind of their role, calls of kind ``call`` with
name and arguments as text, outputs of kind ``output``. Ids and all other fields are left out. An answer
reports the digest of everything before it as the text ``digest=`` and its first 16 hexadecimal digits.
"""

import re
from collections.abc import Iterable
from hashlib import sha256

from slipring.commands.bench.workloads.plan import Item, text_of

_MARK = re.compile(r"digest=([0-9a-f]{16})")


class Digest:
    """The digest of a growing context. ``str()`` gives its first 16 hexadecimal digits."""

    def __init__(self, instructions: str) -> None:
        self._state = b""
        if instructions:
            self._add("system", instructions)

    def add(self, items: Iterable[Item]) -> None:
        """Append items to the context."""
        for item in items:
            kind = item.get("type", "message")
            if kind == "message":
                self._add(item["role"], text_of(item["content"]))
            elif kind == "function_call":
                self._add("call", item["name"] + item["arguments"])
            elif kind == "function_call_output":
                self._add("output", text_of(item["output"]))

    def copy(self) -> "Digest":
        """The same context, to be continued differently."""
        copied = Digest("")
        copied._state = self._state
        return copied

    def __str__(self) -> str:
        return self._state.hex()[:16]

    def _add(self, kind: str, text: str) -> None:
        self._state = sha256(self._state + kind.encode() + b"\0" + text.encode() + b"\0").digest()


def find_digest(answer: Iterable[Item]) -> str | None:
    """The digest that an answer reports."""
    for item in answer:
        text = item.get("arguments") if item["type"] == "function_call" else text_of(item.get("content"))
        if found := _MARK.search(text or ""):
            return found.group(1)
    return None
