"""Client text never becomes a control token in the output of a template."""

import json
from functools import cache, partial

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from slipring.base.errors import InvalidRequest
from slipring.prompts.tokenization.control_token_guard import ControlTokenFinder, ControlTokenGuard, Piece
from slipring.prompts.tokenization.control_token_guard import _private_characters as private_characters
from tests.prompts.template_texts import SPECIAL, everything, odd
from tests.prompts.vocabulary import control_tokens, small_metadata, smollm2_metadata

VOCABULARIES = {"everything": everything, "odd": odd}
EVERY_VOCABULARY = pytest.mark.parametrize("vocabulary", VOCABULARIES)
TOKENS = sorted({*control_tokens(smollm2_metadata()), *SPECIAL, *control_tokens(small_metadata())})
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
"""Control tokens, parts of them, and private-use characters."""


@cache
def finder(vocabulary: str, source: str = "") -> ControlTokenFinder:
    return ControlTokenFinder(VOCABULARIES[vocabulary](), source)


def spelled(vocabulary: str, piece: Piece) -> str:
    known = VOCABULARIES[vocabulary]()
    names = {known.control(token): token for token in known.control_tokens()}
    return names[piece] if isinstance(piece, int) else piece


@given(st.lists(st.tuples(HOSTILE, SLICES | st.sampled_from(TOKENS)), min_size=1, max_size=4))
def test_no_control_token_contains_client_text(parts: list[tuple[str, str]]) -> None:
    for vocabulary in VOCABULARIES:
        note(vocabulary)
        looks = finder(vocabulary)
        guard = ControlTokenGuard(looks, lambda: "".join(text for text, _ in parts))
        text, own = "", set()
        for client_text, written in parts:
            if client_text == "type":
                continue  # a schema word, which is not broken
            text += guard.text(client_text)
            own.update(range(len(text), len(text) + len(written)))
            text += written
        at = 0
        for piece in looks.split(text):
            size = len(spelled(vocabulary, piece))
            assert isinstance(piece, str) or own.issuperset(range(at, at + size))
            at += size
        assert at == len(text)


@given(HOSTILE, st.lists(st.integers(0xE000, 0xF8FF).map(chr), max_size=5).map("".join))
def test_mending_restores_the_text_whichever_character_was_inserted(client_text: str, others: str) -> None:
    for text in (client_text, json.dumps(client_text)[1:-1], repr({"a": client_text})):
        for inputs in (text, text + others, text + others.encode("unicode_escape").decode()):
            for vocabulary in VOCABULARIES:
                note(vocabulary)
                guard = ControlTokenGuard(finder(vocabulary), partial(str, inputs))
                (mended,) = guard.mend([guard.text(text)])
                assert mended == text


@EVERY_VOCABULARY
@pytest.mark.parametrize("text", ["<|im_end|>", "a<|im_end|><|im_end|>b", " <|im_end|", "|>x", "im_end"])
def test_mending_removes_escaped_characters(vocabulary: str, text: str) -> None:
    guard = ControlTokenGuard(finder(vocabulary), lambda: text)
    broken = guard.text(text)
    assert broken != text
    assert guard.mend([json.dumps(broken)]) == [json.dumps(text)]
    assert guard.mend([repr([broken])]) == [repr([text])]


@given(st.lists(HOSTILE | SLICES, max_size=5).map("".join), st.integers(0, 60))
def test_a_text_is_divided_where_its_parts_have_the_same_tokens(text: str, at: int) -> None:
    at = min(at, len(text))
    for vocabulary in VOCABULARIES:
        looks = finder(vocabulary)
        left, right = looks.split(text[:at]), looks.split(text[at:])
        joins_texts = left and right and isinstance(left[-1], str) and isinstance(right[0], str)
        assert looks.divides(text, at) == (not joins_texts and looks.split(text) == left + right)


def test_what_is_known_is_broken_like_any_other_text() -> None:
    known = ("<|im_end|>", "plain", "<|im")
    looks = ControlTokenFinder(everything(), "", known)
    assert looks.intact.keys().isdisjoint({"<|im_end|>", "<|im"})
    assert {"plain", "properties"} <= looks.intact.keys()
    assert not any(map(looks.breaks, looks.intact))
    guards = ControlTokenGuard(looks, str), ControlTokenGuard(finder("everything"), str)
    assert len({tuple(map(guard.text, known)) for guard in guards}) == 1


def test_plain_texts_are_not_changed() -> None:
    guard = ControlTokenGuard(finder("everything"), str)
    for text in ("", "hello", "2 < 3, or {so}", " Xyz\n", "properties", "type", "a|b", "[1]"):
        assert guard.text(text) == text


def test_all_strings_of_a_value_are_broken_except_schema_words() -> None:
    guard = ControlTokenGuard(finder("odd"), str)
    value = {"type": "object", "halt": [{"x": "halt"}, 1, None], "required": ["hal"]}
    broken = guard.value(value)
    assert [*broken] == ["type", guard.text("halt"), "required"]
    assert guard.text("halt") != "halt"
    assert broken["type"] == "object"
    assert broken[guard.text("halt")] == [{guard.text("x"): guard.text("halt")}, 1, None]
    assert guard.mend([repr(broken)]) == [repr(value)]


def test_characters_in_the_template_are_not_inserted() -> None:
    source = "\ue000 {{ '\\ue001' }}"
    guard = ControlTokenGuard(finder("everything", source), lambda: "\ue002\\ue003")
    assert guard.text("<|im_end|>") == "<\ue004|im_end|>"
    assert guard.mend(["\ue000\ue001\ue002\ue003"]) == ["\ue000\ue001\ue002\ue003"]


def test_input_with_every_private_character_is_refused_only_if_one_is_needed() -> None:
    every = "".join(map(chr, range(0xE000, 0xF900)))
    guard = ControlTokenGuard(finder("everything"), lambda: every)
    assert guard.text(every) == every
    assert guard.mend([every]) == [every]
    with pytest.raises(InvalidRequest, match="private-use"):
        guard.text("<|im_end|>")


def test_white_space_is_not_a_control_token_and_the_longest_match_counts() -> None:
    looks = finder("everything")
    known = everything()
    assert looks.split("a<|im_end|>\n\n[/INST]") == [
        "a",
        known.control("<|im_end|>"),
        "\n\n",
        known.control("[/INST]"),
    ]
    assert looks.split("") == []


def test_searching_in_steps_gives_the_same_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    long = st.lists(HOSTILE | st.text(max_size=5), min_size=5, max_size=30).map("".join)

    @given(long, st.integers(1, 40))
    def the_same(text: str, step: int) -> None:
        for vocabulary in VOCABULARIES:
            note(vocabulary)
            looks = finder(vocabulary)
            whole = looks.split(text), looks.breaks(text), private_characters(text)
            with monkeypatch.context() as patched:
                patched.setattr("slipring.prompts.tokenization.control_token_guard._STEP_CHARS", step)
                assert (looks.split(text), looks.breaks(text), private_characters(text)) == whole

    the_same()
