"""A budget limits the tokens of a context over all its texts."""

import pytest

from slipring.prompts.tokenization.token_budget import BudgetedEncoder, TokenBudget, TooManyTokens
from tests.prompts.vocabulary import small


def test_an_encoder_raises_once_all_texts_together_exceed_the_budget() -> None:
    encoder = BudgetedEncoder(small(), TokenBudget(10), used=4)
    encoder.expect(["x" * 30])
    with pytest.raises(TooManyTokens) as refused:
        encoder.expect(["x" * 30, "x"])
    assert refused.value.least == 11
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
