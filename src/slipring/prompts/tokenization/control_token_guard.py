"""Look-alikes: what clients say never becomes a control token, whatever a template makes of it.

A template joins its own text and that of clients into one, in which a control token is known by its spelling
alone. So every text of a client is first broken where it spells one: a private-use character that occurs
nowhere else is put inside. The joined text is cut at the control tokens, and the character is taken out.

Broken are control tokens in a text, beginnings of one at its end, ends of one at its beginning, and texts
that lie within one: whatever is joined to them, no control token has a client's character in it.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from slipring.errors import InvalidRequest
from slipring.prompts.tokenization.tokenizer import Vocabulary

_FIRST_PRIVATE, _LAST_PRIVATE = 0xE000, 0xF8FF
_PRIVATE = re.compile(r"[\ue000-\uf8ff]|\\u([ef][0-9a-f]{3})", re.IGNORECASE)
"""Private-use characters, as they are or as JSON and Python's ``repr`` escape them."""
_LONGEST_ESCAPE = len("\\ue000")
_SCHEMA_WORDS = frozenset(
    "$defs $ref additionalProperties allOf anyOf array boolean const default description enum format function"
    " integer items name null number object oneOf parameters properties required strict string title"
    " type".split()
)
"""Left as they are: templates look for these in the definitions of tools, and nobody chose them."""

_STEP_CHARS = 65_536

Piece = str | int
"""A text, or the id of a control token."""


class Lookalikes:
    """The control tokens of a vocabulary, as a text may spell them; ``source`` is the template's own text."""

    def __init__(self, vocabulary: Vocabulary, source: str) -> None:
        # Text is all that white space can be, whatever a vocabulary says; one character cannot be broken.
        tokens = [token for token in vocabulary.control_tokens() if len(token) > 1 and not token.isspace()]
        tokens.sort(key=len, reverse=True)
        self._vocabulary = vocabulary
        self._tokens = re.compile(f"({'|'.join(map(re.escape, tokens))})" if tokens else "(?!)")
        self._starts = _starts(tokens)
        self._prefixes = frozenset(token[:end] for token in tokens for end in range(1, len(token)))
        self._suffixes = frozenset(token[start:] for token in tokens for start in range(1, len(token)))
        self._longest = max(map(len, tokens), default=0)
        self._joined = "\n".join(tokens)
        self.reserved = _private_characters(source + self._joined)

    def split(self, text: str) -> list[Piece]:
        """Cut a text at the control tokens that it spells, the longest first."""
        pieces: list[Piece] = []
        end = 0
        for match in self._found(self._tokens, text):
            if match.start() > end:
                pieces.append(text[end : match.start()])
            pieces.append(self._vocabulary.control(match.group()))
            end = match.end()
        if end < len(text):
            pieces.append(text[end:])
        return pieces

    def _found(self, pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
        """Where a pattern is found, as by ``finditer``. A long text is searched in steps: while one is done,
        everybody else waits."""
        at = 0
        while at < len(text):
            end = at + _STEP_CHARS
            match = pattern.search(text, at, end + self._longest)
            if match is None or match.start() >= end:
                at = end
            else:
                yield match
                at = match.end()

    def breaks(self, text: str) -> list[int]:
        """Where a text has to be broken."""
        found = {match.end() for match in self._found(self._starts, text)}
        if text not in _SCHEMA_WORDS:
            bare = text.strip()  # as templates like to do
            found.update(self._border_breaks(text))
            if len(bare) < len(text):
                offset = len(text) - len(text.lstrip())
                found.update(offset + at for at in self._border_breaks(bare))
        return sorted(found)

    def _border_breaks(self, text: str) -> Iterable[int]:
        length = len(text)
        for size in range(1, min(self._longest, length + 1)):
            if text[-size:] in self._prefixes:
                yield length - size + 1
            if text[:size] in self._suffixes:
                yield size - 1
        if text and length < self._longest and text in self._joined:
            yield 1


def _starts(tokens: list[str]) -> re.Pattern[str]:
    """Finds the first character of every control token, of those that overlap too."""
    rests: dict[str, list[str]] = {}
    for token in tokens:
        rests.setdefault(token[0], []).append(re.escape(token[1:]))
    ways = (f"{re.escape(first)}(?={'|'.join(rest)})" for first, rest in rests.items())
    return re.compile("|".join(ways) or "(?!)")


class Guard:
    """Breaks the texts of one conversation, and mends what was written with them.

    ``said`` is everything that goes into it, so that the character is chosen among those that do not occur.
    """

    def __init__(self, lookalikes: Lookalikes, said: str) -> None:
        self._lookalikes = lookalikes
        used = lookalikes.reserved | _private_characters(said)
        free = (code for code in range(_FIRST_PRIVATE, _LAST_PRIVATE + 1) if code not in used)
        code = next(free, None)
        self._character = None if code is None else chr(code)
        self._broken: dict[str, str] = {}

    def text(self, text: str) -> str:
        """A text in which no control token is spelled, nor can be by what is joined to it."""
        broken = self._broken.get(text)
        if broken is None:
            broken = self._broken[text] = self._break(text)
        return broken

    def _break(self, text: str) -> str:
        breaks = self._lookalikes.breaks(text)
        if not breaks:
            return text
        if self._character is None:
            raise InvalidRequest("The input spells control tokens and uses every private-use character.")
        ends = [*breaks, len(text)]
        return self._character.join(
            [text[: breaks[0]], *(text[at:end] for at, end in zip(breaks, ends[1:], strict=True))]
        )

    def value(self, value: Any) -> Any:
        """A JSON value of which every text is broken, keys too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key): self.value(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.value(inner) for inner in value]
        return value

    def mend(self, pieces: Iterable[Piece]) -> list[Piece]:
        """The pieces as they would have been, had nothing been broken."""
        character = self._character
        if character is None:
            return list(pieces)
        escaped = f"\\u{ord(character):04x}"  # what ``repr`` and escaping filters make of it
        return [
            piece if isinstance(piece, int) else piece.replace(character, "").replace(escaped, "")
            for piece in pieces
        ]


def _private_characters(text: str) -> frozenset[int]:
    if text.isascii() and "\\u" not in text:
        return frozenset()
    codes: set[int] = set()
    for start in range(0, len(text), _STEP_CHARS):
        for match in _PRIVATE.finditer(text, start, start + _STEP_CHARS + _LONGEST_ESCAPE):
            codes.add(int(match.group(1) or f"{ord(match.group()):x}", 16))
    return frozenset(codes)
