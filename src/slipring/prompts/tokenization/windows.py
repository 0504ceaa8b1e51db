"""Long texts, tokenized window by window into exactly the ids of the whole text.

A byte-level tokenizer first splits a text into words and then makes the tokens of each word by itself. So a
text can be tokenized in windows that begin where a word begins, if two things hold:

- A word is found from its first character on: what stands before it has no influence. Its pattern has no
  look-behind and no anchor.
- A word of a window is the same in the whole text, unless it lies near the window's end. Every pattern in
  ``_ALTERNATIVES`` reads, from the first character of a word on, one character, then characters of one kind,
  then line ends, then at most three characters more. White space is all that such a reading may pass over
  without making it one word, so it ends within the next few words that are not white space.

``is_splittable`` recognizes the tokenizers of which this is known, ``Windows`` does the work. What ends the
sure part of a window is chosen with ``_MARGIN_WORDS`` words to spare.
"""

import json
from typing import Any, Final
from unicodedata import category

import tokenizers

from slipring.prompts.tokenization.token_budget import Room, TooManyTokens

WINDOW_CHARS: Final = 32_768
_MARGIN_WORDS = 8
_LONGEST_WALK = 64
"""Words that are looked at, from the end of a window on, to find where its sure part ends."""
_SUFFIXES = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ALTERNATIVES = frozenset(
    (
        *("'s", "'t", "'re", "'ve", "'m", "'ll", "'d", _SUFFIXES),
        *(r" ?\p{L}+", r"[^\r\n\p{L}\p{N}]?\p{L}+", r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"),
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIXES}?",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIXES}?",
        *(r" ?\p{N}+", r"\p{N}+", r"\p{N}", r"\p{N}{1,3}"),
        *(r" ?[^\s\p{L}\p{N}]+", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"),
        r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
        *(r"\s*[\r\n]+", r"\s*[\r\n]", r"\s+(?!\S)", r"\s+"),
    )
)
"""Of the patterns of GPT-2, GPT-4, Llama 3, Qwen, gpt-oss, Mistral and SmolLM."""
_ONE_NUMBER = r"\p{N}"


def is_splittable(backend: tokenizers.Tokenizer) -> bool:
    """Whether texts can be tokenized in windows."""
    normalizer, splitting = _described(backend.normalizer), _described(backend.pre_tokenizer)
    if normalizer is not None and normalizer["type"] != "NFC":
        return False
    if splitting is None:
        return False
    steps = splitting["pretokenizers"] if splitting["type"] == "Sequence" else [splitting]
    *earlier, last = steps
    if last["type"] != "ByteLevel" or last["add_prefix_space"]:
        return False
    if not last["use_regex"] and (not earlier or not _splits_words(earlier.pop())):
        return False
    # Whatever splits before must find single characters: a window may begin at any word, not within a match.
    return all(map(_splits_characters, earlier))


def composes(backend: tokenizers.Tokenizer) -> bool:
    """Whether characters are composed with those before them, before anything else is done."""
    return backend.normalizer is not None


def _described(part: Any) -> dict[str, Any] | None:
    return json.loads(part.__getstate__()) if part is not None else None


def _pattern(step: dict[str, Any]) -> str | None:
    """The regular expression that a step splits by, where that is all it does."""
    if step["type"] != "Split" or step["behavior"] != "Isolated" or step["invert"]:
        return None
    pattern: str | None = step["pattern"].get("Regex")
    return pattern


def _splits_words(step: dict[str, Any]) -> bool:
    pattern = _pattern(step)
    return pattern is not None and _ALTERNATIVES.issuperset(_alternatives(pattern))


def _splits_characters(step: dict[str, Any]) -> bool:
    return _pattern(step) == _ONE_NUMBER or (step["type"] == "Digits" and step["individual_digits"])


def _alternatives(pattern: str) -> list[str]:
    """The ways in which a pattern can match: it is split at every ``|`` outside of groups and classes."""
    ways, depth, at = [""], 0, 0
    while at < len(pattern):
        character = pattern[at : at + 2] if pattern[at] == "\\" else pattern[at]
        at += len(character)
        if character in ("(", "["):
            depth += 1
        elif character in (")", "]"):
            depth -= 1
        if character == "|" and not depth:
            ways.append("")
        else:
            ways[-1] += character
    return ways


class Windows:
    """Tokenizes long texts with one splittable tokenizer."""

    def __init__(self, backend: tokenizers.Tokenizer, window_chars: int = WINDOW_CHARS) -> None:
        self._backend = backend
        self._composes = composes(backend)
        self._window_chars = window_chars

    def encode(self, text: str, room: Room) -> list[int]:
        """The ids of a text; ``TooManyTokens`` as soon as there are more than there is room for."""
        ids: list[int] = []
        start, size = 0, self._window_chars
        while True:
            end = self._end(text, start, size, room)
            found = self._backend.encode_batch([text[start:end]], add_special_tokens=False)[0]
            if end == len(text):
                sure, length = len(found), end - start
            else:
                sure, length = self._sure_part(found, text, start)
            ids += found.ids[:sure]
            if len(ids) > room.tokens:
                raise TooManyTokens(len(ids))
            start += length
            if start == len(text):
                return ids
            size = self._window_chars if length else self._grown(size, room)

    def _grown(self, size: int, room: Room) -> int:
        """The size of a window instead of one without a sure part."""
        room.require_splittable(size + 1)
        return min(size * 4, max(room.unsplit_chars, self._window_chars))

    def _end(self, text: str, start: int, size: int, room: Room) -> int:
        """Where a window ends: behind so many characters, and those that may be composed with its last."""
        end = start + size
        while end < len(text) and not self._may_begin(text[end]):
            end += 1
            room.require_splittable(end - start)
        return min(end, len(text))

    def _sure_part(self, found: tokenizers.Encoding, text: str, offset: int) -> tuple[int, int]:
        """How many tokens of a window at ``offset`` are sure whatever follows it, and how many characters
        they are; zeros where none is."""
        words, token = 0, len(found)
        for _ in range(_LONGEST_WALK):
            last, token = token, _word_start(found, token)
            if token == 0:
                break
            start, end = _chars(found, token)[0], _chars(found, last - 1)[1]
            words += not text[offset + start : offset + end].isspace()
            # Characters that the vocabulary has no token for may lie between two words, and belong to either.
            is_whole = _chars(found, token - 1)[1] == start
            if words > _MARGIN_WORDS and is_whole and self._may_begin(text[offset + start]):
                return token, start
        return 0, 0

    def _may_begin(self, character: str) -> bool:
        """Whether a window may begin with a character: none that is composed with what stands before it."""
        return not self._composes or _stands_alone(character)


def _chars(found: tokenizers.Encoding, token: int) -> tuple[int, int]:
    """The characters of a window that a token was made of."""
    chars = found.token_to_chars(token)
    assert chars is not None
    return chars


def _word_start(found: tokenizers.Encoding, end: int) -> int:
    """The first token of the word whose tokens end at ``end``."""
    word = found.token_to_word(end - 1) if end else None
    while end > 0 and found.token_to_word(end - 1) == word:
        end -= 1
    return end


def _stands_alone(character: str) -> bool:
    """Whether a character is never composed with the one before it. Not sure of some others: False."""
    if character < "\u0300":
        return True
    return category(character)[0] in "LNPSZ" and not "\u1160" <= character <= "\u11ff"
