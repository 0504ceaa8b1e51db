"""What the results of a search show: the addresses that a web search found, and the passages that a file
search found.
"""

import re

import msgspec
from msgspec import Struct

from slipring.protocol.responses import FoundPassage

_MOST_SOURCES = 100
_URL = re.compile(r"https?://[^\s<>\"'`\\^{|}\[\]]+")
_URL_END = ".,;:!?)*_"
"""Characters that belong to the text after a URL rather than to its end."""


# What the text of a search's result contains.


def urls_in(text: str) -> list[str]:
    """The URLs in a text, each once, in their order."""
    found = dict.fromkeys(url.rstrip(_URL_END) for url in _URL.findall(text))
    return list(found)[:_MOST_SOURCES]


def passages_in(text: str) -> list[FoundPassage]:
    """The passages in a result: those of a JSON list of objects with a text, or the whole as one."""
    try:
        return [each.shown for each in _passages.decode(text)]
    except (ValueError, RecursionError):
        return [FoundPassage(text)]


class _Passage(Struct):
    """A passage as a tool writes it. All but its text may be missing or null."""

    text: str
    file_id: str | None = None
    filename: str | None = None
    score: float | None = None
    attributes: dict[str, str | float | bool] | None = None

    @property
    def shown(self) -> FoundPassage:
        return FoundPassage(
            self.text, self.file_id or "", self.filename or "", self.score or 0.0, self.attributes or {}
        )


_passages = msgspec.json.Decoder(list[_Passage])
