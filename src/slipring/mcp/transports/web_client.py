"""HTTP requests to MCP servers: no redirects, proxies or cookies; bounded bodies; errors without secrets."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import aiohttp
from yarl import URL

from slipring.mcp.failures import ConnectionLost, Malformed, McpFailure, RequestRefused, TooLarge, Unreachable
from slipring.mcp.transports.public_addresses import AddressNotPublic, Reach, public_socket
from slipring.mcp.transports.registered_addresses import AddressIsRegistered, RegisteredAddresses

_KEEP_ALIVE_S = 4.0
"""Shorter than what common servers keep idle connections for (5 s): a call that is sent on a connection which
the server is just closing has an unknown outcome."""
_LAST_BYTES = 64 * 1024
_LAST_S = 1.0
JSON = "application/json"
EVENTS = "text/event-stream"


class WebClient:
    """The HTTP sessions of a pool: one for each ``Reach``, because a session uses its connections again."""

    def __init__(self, connect_timeout_s: float, reserved: RegisteredAddresses) -> None:
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s)
        self.reserved = reserved
        self._sessions: dict[Reach, aiohttp.ClientSession] = {}

    def _public_socket(self, address_info: tuple[Any, ...]) -> socket.socket:
        self.reserved.require_free(address_info[4][0], address_info[4][1])
        return public_socket(address_info)

    def session(self, reach: Reach) -> aiohttp.ClientSession:
        session = self._sessions.get(reach)
        if session is None:
            tracing = aiohttp.TraceConfig()
            tracing.on_request_headers_sent.append(_on_request_headers_sent)
            factories = {
                Reach.PUBLIC: self._public_socket,
                Reach.UNRESERVED: self.reserved.unreserved_socket,
                Reach.ALL: None,
            }
            session = self._sessions[reach] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0, keepalive_timeout=_KEEP_ALIVE_S, socket_factory=factories[reach]
                ),
                # Cookies would be shared by all tenants.
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=self._timeout,
                # A compressed body could be far larger than it looks.
                auto_decompress=False,
                trust_env=False,
                trace_configs=[tracing],
                headers={"User-Agent": "slipring"},
                read_bufsize=2**16,
            )
        return session

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()


@dataclass(frozen=True)
class Endpoint:
    """Where the requests of one connection go, and what all of them carry."""

    web: WebClient
    url: URL = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    reach: Reach

    @asynccontextmanager
    async def request(
        self,
        method: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        url: URL | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and yield its response. Raises ``McpFailure`` for all that goes wrong with either.

        ``url``: another one on the same server. ``on_sent`` is called before the first byte leaves.
        """
        if self.reach is not Reach.ALL:
            await self.web.reserved.look_up()
        try:
            async with self.web.session(self.reach).request(
                method,
                url or self.url,
                data=body,
                headers={**self.headers, **headers, "Accept-Encoding": "identity"},
                allow_redirects=False,
                trace_request_ctx=on_sent,
            ) as response:
                yield response
        except (aiohttp.ClientError, OSError) as error:
            # Not chained: these errors contain URLs and headers.
            raise _explained(error) from None


async def _on_request_headers_sent(_: object, context: SimpleNamespace, __: object) -> None:
    on_sent = context.trace_request_ctx
    if on_sent is not None:
        on_sent()


def _explained(error: Exception) -> McpFailure:
    if isinstance(error, aiohttp.ClientSSLError):
        return Unreachable("the MCP server's certificate or TLS is not acceptable")
    if isinstance(error, aiohttp.ClientConnectorError):
        for kind in (AddressIsRegistered, AddressNotPublic):
            # Several addresses of a name fail with one error that quotes all.
            if isinstance(error.os_error, kind) or kind.reason in str(error.os_error):
                return RequestRefused(kind.reason)
        if isinstance(error, aiohttp.ClientConnectorDNSError):
            return Unreachable("the MCP server's name cannot be resolved")
        return Unreachable("the MCP server does not accept connections")
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return Unreachable("the MCP server did not accept a connection in time")
    if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ClientConnectionError | OSError):
        return ConnectionLost("the connection to the MCP server ended before the answer")
    return Malformed("the MCP server's HTTP response is invalid")


def content_type(response: aiohttp.ClientResponse) -> str:
    """The media type of a response's body. Raises ``Malformed`` if the body is compressed all the same."""
    if response.headers.get("Content-Encoding", "identity").lower() not in ("", "identity"):
        raise Malformed("the MCP server's response is compressed, which was not asked for")
    return response.content_type.lower()


async def read_body(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Read a whole body. Raises ``TooLarge``."""
    if (response.content_length or 0) > most:
        raise TooLarge(f"the MCP server sent a message of more than {most} bytes")
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > most:
            raise TooLarge(f"the MCP server sent a message of more than {most} bytes")
    return bytes(body)


async def drain(response: aiohttp.ClientResponse) -> None:
    """Read the little that may follow the answer, so that the connection can be used again."""
    size = 0
    try:
        async with asyncio.timeout(_LAST_S):
            async for piece in response.content.iter_any():
                size += len(piece)
                if size > _LAST_BYTES:
                    break
    except TimeoutError:
        pass
    response.release()
