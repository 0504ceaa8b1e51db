"""Tokenizes long texts window by window, with the same ids as tokenizing the whole text at once.

A byte-level tokenizer splits a text into words and then tokenizes each word separately. A text can therefore
be tokenized in windows that begin at a word, if two conditions hold:

- The match of a word depends only on the text from its first character on: the pattern has no look-behind
  and no anchor.
- A word of a window is the same in the whole text, unless it is near the window's end. Every pattern in
  ``_ALTERNATIVES`` matches one character, then characters of one kind, then line ends, then at most three
  more characters. Only white space can be looked at without becoming part of the word, so a match looks at
  most at the next few words that are not white space.

``is_splittable`` recognizes tokenizers that meet both conditions. ``WindowedEncoder`` ends a window where a
word ends whatever follows (``_CUT``). In a window without such a place it discards the last ``_MARGIN_WORDS``
words, and begins the next window there.
"""

import json
import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, Final
from unicodedata import category

import tokenizers

from slipring.prompts.tokenization.gguf_pre_tokenizers import HAN
from slipring.prompts.tokenization.token_budget import TokenBudget, TooManyTokens

WINDOW_CHARS: Final = 16_000
"""At most four bytes each: fastokens would share a text of 64 KiB among threads that all remember words."""
SPACE: Final = "▁"
"""How vocabularies of characters write a space."""
PLAIN_SPACES: Final = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
"""The normalizer that writes spaces so."""
_MARGIN_WORDS = 8
_MAX_WORDS_BACK = 64
"""How many words are examined, backwards from the end of a window, to find where its certain part ends."""
_CUT = re.compile(
    r"[0-9A-Za-zÀ-ÖØ-öø-ɏΑ-Ρα-ωА-яא-תء-غ\u3041-\u3096\u30a1-\u30fa一-龥가-힣]"
    r"(?=[ \t\r\n!\"#$%&()*+,\-./:;<=>?@\[\\\]^_`{|}~\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f])"
)
"""A letter or digit before a blank or a mark, which is no apostrophe: no word continues there, none looks
further, and normalization composes no such characters."""
_CUT_CHARS = 1024
_SUFFIXES = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_PREFIX = r"[^\r\n\p{L}\p{N}]?"
_CASES = (
    (r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"),
    (r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"),
    (r"[^\P{L}a-z]", r"[^\P{L}A-Z]"),
)
"""Classes of upper and lower case letters."""
_ALTERNATIVES = frozenset(
    (
        *("'s", "'t", "'re", "'ve", "'m", "'ll", "'d", _SUFFIXES),
        *(r" ?\p{L}+", rf"{_PREFIX}\p{{L}}+", rf"{_PREFIX}[\p{{L}}\p{{M}}]+"),
        *(
            f"{_PREFIX}{letters}{end}"
            for upper, lower in _CASES
            for letters in (f"{upper}*{lower}+", f"{upper}+{lower}*")
            for end in ("", f"{_SUFFIXES}?")
        ),
        *(rf"[{HAN}]+", r"[\p{Han}]+", rf"{_PREFIX}[^\P{{L}}{HAN}]+{_SUFFIXES}?"),
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""",
        *("[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+", " ?[\\p{P}\\p{S}]+[\r\n]*", "\\s*[\r\n]+"),
        *(r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+", r" ?[\p{P}\p{S}]+[\r\n]*"),
        *(r" ?\p{N}+", r"\p{N}+", r"\p{N}", r"\p{N}{1,3}"),
        *(r" ?[^\s\p{L}\p{N}]+", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"),
        *(r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}\r\n]+"),
        *(r"\s*[\r\n]+", r"\s*[\r\n]", r"\s+(?!\S)", r"\s+"),
    )
)
"""The alternatives in the patterns of ``gguf_pre_tokenizers`` and in those that the models of the same
families were published with."""
_EARLIER = frozenset((r"\p{N}", r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+"))
"""What may be split before words are: numbers, which no other step splits in another way, and characters of
one kind, whatever their number. A window may begin within what these match."""


def is_splittable(backend: tokenizers.Tokenizer) -> bool:
    """Whether ``WindowedEncoder`` gives the same ids as this tokenizer."""
    normalizer, splitting = _state(backend.normalizer), _state(backend.pre_tokenizer)
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
    return all(map(_splits_earlier, earlier))


def splits_of_words(words: Iterable[str]) -> re.Pattern[str]:
    """Where texts can be split that are not split into words: before a space or a line end, if no word has it
    after the same character. What it matches is before such a place."""
    before: dict[str, set[str]] = {SPACE: {" "}, "\n": {"\n"}}
    for word in words:
        for blank, chars in before.items():
            if blank in word[1:]:
                chars.update(left for left, right in pairwise(word) if right == blank)
                if SPACE in chars:
                    chars.add(" ")
    spaces, lines = ("".join(map(re.escape, sorted(chars))) for chars in before.values())
    return re.compile(f"[^{spaces}](?= )|[^{lines}](?=\n)")


def composes(backend: tokenizers.Tokenizer) -> bool:
    """Whether the tokenizer normalizes text, so that characters may be composed with those before them."""
    return _state(backend.normalizer) not in (None, PLAIN_SPACES)


def certain_chars(text: str, cuts: re.Pattern[str] = _CUT) -> int:
    """How many characters of a text have the same ids whatever follows it: up to the last place at which the
    tokenizer certainly splits it. 0 if there is none near its end."""
    ends = [match.end() for match in cuts.finditer(text, max(len(text) - _CUT_CHARS, 0))]
    return ends[-1] if ends else 0


def _state(part: Any) -> dict[str, Any] | None:
    return json.loads(part.__getstate__()) if part is not None else None


def isolated_pattern(step: dict[str, Any]) -> str | None:
    """The regular expression of a step that isolates its matches; None for any other step."""
    if step["type"] != "Split" or step["behavior"] != "Isolated" or step["invert"]:
        return None
    pattern: str | None = step["pattern"].get("Regex")
    return pattern


def _splits_words(step: dict[str, Any]) -> bool:
    pattern = isolated_pattern(step)
    return pattern is not None and _ALTERNATIVES.issuperset(_alternatives(pattern))


def splits_digits(step: dict[str, Any]) -> bool:
    """Whether a step makes each digit a word."""
    return isolated_pattern(step) == r"\p{N}" or (step["type"] == "Digits" and step["individual_digits"])


def _splits_earlier(step: dict[str, Any]) -> bool:
    return isolated_pattern(step) in _EARLIER or splits_digits(step)


def _alternatives(pattern: str) -> list[str]:
    """Split a pattern at every ``|`` outside of groups and classes."""
    alternatives, depth, at = [""], 0, 0
    while at < len(pattern):
        character = pattern[at : at + 2] if pattern[at] == "\\" else pattern[at]
        at += len(character)
        if character in ("(", "["):
            depth += 1
        elif character in (")", "]"):
            depth -= 1
        if character == "|" and not depth:
            alternatives.append("")
        else:
            alternatives[-1] += character
    return alternatives


class WindowedEncoder:
    """Tokenizes long texts with a splittable tokenizer. ``encode`` gives the ids of one window."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        encode: Callable[[str], list[int]],
        window_chars: int = WINDOW_CHARS,
        *,
        cuts: re.Pattern[str] | None = None,
    ) -> None:
        """``cuts``: where a tokenizer that splits no words can be split; what it matches ends a window."""
        self._backend = backend
        self._cuts = cuts or _CUT
        self._has_words = cuts is None
        self._encode = encode
        self._composes = composes(backend)
        self._window_chars = window_chars

    def encode(self, text: str, budget: TokenBudget) -> list[int]:
        """Return the ids of a text. Raises ``TooManyTokens`` as soon as they exceed the budget."""
        ids: list[int] = []
        start, size = 0, self._window_chars
        while start < len(text):
            cut = len(text) if len(text) - start <= size else self._cut(text, start, start + size)
            if cut is not None:
                ids += self._encode(text[start:cut])
                start, size = cut, self._window_chars
            else:
                length = 0
                if self._has_words:
                    certain, length = self._certain_ids(text, start, size, budget)
                    ids += certain
                start += length
                size = self._window_chars if length else self._grown(size, budget)
            if len(ids) > budget.tokens:
                raise TooManyTokens(len(ids))
        return ids

    def certain_chars(self, text: str) -> int:
        """How many characters of a text have the same ids whatever follows it."""
        return certain_chars(text, self._cuts)

    def _cut(self, text: str, start: int, end: int) -> int | None:
        """The last place near the end of a window at which the tokenizer certainly splits a text."""
        cuts = [match.end() for match in self._cuts.finditer(text, max(start, end - _CUT_CHARS), end)]
        return cuts[-1] if cuts else None

    def _certain_ids(self, text: str, start: int, size: int, budget: TokenBudget) -> tuple[list[int], int]:
        """The ids of a window that do not depend on what follows it, and how many characters they cover."""
        end = self._end(text, start, size, budget)
        found = self._backend.encode_batch([text[start:end]], add_special_tokens=False)[0]
        if end == len(text):
            return found.ids, end - start
        tokens, length = self._certain_part(found, text, start)
        return found.ids[:tokens], length

    def _grown(self, size: int, budget: TokenBudget) -> int:
        """The next size to try after a window without a certain part."""
        budget.require_splittable(size + 1)
        return min(size * 4, max(budget.unsplit_chars, self._window_chars))

    def _end(self, text: str, start: int, size: int, budget: TokenBudget) -> int:
        """Where a window ends: after ``size`` characters and those that may be composed with the last one."""
        end = start + size
        while end < len(text) and not self._may_begin(text[end]):
            end += 1
            budget.require_splittable(end - start)
        return min(end, len(text))

    def _certain_part(self, found: tokenizers.Encoding, text: str, offset: int) -> tuple[int, int]:
        """The number of these tokens and characters; zeros if there are none."""
        words, token = 0, len(found)
        for _ in range(_MAX_WORDS_BACK):
            last, token = token, _word_start(found, token)
            if token == 0:
                break
            start, end = _chars(found, token)[0], _chars(found, last - 1)[1]
            words += not text[offset + start : offset + end].isspace()
            # Characters without a token may stand between two words and belong to either.
            is_whole = _chars(found, token - 1)[1] == start
            if words > _MARGIN_WORDS and is_whole and self._may_begin(text[offset + start]):
                return token, start
        return 0, 0

    def _may_begin(self, character: str) -> bool:
        """Whether a window may begin with this character: not if it may be composed with the one before."""
        return not self._composes or _stands_alone(character)


def _chars(found: tokenizers.Encoding, token: int) -> tuple[int, int]:
    """Start and end of a token, in characters of the window."""
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
    """Whether a character is certainly never composed with the one before it."""
    if character < "\u0300":
        return True
    return category(character)[0] in "LNPSZ" and not "\u1160" <= character <= "\u11ff"
