"""Tokenizing in windows gives the ids of the whole text."""

from functools import cache
from random import Random
from typing import Any

import pytest
import tokenizers
from hypothesis import given, note, settings
from hypothesis import strategies as st
from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel, Digits, Split

from slipring.base.errors import InvalidRequest
from slipring.prompts.tokenization.token_budget import UNLIMITED, TokenBudget, TooManyTokens
from slipring.prompts.tokenization.tokenizer import Tokenizer
from slipring.prompts.tokenization.windowed_encoder import WINDOW_CHARS, WindowedEncoder, is_splittable
from tests.prompts.vocabulary import (
    characters,
    qwen2,
    qwen2_metadata,
    small,
    small_metadata,
    smollm2,
    smollm2_with_llama3,
)

VOCABULARIES = {
    "smollm2": smollm2,
    "smollm2 with llama3": smollm2_with_llama3,
    "qwen2": qwen2,
    "small": small,
}
PIECES = (
    *(" ", "  ", "\n", "\r\n", "\t", "\u3000", "\xa0", "\x85", "\u2028"),
    *("a", "Zed", "é", "e\u0301", "\u0301\u0316", "ß", "ǅ", "漢字", "ا", "\u1100\u1161\u11a8", "각"),
    *("5", "12", "٣", "½", "!", "...", "'", "'s", "'RE", "_", "/", "<|im_start|>"),
    *("\U0001f600", "\U0001f468\u200d\U0001f469", "\x04", "\x1d", "\U00040000"),
)
LENGTH = WINDOW_CHARS + 5000
LONG = {
    name: (text * LENGTH)[:LENGTH]
    for name, text in {
        "digits": "0123456789",
        "spaces between words": "a  b   c    d     ",
        "lines": "one line\n\n  and\r\n\tanother\n",
        "emoji": "\U0001f600\U0001f468\u200d\U0001f469 ",
        "combining marks": "e\u0301\u0316n\u0303 ",
        "scripts": "漢字 кириллица العربية हिन्दी ",
        "punctuation": "a!?b.,;c",
        "characters without a token": "a b\x04 c\x1d",
    }.items()
}
"""Texts of two windows."""
RUNS = [piece * times for piece in PIECES for times in (1, 1, 1, 2, 7, 40)]
# One draw for a text, not one for each run: drawing would take as long as tokenizing.
texts = st.builds(
    lambda seed, number: "".join(Random(seed).choices(RUNS, k=number)),
    st.integers(0, 2**32),
    st.integers(40, 200),
)


class Counting:
    """A tokenizer that records the lengths of its texts."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self.normalizer = backend.normalizer
        self.lengths: list[int] = []

    def encode_batch(self, given: list[str], add_special_tokens: bool) -> Any:
        self.lengths += map(len, given)
        return self._backend.encode_batch(given, add_special_tokens=add_special_tokens)

    def encode_batch_fast(self, given: list[str], add_special_tokens: bool) -> Any:
        self.lengths += map(len, given)
        return self._backend.encode_batch_fast(given, add_special_tokens=add_special_tokens)


def normalizing(tokenizer: Tokenizer, normalizer: normalizers.Normalizer) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer.from_str(tokenizer._backend.to_str())
    backend.normalizer = normalizer
    return backend


@cache
def composing() -> tokenizers.Tokenizer:
    """Qwen2 with a normalizer."""
    return normalizing(qwen2(), normalizers.NFC())


def windowed(backend: Any, size: int = WINDOW_CHARS) -> WindowedEncoder:
    return WindowedEncoder(backend, lambda text: whole(backend, text), size)


def whole(backend: tokenizers.Tokenizer, text: str) -> list[int]:
    ids: list[int] = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids


def test_windows_give_the_ids_of_the_whole_text() -> None:
    backends = {name: vocabulary()._backend for name, vocabulary in VOCABULARIES.items()}
    backends["composing"] = composing()

    @settings(deadline=None, max_examples=60)
    @given(texts, st.sampled_from((20, 64, 150)))
    def same(text: str, size: int) -> None:
        for name, backend in backends.items():
            note(name)
            assert windowed(backend, size).encode(text, UNLIMITED) == whole(backend, text)

    same()


@pytest.mark.parametrize(
    "pre", ["qwen35", "gpt-4o", "tekken", "kimi-k2", "deepseek-v3", "seed-coder", "minicpm5"]
)
def test_windows_give_the_ids_of_the_whole_text_with_every_pre_tokenizer(pre: str) -> None:
    backend = Tokenizer.from_gguf(small_metadata(pre=pre))._backend
    assert is_splittable(backend)
    unmerged = pre_tokenizers.Sequence([backend.pre_tokenizer])

    @settings(deadline=None, max_examples=40)
    @given(texts, st.sampled_from((20, 64, 150)))
    def same(text: str, size: int) -> None:
        cuts: list[str] = []

        def pieces(window: str) -> list[int]:
            cuts.append(window)
            return whole(backend, window)

        assert WindowedEncoder(backend, pieces, size).encode(text, UNLIMITED) == whole(backend, text)
        if "".join(cuts) == text:  # every window ended at a certain place: the words are the same too
            words = [word for cut in cuts for word, _ in unmerged.pre_tokenize_str(cut)]
            assert words == [word for word, _ in unmerged.pre_tokenize_str(text)]

    same()


def test_a_vocabulary_of_characters_is_split_where_no_word_continues() -> None:
    tokenizer = characters()
    windows = tokenizer._windows
    assert windows is not None

    @settings(deadline=None, max_examples=60)
    @given(texts, st.sampled_from((20, 64, 150)))
    def same(text: str, size: int) -> None:
        small_windows = WindowedEncoder(tokenizer._backend, tokenizer._encode, size, cuts=windows._cuts)
        assert small_windows.encode(text, UNLIMITED) == whole(tokenizer._backend, text)

    same()
    long = "the quick brown fox\n" * 5000
    assert tokenizer.encode(long) == whole(tokenizer._backend, long)
    assert tokenizer.least_tokens(long) <= len(tokenizer.encode(long))
    with pytest.raises(InvalidRequest):
        tokenizer.encode("x" * 70_000, TokenBudget(unsplit_chars=65_536))
    with pytest.raises(TooManyTokens):
        tokenizer.encode(long, TokenBudget(1000))


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_long_texts_have_the_ids_of_the_whole_text(vocabulary: str, text: str) -> None:
    tokenizer = VOCABULARIES[vocabulary]()
    assert len(text) > WINDOW_CHARS
    ids = tokenizer.encode(text)
    assert ids == whole(tokenizer._backend, text)
    assert tokenizer.least_tokens(text) <= len(ids)


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_no_more_than_a_window_is_tokenized_at_once(text: str) -> None:
    backend = Counting(qwen2()._backend)
    windowed(backend, 4096).encode(text, UNLIMITED)
    assert max(backend.lengths) <= 4096
    # Little is tokenized twice.
    assert sum(backend.lengths) < 1.1 * len(text)


def test_tokenizing_stops_when_the_budget_is_exceeded() -> None:
    backend = Counting(qwen2()._backend)
    text = LONG["digits"]
    with pytest.raises(TooManyTokens) as refused:
        windowed(backend, 4096).encode(text, TokenBudget(10_000))
    assert 10_000 < refused.value.least <= 10_000 + 4096
    assert sum(backend.lengths) <= 3 * 4096
    assert len(windowed(qwen2()._backend).encode(text, TokenBudget(len(text)))) == len(text)


@pytest.mark.parametrize("character", ["a", " ", "漢", "!"])
def test_an_unsplittable_run_is_tokenized_at_once_up_to_the_limit(character: str) -> None:
    backend = Counting(qwen2()._backend)
    windows = windowed(backend, 1024)
    room = TokenBudget(unsplit_chars=5000)
    run = character * 4000
    assert windows.encode(f"x {run} y" + " more" * 500, room) == whole(
        qwen2()._backend, f"x {run} y" + " more" * 500
    )
    assert max(backend.lengths) <= 5000
    assert windows.encode(character * 5000, room) == whole(qwen2()._backend, character * 5000)
    with pytest.raises(InvalidRequest) as refused:
        windows.encode(character * 5001, room)
    assert refused.value.param == "input"
    assert max(backend.lengths) <= 5000


def test_combining_marks_are_not_split_from_their_base() -> None:
    text = ("e" + "\u0301" * 50 + " ") * 40
    assert windowed(composing(), 30).encode(text, UNLIMITED) == whole(composing(), text)
    with pytest.raises(InvalidRequest):
        windowed(composing(), 30).encode("e" + "\u0301" * 200, TokenBudget(unsplit_chars=100))


def test_a_window_may_reach_the_end_of_the_text_with_the_marks_of_its_last_character() -> None:
    text = "漢" * 30 + "\u0301\u0316"
    assert windowed(composing(), 30).encode(text, UNLIMITED) == whole(composing(), text)


def test_a_window_grows_if_none_of_its_last_words_may_begin_another() -> None:
    backend = Counting(composing())
    text = "\ue000a" * 300  # a window may not begin with a private-use character
    assert windowed(backend, 200).encode(text, UNLIMITED) == whole(composing(), text)
    assert backend.lengths == [201, 600]  # a window does not end before such a character either


def described(**changes: Any) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE(vocab={}, merges=[]))
    for name, value in changes.items():
        setattr(backend, name, value)
    return backend


GPT2 = ByteLevel(add_prefix_space=False)
BYTES = ByteLevel(add_prefix_space=False, use_regex=False)


@pytest.mark.parametrize(
    ("splits", "expected"),
    [
        (GPT2, True),
        (pre_tokenizers.Sequence([Digits(individual_digits=True), GPT2]), True),
        (pre_tokenizers.Sequence([Split(Regex(r"\p{N}{1,3}|\s+(?!\S)|\s+"), "isolated"), BYTES]), True),
        (ByteLevel(add_prefix_space=True), False),
        (BYTES, False),
        (pre_tokenizers.Sequence([Digits(individual_digits=False), GPT2]), False),
        (pre_tokenizers.Sequence([Split(Regex(r"\p{N}+|(?<=a)b"), "isolated"), BYTES]), False),
        (pre_tokenizers.Sequence([Split(Regex(r"\p{N}+"), "removed"), BYTES]), False),
        (pre_tokenizers.Sequence([Split("|", "isolated"), BYTES]), False),
        (pre_tokenizers.Whitespace(), False),
        (None, False),
    ],
)
def test_only_known_pre_tokenizers_are_splittable(splits: Any, expected: bool) -> None:
    changes = {} if splits is None else {"pre_tokenizer": splits}
    assert is_splittable(described(**changes)) is expected


def test_nfc_is_the_only_normalizer_that_is_splittable() -> None:
    assert is_splittable(composing())
    assert not is_splittable(normalizing(small(), normalizers.NFKC()))


def test_unsplittable_tokenizers_tokenize_whole_texts_up_to_the_limit() -> None:
    tokenizer = Tokenizer(normalizing(small(), normalizers.NFKC()), {}, "other")
    text = "ﬁne " * 10_000
    assert tokenizer.encode(text, TokenBudget(unsplit_chars=len(text))) == small().encode("fine " * 10_000)
    with pytest.raises(InvalidRequest):
        tokenizer.encode(text, TokenBudget(unsplit_chars=len(text) - 1))


def test_truncation_and_padding_of_a_tokenizer_json_are_ignored() -> None:
    backend = tokenizers.Tokenizer.from_str(small()._backend.to_str())
    backend.enable_truncation(3)
    backend.enable_padding(length=20)
    tokenizer = Tokenizer.from_json(backend.to_str())
    assert tokenizer.encode("one two three four five") == small().encode("one two three four five")


def test_no_text_has_fewer_tokens_than_the_lower_bound() -> None:
    tokenizers = {name: vocabulary() for name, vocabulary in VOCABULARIES.items()}

    @given(texts | st.text())
    def at_least(text: str) -> None:
        for name, tokenizer in tokenizers.items():
            note(name)
            assert tokenizer.least_tokens(text) <= len(tokenizer.encode(text))

    at_least()


def test_the_lower_bound_follows_from_the_longest_word() -> None:
    words = map(qwen2().bytes_of, range(len(qwen2_metadata()["tokenizer.ggml.tokens"])))
    longest = max(words, key=len).decode()
    assert qwen2().least_tokens(longest * 10) == len(qwen2().encode(longest)) * 10 == 10
    assert qwen2().least_tokens(longest * 10 + "a") == 11
    assert qwen2().least_tokens("") == 0
    assert Tokenizer(composing(), {}, "composing").least_tokens(longest * 8) == 2
    assert smollm2().least_tokens("\x04" * 1000) == 0


def test_the_lower_bound_is_zero_if_a_continuation_byte_has_no_token() -> None:
    metadata = small_metadata()
    tokens = [*metadata["tokenizer.ggml.tokens"]]
    (id,) = (id for id in range(len(tokens)) if small().bytes_of(id) == b"\x80")
    tokens[id] = "unused"
    tokenizer = Tokenizer.from_gguf(metadata | {"tokenizer.ggml.tokens": tokens})
    assert (small().least_tokens("x" * 100) > 0, tokenizer.least_tokens("x" * 100)) == (True, 0)
