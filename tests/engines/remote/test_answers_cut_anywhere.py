"""Answers of servers, generated: the same however reads cut them, and bounded when they are no HTTP.

The reads are made here, not by a socket: a socket may join what was written apart.
"""

import asyncio
import io
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipring.engines.remote.http_client import ConnectionPool
from slipring.engines.remote.http_connection import Answer, Connection

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Reads(asyncio.Transport):
    """A transport whose reads a test makes."""

    def __init__(self) -> None:
        super().__init__()
        self.is_aborted = self.is_paused = False

    def writelines(self, list_of_data: Any) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


@dataclass(frozen=True)
class Outcome:
    """What became of an answer."""

    status: int = 0
    body: bytes = b""
    is_kept: bool = False
    has_failed: bool = False


Reading = Callable[[Answer, bytearray], Any]


async def read(answer: Answer, body: bytearray) -> None:
    while piece := await answer.read():
        body += piece


async def push(answer: Answer, body: bytearray) -> None:
    def take(data: bytes) -> bool:
        body.extend(data)
        return len(data) % 3 != 0  # now and then the rest waits

    while True:
        await answer.push(take)
        if not answer._unread and not answer.is_complete:
            continue
        if not (rest := await answer.read()):
            return
        body += rest


async def outcome(pieces: list[bytes], reading: Reading) -> Outcome:
    """Read the answer that comes in these pieces, after which the server closes the connection."""
    pool = ConnectionPool("http://x", None, 1.0, keeps=True)
    connection, transport = Connection(pool), Reads()
    connection.connection_made(transport)

    async def ask() -> Outcome:
        answer = await connection.ask([REQUEST], None)
        body = bytearray()
        await reading(answer, body)
        is_kept = answer.is_kept
        answer.release()
        return Outcome(answer.status, bytes(body), is_kept)

    task = asyncio.ensure_future(ask())
    await asyncio.sleep(0)
    for piece in pieces:
        for _ in range(8):
            await asyncio.sleep(0)
            if not transport.is_paused:
                break
        if transport.is_aborted or task.done():
            break
        connection.data_received(piece)
    if not transport.is_aborted:
        for _ in range(4):
            await asyncio.sleep(0)
        if not task.done():
            connection.eof_received()
    connection.connection_lost(None)
    try:
        done, _ = await asyncio.wait([task], timeout=30)
        assert done, "it hangs"
        result = task.result()
    except (HTTPException, OSError):
        result = Outcome(has_failed=True)
    finally:
        pool.close()
    assert not pool._all
    assert not pool._idle
    return result


TEXT = st.text("abcXYZ09 -_=;", max_size=12).map(lambda text: text.strip().encode())
HEADERS = st.lists(
    st.tuples(st.sampled_from([b"X-A", b"server", b"DATE"]), TEXT).map(
        lambda pair: pair[0] + b": " + pair[1] + b"\r\n"
    ),
    max_size=3,
).map(b"".join)
BODIES = st.lists(st.binary(min_size=1, max_size=40) | st.just(b"\r\n0\r\n\r\n"), max_size=5)


@dataclass(frozen=True)
class Sent:
    """The bytes of an answer, and what they mean."""

    data: bytes
    expected: Outcome


@st.composite
def answers(draw: st.DrawFn) -> Sent:
    interim = draw(
        st.lists(
            st.sampled_from(
                [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"]
            )
        )
    )
    headers, pieces = draw(HEADERS), draw(BODIES)
    body = b"".join(pieces)
    status = draw(st.sampled_from([200, 201, 404, 503, 204, 304]))
    closes = draw(st.booleans())
    if closes:
        headers += b"Connection: close\r\n"
    kind = draw(st.sampled_from(["length", "chunked", "close"]))
    is_kept = not closes
    if kind == "length":
        headers += b"Content-Length: %d\r\n" % len(body)
        data = body
    elif kind == "chunked":
        headers += b"Transfer-Encoding: chunked\r\n"
        zeros, extension = (
            draw(st.sampled_from([b"", b"0", b"000"])),
            draw(st.sampled_from([b"", b";a=b", b" ;q"])),
        )
        trailers = draw(HEADERS)
        data = b"".join(zeros + b"%x" % len(each) + extension + b"\r\n" + each + b"\r\n" for each in pieces)
        data += zeros + b"0" + extension + b"\r\n" + trailers + b"\r\n"
    else:
        data, is_kept = body, False
    if status in (204, 304):
        data, body, is_kept = b"", b"", not closes
    head = b"HTTP/1.1 %d Some\r\n" % status + headers + b"\r\n"
    return Sent(b"".join([*interim, head, data]), Outcome(status, body, is_kept))


def cut(data: bytes, at: list[int]) -> list[bytes]:
    ends = sorted({each % (len(data) + 1) for each in at} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(ends)]


CUTS = st.lists(st.integers(0, 2**16), max_size=12)


class Bytes:
    """What the standard library reads an answer from."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, *_: object) -> io.BytesIO:
        return io.BytesIO(self._data)


def by_the_standard_library(data: bytes) -> tuple[int, bytes]:
    response = HTTPResponse(cast("Any", Bytes(data)))
    response.begin()
    return response.status, response.read()


@pytest.mark.parametrize("reading", [read, push])
@settings(max_examples=150, deadline=None)
@given(sent=answers(), at=CUTS)
def test_valid_answers_are_the_same_however_they_are_cut(reading: Reading, sent: Sent, at: list[int]) -> None:
    for pieces in (cut(sent.data, at), [sent.data], [bytes([each]) for each in sent.data]):
        assert asyncio.run(outcome(pieces, reading)) == sent.expected
    # The standard library skips no other interim answer than 100, and looks for chunks behind a 204.
    if b" 103 " not in sent.data and sent.expected.status not in (204, 304):
        assert by_the_standard_library(sent.data) == (sent.expected.status, sent.expected.body)


@pytest.mark.parametrize("reading", [read, push])
@settings(max_examples=200, deadline=None)
@given(
    sent=answers(),
    at=CUTS,
    edits=st.lists(
        st.tuples(st.integers(0, 2**16), st.integers(0, 3), st.binary(max_size=3)), min_size=1, max_size=4
    ),
)
def test_damaged_answers_fail_or_are_read_the_same_however_they_are_cut(
    reading: Reading, sent: Sent, at: list[int], edits: list[tuple[int, int, bytes]]
) -> None:
    data = sent.data
    for place, removed, added in edits:
        start = place % (len(data) + 1)
        data = data[:start] + added + data[start + removed :]
    whole = asyncio.run(outcome([data] if data else [], reading))
    assert asyncio.run(outcome(cut(data, at), reading)) == whole
