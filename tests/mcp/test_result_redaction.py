"""Credentials are removed from what a server sent back."""

import pytest

from slipring.mcp.result_redaction import Redaction

SECRET = 'to/k"en'


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (rb'{"a": 1.50, "b": "\u00e9"}', rb'{"a": 1.50, "b": "\u00e9"}'),
        (rb'["to/k\"en", "x"]', rb'["[redacted]","x"]'),
        (rb'["to\/k\"en"]', rb'["[redacted]"]'),
        (rb'["to\/k\u0022en\n"]', rb'["[redacted]\n"]'),
        (rb'["to/k\"en" \no JSON', rb'["[redacted]" \no JSON'),
        (rb'{"to/k\"en": 1}', rb'{"[redacted]":1}'),
    ],
)
def test_json_is_redacted_however_it_is_escaped(raw: bytes, expected: bytes) -> None:
    assert Redaction([SECRET], 4).json(raw) == expected


def test_deep_json_is_redacted_too() -> None:
    raw = b"[" * 100_000 + rb'"to/k\"en"'
    assert b"to/k" not in Redaction([SECRET], 4).json(raw)


def test_text_is_redacted_longest_secret_first() -> None:
    redaction = Redaction(["Bearer abcdef", "abcdef", "on"], 4)
    assert redaction.text("on Bearer abcdef, abcdef") == "on [redacted], [redacted]"
    assert Redaction([], 4).json(b"[1]") == b"[1]"
