"""The HTTP client of all engines: queries and streams of one server, and the connections that they use.

Connections are made directly or through a proxy, and kept for the next request. Redirects are followed to the
same host only. Answers and errors are read up to a size. Failures are those of ``http_connection``.
"""

import asyncio
import concurrent.futures
import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from http.client import BadStatusLine, responses
from itertools import zip_longest
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import aiohttp
import msgspec

from slipring.base.surrogates import repaired
from slipring.engines.remote.http_connection import (
    BOM,
    FAILURES,
    LONGEST_EVENT,
    Answer,
    BadStatus,
    CannotConnect,
    Connection,
    EventStream,
    Payloads,
    RedirectedElsewhere,
    Unreachable,
    Unreadable,
    failure_of,
)
from slipring.engines.remote.streamed_answer import Consumer, Patience, raise_fault

_IDLE_S = 15.0
"""How long a connection is kept for the next request: servers close those that are idle for longer."""
_STAGGER_S = 0.25
"""After so long without a connection, the next address of the host is tried as well."""
_PORTS = {"http": 80, "https": 443}
_BLOCK = 100_000
"""Bytes per write: large enough for few writes, small enough for allocators to reuse."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS = 5
_FAILING = 400
_LONGEST_ANSWER = 256 * 2**20
"""Bytes of a JSON answer that are read."""
_LONGEST_ERROR = 2**16
"""Bytes of an error's body that are read: enough for any message."""
_LAST_BYTES_S = 1.0
_ERROR_BODY_S = 5.0
_QUERY_TIMEOUT_S = 30.0
_MOST_ADDRESSES = 16
Answered = Callable[[Mapping[str, str]], None]
"""Called with the headers of an answer, whose names are in lower case."""


class ConnectionPool:
    """The connections to one host, directly or through a proxy."""

    def __init__(self, url: str, proxy: str | None, connect_timeout_s: float, *, keeps: bool) -> None:
        """``url``: any of the host. ``keeps``: whether connections are used for more than one request."""
        self._target = urlsplit(url)
        self._proxy = urlsplit(proxy) if proxy else None
        self._connect_timeout_s = connect_timeout_s
        self.keeps = keeps
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._is_closed = False

    def request_line(self, method: str, path: str) -> str:
        """The first line of a request for a path with its query."""
        path = quote(path, safe="/%?&=:@!$'()*+,;~[]")
        is_forwarded = self._proxy is not None and self._target.scheme == "http"
        host = _host_header(self._target)
        where = f"http://{host}{path}" if is_forwarded else path
        return f"{method} {where} HTTP/1.1\r\nHost: {host}\r\n" + (
            f"Proxy-Authorization: {credentials}\r\n"
            if is_forwarded and (credentials := self._proxy_credentials())
            else ""
        )

    async def take(self) -> Connection:
        """A connection that is kept, or a new one. Raises ``CannotConnect``."""
        oldest = asyncio.get_running_loop().time() - _IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable and connection.idle_since > oldest:
                return connection
            connection.close()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                connection = await self._open()
        except (OSError, BadStatusLine, ValueError) as error:
            raise CannotConnect(str(error)) from error
        if self._is_closed or not connection.is_usable:
            connection.close()
            raise CannotConnect("the client is closed" if self._is_closed else "the connection ended")
        self._all.add(connection)
        return connection

    def put_back(self, connection: Connection) -> None:
        """Keep a connection for the next request."""
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = loop.call_later(_IDLE_S, self._sweep)

    def forget(self, connection: Connection) -> None:
        """A connection has ended."""
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """Close all connections, those that are used or being made included."""
        self._is_closed, self.keeps = True, False
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._all):
            connection.give_up()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = loop.time() - _IDLE_S
        for connection in [each for each in self._idle if each.idle_since <= oldest]:
            connection.close()
        self._sweeper = loop.call_later(_IDLE_S, self._sweep) if self._idle else None

    async def _open(self) -> Connection:
        loop, target = asyncio.get_running_loop(), self._target
        near = self._proxy or target
        if near.scheme not in _PORTS:
            raise ValueError(f"{near.scheme} is not a protocol for requests")
        context = _tls_context() if near.scheme == "https" else None
        host, port = near.hostname or "", near.port or _PORTS[near.scheme]
        connected = await _connect(host, port)
        try:
            _, connection = await loop.create_connection(
                lambda: Connection(self),
                sock=connected,
                ssl=context,
                server_hostname=host if context else None,
            )
        except BaseException:
            connected.close()
            raise
        if self._proxy is not None and target.scheme == "https":
            try:
                await self._tunnel(connection)
            except BaseException:
                connection.close()
                raise
        return connection

    async def _tunnel(self, connection: Connection) -> None:
        """Have a proxy connect to the host, and begin TLS with that."""
        host = self._target.hostname or ""
        where = f"{f'[{host}]' if ':' in host else host}:{self._target.port or _PORTS['https']}"
        credentials = self._proxy_credentials()
        authorization = f"Proxy-Authorization: {credentials}\r\n" if credentials else ""
        head = f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n{authorization}\r\n"
        await connection.begin_tls(head.encode("latin-1"), _tls_context(), host)

    def _proxy_credentials(self) -> str:
        if self._proxy is None or self._proxy.username is None:
            return ""
        name, word = unquote(self._proxy.username), unquote(self._proxy.password or "")
        return "Basic " + b64encode(f"{name}:{word}".encode()).decode()


async def _connect(host: str, port: int) -> socket.socket:
    """A socket that is connected to the first address of a host that answers. The next one is tried when one
    fails or takes long: a host may have addresses that cannot be reached from here, and uvloop would wait for
    each of them in turn."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    untried = _interleaved(found)
    tasks: set[asyncio.Task[socket.socket]] = set()
    errors: list[BaseException] = []
    try:
        while untried or tasks:
            if untried:
                tasks.add(asyncio.create_task(_connect_to(*untried.pop(0))))
            done, tasks = await asyncio.wait(
                tasks, timeout=_STAGGER_S if untried else None, return_when=asyncio.FIRST_COMPLETED
            )
            errors += [error for task in done if (error := task.exception()) is not None]
            connected = [task.result() for task in done if task.exception() is None]
            for other in connected[1:]:
                other.close()
            if connected:
                return connected[0]
        raise errors[0]
    finally:
        errors.clear()
        for task in tasks:
            task.cancel()
            task.add_done_callback(_close_connected)  # one may be connected by now


def _close_connected(task: asyncio.Task[socket.socket]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()


def _interleaved(found: Sequence[Any]) -> list[tuple[int, Any]]:
    """The families and addresses of a host, the families in turn, in the order of the resolver."""
    addresses = [(family, address) for family, _, _, _, address in found]
    first = [each for each in addresses if each[0] == addresses[0][0]]
    others = [each for each in addresses if each[0] != addresses[0][0]]
    pairs = zip_longest(first, others)
    return [each for pair in pairs for each in pair if each is not None]


async def _connect_to(family: int, address: Any) -> socket.socket:
    connected = socket.socket(family, socket.SOCK_STREAM)
    try:
        connected.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connected, address)
    except BaseException:
        connected.close()
        raise
    return connected


def proxy_of(url: str) -> str | None:
    """The proxy for a server, by the variables that other programs read (`HTTPS_PROXY`, `NO_PROXY`); none for
    this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host == "localhost" or host.startswith("127.") or host == "::1" or proxy_bypass(host):
        return None
    proxy = getproxies_environment().get(parts.scheme)
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy


def header_lines(headers: Mapping[str, str]) -> str:
    """Headers as they are sent. Raises ``ValueError`` if one of them would be more than a header."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if not len(headers) == lines.count("\r") == lines.count("\n") or "\0" in lines:
        raise ValueError("a header with a line end in it")
    return lines


def _host_header(target: SplitResult) -> str:
    host = target.netloc.rpartition("@")[2]
    with suppress(UnicodeError):
        host = host.encode("idna").decode() if not host.isascii() else host
    return host


@lru_cache(maxsize=1)
def _tls_context() -> ssl.SSLContext:
    return ssl.create_default_context()


def spliced(opening: bytes, items: Iterable[bytes], closing: bytes) -> list[bytes]:
    """Join items with commas between an opening and a closing, as pieces of about one block each.

    A long history is sent with every turn: it is copied at most once, block by block. An item that is as long
    as a block is a piece by itself and is not copied.
    """
    pieces = [opening]
    block: list[bytes] = []
    size = 0
    for item in items:
        if len(item) >= _BLOCK:
            pieces += [b",".join([*block, b""]), item]
            block, size = [b""], 0
            continue
        block.append(item)
        size += len(item)
        if size >= _BLOCK:
            pieces.append(b",".join(block))
            block, size = [b""], 0
    return [*pieces, b",".join(block), closing]


class HttpClient:
    """One server's session. ``start`` before use; ``close`` ends every request that still runs."""

    def __init__(
        self,
        url: str | Callable[[], str],
        headers: Mapping[str, str],
        *,
        connect_timeout_s: float = 5.0,
        read_timeout_s: float | None = None,
        keep_alive: bool = True,
    ) -> None:
        """Opens nothing. A callable ``url`` is called per request, for servers that move. ``headers`` go with
        every request. ``read_timeout_s`` bounds the wait for any bytes of an answer, the first included.
        Without ``keep_alive`` every request has its own connection."""
        self._url = url
        self._headers = headers
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._keep_alive = keep_alive
        fixed = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "slipring", **headers}
        self._fixed = header_lines(fixed if keep_alive else {**fixed, "Connection": "close"})
        self._proxy = proxy_of(url) if isinstance(url, str) else None
        self._session: aiohttp.ClientSession | None = None
        self._pools: dict[str, ConnectionPool] = {}
        """By scheme and host."""
        self._moved: dict[str, str] = {}
        """Where requests to a URL were redirected to."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._draining: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return self._url if isinstance(self._url, str) else self._url()

    @property
    def session(self) -> aiohttp.ClientSession:
        """A session of aiohttp, for WebSockets. Made when it is asked for."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                # Cookies would be shared by all tenants, and pin all chains to one replica.
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s),
                connector=aiohttp.TCPConnector(limit=0),
                trace_configs=[_redirect_guard()],
                proxy=self._proxy,
            )
        return self._session

    async def start(self) -> None:
        """Allow requests, which open connections."""
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()

    async def close(self) -> None:
        self._loop = None
        for task in (draining := list(self._draining)):
            task.cancel()
        await asyncio.gather(*draining, return_exceptions=True)
        for pool in self._pools.values():
            pool.close()
        await asyncio.sleep(0)  # the event loop closes them
        if self._session is not None:
            await self._session.close()

    async def __aenter__(self) -> "HttpClient":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def query(
        self,
        path: str,
        pieces: Sequence[bytes] | None = None,
        timeout_s: float = _QUERY_TIMEOUT_S,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """``fetch`` and decode the JSON answer."""
        content = await self.fetch(path, pieces, timeout_s, headers)
        try:
            return msgspec.json.decode(repaired(content))
        except (msgspec.DecodeError, UnicodeError) as error:
            raise Unreadable("the answer is not JSON") from error

    async def fetch(
        self,
        path: str,
        pieces: Sequence[bytes] | None = None,
        timeout_s: float = _QUERY_TIMEOUT_S,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """GET a path, or POST a JSON body to it, and return the body of the answer.

        Only for requests that may be repeated: a server may close a kept connection just when it is used
        again, so a request whose connection breaks is sent once more.
        """
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    return await self._fetch(path, pieces, headers)
                except ConnectionError:
                    if self._loop is None:  # closed
                        raise
                    return await self._fetch(path, pieces, headers)
        except FAILURES as error:
            raise failure_of(error) from error

    async def _fetch(
        self, path: str, pieces: Sequence[bytes] | None, headers: Mapping[str, str] | None
    ) -> bytes:
        answer = await self._ask(path, pieces, headers)
        try:
            if answer.status // 100 != 2:
                raise await _bad_status(answer)
            return await _read(answer, _LONGEST_ANSWER)
        finally:
            answer.release()

    def query_from_thread(self, path: str, body: object) -> Any:
        """POST a body and wait for the JSON answer, in a thread other than the event loop's.

        Renderers run in threads and need a server's tokenizer in the middle of their work. The loop sends the
        question, so that threads share the session, its kept connections and its failures.
        """
        loop = self._loop
        if loop is None:
            raise Unreachable("the client is closed")
        if threading.get_ident() == self._loop_thread:
            raise RuntimeError("the event loop must not wait for an answer")
        query = self.query(path, [msgspec.json.encode(body)])
        try:
            asked = asyncio.run_coroutine_threadsafe(query, loop)
        except RuntimeError as error:  # the loop has just closed
            query.close()
            raise Unreachable("the client is closed") from error
        try:
            # The query has its own timeout; this one ends the wait where the loop stops in the meantime.
            return asked.result(2 * _QUERY_TIMEOUT_S)
        except (concurrent.futures.CancelledError, TimeoutError) as error:
            asked.cancel()
            raise Unreachable("the client is closed") from error

    async def status(self, path: str) -> int:
        """GET a path and return the status, whatever the body."""
        try:
            answer = await self._ask(path, None)
            answer.release()
            return answer.status
        except FAILURES as error:
            raise failure_of(error) from error

    async def stream(
        self,
        path: str,
        pieces: Sequence[bytes],
        headers: Mapping[str, str] | None,
        consumer: Consumer[bytes],
        *,
        idle_s: Patience,
        answered: Answered | None = None,
    ) -> None:
        """POST a body and give the server-sent events that answer it to ``consumer``, until the stream ends
        or the consumer has enough. Cancelling it cancels the request.

        ``idle_s`` bounds the silence between two reads, not before the first. ``answered`` is called with the
        headers of an answer that is no failure, before ``consumer`` is.
        """
        try:
            answer = await self._ask(path, pieces, headers)
            if answer.status // 100 != 2:
                raise await _bad_status(answer)
        except FAILURES as error:
            raise failure_of(error) from error
        is_read = False
        try:
            if answered is not None:
                answered(answer.headers)
            if (whole := await _whole(answer)) is not None:
                await _take(consumer, whole)
                return
            patience: Patience = idle_s if self._read_timeout_s is None else lambda: self._read_timeout_s
            await EventStream(answer, consumer, patience).read()
            is_read = True
        finally:
            if is_read and not answer.is_complete:
                self._drain(answer)
            else:
                answer.release()

    async def _ask(
        self, path: str, pieces: Sequence[bytes] | None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """GET a path, or POST a JSON body to it, and follow redirects within the same host by the same
        method. Later requests go to where the last one was answered, until that fails."""
        url = self.url + path
        target = self._moved.get(url, url)
        try:
            for _ in range(_MOST_REDIRECTS):
                answer = await self._request(target, pieces, headers)
                if answer.status not in _REDIRECTS:
                    if answer.status >= _FAILING:
                        self._moved.pop(url, None)
                    return answer
                answer.release()
                target = _redirect_target(target, answer.headers.get("location", ""))
                self._moved[url] = target
        except BaseException:
            self._moved.pop(url, None)
            raise
        self._moved.pop(url, None)
        raise Unreadable("the server redirects without end")

    async def _request(
        self, url: str, pieces: Sequence[bytes] | None, headers: Mapping[str, str] | None
    ) -> Answer:
        parts = urlsplit(url)
        path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        pool = self._pool_to(f"{parts.scheme}://{parts.netloc}")
        head = pool.request_line("GET" if pieces is None else "POST", path) + self._fixed
        if headers:
            head += header_lines(headers)
        if pieces is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {sum(map(len, pieces))}\r\n"
        request = [f"{head}\r\n".encode("latin-1"), *(pieces or ())]
        connection = await pool.take()
        return await connection.ask(request, self._read_timeout_s)

    def _pool_to(self, host: str) -> ConnectionPool:
        pool = self._pools.get(host)
        if pool is None:
            if len(self._pools) >= _MOST_ADDRESSES:  # a server that moves has another one with every start
                self._pools.pop(next(iter(self._pools))).close()
            pool = ConnectionPool(host, self._proxy, self._connect_timeout_s, keeps=self._keep_alive)
            self._pools[host] = pool
        return pool

    def _drain(self, answer: Answer) -> None:
        """Read the last bytes of a complete answer in the background, to reuse its connection."""

        def forget(task: asyncio.Task[None]) -> None:
            self._draining.discard(task)
            answer.release()

        task = asyncio.create_task(_read_last(answer))
        self._draining.add(task)
        task.add_done_callback(forget)


async def _read_last(answer: Answer) -> None:
    # However the connection ends now, the answer is complete.
    with suppress(*FAILURES):
        async with asyncio.timeout(_LAST_BYTES_S):
            while await answer.read():
                pass


async def _bad_status(answer: Answer) -> BadStatus:
    """The failure of an answer that is no success, with the beginning of its body."""
    try:
        body = b""
        with suppress(*FAILURES, TimeoutError):  # the status alone says enough
            async with asyncio.timeout(_ERROR_BODY_S):
                while len(body) < _LONGEST_ERROR and (piece := await answer.read()):
                    body += piece
        # Not the server's own words: they may repeat a key.
        phrase = responses.get(answer.status, "")
        return BadStatus(answer.status, phrase, body[:_LONGEST_ERROR], answer.headers)
    finally:
        answer.release()


async def _whole(answer: Answer) -> list[bytes] | None:
    """The payloads of an answer that is one document, an error for example; None if it is a stream."""
    kind = _content_type(answer)
    if kind == "text/html":
        raise Unreadable("a web page instead of an answer")
    if kind != "application/json" and not kind.endswith("+json"):
        return None
    try:
        whole = (await _read(answer, LONGEST_EVENT)).removeprefix(BOM)
    except FAILURES as error:
        raise failure_of(error) from error
    answer.release()
    # Some servers stream events under the type of a document.
    return Payloads().take(whole + b"\n") if whole.startswith((b"data:", b"event:", b":")) else [whole]


async def _take(consumer: Consumer[bytes], payloads: list[bytes]) -> None:
    if payloads and (waiting := consumer.take(payloads)) is not None:
        await waiting
    if consumer.fault is not None:
        raise_fault(consumer)


async def _read(answer: Answer, most_bytes: int) -> bytes:
    """Read a whole body, or fail if it is longer than that."""
    pieces: list[bytes] = []
    size = 0
    while piece := await answer.read():
        pieces.append(piece)
        size += len(piece)
        if size > most_bytes:
            answer.release()
            raise Unreadable("the answer is too long")
    return b"".join(pieces)


def _content_type(answer: Answer) -> str:
    return answer.headers.get("content-type", "").partition(";")[0].strip().lower()


def _redirect_target(url: str, location: str) -> str:
    """Where a redirect leads, if that is the same host, by the same scheme or by TLS instead of none."""
    try:
        target = urljoin(url, location)
        old, new = urlsplit(url), urlsplit(target)
        is_upgrade = (old.scheme, new.scheme) == ("http", "https")
        is_here = is_upgrade or _origin(target) == _origin(url)
    except ValueError as error:
        raise Unreadable("it redirects to an address that cannot be read") from error
    if not location or old.hostname != new.hostname or not is_here or new.username is not None:
        raise RedirectedElsewhere(new.netloc.rpartition("@")[2] or "nowhere")
    return target


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


def _redirect_guard() -> aiohttp.TraceConfig:
    """Fails requests that aiohttp would redirect to another host: it would send them our headers."""

    async def check(_: object, __: object, redirect: aiohttp.TraceRequestRedirectParams) -> None:
        _redirect_target(str(redirect.url), redirect.response.headers.get("Location", ""))

    guard = aiohttp.TraceConfig()
    guard.on_request_redirect.append(check)
    return guard
