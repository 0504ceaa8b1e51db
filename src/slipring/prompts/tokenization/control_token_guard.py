"""Prevents client text from becoming control tokens, in what a chat template writes and in text that a
server tokenizes.

A template joins its own text and the clients' into one string, in which control tokens are recognized by
their spelling. So ``ControlTokenGuard`` first inserts a private-use character, one that occurs nowhere in the
input, into every client text that spells a control token. ``ControlTokenFinder`` splits the template's output
at control tokens, and the guard then removes the inserted characters.

The guard breaks control tokens within a text, a beginning of one at the end of a text, an end of one at its
beginning, and a text that is a part of one: whatever text is next to it, no control token contains a
character of a client.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

from slipring.base.errors import InvalidRequest
from slipring.core.generation import ANY_ID
from slipring.prompts.tokenization.tokenizer import Vocabulary

_FIRST_PRIVATE, _LAST_PRIVATE = 0xE000, 0xF8FF
_PRIVATE = re.compile(r"[\ue000-\uf8ff]|\\u([ef][0-9a-f]{3})", re.IGNORECASE)
"""Private-use characters, also in the escaped form that JSON and Python's ``repr`` give them."""
_LONGEST_ESCAPE = len("\\ue000")
_SCHEMA_WORDS = frozenset(
    "$defs $ref additionalProperties allOf anyOf array boolean const default description enum format function"
    " integer items name null number object oneOf parameters properties required strict string title"
    " type".split()
)
"""Never broken at their ends: templates compare these words in tool definitions."""

_STEP_CHARS = 65_536

Piece = str | int
"""A text, or the id of a control token."""


class ControlTokenFinder:
    """Finds the control tokens of a vocabulary in text.

    ``source`` is the source of the template. ``known`` are texts that many conversations have: which of them
    need not be broken is found once.
    """

    def __init__(self, vocabulary: Vocabulary, source: str, known: Iterable[str] = ()) -> None:
        # White space counts as text even if the vocabulary lists it; a single character cannot be broken.
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
        self.intact = {text: text for text in (*known, *_SCHEMA_WORDS) if not self.breaks(text)}
        """Known texts, and words of tool definitions, that are not broken."""

    def split(self, text: str) -> list[Piece]:
        """Split a text at the control tokens that it spells. Of several at one place, the longest counts."""
        pieces: list[Piece] = []
        end = 0
        for match in self._matches(self._tokens, text):
            if match.start() > end:
                pieces.append(text[end : match.start()])
            pieces.append(self._vocabulary.control(match.group()))
            end = match.end()
        if end < len(text):
            pieces.append(text[end:])
        return pieces

    def _matches(self, pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
        """Like ``pattern.finditer(text)``, but searches a long text in steps, because ``re`` keeps the GIL
        during a search."""
        return pattern.finditer(text) if len(text) <= _STEP_CHARS else self._in_steps(pattern, text)

    def _in_steps(self, pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
        at = 0
        while at < len(text):
            end = at + _STEP_CHARS
            match = pattern.search(text, at, end + self._longest)
            if match is None or match.start() >= end:
                at = end
            else:
                yield match
                at = match.end()

    def divides(self, text: str, at: int) -> bool:
        """Whether a text can be split at a place without changing its tokens: a control token begins or ends
        there, or the text does."""
        for match in self._matches(self._tokens, text):
            if match.end() >= at:
                return at in (0, match.start(), match.end())
        return at in (0, len(text))

    def breaks(self, text: str) -> list[int]:
        """The positions at which a text must be broken."""
        found = {match.end() for match in self._matches(self._starts, text)}
        if text not in _SCHEMA_WORDS:
            stripped = text.strip()  # templates often strip texts
            found.update(self._border_breaks(text))
            if len(stripped) < len(text):
                offset = len(text) - len(text.lstrip())
                found.update(offset + at for at in self._border_breaks(stripped))
        return sorted(found)

    def _border_breaks(self, text: str) -> Iterable[int]:
        """Positions of parts of control tokens that adjacent text could complete."""
        length = len(text)
        for size in range(1, min(self._longest, length + 1)):
            if text[-size:] in self._prefixes:
                yield length - size + 1
            if text[:size] in self._suffixes:
                yield size - 1
        if text and length < self._longest and text in self._joined:
            yield 1


def _starts(tokens: list[str]) -> re.Pattern[str]:
    """A pattern that matches the first character of every control token, overlapping ones included."""
    rests: dict[str, list[str]] = {}
    for token in tokens:
        rests.setdefault(token[0], []).append(re.escape(token[1:]))
    alternatives = (f"{re.escape(first)}(?={'|'.join(rest)})" for first, rest in rests.items())
    return re.compile("|".join(alternatives) or "(?!)")


class ControlTokenGuard:
    """Breaks control tokens in the texts of one conversation, and removes the breaks from the output.

    ``conversation`` returns all texts in one. It is called once a text has to be broken, for a character that
    occurs nowhere in them.
    """

    def __init__(self, finder: ControlTokenFinder, conversation: Callable[[], str]) -> None:
        self._finder = finder
        self._conversation = conversation
        self._character = ""
        """The inserted character; empty as long as no text was broken."""
        self._broken = finder.intact.copy()

    def text(self, text: str) -> str:
        """Return the text with every (partial) control token broken."""
        broken = self._broken.get(text)
        if broken is None:
            broken = self._broken[text] = self._break(text)
        return broken

    def _break(self, text: str) -> str:
        breaks = self._finder.breaks(text)
        if not breaks:
            return text
        self._character = self._character or self._unused_character()
        ends = [*breaks, len(text)]
        return self._character.join(
            [text[: breaks[0]], *(text[at:end] for at, end in zip(breaks, ends[1:], strict=True))]
        )

    def _unused_character(self) -> str:
        used = self._finder.reserved | _private_characters(self._conversation())
        for code in range(_FIRST_PRIVATE, _LAST_PRIVATE + 1):
            if code not in used:
                return chr(code)
        raise InvalidRequest("The input spells control tokens and uses every private-use character.")

    def value(self, value: Any) -> Any:
        """Return a JSON value with ``text`` applied to all strings, keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key): self.value(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.value(inner) for inner in value]
        return value

    def mend(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Remove the inserted characters from the pieces that ``ControlTokenFinder.split`` returned."""
        character = self._character
        if not character:
            return list(pieces)
        escaped = f"\\u{ord(character):04x}"  # its form after ``repr`` or an escaping filter
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


_JOINER = "\u2060"
"""Word joiner: takes no space, and is no part of a control token."""

Spell = Callable[[list[int]], str]
"""The text of ids that are no control tokens. May ask the server."""


class ContextSpeller:
    """Writes the ids of a context with pictures as text, for servers that take no ids beside pictures.

    Such a server tokenizes the whole text in every turn, and finds control tokens by their spelling. So where
    a text of a client spells one, an invisible character is put into it.
    """

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
                pieces.append(self._spellings.sub(rf"\1{_JOINER}", self._spell(list(group))))
            else:
                pieces += (self._names.get(id, self._marker) for id in group)
        return "".join(pieces)

    def _join(self, ids: list[int]) -> str:
        return b"".join(map(self._vocabulary.bytes_of, ids)).decode("utf-8", "replace")
