"""Vocabularies that only a server has. Renderers that use them run in threads, which wait for answers."""

import re
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from hashlib import sha256
from itertools import pairwise

from slipring.engines.remote.http_client import HttpFailure
from slipring.errors import InvalidRequest, Unavailable
from slipring.prompts.tokenization.token_budget import BOUNDLESS, Room, TooManyTokens
from slipring.prompts.tokenization.tokenizer import Vocabulary

_SHORT = 16
"""Characters of texts that are cached: what dialects write around contents. Caching longer ones would
reveal to a tenant, by response times, what others sent."""
_MOST_PIECES = 4096
_STEP_CHARS = 16_384
_LONGEST_WORD = 256
"""Characters of a token at most, where the words are not known: twice what known vocabularies have. A text
that could fit only in longer ones is refused unasked."""

MARKS = (
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
    *("<tools>", "</tools>", "<|python_tag|>"),
)
"""What models write around calls and thoughts: words in one vocabulary, tokens in the next."""


class AskedVocabulary(Vocabulary):
    """A vocabulary behind a server's tokenizer. Only what is new is ever sent there."""

    is_local = False

    def __init__(self, name: str, control: Mapping[str, int] | None = None) -> None:
        """``name`` tells this vocabulary from others; ``control`` are the control tokens that are known."""
        self._control = dict(control or {})
        self.fingerprint = sha256(name.encode()).hexdigest()
        self._short = lru_cache(maxsize=4096)(self._tokenize_text)
        # Unbounded: names come from dialects and templates, never from clients. What was found out at start
        # must stay known, because later it is needed on the event loop, which cannot wait.
        self._find_control = cache(self._ask_control)

    def encode(self, text: str, room: Room = BOUNDLESS) -> list[int]:
        ids: list[int] = []
        pieces = self._pieces(text)
        if len(pieces) > _MOST_PIECES:  # the server is asked about each
            raise InvalidRequest(
                f"Invalid 'input': a text spells more than {_MOST_PIECES} control tokens.", param="input"
            )
        for piece in pieces:
            room.require_splittable(len(piece))  # only the server knows where it could be split
            ids += self._short(piece) if len(piece) <= _SHORT else self._tokenize_text(piece)
            if len(ids) > room.tokens:
                raise TooManyTokens(len(ids))
        return ids

    def least_tokens(self, text: str) -> int:
        return -(-len(text) // _LONGEST_WORD)

    def learn_control(self, names: Iterable[str]) -> None:
        """Find out which of these are control tokens."""
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
        """A text in pieces in none of which the server's tokenizer finds a control token."""

    @abstractmethod
    def _tokenize_text(self, text: str) -> tuple[int, ...]:
        """The ids of such a piece."""

    @abstractmethod
    def _ask_control(self, token: str) -> int | None:
        """The id of a control token, if it is one."""


@contextmanager
def tokenizing() -> Iterator[None]:
    """Raise what goes wrong while a server tokenizes as ``Unavailable``."""
    try:
        yield
    except (HttpFailure, ValueError, LookupError, TypeError) as error:
        raise Unavailable("The engine's tokenizer does not answer. Try again in a moment.") from error


def starts_of(tokens: Iterable[str], *patterns: str) -> "re.Pattern[str]":
    """Finds where a token is spelled, also within another. What has one character cannot be taken apart."""
    ways = [re.escape(token) for token in sorted(tokens) if len(token) > 1]
    return re.compile(f"(?={'|'.join([*ways, *patterns]) or '(?!)'})")


def apart(text: str, starts: "re.Pattern[str]") -> list[str]:
    """A text in pieces, cut within every token that it spells."""
    cuts = [0, *(at + 1 for at in _found(text, starts)), len(text)]
    return [text[start:end] for start, end in pairwise(cuts) if start < end]


def _found(text: str, starts: "re.Pattern[str]") -> Iterator[int]:
    """Where tokens are spelled. A long text is searched in steps: while one is done, everybody else waits."""
    for step in range(0, len(text), _STEP_CHARS):
        for match in starts.finditer(text, step, step + _STEP_CHARS + _LONGEST_WORD):
            if match.start() >= step + _STEP_CHARS:
                break
            yield match.start()
