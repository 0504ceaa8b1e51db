"""The parser of event streams."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipring.mcp.failures import TooLarge
from slipring.mcp.protocol.sse import Event, SseParser

STREAM = (
    b"\xef\xbb\xbf: welcome\r\nid: 1\r\nretry: 1500\r\ndata: \r\n\r\n"
    b'event: message\ndata: {"a":\ndata:1}\nid: 2\n\n'
    b"unknown: x\ndatabase: y\n\n\n\n\n"
    b"event: endpoint\rdata: /messages\r\r"
    b"data\n\nid: bad\0id\nretry: soon\ndata:  two spaces\n\ndata: unfinished"
)
EVENTS = [
    Event("message", b'{"a":\n1}'),
    Event("endpoint", b"/messages"),
    Event("message", b" two spaces"),
]


def parsed(pieces: list[bytes]) -> tuple[list[Event], SseParser]:
    parser = SseParser(1000)
    return [event for piece in pieces for event in parser.feed(piece)], parser


def test_fields_comments_and_all_line_ends_are_understood() -> None:
    events, parser = parsed([STREAM])
    assert events == EVENTS
    assert (parser.last_event_id, parser.retry_s) == ("2", 1.5)
    assert (parser.continued().last_event_id, parser.continued().retry_s) == ("2", 1.5)


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_where_the_stream_is_cut_does_not_matter(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[start:end] for start, end in itertools.pairwise(places)]
    assert parsed(pieces)[0] == EVENTS


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_any_bytes_are_parsed_within_the_bound(pieces: list[bytes]) -> None:
    whole, _ = parsed([b"".join(pieces)])
    assert parsed(pieces)[0] == whole


@pytest.mark.parametrize("piece", [b"x", b"data: xxxx\n", b"data:\n"])
def test_an_event_without_end_is_refused(piece: bytes) -> None:
    with pytest.raises(TooLarge):
        parsed([piece] * 2000)


def test_many_events_in_one_piece_are_not_one_large_event() -> None:
    assert len(parsed([b"data: x\n\n" * 1000])[0]) == 1000
