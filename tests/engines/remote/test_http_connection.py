"""Connections to the servers of engines: what is read as HTTP, however it is cut, and what is not."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http.client import HTTPException

import pytest

from slipring.engines.remote import http_client
from slipring.engines.remote.http_client import ConnectionPool, header_lines
from slipring.engines.remote.http_connection import Answer, CannotConnect, Connection
from tests.server.raw import until

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def pool_to(handler: Handler, *, keeps: bool = True) -> AsyncIterator[tuple[ConnectionPool, list[int]]]:
    """A pool of connections to a server of plain sockets, and a number for each that it has accepted."""
    accepted: list[int] = []
    writers: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(len(accepted))
        writers.append(writer)
        await handler(reader, writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    pool = ConnectionPool(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", None, 5.0, keeps=keeps)
    try:
        yield pool, accepted
    finally:
        pool.close()
        server.close()
        for writer in writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


def answering(*pieces: bytes, closes: bool = False) -> Handler:
    """Answers every request with these bytes, each piece by itself."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            if closes:
                writer.close()
                return

    async def until_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return

    return until_the_end


async def whole(answer: Answer) -> bytes:
    body = b""
    while piece := await answer.read():
        body += piece
    answer.release()
    return body


async def pushed(answer: Answer) -> bytes:
    body = b""

    def take(data: bytes) -> bool:
        nonlocal body
        body += data
        return True

    while True:
        await answer.push(take)
        rest = await answer.read()  # what was there before, or the end
        body += rest
        if not rest:
            answer.release()
            return body


async def ask(pool: ConnectionPool) -> Answer:
    return await (await pool.take()).ask([REQUEST], None)


BODIES = [
    (CHUNKED + b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n", b"hello world"),
    (CHUNKED + b"0005\r\nhello\r\n0\r\nTrailer: x\r\n\r\n", b"hello"),
    (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", b"hello"),
    (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", b"ok"),
    (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(("sent", "body"), BODIES)
@pytest.mark.parametrize("read", [whole, pushed])
async def test_an_answer_is_the_same_however_it_is_cut(
    size: int, sent: bytes, body: bytes, read: Callable[[Answer], Awaitable[bytes]]
) -> None:
    pieces = [sent[start : start + size] for start in range(0, len(sent), size)]
    async with pool_to(answering(*pieces)) as (pool, accepted):
        for _ in range(2):
            assert await read(await ask(pool)) == body
        assert accepted == [0], "the connection is used again"


async def test_an_answer_may_last_until_its_connection_ends() -> None:
    async with pool_to(answering(b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo", closes=True)) as (pool, accepted):
        for _ in range(2):
            assert await whole(await ask(pool)) == b"hello"
        assert accepted == [0, 1]


@pytest.mark.parametrize(
    "sent",
    [
        b"\x15\x03\x03\x00\x02\x02\x46",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
        CHUNKED + b"no length\r\n",
        CHUNKED + b"-5\r\nhello\r\n",
        CHUNKED + b"2\r\nhello\r\n",
        CHUNKED + b"5" * 2000,
        CHUNKED + b"0\r\n" + b"x: y\r\n" * 20_000,
    ],
)
async def test_what_is_no_http_fails(sent: bytes) -> None:
    async with pool_to(answering(sent)) as (pool, _), asyncio.timeout(300):
        with pytest.raises((HTTPException, OSError)):
            await whole(await ask(pool))


@pytest.mark.parametrize(
    "sent", [b"", b"HTTP/1.1 2", CHUNKED, CHUNKED + b"5\r\nhe", CHUNKED + b"5\r\nhello\r\n"]
)
async def test_an_answer_that_breaks_off_fails(sent: bytes) -> None:
    async with pool_to(answering(sent, closes=True)) as (pool, _), asyncio.timeout(300):
        with pytest.raises(OSError):  # noqa: PT011 - which one depends on where it breaks off
            await whole(await ask(pool))


async def test_the_connection_of_an_answer_that_was_not_read_is_closed() -> None:
    async with pool_to(answering(CHUNKED + b"5\r\nhello\r\n")) as (pool, accepted):
        for _ in range(2):
            answer = await ask(pool)
            answer.release()
            answer.release()
        assert accepted == [0, 1]


@pytest.mark.parametrize("sent", [b"Connection: close\r\n", b""])
async def test_connections_that_end_with_their_answer_are_not_kept(sent: bytes) -> None:
    version = b"HTTP/1.1" if sent else b"HTTP/1.0"
    async with pool_to(answering(version + b" 200 OK\r\nContent-Length: 0\r\n" + sent + b"\r\n")) as (
        pool,
        accepted,
    ):
        for _ in range(2):
            assert await whole(await ask(pool)) == b""
        assert accepted == [0, 1]


async def test_what_comes_without_a_request_ends_the_connection() -> None:
    late = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await late.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad")

    async with pool_to(handler) as (pool, _):
        assert await whole(await ask(pool)) == b""
        assert pool._idle
        late.set()
        await until(lambda: not pool._idle)


async def test_a_server_that_answers_before_it_has_read_the_request_is_heard() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await asyncio.Event().wait()

    async with pool_to(handler) as (pool, accepted), asyncio.timeout(300):
        for number in range(2):
            answer = await (await pool.take()).ask([b"x" * 2**20] * 64, None)
            assert (answer.status, await whole(answer), len(accepted)) == (413, b"no", number + 1)


async def test_a_body_that_is_not_read_slows_its_server_down() -> None:
    sent = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(CHUNKED)
        while sent < 2**24:
            writer.write(b"10000\r\n" + b"x" * 2**16 + b"\r\n")
            sent += 2**16
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async with pool_to(handler) as (pool, _):
        answer = await ask(pool)
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.1)
        assert sent < 2**24
        assert len(await whole(answer)) == 2**24


async def test_a_connection_that_was_idle_for_long_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pool_to(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")) as (pool, accepted):
        await whole(await ask(pool))
        monkeypatch.setattr(http_client, "_IDLE_S", -1.0)
        await whole(await ask(pool))
        assert accepted == [0, 1]
        pool._sweep()
        await until(lambda: not pool._all)


async def test_the_next_address_of_a_host_is_tried_if_one_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with pool_to(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")) as (pool, _):
        connect_to = http_client._connect_to
        tried: list[object] = []

        async def fake_resolver(*_: object, **__: object) -> list[object]:
            port = pool._target.port
            dead = (socket.AF_INET6, 1, 6, "", ("dead", port))
            return [dead, (socket.AF_INET, 1, 6, "", ("127.0.0.1", port)), dead]

        async def connect(family: int, address: tuple[str, int]) -> socket.socket:
            tried.append(address[0])
            if address[0] == "dead":
                await asyncio.Event().wait()
            return await connect_to(family, address)

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", fake_resolver)
        monkeypatch.setattr(http_client, "_connect_to", connect)
        monkeypatch.setattr(http_client, "_STAGGER_S", 0.01)
        assert await whole(await ask(pool)) == b""
        assert tried == ["dead", "127.0.0.1"]


async def test_what_cannot_be_connected_to_fails_with_the_reason() -> None:
    with pytest.raises(CannotConnect) as refused:
        await ConnectionPool("http://127.0.0.1:9", None, 5.0, keeps=True).take()
    assert isinstance(refused.value.__cause__, ConnectionRefusedError)


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\nb", "a\0b"])
def test_a_header_is_one_line(value: str) -> None:
    with pytest.raises(ValueError, match="line end"):
        header_lines({"x": value})


async def test_a_tunnel_through_a_proxy_that_refuses_is_no_connection() -> None:
    asked: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")

    async with pool_to(handler) as (near, _):
        proxy = f"http://me:hush@{near._target.netloc}"
        pool = ConnectionPool("https://far.example", proxy, 5.0, keeps=True)
        with pytest.raises(CannotConnect, match="the proxy answers with 407"):
            await pool.take()
    assert asked[0].startswith(b"CONNECT far.example:443 HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic bWU6aHVzaA==\r\n" in asked[0]


def test_a_connection_without_a_socket_cannot_be_used() -> None:
    assert not Connection(ConnectionPool("http://x", None, 1.0, keeps=True)).is_usable
