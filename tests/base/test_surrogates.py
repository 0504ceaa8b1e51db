"""Halves of surrogate pairs in JSON are replaced, and nothing else is."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipring.base.surrogates import repaired

PIECES = st.sampled_from(
    ["\\", "\\u", "ud83d", "\ud83d", "\ude00", "\udbff", "\ud800", "a", '"', "\n", "é", "😀"]
)


@given(st.lists(PIECES).map("".join))
def test_repaired_json_is_the_text_without_halves(text: str) -> None:
    # Python joins two halves that follow each other, as a decoder of UTF-16 does.
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    for upper in (False, True):
        escaped = json.dumps(text)
        if upper:
            escaped = escaped.replace("\\ud", "\\uD")
            if json.loads(escaped) != text:
                continue  # it was no escape
        assert msgspec.json.decode(repaired(escaped.encode())) == whole


@pytest.mark.parametrize(
    "kept", [rb'"\ud83d\ude00"', rb'"\\ud83d"', rb'"\\\\udc00"', rb'"\u00e9"', b'"\xf0\x9f\x98\x80"']
)
def test_whole_json_stays_as_it_is(kept: bytes) -> None:
    assert repaired(kept) == kept


def test_many_backslashes_take_no_longer_than_their_length() -> None:
    run = b"\\" * 1_000_000
    assert repaired(b'"' + run + b'"') == b'"' + run + b'"'
