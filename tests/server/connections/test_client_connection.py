"""Requests refused before an endpoint is called: in the API's shape, without repeating the request."""

import json
import logging
import zlib

import pytest

from slipring.server.process import server as serving
from tests.harness import serve
from tests.server.raw import RawSocket, open_raw, open_tcp, until

SECRET = "sk-not-to-be-repeated"
UPGRADE = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"


async def answer(raw: RawSocket) -> tuple[int, dict[str, str], str]:
    """The status, the error and the full text of a response."""
    received = await raw.ended()
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"], received.decode()


@pytest.mark.parametrize(
    ("request_text", "status", "code"),
    [
        (
            f"POST /v1/responses HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: {SECRET}\r\n\r\n{{}}",
            417,
            "invalid_http",
        ),
        (
            f"GET /v1/responses HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{UPGRADE}"
            f"Sec-WebSocket-Key: {SECRET}\r\n\r\n",
            400,
            "invalid_request",
        ),
        (
            "GET /v1/responses HTTP/1.1\r\nHost: a\r\nConnection: close\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Version: {SECRET}\r\n\r\n",
            400,
            "invalid_request",
        ),
    ],
)
async def test_errors_of_aiohttp_do_not_repeat_the_request(request_text: str, status: int, code: str) -> None:
    async with serve() as server, open_tcp(server) as raw:
        await raw.send(request_text.encode())
        found, error, text = await answer(raw)
        assert (found, error["code"]) == (status, code)
        assert SECRET not in text
        assert "aiohttp" not in text


async def test_the_rest_of_a_compressed_body_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be decompressed only to be dropped: a few bytes could keep the server busy for seconds."""
    monkeypatch.setattr(serving, "_LINGERING_S", 3600.0)
    body = zlib.compress(b'{"input":"' + bytes(64 * 2**20) + b'"}')
    head = f"Content-Encoding: deflate\r\nContent-Length: {len(body) + 1}\r\n\r\n"
    async with serve() as server, open_tcp(server) as raw:
        await raw.send(f"POST /v1/responses HTTP/1.1\r\nHost: a\r\n{head}".encode() + body)
        # The connection is closed, although a byte has not been sent.
        status, error, _ = await answer(raw)
        assert (status, error["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(("body", "is_kept"), [(b"\xff\xfe\x00", False), (zlib.compress(b"[]"), True)])
async def test_a_client_is_told_that_its_connection_closes_after_a_body_that_cannot_be_decompressed(
    body: bytes, is_kept: bool
) -> None:
    head = f"Content-Encoding: deflate\r\nContent-Length: {len(body)}\r\n\r\n"
    async with serve() as server, open_tcp(server) as raw:
        await raw.send(f"POST /v1/responses HTTP/1.1\r\nHost: a\r\n{head}".encode() + body)
        assert (b"connection: close" not in (await raw.read_head()).lower()) == is_kept


async def test_a_disconnect_during_the_handshake_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    key = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="
    handshake = f"GET /v1/responses HTTP/1.1\r\nHost: a\r\n{UPGRADE}{key}\r\n\r\n"
    async with serve() as server:
        with caplog.at_level(logging.WARNING):
            for _ in range(50):
                async with open_tcp(server) as raw:
                    await raw.send(handshake.encode())
                    raw.drop()
            async with open_raw(server) as raw:
                await raw.create(input="hello")
                await raw.receive_event()
            await until(lambda: server.service.connections.open <= 1)
    assert caplog.messages == []
