"""A vocabulary that spells texts byte by byte, for models whose tokenizer is not in this process.

What a template writes, and whether it appends, depends on the control tokens only. With this vocabulary both
can be found out, and rendered contexts can be decoded.
"""

from collections.abc import Callable, Collection

from slipring.prompts.tokenization.token_budget import UNLIMITED, TokenBudget
from slipring.prompts.tokenization.tokenizer import Vocabulary

_FIRST = 2**24
"""The id of byte 0: above the ids of all real vocabularies."""


class SpelledVocabulary(Vocabulary):
    """The control tokens of a real vocabulary, and an id of its own for every byte of a text."""

    is_local = False

    def __init__(self, names: Collection[str], find: Callable[[str], int | None]) -> None:
        """``names``: of the control tokens. ``find`` returns the id of one, also of those without a name in
        ``names``; None if the vocabulary has none."""
        self._names = names
        self._find = find
        self.fingerprint = "spelled"

    @classmethod
    def like(cls, vocabulary: Vocabulary) -> "SpelledVocabulary":
        """One with the control tokens of another vocabulary."""

        def find(name: str) -> int | None:
            return vocabulary.control(name) if vocabulary.has_control(name) else None

        return cls(vocabulary.control_tokens(), find)

    def encode(self, text: str, budget: TokenBudget = UNLIMITED) -> list[int]:
        return [_FIRST + byte for byte in text.encode()]

    def least_tokens(self, text: str) -> int:
        return len(text)

    def control(self, token: str) -> int:
        found = self._find(token)
        if found is None:
            raise KeyError(token)
        return found

    def has_control(self, token: str) -> bool:
        return self._find(token) is not None

    def control_tokens(self) -> Collection[str]:
        return self._names

    def bytes_of(self, id: int) -> bytes:
        return bytes([id - _FIRST]) if id >= _FIRST else b""
