"""Writes the ids of a context with pictures as text, for servers that take no ids beside pictures.

Such a server tokenizes the whole text in every turn, and finds control tokens by their spelling. So where a
text of a client spells one, an invisible character is put into it.
"""

import re
from collections.abc import Callable, Iterable
from itertools import groupby

from slipring.core.generation import ANY_ID
from slipring.prompts.tokenization.tokenizer import Vocabulary

_BREAK = "\u2060"
"""Word joiner: takes no space, and is no part of a control token."""

Spell = Callable[[list[int]], str]
"""The text of ids that are no control tokens. May ask the server."""


class ContextSpeller:
    """Spells the ids of contexts."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        spell: Spell | None = None,
        *,
        marker: str = "",
        other_markers: Iterable[str] = (),
        first: int | None = None,
    ) -> None:
        """``spell``: None for a local vocabulary. ``marker``: what stands for a picture whose id is no token.
        ``other_markers``: what the server may take for one. ``first``: the id that it puts before every
        text."""
        names = [name for name in vocabulary.control_tokens() if len(name) > 1 and not name.isspace()]
        self._names = {vocabulary.control(name): name for name in vocabulary.control_tokens()}
        self._vocabulary = vocabulary
        self._marker = marker
        self._first = first
        self._spell = spell or self._join
        spelled = sorted(filter(None, (*names, marker, *other_markers)), key=len, reverse=True)
        self._spellings = re.compile(f"(?={'|'.join(map(re.escape, spelled))})(.)", re.DOTALL)

    def write(self, ids: list[int]) -> str:
        """The text of a context. Takes time in proportion to it; ``spell`` may ask the server."""
        if ids and ids[0] == self._first:
            ids = ids[1:]
        pieces: list[str] = []
        for is_text, group in groupby(ids, lambda id: id < ANY_ID and id not in self._names):
            if is_text:
                pieces.append(self._spellings.sub(rf"\1{_BREAK}", self._spell(list(group))))
            else:
                pieces += (self._names.get(id, self._marker) for id in group)
        return "".join(pieces)

    def _join(self, ids: list[int]) -> str:
        return b"".join(map(self._vocabulary.bytes_of, ids)).decode("utf-8", "replace")
