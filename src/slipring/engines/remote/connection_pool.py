"""The connections to one host: made directly or through a proxy, and kept for the next request."""

import asyncio
import socket
import ssl
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from http.client import BadStatusLine
from itertools import zip_longest
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from slipring.engines.remote.http_connection import Connection
from slipring.engines.remote.http_failures import CannotConnect

_IDLE_S = 15.0
"""How long a connection is kept for the next request: servers close those that are idle for longer."""
_STAGGER_S = 0.25
"""After so long without a connection, the next address of the host is tried as well."""
_PORTS = {"http": 80, "https": 443}


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
