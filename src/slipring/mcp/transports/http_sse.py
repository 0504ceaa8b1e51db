"""The driver for HTTP+SSE of revision 2024-11-05: one event stream for all answers, one POST per message."""

import asyncio
from collections.abc import Callable

import aiohttp
from yarl import URL

from slipring.mcp.failures import ConnectionLost, HttpRejected, Malformed, McpFailure, TooLarge
from slipring.mcp.limits import McpLimits
from slipring.mcp.protocol.session import McpSession, Send
from slipring.mcp.protocol.sse import Event, SseParser
from slipring.mcp.transports.connection import Connection
from slipring.mcp.transports.web_client import EVENTS, JSON, Endpoint, content_type, drain

_MAX_ENDPOINT_BYTES = 4096
_NOTICE_S = 10.0


class HttpSseConnection(Connection):
    """A session that lasts as long as its event stream."""

    def __init__(
        self, endpoint: Endpoint, session: McpSession, limits: McpLimits, on_tools_changed: Callable[[], None]
    ) -> None:
        """``session`` must not be over HTTP in its own sense: requests are cancelled by notifications."""
        super().__init__(session, limits, on_tools_changed)
        self._endpoint = endpoint
        self._post_url: asyncio.Future[URL] | None = None
        self._stream: asyncio.Task[None] | None = None

    async def _open(self) -> None:
        self._post_url = asyncio.get_running_loop().create_future()
        self._stream = self._spawn(self._read())
        await self._post_url

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
            async with self._endpoint.request("GET", {"Accept": EVENTS}) as response:
                if response.status != 200:
                    raise HttpRejected(response.status)
                if content_type(response) != EVENTS:
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

        headers = {**dict(send.headers), "Content-Type": JSON, "Accept": f"{JSON}, {EVENTS}"}
        try:
            async with (
                asyncio.timeout(_NOTICE_S if request_id is None else None),
                self._endpoint.request(
                    "POST", headers, send.data, url=self._post_url.result(), on_sent=on_sent
                ) as response,
            ):
                if not 200 <= response.status < 300 and request_id is not None:
                    self._run(self.session.rejected(request_id, response.status))
                await drain(response)
        except McpFailure as failure:
            if request_id is not None:
                self._run(self.session.failed(request_id, failure))
        except TimeoutError:
            pass  # a notification or a reply
