"""JSON as its reader gets it, also while it is being written."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipring.core.checks.inspected_texts import GrowingJson, as_read, as_read_if_json, unescaped

PIECES = ["a", r"\\", r"\u007a", r"\uD83d\uDe00", r"\"", r"\n", r"\ud83d", r"\ude00", "u0", r"\x", "\\", "é"]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('{"x":1}', '{"x":1}'),
        (r'{"\u0078":"\u007aebra"}', '{"x":"zebra"}'),
        (r'"\b\f\n\r\t\/\"\\"', '"\b\f\n\r\t/"\\"'),
        (r'"\\u007a"', '"\\u007a"'),
        (r'"\ud83d\ude00"', '"😀"'),
    ],
)
def test_escapes_of_json_are_read(written: str, read: str):
    assert as_read(written) == as_read_if_json(written) == unescaped(written) == read


@given(st.recursive(st.text() | st.integers(), lambda inner: st.dictionaries(st.text(), inner), max_leaves=5))
def test_every_string_of_a_json_value_is_in_what_is_read(value: object):
    for text in _strings(value):
        assert text in as_read(json.dumps(value))


def _strings(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for key, inner in value.items() for text in (key, *_strings(inner))]
    return [value] if isinstance(value, str) else []


def test_half_of_a_pair_is_no_character():
    assert unescaped(r"\ud83d-\ude00") == "\ufffd-\ufffd"
    assert as_read(r'"\ud83dz"') == '"\\ud83dz"\n"\ufffdz"'


def test_what_is_no_json_is_read_both_ways_if_its_reader_expects_json():
    assert as_read(r"C:\u0041") == "C:\\u0041\nC:A"
    assert as_read_if_json(r"C:\u0041") == r"C:\u0041"


@given(st.lists(st.sampled_from(PIECES)).map("".join), st.data())
def test_pieces_are_read_as_the_whole_is(written: str, data: st.DataObject):
    text, read, begin = GrowingJson(), "", 0
    settled: list[tuple[int, int]] = [(0, 0)]
    while begin < len(written):
        end = data.draw(st.integers(begin + 1, min(begin + 7, len(written))))
        read += text.add(written[begin:end])
        begin = end
        position = data.draw(st.integers(settled[-1][0], len(read)))
        settled.append((position, text.written_before(position)))
    read += text.close()
    assert read == unescaped(written)
    assert text.written_before(len(read)) == len(written)
    for position, length in settled:
        # What lies before is read in no other way, whatever follows.
        assert read.startswith(unescaped(written[:length]))
        assert len(unescaped(written[:length])) <= position
