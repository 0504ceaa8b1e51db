"""Vocabularies whose tokenizer is a server: how a text is cut into pieces that it tokenizes as plain text.

Text is tokenized by HTTP requests, which block: renderers with such a vocabulary run in threads.
"""

import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from hashlib import sha256
from itertools import pairwise
from typing import Any

from slipring.base.errors import InvalidRequest, Unavailable
from slipring.engines.remote.http_connection import HttpFailure
from slipring.prompts.tokenization.token_budget import UNLIMITED, TokenBudget, TooManyTokens
from slipring.prompts.tokenization.tokenizer import Vocabulary

_CACHED_CHARS = 16
"""Length in characters up to which ids are cached: the texts that templates write around contents. Caching
longer texts would reveal to a tenant, by response times, what others sent."""
_MAX_PIECES = 4096
_STEP_CHARS = 16_384
_LONGEST_TOKEN = 256
"""Assumed length in characters of the longest token: twice that of known vocabularies. A text that would fit
only with longer tokens is rejected without a request."""

MARKS = (
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
    *("<tools>", "</tools>", "<|python_tag|>"),
)
"""Marks that models write around calls and thoughts: single tokens in some vocabularies, text in others."""


class ServerVocabulary(Vocabulary):
    """Tokenizes with a remote server. Callers encode only new text, so only that is sent."""

    is_local = False

    def __init__(self, name: str, control: Mapping[str, int] | None = None) -> None:
        """``name`` identifies the vocabulary; ``control``: the control tokens known in advance."""
        self._control = dict(control or {})
        self.fingerprint = sha256(name.encode()).hexdigest()
        self._tokenize_cached = lru_cache(maxsize=4096)(self._tokenize_text)
        # Unbounded: names come from templates, never from clients. Ids looked up at start must
        # stay cached: later the event loop needs them, where a request would block.
        self._find_control = cache(self._ask_control)

    def encode(self, text: str, budget: TokenBudget = UNLIMITED) -> list[int]:
        ids: list[int] = []
        pieces = self._pieces(text)
        if len(pieces) > _MAX_PIECES:  # each may cost a request
            raise InvalidRequest.at("input", f"a text spells more than {_MAX_PIECES} control tokens")
        for piece in pieces:
            budget.require_splittable(len(piece))  # only the server knows where it could be split
            ids += self._tokenize_cached(piece) if len(piece) <= _CACHED_CHARS else self._tokenize_text(piece)
            if len(ids) > budget.tokens:
                raise TooManyTokens(len(ids))
        return ids

    def least_tokens(self, text: str) -> int:
        return -(-len(text) // _LONGEST_TOKEN)

    def learn_control(self, names: Iterable[str]) -> None:
        """Look up on the server which of these names are control tokens."""
        self._control |= {name: id for name in names if (id := self._find_control(name)) is not None}

    def control(self, token: str) -> int:
        found = self._control[token] if token in self._control else self._find_control(token)
        if found is None:
            raise KeyError(token)
        return found

    def has_control(self, token: str) -> bool:
        return token in self._control or self._find_control(token) is not None

    def control_tokens(self) -> Collection[str]:
        return self._control.keys()

    def bytes_of(self, id: int) -> bytes:
        raise NotImplementedError("the server sends the text of a token with the token")

    @abstractmethod
    def _pieces(self, text: str) -> list[str]:
        """Split a text so that the server's tokenizer finds a control token in none of the pieces."""

    @abstractmethod
    def _tokenize_text(self, text: str) -> tuple[int, ...]:
        """Ask the server for the ids of a piece."""

    @abstractmethod
    def _ask_control(self, token: str) -> int | None:
        """Ask the server for the id of a control token; None if it is not one."""


@contextmanager
def tokenizer_errors() -> Iterator[None]:
    """Convert failures of a tokenize request to ``Unavailable``."""
    try:
        yield
    except (HttpFailure, ValueError, LookupError, TypeError) as error:
        raise Unavailable("The engine's tokenizer does not answer. Try again in a moment.") from error


def spelling_pattern(tokens: Iterable[str], *patterns: str) -> "re.Pattern[str]":
    """A pattern that matches, with no width, wherever a token or one of ``patterns`` begins, also within
    another. Tokens of one character are left out: they cannot be split."""
    choices = [re.escape(token) for token in sorted(tokens) if len(token) > 1]
    return re.compile(f"(?={'|'.join([*choices, *patterns]) or '(?!)'})")


def split_spellings(text: str, pattern: "re.Pattern[str]") -> list[str]:
    """Split a text after the first character of every token that it spells, so that no piece spells one."""
    cuts = [0, *(at + 1 for at in _find_spellings(text, pattern)), len(text)]
    return [text[start:end] for start, end in pairwise(cuts) if start < end]


def _find_spellings(text: str, pattern: "re.Pattern[str]") -> Iterator[int]:
    """Where ``pattern`` matches. Searches in steps: a search holds the interpreter lock until it returns."""
    for step in range(0, len(text), _STEP_CHARS):
        for match in pattern.finditer(text, step, step + _STEP_CHARS + _LONGEST_TOKEN):
            if match.start() >= step + _STEP_CHARS:
                break
            yield match.start()


_SPELLED_MARKS = spelling_pattern(MARKS)

Query = Callable[[str, object], Any]
"""Posts a body to a path of the server and returns the JSON answer. It blocks: call it in a thread."""


class LlamaVocabulary(ServerVocabulary):
    """A vocabulary behind llama-server's ``/tokenize``."""

    def __init__(self, query: Query, name: str, control: Mapping[str, int] | None = None) -> None:
        """``control``: all control tokens, if they are known. Otherwise the server is asked for them."""
        super().__init__(name, control)
        self._query = query
        self._knows_control = control is not None

    def _pieces(self, text: str) -> list[str]:
        # The server finds tokens that a vocabulary marks as user defined in any text.
        return split_spellings(text, _SPELLED_MARKS)

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
