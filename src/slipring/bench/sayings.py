"""What servers say, as it may be kept and shown: without the key, and without what terminals obey.

Servers repeat keys in their errors, and a text of theirs may hold escapes. Knows nothing of where texts go.
"""

import re

_CONTROLS = re.compile(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x1f\x7f-\x9f]+")
_HIDDEN = "\N{HORIZONTAL ELLIPSIS}"
_WORD_LENGTH = 8
"""Keys that are shorter are hidden where they stand alone: ``x`` is no secret, and in many words."""


def plain(text: str) -> str:
    """One line without control characters and terminal escapes."""
    return _CONTROLS.sub(" ", text)


class Sayings:
    """Texts of an endpoint to which a key is sent."""

    def __init__(self, key: str) -> None:
        word = re.escape(key)
        if len(key) < _WORD_LENGTH:
            word = rf"(?<![A-Za-z0-9]){word}(?![A-Za-z0-9])"
        self._key = re.compile(word) if key else None

    def __call__(self, text: str) -> str:
        text = plain(text)
        return text if self._key is None else self._key.sub(_HIDDEN, text)
