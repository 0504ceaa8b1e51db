"""Vocabularies of remote servers: how texts are split before they are sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipring.base.errors import InvalidRequest
from slipring.engines.tokens.remote_vocabulary import ServerVocabulary, spelling_pattern, split_spellings


class CharacterVocabulary(ServerVocabulary):
    """Every character is a token. Records the lengths of its requests."""

    def __init__(self) -> None:
        super().__init__("characters", {"<|im_start|>": 1, "<|im_end|>": 2, "<|endoftext|>": 3})
        self.requests: list[int] = []

    def _pieces(self, text: str) -> list[str]:
        return [text]

    def _tokenize_text(self, text: str) -> tuple[int, ...]:
        self.requests.append(len(text))
        return tuple(range(len(text)))

    def _ask_control(self, token: str) -> int | None:
        return None


class SplittingVocabulary(CharacterVocabulary):
    def _pieces(self, text: str) -> list[str]:
        return split_spellings(text, spelling_pattern(["<s>"]))


async def test_a_text_that_spells_too_many_control_tokens_is_rejected() -> None:
    vocabulary = SplittingVocabulary()
    assert len(vocabulary.encode("<s>" * 4095)) == 3 * 4095
    assert set(vocabulary.requests) == {1, 2, 3}
    with pytest.raises(InvalidRequest) as error:
        vocabulary.encode("<s>" * 4096)
    assert error.value.param == "input"


@given(st.lists(st.sampled_from(["<s>", "<", "s", "<<s>", "x"]), max_size=40).map("".join), st.integers(1, 9))
def test_searching_in_steps_splits_a_text_as_searching_at_once(text: str, step: int) -> None:
    pattern = spelling_pattern(["<s>", "s>x"])
    whole = split_spellings(text, pattern)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("slipring.engines.tokens.remote_vocabulary._STEP_CHARS", step)
        assert split_spellings(text, pattern) == whole
