"""Writes a context with pictures as llama.cpp takes one: text, in which a marker stands for each picture.

llama.cpp takes no ids beside pictures. It tokenizes the whole text in every turn, and finds control tokens by
their spelling. So where a text of a client spells one, an invisible character is put into it.
"""

import re
from collections.abc import Callable
from itertools import groupby

from slipring.core.generation import ANY_ID
from slipring.engines.llama.api import describe
from slipring.engines.remote.http_client import HttpClient
from slipring.prompts.tokenization.tokenizer import Vocabulary
from slipring.protocol import wire

RESENT = "llama.cpp takes a context with pictures as text: all of it is sent again"
_BREAK = "\u2060"
"""Word joiner: takes no space, and is no part of a control token."""
_OLD_MARKER = "<__media__>"
"""Of servers that do not name theirs."""

Spell = Callable[[list[int]], str]
"""The text of ids that are no control tokens. May ask the server."""


class PicturedText:
    """Spells the ids of contexts."""

    def __init__(self, vocabulary: Vocabulary, marker: str, first: int | None, spell: Spell) -> None:
        """``marker``: what stands for a picture. ``first``: the id that llama.cpp puts before every text."""
        names = [name for name in vocabulary.control_tokens() if len(name) > 1 and not name.isspace()]
        self._names = {vocabulary.control(name): name for name in vocabulary.control_tokens()}
        self._marker = marker
        self._first = first
        self._spell = spell
        spelled = sorted((*names, marker, _OLD_MARKER), key=len, reverse=True)
        self._spellings = re.compile(f"(?={'|'.join(map(re.escape, spelled))})(.)", re.DOTALL)

    @classmethod
    async def of(cls, vocabulary: Vocabulary, server: HttpClient) -> "PicturedText":
        """For a server that has loaded a projector. Raises ``StartupError``, ``HttpFailure``."""
        marker = str((await describe(server)).get("media_marker") or _OLD_MARKER)
        asked = {"content": "", "add_special": True}
        added = (await server.query("/tokenize", [wire.encode(asked)]))["tokens"]

        def ask(ids: list[int]) -> str:
            return str(server.query_from_thread("/detokenize", {"tokens": ids})["content"])

        def join(ids: list[int]) -> str:
            return b"".join(map(vocabulary.bytes_of, ids)).decode("utf-8", "replace")

        return cls(vocabulary, marker, added[0] if added else None, join if vocabulary.is_local else ask)

    def write(self, ids: list[int]) -> str:
        """The text of a context. Takes time in proportion to it; a vocabulary that is not local asks the
        server."""
        if ids and ids[0] == self._first:
            ids = ids[1:]
        pieces: list[str] = []
        for is_text, group in groupby(ids, lambda id: id < ANY_ID and id not in self._names):
            if is_text:
                pieces.append(self._spellings.sub(rf"\1{_BREAK}", self._spell(list(group))))
            else:
                pieces += (self._names.get(id, self._marker) for id in group)
        return "".join(pieces)
