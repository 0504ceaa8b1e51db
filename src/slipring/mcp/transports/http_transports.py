"""MCP over HTTP: the drivers for streamable HTTP and for HTTP+SSE of revision 2024-11-05, and their requests.

In streamable HTTP, each message is a POST, and each answer a JSON body or an event stream. In HTTP+SSE, one
event stream has all answers, and each message is a POST. The requests of both follow no redirects and use
neither proxies nor cookies; bodies are bounded; errors contain no secrets.
"""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import aiohttp
from yarl import URL

from slipring.mcp.failures import (
    ConnectionLost,
    HttpRejected,
    Malformed,
    McpFailure,
    RequestRefused,
    TooLarge,
    Unreachable,
)
from slipring.mcp.limits import McpLimits
from slipring.mcp.protocol.json_rpc import Message, decode_messages
from slipring.mcp.protocol.session import McpSession, Send
from slipring.mcp.protocol.sse import Event, SseParser
from slipring.mcp.transports.addresses import (
    AddressIsRegistered,
    AddressNotPublic,
    Reach,
    RegisteredAddresses,
    public_socket,
)
from slipring.mcp.transports.connection import Connection

_KEEP_ALIVE_S = 4.0
"""Shorter than what common servers keep idle connections for (5 s): a call that is sent on a connection which
the server is just closing has an unknown outcome."""
_LAST_BYTES = 64 * 1024
_LAST_S = 1.0
_JSON = "application/json"
_EVENTS = "text/event-stream"
_SESSION_HEADER = "Mcp-Session-Id"
_SESSION_ID = re.compile(r"[\x21-\x7e]{1,1024}")
_EVENT_ID = re.compile(r"[\x20-\x7e]{1,1024}")
_NOTICE_S = 10.0
_DEFAULT_RETRY_S = 1.0
_MAX_ENDPOINT_BYTES = 4096


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


def _content_type(response: aiohttp.ClientResponse) -> str:
    """The media type of a response's body. Raises ``Malformed`` if the body is compressed all the same."""
    if response.headers.get("Content-Encoding", "identity").lower() not in ("", "identity"):
        raise Malformed("the MCP server's response is compressed, which was not asked for")
    return response.content_type.lower()


async def _read_body(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Read a whole body. Raises ``TooLarge``."""
    if (response.content_length or 0) > most:
        raise TooLarge(f"the MCP server sent a message of more than {most} bytes")
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > most:
            raise TooLarge(f"the MCP server sent a message of more than {most} bytes")
    return bytes(body)


async def _drain(response: aiohttp.ClientResponse) -> None:
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


class StreamableHttpConnection(Connection):
    """A session over streamable HTTP, in either era. Without a session id there is nothing to keep."""

    def __init__(
        self,
        endpoint: Endpoint,
        session: McpSession,
        limits: McpLimits,
        on_tools_changed: Callable[[], None],
        on_unheard: Callable[[], None],
    ) -> None:
        super().__init__(session, limits, on_tools_changed, on_unheard)
        self._endpoint = endpoint
        self._session_id: str | None = None
        self._exchanges: dict[int, asyncio.Task[None]] = {}
        self._notices: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Task[None] | None = None

    async def _open(self) -> None:
        """Nothing: each request connects by itself."""

    async def _opened(self) -> None:
        # The server must have seen "initialized" before it gets a request.
        await asyncio.gather(*self._notices)

    async def _close(self) -> None:
        session_id, self._session_id = self._session_id, None
        if session_id is None:
            return
        try:
            async with (
                asyncio.timeout(self.limits.close_grace_s),
                self._request("DELETE", {_SESSION_HEADER: session_id, **self._version()}),
            ):
                pass
        except (McpFailure, TimeoutError):
            pass  # the server forgets the session by itself

    def listen(self) -> None:
        """Keep a stream open on which the server announces changes of its tools."""
        if self._listening is None and self.agreement.announces_tool_changes:
            self._listening = self._spawn(self._listen())

    def _send(self, send: Send) -> None:
        if send.request_id is not None:
            task = self._exchanges[send.request_id] = self._spawn(self._exchange(send, send.request_id))
            task.add_done_callback(lambda _: self._exchanges.pop(send.request_id or 0, None))
        elif len(self._notices) >= self.limits.max_pending_replies:
            self._end(Malformed, "the MCP server sends more requests than it takes answers")
        else:
            notice = self._spawn(self._notify(send))
            self._notices.add(notice)
            notice.add_done_callback(self._notices.discard)

    def _abandon(self, request_id: int) -> None:
        if (exchange := self._exchanges.get(request_id)) is not None:
            exchange.cancel()

    def _version(self) -> dict[str, str]:
        agreement = self.session.agreement
        return {} if agreement is None else {"MCP-Protocol-Version": agreement.version}

    def _request(
        self,
        method: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        sent = {"Accept": f"{_JSON}, {_EVENTS}", **headers}
        if body is not None:
            sent["Content-Type"] = _JSON
        if self._session_id is not None:
            sent[_SESSION_HEADER] = self._session_id
        return self._endpoint.request(method, sent, body, on_sent=on_sent)

    async def _notify(self, send: Send) -> None:
        """Send a notification or a reply. If it is lost, the server's own timeouts apply."""
        try:
            async with (
                asyncio.timeout(_NOTICE_S),
                self._request("POST", dict(send.headers), send.data) as answer,
            ):
                await _drain(answer)
        except (McpFailure, TimeoutError):
            pass

    async def _exchange(self, send: Send, request_id: int) -> None:
        """Send a request and feed what comes back to the state machine."""
        in_session = self._session_id is not None

        def on_sent() -> None:
            self.session.sent(request_id)

        try:
            async with self._request("POST", dict(send.headers), send.data, on_sent) as response:
                if 200 <= response.status < 300:
                    self._note_session(response)
                    kind = _content_type(response)
                    if kind == _EVENTS:
                        await self._read_answer(response, request_id)
                        return
                    if kind != _JSON:
                        raise Malformed("the MCP server's answer is neither JSON nor an event stream")
                    body = await _read_body(response, self.limits.max_message_bytes)
                    self._receive(body, request_id)
                    self._run(self.session.failed(request_id, Malformed("the MCP server did not answer")))
                else:
                    error = await self._read_error(response)
                    self._run(
                        self.session.rejected(request_id, response.status, error, in_session=in_session)
                    )
        except McpFailure as failure:
            self._run(self.session.failed(request_id, failure))

    def _note_session(self, response: aiohttp.ClientResponse) -> None:
        """Keep the session id that comes with the answer to ``initialize``."""
        given = response.headers.get(_SESSION_HEADER)
        if given is None or self.session.agreement is not None or not self.session.is_initializing:
            return
        if not _SESSION_ID.fullmatch(given):
            raise Malformed("the MCP server's session id is invalid")
        self._session_id = given

    async def _read_error(self, response: aiohttp.ClientResponse) -> Message | None:
        """The JSON-RPC error in the body of an HTTP error, if there is one."""
        try:
            if _content_type(response) != _JSON:
                return None
            (message,) = decode_messages(await _read_body(response, self.limits.max_message_bytes))
        except (McpFailure, ValueError):
            return None
        return message if message.error is not None else None

    async def _read_answer(self, response: aiohttp.ClientResponse, request_id: int) -> None:
        """Read the event stream of a request until its answer.

        Servers of the older revisions may end the stream early. It is then resumed where it ended: the
        request is not sent again.
        """
        events = SseParser(self.limits.max_message_bytes)
        size = await self._read_events(response, events, request_id, 0)
        resumes = 0
        while self.session.is_pending(request_id):
            resumes += 1
            event_id = events.last_event_id
            agreement = self.session.agreement
            if agreement is None or agreement.is_modern or not event_id or not _EVENT_ID.fullmatch(event_id):
                raise ConnectionLost("the MCP server ended its response before the answer")
            if resumes > self.limits.max_stream_resumes:
                raise ConnectionLost("the MCP server ended its response too often before the answer")
            await asyncio.sleep(_DEFAULT_RETRY_S if events.retry_s is None else events.retry_s)
            headers = {"Accept": _EVENTS, "Last-Event-ID": event_id, **self._version()}
            async with self._request("GET", headers) as again:
                if again.status != 200 or _content_type(again) != _EVENTS:
                    raise ConnectionLost("the MCP server ended its response and does not continue it")
                events = events.continued()
                read = await self._read_events(again, events, request_id, size)
                resumes = 0 if events.last_event_id != event_id else resumes
                size = read

    async def _read_events(
        self, response: aiohttp.ClientResponse, events: SseParser, request_id: int | None, size: int
    ) -> int:
        """Feed a stream's messages to the state machine until the answer, or the end. Return the bytes read,
        with ``size`` bytes before them."""
        try:
            async for piece in response.content.iter_any():
                size += len(piece)
                if size > self.limits.max_stream_bytes:
                    raise TooLarge(f"the MCP server sent more than {self.limits.max_stream_bytes} bytes")
                for event in events.feed(piece):
                    if event.type == "message":
                        self._receive(event.data, request_id)
                if request_id is not None and not self.session.is_pending(request_id):
                    await _drain(response)
                    return size
        except (aiohttp.ClientError, OSError):
            pass  # a stream that breaks ends, and may be resumed like one that the server ended
        return size

    async def _listen_once(self) -> None:
        if self.agreement.is_modern:
            await super()._listen_once()
            return
        async with self._request("GET", {"Accept": _EVENTS, **self._version()}) as response:
            if response.status != 200:
                raise HttpRejected(response.status)
            if _content_type(response) != _EVENTS:
                raise Malformed("the MCP server does not answer with an event stream")
            self._heard()
            await self._read_events(response, SseParser(self.limits.max_message_bytes), None, 0)


class HttpSseConnection(Connection):
    """A session that lasts as long as its event stream."""

    def __init__(
        self,
        endpoint: Endpoint,
        session: McpSession,
        limits: McpLimits,
        on_tools_changed: Callable[[], None],
        on_unheard: Callable[[], None],
    ) -> None:
        """``session`` must not be over HTTP in its own sense: requests are cancelled by notifications."""
        super().__init__(session, limits, on_tools_changed, on_unheard)
        self._endpoint = endpoint
        self._post_url: asyncio.Future[URL] | None = None
        self._stream: asyncio.Task[None] | None = None

    async def _open(self) -> None:
        self._post_url = asyncio.get_running_loop().create_future()
        self._stream = self._spawn(self._read())
        await self._post_url

    async def _opened(self) -> None:
        self._heard()

    async def _close(self) -> None:
        if self._stream is not None and self._stream is not asyncio.current_task():
            self._stream.cancel()

    def _send(self, send: Send) -> None:
        if len(self._tasks) > self.limits.max_pending_replies + len(self._waits):
            self._end(Malformed, "the MCP server sends more requests than it takes answers")
        else:
            self._spawn(self._post(send))

    async def _read(self) -> None:
        """Read the stream to its end, which is the end of the session."""
        assert self._post_url is not None
        failure: McpFailure = ConnectionLost("the MCP server ended its event stream")
        try:
            async with self._endpoint.request("GET", {"Accept": _EVENTS}) as response:
                if response.status != 200:
                    raise HttpRejected(response.status)
                if _content_type(response) != _EVENTS:
                    raise Malformed("the MCP server does not answer with an event stream")
                events = SseParser(self.limits.max_message_bytes)
                async for piece in response.content.iter_any():
                    for event in events.feed(piece):
                        self._take(event)
        except McpFailure as found:
            failure = found
        except (aiohttp.ClientError, OSError):
            pass
        if not self._post_url.done():
            self._post_url.set_exception(failure)
            self._post_url.exception()  # marked as retrieved: no task may await it any more
        kind = type(failure) if isinstance(failure, ConnectionLost | Malformed | TooLarge) else ConnectionLost
        self._end(kind, failure.message)

    def _take(self, event: Event) -> None:
        assert self._post_url is not None
        if event.type == "message":
            self._receive(event.data)
        elif event.type == "endpoint" and not self._post_url.done():
            self._post_url.set_result(self._resolved(event.data))

    def _resolved(self, data: bytes) -> URL:
        """The URL to post to. It must be on the same server: credentials are sent there."""
        try:
            url = self._endpoint.url.join(URL(data[:_MAX_ENDPOINT_BYTES].decode().strip()))
            is_same = url.origin() == self._endpoint.url.origin() and url.raw_user is None
        except ValueError:
            is_same = False
        if not is_same:
            raise Malformed("the MCP server names an endpoint that is not on the same server")
        return url

    async def _post(self, send: Send) -> None:
        """Send one message. Its answer comes on the stream; here the server only accepts it."""
        assert self._post_url is not None
        request_id = send.request_id

        def on_sent() -> None:
            if request_id is not None:
                self.session.sent(request_id)

        headers = {**dict(send.headers), "Content-Type": _JSON, "Accept": f"{_JSON}, {_EVENTS}"}
        try:
            async with (
                asyncio.timeout(_NOTICE_S if request_id is None else None),
                self._endpoint.request(
                    "POST", headers, send.data, url=self._post_url.result(), on_sent=on_sent
                ) as response,
            ):
                if not 200 <= response.status < 300 and request_id is not None:
                    self._run(self.session.rejected(request_id, response.status))
                await _drain(response)
        except McpFailure as failure:
            if request_id is not None:
                self._run(self.session.failed(request_id, failure))
        except TimeoutError:
            pass  # a notification or a reply
