"""What is removed from recordings, and what is not."""

import json

import pytest

from slipring.server.observation.recorded_secrets import SecretRemoval

KEY = "sk-slip-0123456789abcdef.0123456789abcdefghijklmnopqrstuvwxyz0123456"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"key {KEY} end", "key [removed] end"),
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer [removed]"),
        ('{"authorization": "Basic dXNlcjpwYXNz"}', '{"authorization": "Basic [removed]"}'),
        ("-H 'x-api-key: 0123456789'", "-H 'x-api-key: [removed]'"),
        ("ghp_0123456789abcdefghijABCDEFGHIJ", "[removed]"),
        ('of "mine" here', "of [removed] here"),
        ("k and kk", "[removed] and kk"),
        ("The bearer of this, authorization = off, sk-learn", None),
        ("ask-me-anything-about-something-long", None),
    ],
)
def test_texts(text: str, left: str | None) -> None:
    removal = SecretRemoval(['"mine"', "k", ""])
    raw = bytes(removal.item("message", json.dumps({"content": text}).encode()))
    assert json.loads(raw)["content"] == (text if left is None else left)
    assert removal.text(text) == json.loads(raw)["content"]


@pytest.mark.parametrize("offset", range(-80, 80, 7))
def test_a_key_anywhere_in_a_long_text(offset: int) -> None:
    before = "x " * ((32 * 1024 + offset) // 2)
    assert SecretRemoval([]).text(f"{before}{KEY} after") == f"{before}[removed] after"


def test_tools_in_items() -> None:
    item = {
        "type": "additional_tools",
        "tools": [
            {"type": "mcp", "server_url": "https://u:p@h/x?k=v", "headers": {"a": "b"}, "authorization": "c"},
            {"type": "mcp", "server_url": "https://[h/x"},
            {"server_label": "no type", "headers": {"a": "b"}},
            {"type": "function", "name": "f", "parameters": {"properties": {"headers": {}}}},
        ],
    }
    cleaned = json.loads(bytes(SecretRemoval([]).item("additional_tools", json.dumps(item).encode())))
    assert cleaned["tools"] == [
        {"type": "mcp", "server_url": "https://h/x"},
        {"type": "mcp", "server_url": "[removed]"},
        {"server_label": "no type"},
        item["tools"][3],
    ]
