"""Requests to engines that break or are cancelled, and those through TLS and proxies: nothing hangs, no
socket is left, and no request is taken for a part of another."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from slipring.engines.remote import http_client
from slipring.engines.remote.http_client import ConnectionPool, HttpClient, header_lines, proxy_of
from slipring.engines.remote.http_connection import CannotConnect, Unreachable
from tests.base.test_connection_failures import TODAY, certificate
from tests.engines.remote.test_http_client import Collected, Taking, any_silence, asked_for, raw_server
from tests.engines.remote.test_http_connection import CHUNKED, REQUEST, answering, ask, pool_to, pushed, whole
from tests.server.raw import until

EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


# Answers that break off.


async def test_a_stream_whose_connection_breaks_while_its_consumer_waits_fails() -> None:
    room = asyncio.Event()
    async with asked_for() as (stream, asked, _), asyncio.timeout(300):

        async def wait() -> None:
            asked.put_nowait(None)
            await room.wait()

        taking = Taking(lambda _: wait())
        running = asyncio.create_task(stream(taking))
        await until(lambda: len(taking.batches) == 1)
        asked.put_nowait(b"data: 0\n\n")
        await until(lambda: len(taking.batches) == 2)
        await until(asked.empty)
        await asyncio.sleep(0.05)  # the connection breaks now, or later: the outcome is the same
        room.set()
        with pytest.raises(Unreachable):
            await running


async def test_what_came_before_a_connection_broke_is_read_before_the_failure() -> None:
    async with (
        pool_to(answering(CHUNKED + b"5\r\nhello\r\n", closes=True)) as (pool, _),
        asyncio.timeout(300),
    ):
        answer = await ask(pool)
        await until(lambda: answer._error is not None)
        assert await answer.read() == b"hello"
        for _ in range(2):
            with pytest.raises(ConnectionResetError):
                await answer.read()
        with pytest.raises(ConnectionResetError):
            await answer.push(lambda _: True)


@pytest.mark.parametrize("read", [whole, pushed])
@pytest.mark.parametrize("last", [b"00\r\n\r\n", b"000;x\r\n\r\n"])
async def test_the_last_chunk_may_have_more_than_one_zero(
    last: bytes, read: Callable[[Any], Awaitable[bytes]]
) -> None:
    begun = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED)
        await begun.wait()
        writer.write(last)
        await reader.read()

    async with pool_to(handler) as (pool, _), asyncio.timeout(300):
        reading = asyncio.ensure_future(read(await ask(pool)))
        await asyncio.sleep(0)
        begun.set()
        assert await reading == b""


async def test_a_server_that_ends_its_side_without_reading_the_request_has_not_answered() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write_eof()
        await asyncio.Event().wait()

    async with pool_to(handler) as (pool, _), asyncio.timeout(300):
        with pytest.raises(ConnectionError):
            await (await pool.take()).ask([b"x" * 2**20] * 64, None)
        await until(lambda: not pool._all)


async def test_a_request_does_not_follow_one_that_was_not_sent_whole() -> None:
    """The server reads what was in flight, but the rest of the body was never written: it would take the next
    request for that rest."""
    answered = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 429 Slow Down\r\nContent-Length: 2\r\n\r\nno")
        await answered.wait()
        while await reader.read(2**20):
            pass

    async with pool_to(handler) as (pool, accepted), asyncio.timeout(300):
        connection = await pool.take()
        answer = await connection.ask([b"x" * 2**20] * 64, None)
        assert await answer.read() == b"no"
        answered.set()
        assert connection._transport is not None
        await until(lambda: not connection._transport.get_write_buffer_size())
        answer.release()
        await pool.take()
        assert accepted == [0, 1]


@pytest.mark.parametrize("failure", [ConnectionResetError("mine"), TimeoutError("mine"), LookupError("mine")])
async def test_a_failure_of_the_consumer_is_none_of_the_server(failure: Exception) -> None:
    async with asked_for() as (stream, asked, left):

        def take(_: list[bytes]) -> None:
            raise failure

        asked.put_nowait(b"data: 0\n\n")
        with pytest.raises(type(failure), match="mine"):
            await stream(Taking(take))
        await left.wait()


# Connections that are kept.


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 2"])
async def test_a_kept_connection_that_the_server_closes_with_a_request_is_replaced_for_queries_alone(
    sent: bytes,
) -> None:
    requests: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for body in (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", sent):
            requests.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(body)
        writer.close()

    async with raw_server(answer) as url, HttpClient(url, {}) as client, asyncio.timeout(300):
        for _ in range(3):
            assert await client.query("/x") == {}
        assert len(requests) == 5, "two of three were sent again"
        with pytest.raises(Unreachable):  # what generates is repeated by the rules of its engine
            await client.stream("/x", [b""], None, Collected(), idle_s=any_silence)
        assert len(requests) == 6


async def test_a_client_that_closes_ends_what_runs_and_what_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, goes_on = asyncio.Event(), asyncio.Event()
    connect = http_client._connect

    async def late(host: str, port: int) -> socket.socket:
        begun.set()
        await goes_on.wait()
        return await connect(host, port)

    async with raw_server(answering(b"HTTP/1.1 200 OK\r\n\r\ndata: 1\n\n")) as url:
        client = HttpClient(url, {})
        await client.start()
        collected = Collected()
        streaming = asyncio.create_task(client.stream("/x", [b"{}"], None, collected, idle_s=any_silence))
        await until(lambda: bool(collected.batches))
        monkeypatch.setattr(http_client, "_connect", late)
        querying = asyncio.create_task(client.query("/x"))
        await begun.wait()
        (pool,) = client._pools.values()
        await client.close()
        goes_on.set()
        for task in (streaming, querying):
            with pytest.raises(Unreachable):
                await task
        await until(lambda: not pool._all)
        assert not pool._idle


# Cancellation.


class Sockets:
    """Counts the sockets that connect to servers. Stands for the module that makes them."""

    SOCK_STREAM = socket.SOCK_STREAM

    def __init__(self) -> None:
        self._made: list[socket.socket] = []

    def socket(self, *args: Any) -> socket.socket:
        self._made.append(socket.socket(*args))
        return self._made[-1]

    @property
    def open(self) -> int:
        return sum(each.fileno() >= 0 for each in self._made)


async def _cancelled_at(coroutine: Coroutine[Any, Any, Any], step: int) -> bool:
    """Cancel a coroutine at its ``step``-th wait; returns whether it had that many."""
    waits = 0
    is_reached = False

    class Counted:
        def __await__(self) -> Generator[Any, Any, None]:
            nonlocal waits, is_reached
            inner = coroutine.__await__()
            value: Any = None
            error: BaseException | None = None
            while True:
                try:
                    waiting = inner.throw(error) if error is not None else inner.send(value)
                except StopIteration:
                    return
                waits += 1
                if waits == step:
                    is_reached = True
                    if waiting is not None:  # what it waits for comes, and is lost
                        waiting._asyncio_future_blocking = False
                        yield from asyncio.wait([waiting]).__await__()
                    error, value = asyncio.CancelledError(), None
                    continue
                error, value = None, None
                try:
                    value = yield waiting
                except BaseException as thrown:
                    error = thrown

    with suppress(asyncio.CancelledError):
        await Counted()
    return is_reached


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_request_that_is_cancelled_at_any_wait_leaves_no_socket(
    monkeypatch: pytest.MonkeyPatch, *, is_stream: bool
) -> None:
    body = b"data: 1\n\ndata: [DONE]\n\n" if is_stream else b"{}"
    chunks = [b"%x\r\n%s\r\n" % (len(each), each) for each in (body[:1], body[1:])]
    sockets = Sockets()
    monkeypatch.setattr(http_client, "socket", sockets)
    async with raw_server(answering(CHUNKED, *chunks, b"0\r\n\r\n")) as url, asyncio.timeout(300):
        for step in range(1, 50):
            async with HttpClient(url, {}) as client:
                request = (
                    client.stream("/x", [], None, Collected(), idle_s=any_silence)
                    if is_stream
                    else client.query("/x")
                )
                is_reached = await _cancelled_at(request, step)
                if client._draining:
                    await asyncio.wait(client._draining)
                pools = list(client._pools.values())
                await until(lambda: sockets.open == sum(len(pool._idle) for pool in pools))  # noqa: B023
                assert all(len(pool._all) == len(pool._idle) for pool in pools)
            await until(lambda: not sockets.open)
            if not is_reached:
                break
        assert step > 3
        assert not is_reached


# TLS, proxies and addresses.


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ssl.SSLContext]:
    """What a server at 127.0.0.1 begins TLS with, by an authority that the environment names."""
    own, authority = certificate(tmp_path, **TODAY, signed=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    http_client._tls_context.cache_clear()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own)
    yield context
    http_client._tls_context.cache_clear()


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    writer.close()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("by", ["itself", "a proxy", "a proxy by TLS"])
def test_a_server_is_reached_by_tls(tls: ssl.SSLContext, by: str, new_loop: Callable[[], Any]) -> None:
    asked: list[bytes] = []
    seen: list[bytes] = []
    body = b"x" * 300_000

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or b"0")
                seen.append(await reader.readexactly(size))
                writer.write(CHUNKED + b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n")
                await writer.drain()
        writer.close()

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        host, port = asked[-1].split()[1].decode().rsplit(":", 1)
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(_relay(reader, far_writer), _relay(far_reader, writer))

    async def run() -> None:
        far = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
        near = await asyncio.start_server(tunnel, "127.0.0.1", 0, ssl=tls if by == "a proxy by TLS" else None)
        url, where = (f"127.0.0.1:{each.sockets[0].getsockname()[1]}" for each in (far, near))
        scheme = "https" if by == "a proxy by TLS" else "http"
        proxy = None if by == "itself" else f"{scheme}://{where}"
        pool = ConnectionPool(f"https://{url}", proxy, 30.0, keeps=True)
        for size in (0, 5, 3 * 2**20):
            head = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode()
            answer = await (await pool.take()).ask([head, b"y" * size], None)
            assert await (whole if size else pushed)(answer) == body
        assert [len(each) for each in seen] == [0, 5, 3 * 2**20]
        assert len(pool._all) == 1
        assert len(pool._idle) == 1
        assert len(asked) == (by != "itself")
        pool.close()
        await until(lambda: not pool._all)
        for server in (far, near):
            server.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(run(), 300))


async def test_a_server_that_is_not_trusted_is_no_connection(
    tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    http_client._tls_context.cache_clear()
    server = await asyncio.start_server(_relay, "127.0.0.1", 0, ssl=tls)
    pool = ConnectionPool(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", None, 30.0, keeps=True)
    with pytest.raises(CannotConnect) as refused:
        await pool.take()
    assert isinstance(refused.value.__cause__, ssl.SSLCertVerificationError)
    assert not pool._all
    server.close()


async def test_a_proxy_is_asked_for_an_address_of_ipv6_in_brackets() -> None:
    asked: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")

    async with pool_to(handler) as (near, _):
        pool = ConnectionPool("https://[2001:db8::1]:8443", f"http://{near._target.netloc}", 5.0, keeps=True)
        with pytest.raises(CannotConnect, match="502"):
            await pool.take()
    assert asked[0].startswith(b"CONNECT [2001:db8::1]:8443 HTTP/1.1\r\nHost: [2001:db8::1]:8443\r\n")


def test_a_proxy_is_not_sent_the_password_of_a_server() -> None:
    pool = ConnectionPool("http://me:hush@far.example:81", "http://proxy", 1.0, keeps=True)
    assert pool.request_line("GET", "/x").startswith("GET http://far.example:81/x HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("given", "used"), [("proxy:3128", "http://proxy:3128"), ("https://proxy", "https://proxy")]
)
def test_a_proxy_may_be_named_without_its_protocol(
    monkeypatch: pytest.MonkeyPatch, given: str, used: str
) -> None:
    monkeypatch.setenv("HTTP_PROXY", given)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert proxy_of("http://far.example") == used


async def test_a_proxy_of_another_protocol_is_no_connection() -> None:
    with pytest.raises(CannotConnect, match="socks5 is not a protocol"):
        await ConnectionPool("http://far.example", "socks5://127.0.0.1:9", 5.0, keeps=True).take()


async def test_an_address_that_connects_when_the_wait_is_cancelled_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = socket.socketpair()
    goes_on = asyncio.Event()

    async def connect(*_: object) -> socket.socket:
        await goes_on.wait()
        return ours

    monkeypatch.setattr(http_client, "_connect_to", connect)
    connecting = asyncio.create_task(http_client._connect("127.0.0.1", 9))
    await until(lambda: bool(goes_on._waiters))
    goes_on.set()
    await asyncio.sleep(0)  # connected; what waits for it has not resumed
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    await until(lambda: ours.fileno() < 0)
    theirs.close()


@pytest.mark.parametrize("headers", [{"x": "a\rb: c"}, {"x\r": "a"}])
def test_a_header_holds_no_carriage_return(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="line end"):
        header_lines(headers)


async def test_what_cannot_be_sent_takes_no_connection() -> None:
    async with raw_server(answering(EMPTY)) as url, HttpClient(url, {}) as client:
        with pytest.raises(UnicodeEncodeError):
            await client.stream("/x", [REQUEST], {"x": "\u2028"}, Collected(), idle_s=any_silence)
        assert not any(pool._all for pool in client._pools.values())
