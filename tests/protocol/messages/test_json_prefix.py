"""The part of a text that may become a JSON object, against a parser that clients use."""

import json

import jiter
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slipring.protocol.messages.json_prefix import JsonPrefix

PIECES = st.sampled_from(
    [
        *'{}[]:,"\\/ \n\t-+.0159eEaxuU',
        *('"a"', '"a":', "true", "false", "null", "nul", "NaN", '"\\u00e9"', '"\\ud83d\\ude00"', '"\\ud83d"'),
        *('"\\ude00"', '{"a":1}', "[1,2]", "1.5e-3", "01", "-", "é", "😀", "\x01", '"\\ud83d\\n'),
    ]
)
TEXTS = st.lists(PIECES, max_size=14).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def survives(text: str) -> bool:
    """Whether a client parses it, as far as it has come."""
    try:
        jiter.from_json(text.encode("utf-8", "surrogatepass"), partial_mode=True)
    except ValueError:
        return False
    return True


@settings(max_examples=1500)
@given(TEXTS.map("{".__add__))
@example('{"a": 1e')
@example('{"a": -x}')
@example('{"a": 0.}')
@example('{"a": 00}')
@example('{"a": 1e+}')
@example('{"a": tru3}')
@example('{"a": "\\ud83dx"}')
@example('{"a": "\\ud83d\\t"}')
@example('{"a": "\\ud83d\\u0041"}')
@example('{"a": "\\udc00"}')
@example('{"a": "\\u00g0"}')
@example('{"a" 1}')
@example('{"a": 1,}')
@example('{"a": [1,]}')
@example('{"a": [,1]}')
@example('{"a": [}')
@example('{"a": 1} x')
def test_clients_survive_what_is_accepted(text: str) -> None:
    prefix = JsonPrefix()
    assert survives(prefix.accept(text))
    assert prefix.accept("") == ""
    try:
        whole = isinstance(msgspec.json.decode(text.encode("utf-8", "replace")), dict)
    except (ValueError, RecursionError):
        whole = False
    assert (prefix.is_whole and not prefix.is_broken) == whole


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=4), st.booleans(), st.data())
def test_every_object_is_accepted_however_it_is_cut(value: object, ascii: bool, data: st.DataObject) -> None:
    text = json.dumps(value, ensure_ascii=ascii)
    text = text.encode("utf-8", "replace").decode()
    prefix, at = JsonPrefix(), 0
    while at < len(text):
        end = data.draw(st.integers(at + 1, len(text)))
        piece = text[at:end]
        assert prefix.accept(piece) == piece
        at = end
    assert prefix.is_whole
    assert not prefix.is_broken


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("", ""),
        ("[1]", ""),
        ('"a"', ""),
        (' {"a": Rome}', ' {"a": '),
        ('{"a": "one\ntwo"}', '{"a": "one'),
        ('{"a": 1}\n', '{"a": 1}\n'),
        ('{"a": 1}}', '{"a": 1}'),
        ("{'a': 1}", "{"),
    ],
)
def test_a_text_is_cut_where_it_breaks(text: str, accepted: str) -> None:
    whole, pieces = JsonPrefix(), JsonPrefix()
    assert whole.accept(text) == accepted
    assert "".join(pieces.accept(char) for char in text) == accepted
    assert whole.is_broken == pieces.is_broken == (accepted != text)


def test_what_is_too_deep_for_clients_is_not_accepted() -> None:
    prefix = JsonPrefix()
    deep = '{"a":' + "[" * 500
    assert survives(prefix.accept(deep))
    assert prefix.is_broken
