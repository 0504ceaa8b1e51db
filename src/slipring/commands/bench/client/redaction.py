"""Texts from servers are shown without the API key, which servers repeat in error messages, and without
terminal escapes."""

import re

_CONTROLS = re.compile(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x1f\x7f-\x9f]+")
_REDACTED = "\N{HORIZONTAL ELLIPSIS}"
_MIN_SUBSTRING_LENGTH = 8
"""Shorter keys are redacted only as whole words: a key like ``x`` occurs inside ordinary words."""


def strip_controls(text: str) -> str:
    """Replace control characters and terminal escapes, line breaks included, by spaces."""
    return _CONTROLS.sub(" ", text)


class Redactor:
    """Makes texts of one endpoint safe to show and to store. ``key`` is the API key; empty for none."""

    def __init__(self, key: str) -> None:
        word = re.escape(key)
        if len(key) < _MIN_SUBSTRING_LENGTH:
            word = rf"(?<![A-Za-z0-9]){word}(?![A-Za-z0-9])"
        self._key = re.compile(word) if key else None

    def __call__(self, text: str) -> str:
        text = strip_controls(text)
        return text if self._key is None else self._key.sub(_REDACTED, text)
