"""Encodes text with fastokens: the same ids as the library tokenizers, in a tenth of the time or less.

fastokens loads a vocabulary more slowly than tokenizers does, and cannot load every one. So it is loaded
later or not at all (``Vocabulary.accelerate``), and its ids are compared with those of tokenizers before it
is used.

fastokens caches the words that it has encoded, per thread, and has no option to turn that off. A client that
measures the time of its text could find out whether its words were sent before. Per word that is less than a
microsecond, but milliseconds for a word of some thousand letters. So ``FastEncoder`` leaves texts with such
words to tokenizers, which caches no word of 256 bytes or more. fastokens also keeps the last text of each
thread, and resumes where another one begins with the same 4096 bytes: ``FastEncoder`` replaces it by a blank.
"""

import re
from collections.abc import Mapping
from typing import Any
from unicodedata import category

import msgspec
import tokenizers

from slipring.prompts.tokenization.gguf_pre_tokenizers import GPT2
from slipring.prompts.tokenization.windowed_encoder import WINDOW_CHARS, isolated_pattern, splits_digits

_PROBE_CHARS = 128
"""Texts are probed in steps of this length. A word of three times the length covers a whole probe."""
WORTH_LOADING_CHARS = 262_144
"""So much text takes tokenizers nearly as long as it takes to load fastokens."""
_ALPHANUMERIC = re.compile("[0-9A-Za-z]")
_LETTER = re.compile(r"[^\W\d_]")
_BREAK = re.compile(r"[\x00-@\[-`{-\x7f\u2010-\u205e\u3000-\u303f\uff01-\uff20]")
"""Characters that are no letters. In a text outside ASCII that has letters, words end there."""
_RESUMED_CHARS = 1024
"""A text may have 4096 bytes if it has this many characters."""
_DIGIT = "[0-9]"
_AFTER_BLANKS = re.compile(rf"{_DIGIT}(?<=\s\s{_DIGIT})")
_SIMPLIFIED = bytes.maketrans(b"\t\n\v\f\r123456789", b"     000000000")
"""Blanks as spaces, digits as zeros: a search for fixed bytes is faster than one for ``_AFTER_BLANKS``."""
_BYTE_LEVEL_GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_OTHER_BLANK = "\u180e"
"""The Mongolian vowel separator: white space to the regular expressions of fastokens, but not to Unicode."""
_NAME_OF_BYTE = "<0x"
"""How the tokens of bytes begin in vocabularies of characters. fastokens encodes a text like ``<0x0A>`` as
such a token, although no merges produce it."""
_CHECKED = (
    "Hello, world! It's 12345 o'clock, they'LL see: 3.14159\r\n\r\n\tdef f(x): return x[1:-1] # why?\n  9"
    "   10 caseChange HTMLParser naïve café e\u0301 Ärger straße ÉCOLE Привет мир العربية עברית हिन्दी ไทย\n"
    "漢字かなカナ。한국어 👩‍👩‍👧 👍🏽 — “quoted” … \u00a0\u2028\u3000 <|im_start|> <tool_call>"
    '{"a": [null, true]}</tool_call>  \n \n x'
)
_CHECKED_BYTES = 49_152
"""The checked text is repeated up to this length: from 32 KiB on, fastokens encodes without the GIL. The
first text takes long, because fastokens builds tables for it."""
_CHECKED_NUMBERS = "½ 3² ٣٤٥٦  Ⅷ\n\n① ⅔x"


class FastEncoder:
    """Encodes texts by fastokens, but for those that must be left to tokenizers."""

    def __init__(
        self, native: Any, *, splits_digits: bool = False, finds_added: bool = False, has_bytes: bool = False
    ) -> None:
        """``finds_added``: whether the vocabulary has added tokens that are text, such as line ends.
        ``has_bytes``: whether it has tokens named after bytes."""
        self._native = native
        self._has_bytes = has_bytes
        self._native_encode = native.encode if finds_added else native.encode_ordinary
        self._splits_digits = splits_digits

    @classmethod
    def load(cls, backend: tokenizers.Tokenizer) -> "FastEncoder | None":
        """Load the vocabulary of a tokenizer; None if fastokens does not support it or gives other ids."""
        from fastokens import Tokenizer  # costs time and memory that not every process has to spend

        config = msgspec.json.decode(backend.to_str())
        splits_digits = _as_known_pattern(config)
        _fill_gaps(config["model"]["vocab"])
        config["model"]["merges"] = _joined_merges(config["model"]["merges"])
        try:
            native = Tokenizer.from_json_str(msgspec.json.encode(config).decode())
        except ValueError:
            return None
        encoder = cls(
            native,
            splits_digits=splits_digits,
            finds_added=bool(config["added_tokens"]),
            has_bytes=_NAME_OF_BYTE + "00>" in config["model"]["vocab"],
        )
        texts = [_CHECKED * (_CHECKED_BYTES // len(_CHECKED.encode()))]
        if not splits_digits:
            texts.append(_CHECKED_NUMBERS)
        expected = [found.ids for found in backend.encode_batch_fast(texts, add_special_tokens=False)]
        return encoder if [encoder._encode(text) for text in texts] == expected else None

    def encode(self, text: str) -> list[int] | None:
        """The ids of a text; None if it must be left to tokenizers."""
        if len(text) > WINDOW_CHARS or _OTHER_BLANK in text or _has_long_word(text):
            return None
        if self._splits_digits and _has_other_number(text):
            return None
        if self._has_bytes and _NAME_OF_BYTE in text:
            return None
        try:
            ids = self._encode(text)
            if len(text) >= _RESUMED_CHARS:
                self._native.encode_ordinary(" ")
        except BaseException as error:
            # A regular expression exceeded its limits, the text has no UTF-8, or Rust code panicked.
            if isinstance(error, ValueError) or type(error).__module__ == "pyo3_runtime":
                return None
            raise
        return ids

    def _encode(self, text: str) -> list[int]:
        ids: list[int]
        if self._splits_digits and (pieces := _split_at_digits(text)):
            ids = self._native.encode_segments(pieces).ids
        else:
            ids = self._native_encode(text).ids
        return ids


def _has_long_word(text: str) -> bool:
    """Whether a text may have a word that covers a whole probe. Spaces do not count as a word."""
    for start in range(0, len(text) - _PROBE_CHARS + 1, _PROBE_CHARS):
        probe = text[start : start + _PROBE_CHARS]
        if " " not in probe and _is_one_word(probe):
            return True
    return False


def _is_one_word(probe: str) -> bool:
    if probe.isspace() or probe.isalpha() or probe.isdigit():
        return True
    if probe.isascii():
        return _ALPHANUMERIC.search(probe) is None
    return _BREAK.search(probe) is None or _LETTER.search(probe) is None


# Many vocabularies (SmolLM, StarCoder, Command R) make each digit a word and then split what is between them
# as GPT-2 does. fastokens is five times faster with the pattern of GPT-2 alone. That gives the same ids if no
# token joins a digit with anything, except where digits follow two or more blanks: to the pattern of GPT-2,
# the last blank belongs to the number.


def _as_known_pattern(config: dict[str, Any]) -> bool:
    """Rewrite GPT-2's pattern, so that fastokens recognizes it. Returns whether digits were split before."""
    splitting = config["pre_tokenizer"]
    if splitting is None:
        return False
    steps = list(splitting["pretokenizers"]) if splitting["type"] == "Sequence" else [splitting]
    last = steps.pop()
    if last["type"] != "ByteLevel" or last["add_prefix_space"]:
        return False
    if not last["use_regex"] and not (steps and isolated_pattern(steps.pop()) == GPT2):
        return False
    if steps and (len(steps) > 1 or not splits_digits(steps[0]) or _joins_digits(config["model"])):
        return False
    config["pre_tokenizer"] = _BYTE_LEVEL_GPT2
    return bool(steps)


def _joins_digits(model: Mapping[str, Any]) -> bool:
    return any(len(word) > 1 and re.search(_DIGIT, word) for word in model["vocab"])


def _split_at_digits(text: str) -> list[tuple[str, bool]]:
    """Split a text before digits that follow blanks; empty if it has none. Each piece is text."""
    if text.isascii() and b"  0" not in text.encode().translate(_SIMPLIFIED):
        return []
    starts = [match.start() for match in _AFTER_BLANKS.finditer(text)]
    if not starts:
        return []
    return [(text[at:end], False) for at, end in zip([0, *starts], [*starts, len(text)], strict=True)]


def _has_other_number(text: str) -> bool:
    """Whether a text has a number outside ASCII: its bytes may be joined with those of other characters."""
    return not text.isascii() and any(category(char)[0] == "N" for char in set(text) if char > "\x7f")


def _fill_gaps(vocabulary: dict[str, int]) -> None:
    """Give every unused id a word, as fastokens demands. No text has such a word: spaces are written with
    another character in all vocabularies."""
    used = set(vocabulary.values())
    vocabulary.update((f" {id}", id) for id in range(max(used, default=-1) + 1) if id not in used)


def _joined_merges(merges: list[Any]) -> list[Any]:
    """Merges in the form that is read faster."""
    return [" ".join(pair) if isinstance(pair, list) else pair for pair in merges]
