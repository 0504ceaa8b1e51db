"""The HTTP server of the admin listener: who may read what, the routes, and the readers of the live stream.

- The page is served to every client that can connect: it contains nothing of this server. The data needs the
  admin key, if there is one. Without a key, only this machine can connect.
- Only web pages of this listener itself may read the data: ``origins`` refuses those from elsewhere.
- The page may load nothing but its own files.
- The live stream has a limited number of readers, and a slow one is disconnected.
"""

import asyncio
import contextlib
import hmac
import logging
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web
from aiohttp.typedefs import Handler

from slipring.base.errors import (
    ApiError,
    AuthenticationFailed,
    InvalidRequest,
    NotFound,
    RateLimited,
    ServerError,
    StartupError,
)
from slipring.base.periodic_tasks import PeriodicTasks
from slipring.config.settings import ADMIN_AUTO, ADMIN_OFF, Config
from slipring.core.byte_ledger import Ledger
from slipring.core.limits import Limits
from slipring.observation import live_messages
from slipring.observation.drawing_files import DRAWINGS
from slipring.observation.metric_counts import Snapshot
from slipring.server.access.auth import require_admin_key
from slipring.server.access.origins_and_hosts import require_local_name, require_same_origin
from slipring.server.clock import now
from slipring.server.connections.acceptor import Acceptor
from slipring.server.connections.client_connection import connection_factory, connection_of, http_logger
from slipring.server.connections.open_connections import Connections
from slipring.server.endpoints.replies import add_standard_headers, error_response, json_response
from slipring.server.process.listening_sockets import listen

log = logging.getLogger("slipring")

_AUTO = ("127.0.0.1", 9464)
_MOST_CONNECTIONS = 64
_TICK_S = 1.0
_SHUTDOWN_S = 1.0
_OPERATOR = "operator"
_PAGE = Path(__file__).parent / "page"
_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; object-src 'none';"
    " frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_MOST_READERS = 16
_UNREAD_LINES = 8
"""Lines of a live stream that may wait for its reader; one that is slower is disconnected."""


class Source(Protocol):
    """What an admin listener shows."""

    def greeting(self) -> live_messages.Greeting:
        """The first message of a live stream."""

    def subscribe(self, receive: live_messages.Receive) -> Callable[[], None]:
        """Send the lines of a live stream to ``receive`` until the returned function is called."""

    async def detail(self, process: int, number: int) -> live_messages.ConnectionDetail | None:
        """Describe one connection; None if it is not open."""

    def metrics(self) -> Snapshot:
        """What all processes have counted."""

    def health(self) -> tuple[object, int]:
        """The body of ``GET /health`` and its status."""


class AdminListener:
    """Serves the admin address. Call ``start``, then ``close``."""

    def __init__(self, config: Config, source: Source) -> None:
        """Raises ``StartupError`` if other machines could read without a key."""
        self._host, self._port = _address(config)
        self._is_exact = config.admin != ADMIN_AUTO
        self._key = config.admin_key.encode()
        require_admin_key(config, self._host)
        self._source = source
        self._stream = LiveStream(source.greeting, source.subscribe)
        limits = Limits()
        requests = Ledger(limits.tenant_request_bytes, limits.request_bytes)
        self._connections = Connections(limits, _MOST_CONNECTIONS, requests, now)
        self._files = _page_files()
        self._runner: web.AppRunner | None = None
        self._acceptor: Acceptor | None = None
        self._ticker = PeriodicTasks()

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}/"

    async def start(self) -> None:
        """Begin to serve. Raises ``StartupError`` if the address cannot be used."""
        listener = self._listen()
        self._port = listener.getsockname()[1]
        self._runner = web.AppRunner(
            self._application(), handler_cancellation=True, shutdown_timeout=_SHUTDOWN_S
        )
        await self._runner.setup()
        assert self._runner.server is not None
        options: dict[str, Any] = {"access_log": None, "logger": http_logger()}
        make = connection_factory(self._runner.server, self._connections, **options)
        self._acceptor = Acceptor(listener, self._connections, make)
        self._acceptor.start()
        self._ticker.start("the tick of the admin listener", self._tick, _TICK_S)

    async def close(self) -> None:
        """Stop serving and disconnect all clients."""
        if self._acceptor is not None:
            await self._acceptor.close()
        await self._ticker.stop()
        self._stream.close()
        if self._runner is not None:
            await self._runner.cleanup()

    def _listen(self) -> socket.socket:
        try:
            return listen(self._host, self._port, flag="--admin")
        except StartupError as error:
            if self._is_exact:
                raise StartupError(f"--admin: {error}") from None
            return listen(self._host, 0)

    async def _tick(self) -> None:
        self._connections.tick()

    def _application(self) -> web.Application:
        app = web.Application(middlewares=[_answer_errors])
        routes: list[tuple[str, Callable[[web.Request], Awaitable[web.StreamResponse]]]] = [
            ("/health", self._health),
            ("/metrics", self._metrics),
            ("/live", self._live),
            ("/live/connections/{process:[0-9]{1,9}}/{number:[0-9]{1,18}}", self._connection),
        ]
        for path, handler in routes:
            app.router.add_get(path, self._guarded(handler))
        app.router.add_get("/{name:[a-z0-9_.-]*}", self._page)
        app.on_response_prepare.append(_add_headers)
        return app

    def _guarded(self, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Handler:
        """A handler for data: it asks for the key."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            require_same_origin(request.host, request.headers)
            if not self._key:
                require_local_name(request.host)
            self._require_key(request)
            self._connections.identify(connection_of(request), _OPERATOR, alone=True)
            return await handler(request)

        return guarded

    def _require_key(self, request: web.Request) -> None:
        if not self._key:
            return
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        is_right = hmac.compare_digest(given.strip().encode(errors="surrogateescape"), self._key)
        if scheme.lower() != "bearer" or not is_right:
            raise AuthenticationFailed("This needs the admin key, as 'Authorization: Bearer KEY'.")

    async def _health(self, request: web.Request) -> web.Response:
        body, status = self._source.health()
        return json_response(body, status)

    async def _metrics(self, request: web.Request) -> web.Response:
        accept = ",".join(request.headers.getall("Accept", ()))
        # In a thread: a large page takes some milliseconds.
        body, content_type = await asyncio.to_thread(_exposed, self._source.metrics(), accept)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _connection(self, request: web.Request) -> web.Response:
        process, number = int(request.match_info["process"]), int(request.match_info["number"])
        detail = await self._source.detail(process, number)
        if detail is None:
            raise NotFound("This connection is not open.", code="connection_not_found")
        return json_response(detail)

    async def _live(self, request: web.Request) -> web.StreamResponse:
        return await self._stream.serve(request)

    async def _page(self, request: web.Request) -> web.Response:
        name = request.match_info["name"] or "index.html"
        if name not in self._files:
            raise NotFound(f"Unknown path: {request.path}", code="unknown_url")
        body, content_type = self._files[name]
        return web.Response(body=body, content_type=content_type, charset="utf-8")


class LiveStream:
    """The live stream of one admin listener, as its readers get it."""

    def __init__(
        self,
        greeting: Callable[[], live_messages.Greeting],
        subscribe: Callable[[live_messages.Receive], Callable[[], None]],
    ) -> None:
        """``greeting``: the first message. ``subscribe``: sends all others to what it is given, as lines,
        until the function that it returns is called."""
        self._greeting, self._subscribe = greeting, subscribe
        self._readers: set[asyncio.Queue[bytes | None]] = set()

    def close(self) -> None:
        """End the streams of all readers."""
        for lines in self._readers:
            if not lines.full():  # else its reader is slow, and is disconnected with its connection
                lines.put_nowait(None)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer a request with the stream, until its reader leaves, is too slow, or ``close`` is called."""
        if len(self._readers) >= _MOST_READERS:
            raise RateLimited("Too many clients watch this server at once.")
        stream = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await stream.prepare(request)
        lines: asyncio.Queue[bytes | None] = asyncio.Queue(_UNREAD_LINES)
        lines.put_nowait(live_messages.encode(self._greeting()))

        def receive(line: bytes) -> None:
            try:
                lines.put_nowait(line)
            except asyncio.QueueFull:
                connection_of(request).abort()

        self._readers.add(lines)
        unsubscribe = self._subscribe(receive)
        try:
            with contextlib.suppress(ConnectionError):
                while (line := await lines.get()) is not None:
                    await stream.write(line)
        finally:
            unsubscribe()
            self._readers.discard(lines)
        return stream


def _exposed(snapshot: Snapshot, accept: str) -> tuple[bytes, str]:
    # Imported for the first request: it takes time that no start of a server needs to spend.
    from slipring.observation.exposition import expose

    return expose(snapshot, accept)


def _address(config: Config) -> tuple[str, int]:
    assert config.admin != ADMIN_OFF
    if config.admin == ADMIN_AUTO:
        return _AUTO
    host, _, port = config.admin.rpartition(":")
    return host.strip("[]"), int(port)


def _page_files() -> dict[str, tuple[bytes, str]]:
    """The files of the page by name, with their types."""
    files = [path for folder in (_PAGE, DRAWINGS) for path in folder.iterdir() if path.suffix in _TYPES]
    return {path.name: (path.read_bytes(), _TYPES[path.suffix]) for path in files}


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn exceptions into responses in the API's shape."""
    try:
        return await handler(request)
    except ApiError as error:
        return error_response(error)
    except web.HTTPException as refusal:
        invalid = InvalidRequest(f"The request is not valid: {refusal.reason}.", code="invalid_request")
        invalid.status = refusal.status
        return error_response(invalid)
    except Exception as failure:
        if isinstance(failure, ConnectionError):
            raise  # there is no client to answer
        log.exception("an admin request failed unexpectedly")
        return error_response(ServerError())


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    add_standard_headers(response.headers)
    response.headers.update(_HEADERS)
