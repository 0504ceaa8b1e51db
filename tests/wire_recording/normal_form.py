"""The normal form of what a server sends: two runs of one tree send the same in this form.

Random ids are numbered by their first appearance in a lane. Times, durations, padding, sealed content, ports
and paths of temporary files are replaced. Keys keep their order, numbers their notation.
"""

import hashlib
import json
import re
from typing import Any

_ID = re.compile(r"\b([a-z]{2,12})_(?=[0-9A-Za-z-]*[0-9])[0-9A-Za-z-]{20,}(_[0-9a-f]{8,})*")
_REPLACED = (
    (re.compile(r"(127\.0\.0\.1|localhost|\[::1\]):\d+"), r"\1:<port>"),
    (re.compile(r"(/[\w.-]+)*/(slipring-tests-|pytest-of-|tmp)[\w./-]*"), "<path>"),
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "<uuid>"),
    (re.compile(r"\b(?=[0-9a-f]*[0-9])[0-9a-f]{24,}\b"), "<hex>"),
)
_LONGEST = 2000
"""Characters of a text that are kept. Of a longer one, the digest of the rest is kept instead."""

_MEASURED = ("_at", "_ms", "_seconds")
_OF_A_PROCESS = frozenset({"created", "now", "pid", "connections"})
_RANDOM = frozenset({"obfuscation", "encrypted_content"})


class NormalForm:
    """Brings the documents of one lane into their normal form."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def of(self, document: str) -> str:
        """The normal form of a JSON document, or of another text."""
        try:
            value = json.loads(document)
        except ValueError:
            return self._of_text(document)
        return json.dumps(self._of_value(value, ""), ensure_ascii=False, separators=(",", ":"))

    def _of_value(self, value: Any, key: str) -> Any:
        if isinstance(value, dict):
            return {self._of_text(name): self._of_value(each, name) for name, each in value.items()}
        if isinstance(value, list):
            return [self._of_value(each, key) for each in value]
        if isinstance(value, str):
            return f"<{key}>" if key in _RANDOM else self._of_text(value)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and (key in _OF_A_PROCESS or key.endswith(_MEASURED)):
            return f"<{type(value).__name__}>"
        return value

    def _of_text(self, text: str) -> str:
        text = _ID.sub(self._number, text)
        for pattern, replacement in _REPLACED:
            text = pattern.sub(replacement, text)
        if len(text) > _LONGEST:
            rest = hashlib.sha256(text[_LONGEST:].encode(errors="surrogatepass")).hexdigest()[:16]
            return f"{text[:_LONGEST]}… {len(text)} characters, {rest}"
        return text

    def _number(self, match: re.Match[str]) -> str:
        number = len(self._ids) + 1
        return self._ids.setdefault(match[0], f"{match[1]}#{number}")
