"""A budget limits the tokens of a context over all its texts."""

import pytest

from slipring.prompts.tokenization.token_budget import BudgetedEncoder, TokenBudget, TooManyTokens
from tests.prompts.vocabulary import qwen2, small


def test_an_encoder_raises_once_all_texts_together_exceed_the_budget() -> None:
    encoder = BudgetedEncoder(small(), TokenBudget(10), used=4)
    encoder.expect(["x" * 30])
    with pytest.raises(TooManyTokens) as refused:
        encoder.expect(["x" * 30, "x"])
    assert refused.value.least == 11
    assert encoder.encode("") == []
    assert encoder.encode("abcdef") == small().encode("abcdef")
    assert encoder.used == 10
    with pytest.raises(TooManyTokens) as refused:
        encoder.encode("g")
    assert refused.value.least == 11


def test_an_encoder_does_not_encode_cached_texts_again() -> None:
    cache: dict[str, list[int]] = {}
    first = BudgetedEncoder(small(), cache=cache).encode("hello there")
    assert cache == {"hello there": first}
    cache["hello there"] = [1]
    assert BudgetedEncoder(small(), cache=cache).encode("hello there") == [1]


def test_a_long_text_that_exceeds_the_budget_counts_together_with_earlier_ones() -> None:
    encoder = BudgetedEncoder(qwen2(), TokenBudget(10_000), used=7)
    with pytest.raises(TooManyTokens) as refused:
        encoder.encode("0123456789" * 8000)
    first_window = refused.value.least - 7
    assert 10_000 < first_window < 80_000
