"""UTF-8 is decoded piece by piece."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipring.engines.tokens.token_answer import Utf8Stream


def decoded(*pieces: bytes) -> list[str]:
    stream = Utf8Stream()
    return [*(stream.feed(piece) for piece in pieces), stream.finish()]


@pytest.mark.parametrize(
    ("pieces", "texts"),
    [
        ([], [""]),
        ([b""], ["", ""]),
        ([b"abc", b"d"], ["abc", "d", ""]),
        (["é".encode()[:1], "é".encode()[1:]], ["", "é", ""]),
        ([b"a\xf0\x9f", b"\x92", b"\xa9b"], ["a", "", "💩b", ""]),
        ([b"a\xff", b"b"], ["a\ufffd", "b", ""]),
        ([b"a\xe2\x82", b"b"], ["a", "\ufffdb", ""]),
        ([b"a\xe2\x82"], ["a", "\ufffd"]),
        ([b"\x80"], ["\ufffd", ""]),
    ],
)
def test_text_is_returned_as_soon_as_its_characters_are_complete(
    pieces: list[bytes], texts: list[str]
) -> None:
    assert decoded(*pieces) == texts


@given(st.lists(st.binary(max_size=5) | st.text(max_size=5).map(str.encode)))
def test_any_split_of_bytes_gives_the_same_text(pieces: list[bytes]) -> None:
    assert "".join(decoded(*pieces)) == b"".join(pieces).decode(errors="replace")


@given(st.text())
def test_text_is_decoded_byte_by_byte(text: str) -> None:
    data = text.encode()
    assert "".join(decoded(*(data[at : at + 1] for at in range(len(data))))) == text
