"""How much a text may take: the tokens that are left for it, and the longest run that cannot be split."""

from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct

from slipring.errors import InvalidRequest

_NO_BOUND = 2**63 - 1


class TooManyTokens(Exception):
    """A context has more tokens than there is room for. Nothing was counted past that."""

    def __init__(self, least: int) -> None:
        super().__init__(least)
        self.least = least
        """A number of tokens that the context has at least."""


class Room(Struct, frozen=True):
    """What may be spent on a context."""

    tokens: int = _NO_BOUND
    unsplit_chars: int = _NO_BOUND
    """Characters that are tokenized at once because the vocabulary gives no place to split them."""

    def require_splittable(self, chars: int) -> None:
        """Refuse a run of characters that is too long to be tokenized at once."""
        if chars > self.unsplit_chars:
            raise InvalidRequest(
                f"Invalid 'input': a text has more than {self.unsplit_chars} characters in a row that the"
                " model's tokenizer cannot split.",
                param="input",
            )


BOUNDLESS = Room()


class Encodes(Protocol):
    """A vocabulary, as far as texts are encoded with it."""

    def encode(self, text: str, room: Room = BOUNDLESS) -> list[int]: ...

    def least_tokens(self, text: str) -> int: ...


class Encoder:
    """Encodes the texts of one context, in at most so many tokens in all."""

    def __init__(
        self,
        vocabulary: Encodes,
        room: Room = BOUNDLESS,
        *,
        used: int = 0,
        known: dict[str, list[int]] | None = None,
    ) -> None:
        """``used``: tokens that the context has already. ``known``: ids of texts, shared by several attempts
        to write the same items."""
        self._vocabulary = vocabulary
        self._room = room
        self._known = known
        self.used = used

    def expect(self, texts: Iterable[str]) -> None:
        """Raise ``TooManyTokens`` where the texts are too long to fit, whatever their tokens are."""
        least = self.used + sum(map(self._vocabulary.least_tokens, texts))
        if least > self._room.tokens:
            raise TooManyTokens(least)

    def encode(self, text: str) -> list[int]:
        """The ids of a text. Raises ``TooManyTokens`` as soon as it is found to be too long."""
        ids = self._known.get(text) if self._known is not None else None
        if ids is None:
            ids = self._encode(text)
            if self._known is not None:
                self._known[text] = ids
        self.spend(len(ids))
        return ids

    def spend(self, tokens: int) -> None:
        """Count tokens that were made."""
        self.used += tokens
        if self.used > self._room.tokens:
            raise TooManyTokens(self.used)

    def _encode(self, text: str) -> list[int]:
        left = Room(max(self._room.tokens - self.used, 0), self._room.unsplit_chars)
        try:
            return self._vocabulary.encode(text, left)
        except TooManyTokens as error:
            raise TooManyTokens(self.used + error.least) from None
