"""Control tokens are the template's own, whatever clients say."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipring.errors import InvalidRequest
from slipring.prompts.tokenization.control_token_guard import Guard, Lookalikes, Piece
from slipring.prompts.tokenization.control_token_guard import _private_characters as private_characters
from tests.prompts.template_texts import everything, odd

VOCABULARIES = {"everything": everything, "odd": odd}
EVERY_VOCABULARY = pytest.mark.parametrize("vocabulary", VOCABULARIES)
TOKENS = sorted({*everything().control_tokens(), *odd().control_tokens()})
SLICES = st.builds(
    lambda token, start, end: token[start:end], st.sampled_from(TOKENS), st.integers(0, 5), st.integers(0, 20)
)
PRIVATE = "\ue000\ue001\uf8ff"
HOSTILE = st.lists(
    st.sampled_from(TOKENS)
    | SLICES
    | st.sampled_from([*PRIVATE, "\\ue000", " ", "\n", "<", ">", "t", "type"]),
    max_size=4,
).map("".join)
"""Control tokens, pieces of them, and the characters that they are broken with."""


def lookalikes(vocabulary: str, source: str = "") -> Lookalikes:
    return Lookalikes(VOCABULARIES[vocabulary](), source)


def spelled(vocabulary: str, piece: Piece) -> str:
    known = VOCABULARIES[vocabulary]()
    names = {known.control(token): token for token in known.control_tokens()}
    return names[piece] if isinstance(piece, int) else piece


@EVERY_VOCABULARY
def test_no_control_token_has_a_character_of_a_client(vocabulary: str) -> None:
    looks = lookalikes(vocabulary)

    @given(st.lists(st.tuples(HOSTILE, SLICES | st.sampled_from(TOKENS)), min_size=1, max_size=4))
    def never(parts: list[tuple[str, str]]) -> None:
        guard = Guard(looks, "".join(said for said, _ in parts))
        text, own = "", set()
        for said, written in parts:
            if said == "type":
                continue  # a word of schemas, which is left as it is
            text += guard.text(said)
            own.update(range(len(text), len(text) + len(written)))
            text += written
        at = 0
        for piece in looks.split(text):
            size = len(spelled(vocabulary, piece))
            assert isinstance(piece, str) or own.issuperset(range(at, at + size))
            at += size
        assert at == len(text)

    never()


@EVERY_VOCABULARY
def test_what_was_broken_is_mended_whichever_character_was_chosen(vocabulary: str) -> None:
    looks = lookalikes(vocabulary)

    @given(HOSTILE, st.lists(st.integers(0xE000, 0xF8FF).map(chr), max_size=5).map("".join))
    def the_same(said: str, others: str) -> None:
        for text in (said, json.dumps(said)[1:-1], repr({"a": said})):
            for inputs in (text, text + others, text + others.encode("unicode_escape").decode()):
                guard = Guard(looks, inputs)
                (mended,) = guard.mend([guard.text(text)])
                assert mended == text

    the_same()


@EVERY_VOCABULARY
@pytest.mark.parametrize("said", ["<|im_end|>", "a<|im_end|><|im_end|>b", " <|im_end|", "|>x", "im_end"])
def test_escaping_does_not_hinder_mending(vocabulary: str, said: str) -> None:
    guard = Guard(lookalikes(vocabulary), said)
    broken = guard.text(said)
    assert broken != said
    assert guard.mend([json.dumps(broken)]) == [json.dumps(said)]
    assert guard.mend([repr([broken])]) == [repr([said])]


def test_plain_texts_are_left_as_they_are() -> None:
    guard = Guard(lookalikes("everything"), "")
    for text in ("", "hello", "2 < 3, or {so}", " Xyz\n", "properties", "type", "a|b", "[1]"):
        assert guard.text(text) == text


def test_all_texts_of_a_value_are_broken_but_the_words_of_schemas() -> None:
    guard = Guard(lookalikes("odd"), "")
    value = {"type": "object", "halt": [{"x": "halt"}, 1, None], "required": ["hal"]}
    broken = guard.value(value)
    assert [*broken] == ["type", guard.text("halt"), "required"]
    assert guard.text("halt") != "halt"
    assert broken["type"] == "object"
    assert broken[guard.text("halt")] == [{guard.text("x"): guard.text("halt")}, 1, None]
    assert guard.mend([repr(broken)]) == [repr(value)]


def test_characters_of_the_template_are_not_chosen() -> None:
    source = "\ue000 {{ '\\ue001' }}"
    guard = Guard(lookalikes("everything", source), "\ue002\\ue003")
    assert guard.text("<|im_end|>") == "<\ue004|im_end|>"
    assert guard.mend(["\ue000\ue001\ue002\ue003"]) == ["\ue000\ue001\ue002\ue003"]


def test_input_that_leaves_no_character_is_refused_only_if_one_is_needed() -> None:
    every = "".join(map(chr, range(0xE000, 0xF900)))
    guard = Guard(lookalikes("everything"), every)
    assert guard.text(every) == every
    assert guard.mend([every]) == [every]
    with pytest.raises(InvalidRequest, match="private-use"):
        guard.text("<|im_end|>")


def test_white_space_is_no_control_token_and_the_longest_comes_first() -> None:
    looks = lookalikes("everything")
    known = everything()
    assert looks.split("a<|im_end|>\n\n[/INST]") == [
        "a",
        known.control("<|im_end|>"),
        "\n\n",
        known.control("[/INST]"),
    ]
    assert looks.split("") == []


@EVERY_VOCABULARY
def test_a_text_that_is_searched_in_steps_is_cut_as_one_that_is_not(
    vocabulary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = lookalikes(vocabulary)
    long = st.lists(HOSTILE | st.text(max_size=5), min_size=5, max_size=30).map("".join)

    @given(long, st.integers(1, 40))
    def the_same(text: str, step: int) -> None:
        whole = looks.split(text), looks.breaks(text), private_characters(text)
        with monkeypatch.context() as patched:
            patched.setattr("slipring.prompts.tokenization.control_token_guard._STEP_CHARS", step)
            assert (looks.split(text), looks.breaks(text), private_characters(text)) == whole

    the_same()
