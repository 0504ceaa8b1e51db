"""Queries to a llama-server: its model, and its tokenizer for vocabularies that slipring cannot build."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from slipring.engines.remote.http_client import HttpClient
from slipring.engines.remote.http_failures import HttpFailure
from slipring.engines.remote.upstream import startup_errors
from slipring.engines.tokens.remote_vocabulary import (
    MARKS,
    ServerVocabulary,
    spelling_pattern,
    split_spellings,
    tokenizer_errors,
)

_MARKS = spelling_pattern(MARKS)
Query = Callable[[str, object], Any]
"""Posts a body to a path of the server and returns the JSON answer. It blocks: call it in a thread."""


async def describe(client: HttpClient) -> dict[str, Any]:
    """A llama-server's ``/props``, with its first model as ``model``. Raises ``StartupError``."""
    with startup_errors("llama", client.url, "a llama-server"):
        properties: dict[str, Any] = await client.query("/props")
        models = (await client.query("/v1/models"))["data"]
        return {**properties, "model": models[0]}


async def understands_llguidance(client: HttpClient) -> bool:
    """Whether a llama-server was built with llguidance, whose grammars can be combined."""
    asked = {"prompt": [0], "n_predict": 1, "cache_prompt": False, "grammar": '%llguidance {}\nstart: "a"\n'}
    try:
        await client.query("/completion", [msgspec.json.encode(asked)])
    except HttpFailure:
        return False
    return True


class RemoteVocabulary(ServerVocabulary):
    """A vocabulary behind llama-server's ``/tokenize``."""

    def __init__(self, query: Query, name: str, control: Mapping[str, int] | None = None) -> None:
        """``control``: all control tokens, if they are known. Otherwise the server is asked for them."""
        super().__init__(name, control)
        self._query = query
        self._knows_control = control is not None

    def _pieces(self, text: str) -> list[str]:
        # The server finds tokens that a vocabulary marks as user defined in any text.
        return split_spellings(text, _MARKS)

    def _tokenize_text(self, text: str) -> tuple[int, ...]:
        return self._tokenize(text, False)

    def _ask_control(self, token: str) -> int | None:
        if self._knows_control:
            return None
        ids = self._tokenize(token, True)
        # Control tokens are one token, unlike the same text without ``parse_special``.
        return ids[0] if len(ids) == 1 and self.encode(token) != list(ids) else None

    def _tokenize(self, text: str, special: bool) -> tuple[int, ...]:
        asked = {"content": text, "add_special": False, "parse_special": special}
        with tokenizer_errors():
            return tuple(self._query("/tokenize", asked)["tokens"]) if text else ()
