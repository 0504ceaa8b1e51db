"""Tokenizers encode text and control tokens separately; text never becomes a control token."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import tokenizers
from hypothesis import assume, given, note
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel

from slipring.prompts.tokenization.tokenizer import Tokenizer, UnknownVocabulary, Vocabulary, _split
from tests.prompts.corpus import CORPUS, TEXTS
from tests.prompts.vocabulary import (
    CHATML_CONTROL,
    MERGES,
    ONE_WORD,
    VISIBLE,
    characters,
    characters_metadata,
    control_tokens,
    qwen2,
    qwen2_metadata,
    small,
    small_metadata,
    smollm2,
    smollm2_metadata,
    smollm2_with_llama3,
    with_llama3,
)

VOCABULARIES = {
    "smollm2": smollm2,
    "smollm2 with llama3": smollm2_with_llama3,
    "qwen2": qwen2,
    "small": small,
}
METADATA: dict[str, Callable[[], dict[str, Any]]] = {
    "smollm2": smollm2_metadata,
    "smollm2 with llama3": lambda: with_llama3(smollm2_metadata()),
    "qwen2": qwen2_metadata,
    "small": small_metadata,
}
WITH_ALL_BYTES = ["qwen2", "small"]


@cache
def writable() -> set[int]:
    """The bytes for which SmolLM2 has a token."""
    words = map(smollm2().bytes_of, range(len(smollm2_metadata()["tokenizer.ggml.tokens"])))
    return {word[0] for word in words if len(word) == 1}


def written(tokenizer: Tokenizer, ids: list[int]) -> bytes:
    return b"".join(map(tokenizer.bytes_of, ids))


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("vocabulary", WITH_ALL_BYTES)
def test_the_bytes_of_encoded_tokens_are_the_text(vocabulary: str, text: str) -> None:
    tokenizer = VOCABULARIES[vocabulary]()
    assert written(tokenizer, tokenizer.encode(text)) == text.encode()


@given(st.text() | st.sampled_from(CORPUS))
def test_every_text_round_trips_in_a_vocabulary_with_all_bytes(text: str) -> None:
    for vocabulary in WITH_ALL_BYTES:
        note(vocabulary)
        tokenizer = VOCABULARIES[vocabulary]()
        assert written(tokenizer, tokenizer.encode(text)) == text.encode()


@given(st.text() | st.sampled_from(CORPUS))
def test_only_bytes_without_a_token_are_dropped(text: str) -> None:
    # SmolLM2 lacks a few control characters, and lead bytes of unassigned planes.
    expected = bytes(byte for byte in text.encode() if byte in writable())
    assert written(smollm2(), smollm2().encode(text)) == expected


def test_a_byte_without_a_token_is_dropped() -> None:
    assert written(smollm2(), smollm2().encode("a\x04b")) == b"ab"


@pytest.mark.parametrize(
    ("vocabulary", "text", "ids"),
    [
        ("smollm2", "Hello world", [19556, 905]),
        ("smollm2", "12345", [33, 34, 35, 36, 37]),
        ("smollm2", "<|im_start|>", [44, 108, 306, 79, 3738, 108, 46]),
        ("qwen2", "Hello world", [9707, 1879]),
        ("qwen2", "12345", [16, 17, 18, 19, 20]),
        ("qwen2", "<|im_start|>", [27, 91, 318, 4906, 91, 29]),
    ],
)
def test_real_vocabularies_give_the_ids_of_their_models(vocabulary: str, text: str, ids: list[int]) -> None:
    assert VOCABULARIES[vocabulary]().encode(text) == ids


def test_the_control_tokens_of_qwen2_have_the_ids_of_its_model() -> None:
    tokens = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    assert [qwen2().control(token) for token in tokens] == [151643, 151644, 151645]


def test_merges_and_whole_words_are_applied() -> None:
    hello = small_metadata()["tokenizer.ggml.tokens"].index("hello")
    assert small().encode("hello") == [hello]


def test_digits_are_split_by_the_pre_tokenizer() -> None:
    metadata = small_metadata()
    metadata["tokenizer.ggml.tokens"] += ["11", "1111"]
    metadata["tokenizer.ggml.token_type"] += [1, 1]
    metadata["tokenizer.ggml.merges"] += ["1 1", "11 11"]
    lengths = {}
    for name in ("gpt-2", "llama-bpe", "qwen2", "smollm"):
        tokenizer = Tokenizer.from_gguf(metadata | {"tokenizer.ggml.pre": name})
        lengths[name] = [len(tokenizer.bytes_of(id)) for id in tokenizer.encode("1111")]
    assert lengths == {"gpt-2": [4], "llama-bpe": [2, 1, 1], "qwen2": [1] * 4, "smollm": [1] * 4}


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_no_text_becomes_a_control_token(vocabulary: str) -> None:
    tokenizer = VOCABULARIES[vocabulary]()
    control = control_tokens(METADATA[vocabulary]())
    ids = set(control.values())
    for text in CORPUS:
        assert not ids & set(tokenizer.encode(text))

    @given(st.lists(st.sampled_from(sorted(control)) | st.text(max_size=5), max_size=8))
    def never(pieces: list[str]) -> None:
        for text in ("".join(pieces), " ".join(pieces), "\n".join(pieces)):
            assert not set(tokenizer.encode(text)) & ids

    never()


def test_a_word_that_is_also_a_control_token_is_encoded_with_other_tokens() -> None:
    ids = small().encode(ONE_WORD)
    assert small().control(ONE_WORD) not in ids
    assert written(small(), ids) == ONE_WORD.encode()


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_control_tokens_are_known_by_name(vocabulary: str) -> None:
    tokenizer = VOCABULARIES[vocabulary]()
    for token, id in control_tokens(METADATA[vocabulary]()).items():
        assert tokenizer.has_control(token)
        assert tokenizer.control(token) == id


def test_other_names_are_not_control_tokens() -> None:
    for token in ("<|eot_id|>", "the", ""):
        assert not smollm2().has_control(token)
        with pytest.raises(KeyError):
            smollm2().control(token)


def test_control_tokens_have_no_bytes_and_visible_ones_have_their_text() -> None:
    assert {small().bytes_of(small().control(token)) for token in ("<|im_end|>", "<|eot_id|>")} == {b""}
    assert small().bytes_of(small().control(VISIBLE)) == VISIBLE.encode()


def test_an_id_outside_the_vocabulary_has_no_bytes() -> None:
    assert smollm2().bytes_of(10_000_000) == b""


def test_a_word_outside_the_byte_alphabet_is_encoded_as_utf8() -> None:
    metadata = small_metadata()
    metadata["tokenizer.ggml.tokens"].append("世 界")
    metadata["tokenizer.ggml.token_type"].append(1)
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.bytes_of(len(metadata["tokenizer.ggml.tokens"]) - 1) == "世 界".encode()


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        small_metadata(model="llama"),
        small_metadata(pre="of the future"),
        small_metadata(tokens=[]),
        small_metadata(token_type=[1, 1]),
        {key: value for key, value in small_metadata().items() if not key.endswith("token_type")},
    ],
    ids=["nothing", "model", "pre-tokenizer", "no tokens", "too few types", "no types"],
)
def test_an_unsupported_vocabulary_is_refused_by_name(metadata: dict[str, Any]) -> None:
    with pytest.raises(UnknownVocabulary):
        Tokenizer.from_gguf(metadata)


def test_merges_of_missing_tokens_are_ignored() -> None:
    tokenizer = Tokenizer.from_gguf(small_metadata(merges=[*MERGES, "hello world", "x y", "alone"]))
    assert tokenizer.encode("hello xy") == small().encode("hello xy")


def test_fingerprints_are_stable_and_differ_between_vocabularies() -> None:
    reordered = small_metadata()
    reordered["tokenizer.ggml.tokens"] = reordered["tokenizer.ggml.tokens"][::-1]
    different = [
        smollm2_metadata(),
        with_llama3(smollm2_metadata()),
        small_metadata(),
        small_metadata(pre="qwen2"),
        small_metadata(merges=list(MERGES[::-1])),
        reordered,
    ]
    prints = [Tokenizer.from_gguf(metadata).fingerprint for metadata in different]
    assert len(set(prints)) == len(different)
    assert [Tokenizer.from_gguf(metadata).fingerprint for metadata in different] == prints


# tokenizer.json


def described(*, unknown: str | None = None, ignore_merges: bool = False) -> tokenizers.Tokenizer:
    """A tokenizer whose special tokens are also words of its model, as in many published ones."""
    words = [*sorted(ByteLevel.alphabet()), "he", "ll", "llo", "hello", "ha", "hal", ONE_WORD, "<|end|>"]
    words.remove("Ą")  # the byte 4
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={word: id for id, word in enumerate(words)},
            merges=[
                ("h", "e"),
                ("l", "l"),
                ("ll", "o"),
                ("he", "llo"),
                ("h", "a"),
                ("ha", "l"),
                ("hal", "t"),
            ],
            unk_token=unknown,
            ignore_merges=ignore_merges,
        )
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([ONE_WORD, "<|end|>", "<|start|>"])
    backend.add_tokens([AddedToken(VISIBLE, special=False)])
    return backend


@given(st.text() | st.sampled_from(list(TEXTS.values())))
def test_a_tokenizer_json_gives_the_ids_of_its_library(text: str) -> None:
    backend = described()
    assume(not any(token in text for token in (ONE_WORD, "<|end|>", "<|start|>", VISIBLE, "\x04")))
    tokenizer = Tokenizer.from_json(backend.to_str())
    assert tokenizer.encode(text) == backend.encode(text, add_special_tokens=False).ids
    assert written(tokenizer, tokenizer.encode(text)) == text.encode()


def test_the_added_tokens_of_a_tokenizer_json_are_its_control_tokens() -> None:
    backend = described()
    tokenizer = Tokenizer.from_json(backend.to_str())
    for token in (ONE_WORD, "<|end|>", "<|start|>", VISIBLE):
        assert tokenizer.control(token) == backend.token_to_id(token)
    assert not tokenizer.has_control("hello")
    assert tokenizer.bytes_of(tokenizer.control("<|start|>")) == b""
    assert tokenizer.bytes_of(tokenizer.control(VISIBLE)) == VISIBLE.encode()


@pytest.mark.parametrize("ignore_merges", [False, True])
@pytest.mark.parametrize("unknown", [None, "<|end|>"])
@pytest.mark.parametrize("text", [ONE_WORD, "<|end|>", "<|start|>", f"a{VISIBLE} <|end|>\x04halt halt"])
def test_no_text_becomes_a_special_token_of_a_tokenizer_json(
    text: str, unknown: str | None, ignore_merges: bool
) -> None:
    backend = described(unknown=unknown, ignore_merges=ignore_merges)
    tokenizer = Tokenizer.from_json(backend.to_str())
    ids = tokenizer.encode(text)
    assert not set(ids) & set(backend.get_added_tokens_decoder())
    assert written(tokenizer, ids) == text.replace("\x04", "").encode()


def test_merges_may_be_written_as_pairs_or_as_text() -> None:
    pairs = json.loads(described().to_str())
    texts = json.loads(described().to_str())
    texts["model"]["merges"] = [" ".join(pair) for pair in pairs["model"]["merges"]]
    one, other = (Tokenizer.from_json(json.dumps(value)) for value in (pairs, texts))
    assert one.encode("hello all") == other.encode("hello all")
    assert one.fingerprint != other.fingerprint


def test_an_unsupported_tokenizer_json_is_refused_by_name() -> None:
    words = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    with pytest.raises(UnknownVocabulary, match="WordLevel"):
        Tokenizer.from_json(words.to_str())
    sentencepiece = tokenizers.Tokenizer(models.BPE(vocab={"▁": 0, "a": 1, "▁a": 2}, merges=[("▁", "a")]))
    with pytest.raises(UnknownVocabulary, match="byte-level"):
        Tokenizer.from_json(sentencepiece.to_str())


# Vocabularies of characters, as Gemma's


def gemma(**changes: Any) -> dict[str, Any]:
    """A ``tokenizer.json`` like Gemma's: line ends are words and added tokens, a space is ``▁``."""
    metadata = characters_metadata()
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: id for id, token in enumerate(metadata["tokenizer.ggml.tokens"])},
            merges=[tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    backend.add_special_tokens(["<pad>", "<eos>", "<bos>", "<unk>", *CHATML_CONTROL, ONE_WORD])
    blanks = ["\n" * count for count in range(1, 5)]
    backend.add_tokens([AddedToken(token, normalized=False) for token in (VISIBLE, *blanks)])
    return json.loads(backend.to_str()) | changes


@pytest.mark.parametrize(
    "text", [*TEXTS.values(), "\n" * 11, "a\n\n \n\n\nb", "  the   quick    fox", "▁the ▁▁"]
)
def test_a_tokenizer_json_of_characters_gives_the_ids_of_its_library(text: str) -> None:
    tokenizer = Tokenizer.from_json(json.dumps(gemma()))
    library = tokenizers.Tokenizer.from_str(json.dumps(gemma()))
    for token in tokenizer.control_tokens():
        text = text.replace(token, "")
    ids = tokenizer.encode(text)
    assert ids == library.encode(text, add_special_tokens=False).ids
    tokenizer.accelerate()
    assert tokenizer._fast is not None
    assert tokenizer.encode(text) == ids
    assert written(tokenizer, ids) == text.replace("▁", " ").encode()


def test_no_text_becomes_a_control_token_of_a_vocabulary_of_characters() -> None:
    for tokenizer in (characters(), Tokenizer.from_json(json.dumps(gemma()))):
        assert {*tokenizer.control_tokens()} == {*control_tokens(characters_metadata()), "<unk>"}
        control = {tokenizer.control(token) for token in tokenizer.control_tokens()}
        for text in [*CORPUS, *tokenizer.control_tokens(), "<0x0A>", " 5"]:
            assert not control & {*tokenizer.encode(text)}
        assert tokenizer.bytes_of(tokenizer.control(VISIBLE)) == VISIBLE.encode()
        assert tokenizer.bytes_of(tokenizer.control("<eos>")) == b""
        assert tokenizer.spell("日本".encode(), 3, tokenizer.encode("本")) == tokenizer.encode("日")


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": None},
        {"normalizer": {"type": "NFC"}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {
            "pre_tokenizer": {
                "type": "Metaspace",
                "replacement": "▁",
                "prepend_scheme": "always",
                "split": True,
            }
        },
    ],
)
def test_other_treatments_of_spaces_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UnknownVocabulary, match="spaces"):
        Tokenizer.from_json(json.dumps(gemma(**changes)))


def test_a_vocabulary_of_characters_needs_every_byte_and_merges_for_line_ends() -> None:
    config = gemma()
    del config["model"]["vocab"]["<0x41>"]
    with pytest.raises(UnknownVocabulary, match="byte"):
        Tokenizer.from_json(json.dumps(config))
    metadata = characters_metadata()
    merges = [merge for merge in metadata["tokenizer.ggml.merges"] if "\n" not in merge]
    with pytest.raises(UnknownVocabulary, match="line ends"):
        Tokenizer.from_gguf(metadata | {"tokenizer.ggml.merges": merges})
    types = [
        4 if not token.strip("\n") else type
        for token, type in zip(
            metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"], strict=True
        )
    ]
    user_defined = metadata | {"tokenizer.ggml.merges": merges, "tokenizer.ggml.token_type": types}
    assert Tokenizer.from_gguf(user_defined).encode("a\n\nb") == characters().encode("a\n\nb")


# Spelling: finding emitted ids that the server did not report


@pytest.mark.parametrize("vocabulary", ["smollm2", "qwen2", "small"])
@pytest.mark.parametrize("text", ["👩‍👩‍👧", "👍🏽", "東京", " 東", "é", "﷽", "🇫🇷"])
def test_the_first_tokens_of_a_character_are_found_from_the_last(vocabulary: str, text: str) -> None:
    tokenizer = VOCABULARIES[vocabulary]()
    ids = tokenizer.encode(text)
    for kept in range(1, len(ids)):
        assert tokenizer.spell(text.encode(), len(ids) - kept, ids[-kept:]) == ids[:-kept]


def test_an_unusual_spelling_is_found_by_its_count() -> None:
    last = small().encode("o")
    usual = small().encode("hell")
    assert small().spell(b"hello", len(usual), last) == usual
    spelled = small().spell(b"hello", 4, last)
    assert spelled is not None
    assert (len(spelled), written(small(), spelled)) == (4, b"hell")


@pytest.mark.parametrize(
    ("data", "count", "last"),
    [
        ("東京".encode(), 0, "京"),
        ("東京".encode(), -1, "京"),
        ("東京".encode(), 4, "京"),
        ("東京".encode(), 1, "都"),
        ("東京".encode(), 1, "京"),
        (b"", 1, ""),
        (b"", 0, ""),
        (b"o", 1, "o"),
        (b"xy" * 40, 40, ""),
    ],
    ids=["none", "fewer", "too many", "another end", "no such word", "empty", "nothing", "no room", "long"],
)
def test_without_a_matching_spelling_the_result_is_none(data: bytes, count: int, last: str) -> None:
    assert small().spell(data, count, small().encode(last)) is None


def test_no_spelling_contains_a_control_token() -> None:
    halt, end = small().control(ONE_WORD), small().control("<|im_end|>")
    assert small().spell(ONE_WORD.encode(), 1, []) is None, "one word, but not of text"
    spelled = small().spell(ONE_WORD.encode(), 2, [end])
    assert spelled is not None
    assert halt not in spelled
    assert written(small(), spelled) == ONE_WORD.encode()
    visible = small().spell(VISIBLE.encode(), len(VISIBLE), [])
    assert visible is not None
    assert small().control(VISIBLE) not in visible


@given(st.text(max_size=6), st.integers(-1, 30), st.text(max_size=2))
def test_a_spelling_has_the_given_bytes_and_count(text: str, count: int, last: str) -> None:
    ending = qwen2().encode(last)
    ids = qwen2().spell(text.encode() + last.encode(), count, ending)
    if ids is not None:
        assert (len(ids), written(qwen2(), ids)) == (count, text.encode())


def test_a_search_without_a_result_ends_soon() -> None:
    words = {b"a" * size: size for size in range(1, 20)}
    lookups = 0

    class Counted(dict[bytes, int]):
        def __contains__(self, word: object) -> bool:
            nonlocal lookups
            lookups += 1
            return super().__contains__(word)

    assert _split(b"a" * 47 + b"b", 24, Counted(words)) is None
    assert lookups < 48**3, "every rest is tried once, not once for every way that leads to it"
    found = _split(b"a" * 48, 24, Counted(words))
    assert found is not None
    assert (sum(found), len(found)) == (48, 24)


def test_a_vocabulary_without_a_search_finds_no_spelling() -> None:
    assert Vocabulary.spell(small(), b"a", 1, ()) is None


def test_a_vocabulary_says_how_large_it_is_and_how_it_splits_text() -> None:
    assert smollm2().size == len(smollm2_metadata()["tokenizer.ggml.tokens"])
    assert smollm2().pre_tokenizer == "Split, Split, ByteLevel"
    backend = tokenizers.Tokenizer.from_str(smollm2()._backend.to_str())
    backend.pre_tokenizer = None
    assert Tokenizer(backend, {}, "").pre_tokenizer == ""


def test_a_vocabulary_that_has_no_faster_way_is_not_accelerated() -> None:
    Vocabulary.accelerate(smollm2())
    assert not Vocabulary.is_worth_accelerating(smollm2())


def test_what_is_certain_of_a_text_is_certain_without_knowing_the_words() -> None:
    text = "one line\n\n  and another.  12 é漢"
    certain = Vocabulary.certain_chars(small(), text)
    assert 0 < certain <= small().certain_chars(text)
    for ending in ("", "\n0", ".0", "x", " x", "\u0301"):
        assert small().encode(text[:certain]) + small().encode(text[certain:] + ending) == small().encode(
            text + ending
        )
