"""Limits on tokenization, and an encoder that enforces them over all texts of a context."""

from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct

from slipring.base.errors import InvalidRequest

_NO_LIMIT = 2**63 - 1


class TooManyTokens(Exception):
    """A context has more tokens than its budget. Tokenization stopped there, so the total is not known."""

    def __init__(self, least: int) -> None:
        super().__init__(least)
        self.least = least
        """A lower bound of the context's tokens."""


class TokenBudget(Struct, frozen=True):
    """How many tokens a context may have, and how long a text may be that is tokenized in one piece."""

    tokens: int = _NO_LIMIT
    unsplit_chars: int = _NO_LIMIT
    """The longest run of characters that may be tokenized in one piece because it cannot be split."""

    def require_splittable(self, chars: int) -> None:
        """Raise ``InvalidRequest`` if a run of so many characters may not be tokenized in one piece."""
        if chars > self.unsplit_chars:
            raise InvalidRequest.at(
                "input",
                f"a text has more than {self.unsplit_chars} characters in a row that the model's"
                " tokenizer cannot split",
            )


UNLIMITED = TokenBudget()


class TextEncoder(Protocol):
    """The part of ``Vocabulary`` that encodes text."""

    def encode(self, text: str, budget: TokenBudget = UNLIMITED) -> list[int]: ...

    def least_tokens(self, text: str) -> int: ...


class BudgetedEncoder:
    """Encodes the texts of one context and raises ``TooManyTokens`` once they exceed the budget together."""

    def __init__(
        self,
        vocabulary: TextEncoder,
        budget: TokenBudget = UNLIMITED,
        *,
        used: int = 0,
        cache: dict[str, list[int]] | None = None,
    ) -> None:
        """``used``: tokens that the context has already. ``cache``: ids by text, shared by several attempts
        to render the same items."""
        self._vocabulary = vocabulary
        self._budget = budget
        self._cache = cache
        self.used = used

    def expect(self, texts: Iterable[str]) -> None:
        """Raise ``TooManyTokens`` if the length of the texts alone shows that they exceed the budget."""
        given = list(texts)
        if self.used + sum(map(len, given)) <= self._budget.tokens:
            return  # no text has a lower bound above its length
        least = self.used + sum(map(self._vocabulary.least_tokens, given))
        if least > self._budget.tokens:
            raise TooManyTokens(least)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text. Raises ``TooManyTokens`` as soon as the budget is exceeded."""
        ids = self._cache.get(text) if self._cache is not None else None
        if ids is None:
            ids = self._encode(text)
            if self._cache is not None:
                self._cache[text] = ids
        self.spend(len(ids))
        return ids

    def spend(self, tokens: int) -> None:
        """Count tokens against the budget."""
        self.used += tokens
        if self.used > self._budget.tokens:
            raise TooManyTokens(self.used)

    def _encode(self, text: str) -> list[int]:
        left = TokenBudget(max(self._budget.tokens - self.used, 0), self._budget.unsplit_chars)
        try:
            return self._vocabulary.encode(text, left)
        except TooManyTokens as error:
            raise TooManyTokens(self.used + error.least) from None
