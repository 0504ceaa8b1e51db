"""Halves of surrogate pairs in the JSON of other servers.

JavaScript's strings may contain half of a pair, and its JSON (and Python's) then has an escape of it, such as
``"\\ud83d"`` where a text was cut within an emoji. No UTF-8 text can contain it, so that JSON decoders refuse
the whole document. What a client sends is refused; what a server sends is read without the half.
"""

import re

_HALVES = re.compile(
    rb"(?<!\\)((?:\\\\)*)\\u[dD]"
    rb"(?:[89abAB][0-9a-fA-F]{2}(\\u[dD][c-fC-F][0-9a-fA-F]{2})?|[c-fC-F][0-9a-fA-F]{2})"
)
"""An escaped half, with the other one if it follows. An even number of backslashes before it are text."""


def _replaced(found: re.Match[bytes]) -> bytes:
    return found[0] if found[2] is not None else found[1] + rb"\ufffd"


def repaired(data: bytes) -> bytes:
    """JSON in which each escaped half of a surrogate pair is the replacement character U+FFFD instead."""
    return _HALVES.sub(_replaced, data)
