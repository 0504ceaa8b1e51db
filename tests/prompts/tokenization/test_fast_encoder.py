"""fastokens gives the ids of tokenizers, whatever the text, or leaves the text to tokenizers."""

import json
from functools import cache
from random import Random

import pytest
import tokenizers
from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel, Digits, Split

from slipring.prompts.tokenization.fast_encoder import FastEncoder
from slipring.prompts.tokenization.gguf_pre_tokenizers import PRE_TOKENIZERS
from slipring.prompts.tokenization.tokenizer import Tokenizer
from tests.prompts.corpus import CORPUS
from tests.prompts.vocabulary import characters, qwen2, small, small_metadata, smollm2

REAL = {"smollm2": smollm2, "qwen2": qwen2, "characters": characters}
FAMILIES = (
    *("gpt-2", "smollm", "llama-bpe", "dbrx", "qwen2", "qwen35", "gpt-4o", "tekken", "kimi-k2"),
    *("deepseek-v3", "falcon", "minicpm5", "seed-coder", "bailingmoe"),
)
"""A name for each entry of ``PRE_TOKENIZERS``."""
PIECES = (
    *(" ", "  ", "    ", "\n", "\r\n", "\n\n", "\t", "\u3000", "\xa0", "\x85", "\u2028", "\x0b", "\x1c"),
    *("a", "the", " return", "Zed", "HTML", "é", "É", "e\u0301", "\u0301\u0316", "ß", "ǅ", "ſ", "K", "ﬁ"),
    *(
        "漢字",
        "々",
        "〇",
        "かな",
        "カナ",
        "・",
        "。",
        "，",
        "한국",
        "ا",
        "مَ",
        "हिन्दी",
        "ไทย",
        "ก็",
        "Привет",
        "ΩΜέγα",
    ),
    *(
        "5",
        "12",
        "123",
        "4567",
        "٣",
        "½",
        "²",
        "Ⅷ",
        "①",
        "!",
        "...",
        "=",
        "==",
        "'",
        "'s",
        "'RE",
        "’s",
        "_",
        "/",
    ),
    *(
        "<|im_start|>",
        "<tool_call>",
        "<0x41>",
        "▁",
        " 17",
        "\x00",
        "\x04",
        "\x1d",
        "\ufeff",
        "\u200b",
        "\ue000",
    ),
    *(
        "\U0001f600",
        "\U0001f468\u200d\U0001f469",
        "👍🏽",
        "🇫🇷",
        "𝒜",
        "𠮷",
        "\U00040000",
        "\U000e0041",
        "\uffff",
    ),
)


def generated(count: int, seed: int = 7) -> list[str]:
    """The same texts in every run: pieces in any order, some repeated."""
    random = Random(seed)
    return ["".join(random.choices(PIECES, k=random.randrange(1, 16))) for _ in range(count)]


def encoded(backend: tokenizers.Tokenizer, texts: list[str]) -> list[list[int]]:
    return [found.ids for found in backend.encode_batch_fast(texts, add_special_tokens=False)]


def loaded(backend: tokenizers.Tokenizer) -> FastEncoder:
    encoder = FastEncoder.load(backend)
    assert encoder is not None
    return encoder


@cache
def real(vocabulary: str) -> FastEncoder:
    return loaded(REAL[vocabulary]()._backend)


@cache
def pairs(pre: str) -> tokenizers.Tokenizer:
    """A vocabulary with a pre-tokenizer that merges many pairs of bytes, so that its splits can be seen."""
    letters = sorted(ByteLevel.alphabet())
    seen = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str("".join(PIECES) * 2)[0][0]
    random = Random(3)
    frequent = sorted({*seen})
    joined = sorted({(left, random.choice(frequent)) for left in frequent for _ in range(60)})
    random.shuffle(joined)
    tokens = [*letters, *map("".join, joined), "123", "ĠĠĠ", "Ġreturn"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(tokens),
        "tokenizer.ggml.merges": list(map(" ".join, joined)),
    }
    return Tokenizer.from_gguf(metadata)._backend


@cache
def small_encoder() -> FastEncoder:
    return loaded(pairs("qwen2"))


def assert_same(encoder: FastEncoder, backend: tokenizers.Tokenizer, texts: list[str]) -> None:
    taken = [(text, ids) for text in texts if (ids := encoder.encode(text)) is not None]
    assert len(taken) > len(texts) / 3, "most texts are left to tokenizers"
    for (text, ids), expected in zip(taken, encoded(backend, [text for text, _ in taken]), strict=True):
        assert ids == expected, repr(text)


def test_every_pre_tokenizer_is_compared() -> None:
    assert {PRE_TOKENIZERS[name] for name in FAMILIES} == {*PRE_TOKENIZERS.values()}


@pytest.mark.parametrize("vocabulary", ["smollm2", "characters"])
def test_the_ids_are_those_of_tokenizers(vocabulary: str) -> None:
    assert_same(real(vocabulary), REAL[vocabulary]()._backend, [*CORPUS, *generated(8000)])


@pytest.mark.parametrize("pre", FAMILIES)
def test_every_pre_tokenizer_splits_as_with_tokenizers(pre: str) -> None:
    assert_same(loaded(pairs(pre)), pairs(pre), [*CORPUS, *generated(2000)])


@pytest.mark.slow
@pytest.mark.timeout(900)  # half a minute of CPU, on a machine that may be busy
@pytest.mark.parametrize("pre", FAMILIES)
def test_every_character_has_the_class_that_it_has_in_tokenizers(pre: str) -> None:
    encoder = loaded(pairs(pre))
    samples = [
        f"a{char}b {char}{char} 1{char}2\n {char}.a{char}'a{char}\n \nA'{char}e b{char}B漢{char}漢  {char}5"
        for code in (*range(0xD800), *range(0xE000, 0x34000), *range(0xE0000, 0xE0200), 0xF0000, 0x10FFFD)
        for char in (chr(code),)
    ]
    assert_same(encoder, pairs(pre), samples)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("vocabulary", REAL)
def test_the_ids_of_many_texts_are_those_of_tokenizers(vocabulary: str) -> None:
    assert_same(real(vocabulary), REAL[vocabulary]()._backend, generated(100_000, seed=11))


def test_normalized_texts_have_the_ids_of_tokenizers() -> None:
    backend = tokenizers.Tokenizer.from_str(pairs("qwen2").to_str())
    backend.normalizer = normalizers.NFC()
    assert_same(loaded(backend), backend, [*CORPUS, *generated(2000), "e\u0301", "\u1100\u1161\u11a8", "Å"])


def test_digits_are_split_although_tokens_join_them() -> None:
    backend = pairs("smollm")
    assert any("1" in word and len(word) > 1 for word in backend.get_vocab())
    texts = ["  12", " 12", "a\n\n7", "\t\t3 4", "x  \u00bd 5", "1  2   3    4"]
    assert [loaded(backend).encode(text) for text in texts] == encoded(backend, texts)
    plain = small_metadata(pre="smollm")
    tokenizer = Tokenizer.from_gguf(plain)
    encoder = loaded(tokenizer._backend)
    assert encoder._splits_digits
    assert [encoder.encode(text) for text in texts[:4]] == encoded(tokenizer._backend, texts[:4])
    assert encoder.encode("x  \u00bd 5") is None, "a number outside ASCII"


def test_a_tokenizer_json_that_splits_digits_is_recognized() -> None:
    backend = tokenizers.Tokenizer.from_str(small()._backend.to_str())
    gpt2 = ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([Digits(individual_digits=True), gpt2])
    encoder = loaded(backend)
    assert encoder._splits_digits
    assert_same(encoder, backend, [*CORPUS, *generated(2000)])


@pytest.mark.parametrize(
    "letters", ["a", "é", "漢", "!", "ก็", "\n", "\U0001f600", "7", "ab-" * 100 + "a", "مَ"]
)
def test_a_text_with_a_long_word_is_left_to_tokenizers(letters: str) -> None:
    word = (letters * 400)[:700] if len(letters) < 10 else letters + "a" * 400
    for text in (
        word,
        f"some words before {word}",
        f"{word} some words after",
        f"a line\n\n{word}. " + "x " * 90,
    ):
        assert small_encoder().encode(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "word " * 200,
        "https://example.org/a/b?c=d&e=f#" * 20,
        '{"a":[1,2,3],"b":{"c":null}},' * 20,
        "漢字を書く、そして読む。" * 40,
        "a" * 120 + " " + "b" * 120,
        " " * 600,
        "x",
        "",
    ],
)
def test_other_texts_are_not_left_to_tokenizers(text: str) -> None:
    assert small_encoder().encode(text) == encoded(pairs("qwen2"), [text])[0]


def test_the_name_of_a_byte_is_left_to_tokenizers() -> None:
    assert real("characters").encode("the <0x0A>") is None
    ids = characters().encode("<0x0A>")
    assert (len(ids), b"".join(map(characters().bytes_of, ids))) == (6, b"<0x0A>")


def test_a_text_without_utf8_is_left_to_tokenizers() -> None:
    assert real("smollm2").encode("a\ud800b") is None


def test_no_text_becomes_a_control_token_or_an_unused_id() -> None:
    metadata = small_metadata()
    tokenizer = Tokenizer.from_gguf(metadata)
    encoder = loaded(tokenizer._backend)
    control = {tokenizer.control(token): token for token in tokenizer.control_tokens()}
    for id, token in control.items():
        for text in (token, f" {id}", f"x {id}", f"{token} {token}"):
            ids = encoder.encode(text)
            assert ids is not None
            assert not control.keys() & {*ids}
            assert b"".join(map(tokenizer.bytes_of, ids)) == text.encode()


def test_a_vocabulary_that_fastokens_does_not_support_is_not_loaded() -> None:
    backend = tokenizers.Tokenizer.from_str(small()._backend.to_str())
    backend.normalizer = normalizers.NFKC()
    assert FastEncoder.load(backend) is None


def test_a_vocabulary_with_other_ids_is_not_loaded() -> None:
    # A pattern that means hexadecimal digits to tokenizers and blanks to fastokens.
    backend = tokenizers.Tokenizer.from_str(pairs("qwen2").to_str())
    hexadecimal = Split(Regex(r"\h+"), behavior="isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [hexadecimal, ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    assert FastEncoder.load(backend) is None


def test_a_vocabulary_is_accelerated_once_it_has_encoded_enough() -> None:
    tokenizer = Tokenizer(pairs("llama-bpe"), {}, "pairs")
    text = "some words " * 1000
    ids = tokenizer.encode(text)
    assert not tokenizer.is_worth_accelerating()
    for _ in range(24):
        tokenizer.encode(text)
    assert tokenizer.is_worth_accelerating()
    assert not tokenizer.is_worth_accelerating(), "only once"
    tokenizer.accelerate()
    assert tokenizer._fast is not None
    assert tokenizer.encode(text) == ids
    assert tokenizer.encode(text * 20) == ids * 20, "in windows"
    assert tokenizer.encode("a" * 70_000) == encoded(tokenizer._backend, ["a" * 70_000])[0]


def test_a_vocabulary_that_cannot_be_accelerated_keeps_working() -> None:
    backend = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    backend.normalizer = normalizers.NFKC()
    tokenizer = Tokenizer(backend, {}, "other")
    tokenizer.accelerate()
    assert tokenizer._fast is None
    assert tokenizer.encode("abba") == [0, 1, 1, 0]
    assert json.loads(backend.to_str())["model"]["vocab"] == {"a": 0, "b": 1}


def test_an_interruption_is_no_reason_to_use_tokenizers() -> None:
    class Interrupted:
        def encode_ordinary(self, text: str) -> list[int]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FastEncoder(Interrupted()).encode("text")
