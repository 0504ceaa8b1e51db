"""RFC 6455, frame by frame: which frames a client may send, and which close its connection.

All tests use ``/v1/responses``. The last section, and docs/compatibility/connections.md, describe where
aiohttp deviates from the RFC.
"""

import asyncio
import json
import struct
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from slipring.core.limits import Limits
from slipring.server.transports.websocket import WebSocketConnection
from tests.harness import TERMINAL, PuppetEngine, serve
from tests.server.raw import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    RawSocket,
    connection_of,
    fill,
    frame,
    gone,
    narrow,
    only_client,
    open_raw,
    open_tcp,
    until,
)

CREATE = '{"type": "response.create", "input": "é€😀"}'.encode()
DEFLATE = "Sec-WebSocket-Extensions: permessage-deflate\r\n"
ECHO = "/slipring/echo"


@asynccontextmanager
async def opened(**settings: object) -> AsyncIterator[RawSocket]:
    """A connection to a new server, which has no client left at the end."""
    async with serve(**settings) as server:  # type: ignore[arg-type]
        async with open_raw(server) as raw:
            yield raw
        await gone(server)


async def answered(raw: RawSocket) -> None:
    """Read one response to its end."""
    while (await raw.receive_event())["type"] not in TERMINAL:
        pass


async def closing(raw: RawSocket) -> tuple[int | None, str]:
    """The code and reason of a close frame, which must be the next and last frame."""
    opcode, payload = await raw.receive_frame()
    assert opcode == CLOSE, (opcode, payload)
    assert await raw.ended() == b""
    if not payload:
        return None, ""
    return struct.unpack("!H", payload[:2])[0], payload[2:].decode()


def close_payload(code: int, reason: bytes = b"") -> bytes:
    return struct.pack("!H", code) + reason


# Valid messages in every form.


@pytest.mark.parametrize("opcode", [TEXT, BINARY])
@pytest.mark.parametrize("size", [1, 2, 7])
async def test_a_message_may_arrive_in_many_fragments_with_pings_between_them(opcode: int, size: int) -> None:
    async with opened() as raw:
        for start in range(0, len(CREATE), size):
            first, last = start == 0, start + size >= len(CREATE)
            fragment = frame(opcode if first else CONTINUATION, CREATE[start : start + size], final=last)
            if last:
                await raw.send(fragment)
            else:
                payload = str(start).encode()
                await raw.send(fragment + frame(PING, payload))
                assert await raw.receive_frame() == (PONG, payload)
        await answered(raw)


async def test_fragments_may_be_empty() -> None:
    async with opened() as raw:
        await raw.send_frame(TEXT, b"", final=False)
        await raw.send_frame(CONTINUATION, b"", final=False)
        await raw.send_frame(CONTINUATION, CREATE, final=False)
        await raw.send_frame(CONTINUATION, b"")
        await answered(raw)


async def test_a_frame_may_arrive_byte_by_byte_and_many_frames_at_once() -> None:
    async with opened() as raw:
        for byte in frame(TEXT, CREATE, mask=b"\x01\x80\xff\x7f"):
            await raw.send(bytes([byte]))
        await answered(raw)
        await raw.send(frame(PING, b"one") + frame(PONG, b"unasked") + frame(PING, b"two"))
        assert await raw.receive_frame() == (PONG, b"one")
        assert await raw.receive_frame() == (PONG, b"two")


async def test_a_payload_is_unmasked_whatever_the_mask() -> None:
    async with opened() as raw:
        for mask in (b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"abcd"):
            await raw.send(frame(TEXT, CREATE, mask=mask))
            await answered(raw)


@pytest.mark.parametrize("payload", [b"", b"\x00\xff\xfe", b"x" * 125])
async def test_a_ping_is_answered_with_its_payload_also_during_a_response(payload: bytes) -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, open_raw(server) as raw:
        await raw.create(input="hello")
        performance = await engine.next()
        for kind in ("response.created", "response.in_progress"):
            assert (await raw.receive_event())["type"] == kind
        await raw.send_frame(PING, payload)
        assert await raw.receive_frame() == (PONG, payload)
        performance.finish()
        await answered(raw)


async def test_an_unsolicited_pong_is_ignored() -> None:
    async with opened() as raw:
        await raw.send_frame(PONG, b"hello")
        await raw.send_frame(TEXT, CREATE)
        await answered(raw)


# Invalid UTF-8.

NOT_UTF8 = [
    b"\xff",
    b"\x80",
    b"\xc0\xaf",  # overlong
    b"\xed\xa0\x80",  # half of a surrogate pair
    b"\xf4\x90\x80\x80",  # beyond the last code point
    b"\xe2\x82",  # truncated
]


@pytest.mark.parametrize("bad", NOT_UTF8)
async def test_invalid_utf8_closes_the_connection(bad: bytes) -> None:
    async with opened() as raw:
        await raw.send_frame(TEXT, CREATE[:-2] + bad)
        assert (await closing(raw))[0] == 1007


@pytest.mark.parametrize("bad", NOT_UTF8)
async def test_invalid_utf8_across_fragments_closes_the_connection(bad: bytes) -> None:
    async with opened() as raw:
        await raw.send_frame(TEXT, b"{" + bad[:1], final=False)
        await raw.send_frame(CONTINUATION, bad[1:], final=False)
        await raw.send_frame(CONTINUATION, b"}")
        assert (await closing(raw))[0] == 1007


# Protocol violations.

BROKEN = {
    "reserved bit 1": frame(TEXT, CREATE, reserved=0b100),
    "reserved bit 2": frame(TEXT, CREATE, reserved=0b010),
    "reserved bit 3": frame(TEXT, CREATE, reserved=0b001),
    "reserved bits of a ping": frame(PING, b"", reserved=0b111),
    **{f"opcode {opcode}": frame(opcode, b"") for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)},
    "a ping in fragments": frame(PING, b"half", final=False),
    "a pong in fragments": frame(PONG, b"half", final=False),
    "a close in fragments": frame(CLOSE, close_payload(1000), final=False),
    "a long ping": frame(PING, b"x" * 126),
    "a long pong": frame(PONG, b"x" * 126),
    "a long close": frame(CLOSE, close_payload(1000, b"x" * 124)),
    "a continuation of nothing": frame(CONTINUATION, b"{}"),
    "a first fragment of nothing": frame(CONTINUATION, b"{}", final=False),
    "a continuation of what is complete": frame(TEXT, b"{", final=False)
    + frame(CONTINUATION, b"}")
    + frame(CONTINUATION, b"}"),
    "a message in the middle of another": frame(TEXT, b"{", final=False) + frame(TEXT, CREATE),
    "a beginning in the middle of another": frame(TEXT, b"{", final=False) + frame(TEXT, b"{", final=False),
    "a message without a mask": frame(TEXT, CREATE, mask=None),
    "a long message without a mask": frame(TEXT, b"x" * 70_000, mask=None),
    "a ping without a mask": frame(PING, b"", mask=None),
    "a close without a mask": frame(CLOSE, close_payload(1000), mask=None),
    "a fragment without a mask": frame(TEXT, b"{", final=False) + frame(CONTINUATION, b"}", mask=None),
    "a message without a mask after another": frame(TEXT, b"{}") + frame(TEXT, CREATE, mask=None),
    "bytes in the middle of a text": frame(TEXT, b"{", final=False) + frame(BINARY, CREATE),
}


@pytest.mark.parametrize("sent", BROKEN.values(), ids=BROKEN)
async def test_a_protocol_violation_closes_the_connection(sent: bytes) -> None:
    async with opened() as raw:
        await raw.send(sent)
        opcode, payload = await raw.receive_frame()
        if opcode == TEXT:  # the answer to an earlier message
            assert json.loads(payload)["type"] == "error"
            opcode, payload = await raw.receive_frame()
        assert (opcode, payload[:2]) == (CLOSE, close_payload(1002))
        assert await raw.ended() == b""


async def test_no_message_follows_a_close_frame_that_a_slow_client_has_not_read() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, open_raw(server, small_buffers=True) as raw:
        narrow(server)
        await raw.create(input="hello")
        performance = await engine.next()
        performance.say("early")
        while (await raw.receive_event())["type"] != "response.output_text.delta":
            pass
        fill(server, 2**22)
        await raw.send_frame(3, b"")
        client = only_client(server)
        assert isinstance(client, WebSocketConnection)
        await until(lambda: client._socket.closed)
        performance.say("late")
        await asyncio.sleep(0)
        assert await raw.closed() == 1002
        assert await raw.ended() == b""
        await gone(server)


async def test_running_turns_end_with_the_connection() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, open_raw(server) as raw:
        await raw.create(input="hello")
        performance = await engine.next()
        await raw.send_frame(3, b"")
        assert await raw.closed() == 1002
        await performance.stopped.wait()
        await gone(server)


# Size limits.


@pytest.mark.parametrize("opcode", [TEXT, BINARY])
async def test_a_frame_that_is_too_large_is_refused_by_its_header(opcode: int) -> None:
    async with opened(limits=Limits(max_frame_bytes=2000)) as raw:
        await raw.send(struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, 2001))
        assert (await closing(raw))[0] == 1009


@pytest.mark.parametrize("length", [2**31, 2**63 - 1, 2**63, 2**64 - 1])
async def test_the_largest_possible_length_is_refused(length: int) -> None:
    async with opened() as raw:
        await raw.send(struct.pack("!BBQ", 0x80 | TEXT, 0x80 | 127, length))
        assert (await closing(raw))[0] == 1009


async def test_fragments_that_are_too_large_together_are_refused() -> None:
    async with opened(limits=Limits(max_frame_bytes=2000)) as raw:
        await raw.send_frame(TEXT, b" " * 1000, final=False)
        for _ in range(4):
            await raw.send_frame(CONTINUATION, b" " * 200, final=False)
        await raw.send_frame(PING, b"so far so good")
        assert await raw.receive_frame() == (PONG, b"so far so good")
        await raw.send_frame(CONTINUATION, b" " * 201, final=False)
        assert (await closing(raw))[0] == 1009


# Close frames.


@pytest.mark.parametrize(
    "code", [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999]
)
async def test_a_close_frame_is_answered_with_its_own_code(code: int) -> None:
    async with opened() as raw:
        await raw.send_frame(CLOSE, close_payload(code, "bis später".encode()))
        assert await closing(raw) == (code, "")


async def test_a_close_frame_without_a_code_is_answered_with_1000() -> None:
    async with opened() as raw:
        await raw.send_frame(CLOSE, b"")
        assert await closing(raw) == (1000, "")


@pytest.mark.parametrize("code", [0, 1, 999, 1004, 1005, 1006, 1015, 1016, 2000, 2999, 5000, 65535])
async def test_a_close_frame_with_a_reserved_code_is_an_error(code: int) -> None:
    async with opened() as raw:
        await raw.send_frame(CLOSE, close_payload(code))
        assert (await closing(raw))[0] == 1002


async def test_a_close_frame_with_half_a_code_is_an_error() -> None:
    async with opened() as raw:
        await raw.send_frame(CLOSE, b"\x03")
        assert (await closing(raw))[0] == 1002


async def test_a_close_frame_with_an_invalid_utf8_reason_is_an_error() -> None:
    async with opened() as raw:
        await raw.send_frame(CLOSE, close_payload(1000, b"\xff"))
        assert (await closing(raw))[0] == 1007


async def test_a_close_frame_may_arrive_in_the_middle_of_a_message() -> None:
    async with opened() as raw:
        await raw.send_frame(TEXT, CREATE[:5], final=False)
        await raw.send_frame(CLOSE, close_payload(1000))
        assert await closing(raw) == (1000, "")


async def test_messages_after_a_close_frame_are_ignored() -> None:
    async with opened() as raw:
        late = frame(TEXT, CREATE) + frame(PING, b"still there?") + frame(CLOSE, close_payload(4000))
        await raw.send(frame(CLOSE, close_payload(1000)) + late)
        assert await closing(raw) == (1000, "")


@pytest.mark.parametrize(("payload", "is_kept"), [(close_payload(1000), False), (close_payload(1006), True)])
async def test_only_a_valid_close_frame_prevents_parking(payload: bytes, is_kept: bool) -> None:
    async with serve() as server, open_raw(server) as raw:
        await raw.create(input="hello", store=False)
        while (event := await raw.receive_event())["type"] not in TERMINAL:
            pass
        tenant = connection_of(server).driver.session.tenant
        await raw.send_frame(CLOSE, payload)
        await raw.closed()
        await gone(server)
        found = server.service.parking.find(tenant, event["response"]["id"], 0)
        assert (found is not None) is is_kept


# Where aiohttp deviates from the RFC.


async def test_lengths_may_be_written_longer_than_need_be() -> None:
    """RFC 6455, 5.2: the shortest form must be used."""
    async with opened() as raw:
        await raw.send(struct.pack("!BBQ", 0x80 | TEXT, 0x80 | 127, len(CREATE)) + bytes(4) + CREATE)
        await answered(raw)


async def test_a_message_may_follow_an_empty_first_fragment() -> None:
    """RFC 6455, 5.4: an error. aiohttp does not notice a first fragment without bytes."""
    async with opened() as raw:
        await raw.send(frame(TEXT, b"", final=False) + frame(TEXT, CREATE))
        await answered(raw)


async def test_invalid_utf8_is_detected_when_the_message_is_complete() -> None:
    """RFC 6455, 8.1 asks for no more; some servers close at the first bad byte."""
    async with opened() as raw:
        await raw.send_frame(TEXT, b"\xff", final=False)
        await raw.send_frame(PING, b"")
        assert await raw.receive_frame() == (PONG, b"")
        await raw.send_frame(CONTINUATION, b"")
        assert (await closing(raw))[0] == 1007


async def test_a_bad_compressed_message_is_answered_with_1000() -> None:
    """1007 would be more precise. Compression is off unless it is configured."""
    async with serve(compression=True) as server, open_raw(server, more=DEFLATE) as raw:
        await raw.send(frame(TEXT, b"\xff\xff\xff\xff", reserved=0b100))
        assert await raw.closed() == 1000
        await gone(server)


async def test_a_compressed_message_in_fragments_is_read() -> None:
    packer = zlib.compressobj(wbits=-15)
    packed = (packer.compress(CREATE) + packer.flush(zlib.Z_SYNC_FLUSH)).removesuffix(b"\x00\x00\xff\xff")
    async with serve(compression=True) as server, open_raw(server, more=DEFLATE) as raw:
        await raw.send(frame(TEXT, packed[:5], final=False, reserved=0b100))
        await raw.send_frame(PING, b"between")
        assert await raw.receive_frame() == (PONG, b"between")
        await raw.send_frame(CONTINUATION, packed[5:])
        opcode, _ = await raw.receive_frame()
        assert opcode == TEXT


def deflated(payload: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    packed = packer.compress(payload) + packer.flush(zlib.Z_SYNC_FLUSH)
    return frame(TEXT, packed.removesuffix(b"\x00\x00\xff\xff"), reserved=0b100)


async def test_a_deflated_message_counts_with_its_inflated_size() -> None:
    """A few kilobytes on the wire can be many megabytes: a tenant's share of the memory bounds these."""
    limits = Limits(tenant_request_bytes=2**20)
    async with (
        serve(compression=True, limits=limits) as server,
        open_raw(server, more=DEFLATE) as small,
        open_raw(server, more=DEFLATE) as large,
    ):
        await small.send(deflated(b" " * 2**19 + CREATE) * 3)
        assert (await small.receive_frame())[0] == TEXT
        await large.send(deflated(b" " * 2**21 + CREATE))
        assert await large.closed() == 1013
        assert server.service.connections.dropped["message_memory"] == 1
        await small.send(frame(PING, b""))
        while (await small.receive_frame())[0] != PONG:
            pass
    assert server.service.requests.used_bytes == 0


# The echo endpoint, for conformance suites.


async def test_there_is_no_echo_endpoint_unless_it_is_configured() -> None:
    async with serve() as server, open_tcp(server) as raw:
        await raw.send(f"GET {ECHO} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert (await raw.read_head()).startswith(b"HTTP/1.1 404 ")


@pytest.mark.parametrize("more", ["", DEFLATE])
async def test_the_echo_endpoint_sends_messages_back(more: str) -> None:
    async with serve(echo=True) as server, open_raw(server, path=ECHO, more=more) as raw:
        for size in (0, 125, 126, 65535, 65536, 200_000):
            for opcode in (TEXT, BINARY):
                await raw.send_frame(opcode, b"x" * size)
                assert await raw.receive_frame() == (opcode, b"x" * size)
        await raw.send_frame(PING, b"there?")
        assert await raw.receive_frame() == (PONG, b"there?")
        await raw.send_frame(PONG, b"here")
        await raw.send_frame(CLOSE, close_payload(4000))
        assert await closing(raw) == (4000, "")


async def test_the_echo_endpoint_has_the_limits_and_close_codes_of_every_socket() -> None:
    async with serve(echo=True, limits=Limits(max_frame_bytes=100)) as server:
        for sent, code in (
            (frame(TEXT, b"x" * 101), 1009),
            (frame(TEXT, b"\xff"), 1007),
            (frame(3, b""), 1002),
        ):
            async with open_raw(server, path=ECHO) as raw:
                await raw.send(sent)
                assert (await closing(raw))[0] == code


async def test_the_echo_endpoint_counts_as_a_connection_and_needs_a_key_and_an_upgrade() -> None:
    async with serve(echo=True, api_key=("right",), limits=Limits(max_connections=1)) as server:
        url = server.url.removesuffix("/v1") + ECHO
        key = {"Authorization": "Bearer right"}
        async with server.http.get(url) as refused:
            assert refused.status == 401
        async with server.http.get(url, headers=key) as refused:
            assert refused.status == 426
        async with server.http.ws_connect(url, headers=key), server.http.get(url, headers=key) as refused:
            assert refused.status == 503
            assert server.service.sockets == 1
