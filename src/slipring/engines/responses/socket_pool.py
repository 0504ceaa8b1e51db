"""The pool of WebSockets to one upstream: opens, bounds and closes them, and says when to post instead.

A socket is opened for one chain and its forks, so that its affinity headers are right. When none of their
responses can be continued any more, another chain of the same tenant may use it. A tenant with many sockets
has further chains share them. Tenants share none.

A socket is closed when no response on it can be continued, when it has been idle for long, when it is old, or
when the pool is full and another is needed.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from slipring.base.errors import ApiError
from slipring.core.generation import Job
from slipring.engines.remote.http_failures import HttpFailure
from slipring.engines.remote.retries_and_breaker import Retryable
from slipring.engines.remote.upstream import Upstream
from slipring.engines.remote.upstream_errors import api_failure, refusal
from slipring.engines.responses.options import ResponsesOptions
from slipring.engines.responses.positions import Position
from slipring.engines.responses.sockets import Lane, Socket

PATH = "/responses"
_BETA = {"OpenAI-Beta": "responses_websockets=2026-02-06"}
_LONGEST_MESSAGE = 64 * 2**20
_SILENCE_S = 20.0
_TICK_S = 1.0
_CLOSE_S = 2.0
_OWN_SOCKETS = 16
"""A tenant with this many sockets has new chains share them, if the upstream supports lanes."""
_POSTS_S = 60.0
"""How long requests are posted after an upgrade that was not answered."""
_FAILING = frozenset({401, 408, 425, 429})
"""Statuses of a refused upgrade that do not mean that the upstream has no WebSockets."""


@dataclass(frozen=True, slots=True)
class Route:
    """A socket and the lane on it that was taken for a job."""

    socket: Socket
    lane: Lane


class Pool:
    """All sockets to one upstream."""

    def __init__(self, upstream: Upstream, options: ResponsesOptions) -> None:
        self._upstream = upstream
        self._url = upstream.url + upstream.path(PATH)
        self._options = options
        self._lanes = options.lanes
        self._posts = options.transport == "sse"
        """Whether every request is a POST: by option, or since the upstream refused a WebSocket."""
        self._posts_until = 0.0
        """Until when requests are POSTs because an upgrade was not answered."""
        self._sockets: dict[Socket, None] = {}
        """Open sockets, least recently used first."""
        self._opening = 0
        self._closings: set[asyncio.Task[object]] = set()
        self._keeper: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._sockets)

    async def start(self) -> None:
        self._keeper = asyncio.create_task(self._keep())

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        for socket in self._sockets:
            socket.drop()
        self._forget_closed()
        if self._closings:
            await asyncio.wait(self._closings)  # bounded in time

    def forbid_lanes(self) -> None:
        """Stop using lanes: the upstream does not support them."""
        self._lanes = False

    def resume(self, position: Position, *, fork: bool) -> Route | None:
        """Take a lane to continue the response at ``position``; None if its socket is closed or full."""
        socket = position.socket
        if socket is None or not self._is_usable(socket):
            return None
        lane = socket.take_after(position, position.lane, fork=fork, lanes=self._lanes)
        return self._route(socket, lane)

    def reuse(self, tenant: str) -> Route | None:
        """Take a lane for a new chain on a socket that the tenant has and no job uses; None if there is none.

        That is a socket where no response can be continued, or, if the tenant has many, any.
        """
        own = [socket for socket in self._sockets if socket.tenant == tenant]
        idle = [socket for socket in own if not socket.is_wanted and self._is_usable(socket)]
        for socket in idle:
            if socket.is_free:
                return self._route(socket, socket.take_first())
        if self._lanes and len(own) >= _OWN_SOCKETS:
            for socket in idle:
                if (lane := socket.take_another()) is not None:
                    return self._route(socket, lane)
        return None

    def _route(self, socket: Socket, lane: Lane | None) -> Route | None:
        """Note the use of a socket, if a lane on it was taken."""
        if lane is None:
            return None
        del self._sockets[socket]
        self._sockets[socket] = None
        return Route(socket, lane)

    async def open(self, job: Job) -> Route | None:
        """Open a new socket and take its default lane; None if the request is to be posted. Raises an
        ``ApiError``."""
        if self._posts or _now() < self._posts_until:
            return None
        self._make_room()
        self._opening += 1
        try:
            ws = await self._connect(self._upstream.affinity_headers(job))
        finally:
            self._opening -= 1
        if ws is None:
            return None
        socket = Socket(ws, job.tenant, _now())
        self._sockets[socket] = None
        return Route(socket, socket.take_first())

    async def _connect(self, headers: Mapping[str, str]) -> aiohttp.ClientWebSocketResponse | None:
        try:
            async with asyncio.timeout(self._options.connect_timeout_s):
                return await self._upstream.client.session.ws_connect(
                    self._url,
                    headers={**_BETA, **headers},
                    autoping=False,
                    max_msg_size=_LONGEST_MESSAGE,
                    timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_S),
                )
        except aiohttp.WSServerHandshakeError as error:
            fault = refusal(error.status, b"", error.headers or {})
            if error.status in _FAILING:
                raise fault from error
            self._post_instead(fault, error, for_good=error.status < 500)
        except HttpFailure as error:  # a redirect that is not followed
            self._post_instead(api_failure(error), error)
        except aiohttp.ClientConnectorError as error:
            raise Retryable("The engine cannot be reached.") from error
        except (aiohttp.ClientError, OSError) as error:
            # Connected, but the upgrade was not answered: a proxy may not know what it is.
            self._post_instead(Retryable("The engine cannot be reached."), error)
        return None

    def _post_instead(self, fault: ApiError, cause: Exception, *, for_good: bool = False) -> None:
        """Post from now on, or for a while, because the upstream takes no WebSocket. ``for_good``: it refuses
        upgrades; otherwise it, or something before it, failed to answer one. Raises ``fault`` if a WebSocket
        is required."""
        if self._options.transport != "auto":
            raise fault from cause
        self._posts = for_good
        self._posts_until = _now() + _POSTS_S

    def _is_usable(self, socket: Socket) -> bool:
        if _now() - socket.opened_at > self._options.socket_max_age_s:
            socket.retired = True
        return socket in self._sockets and socket.is_alive and not socket.retired

    def _make_room(self) -> None:
        """Close idle sockets until the pool has room. There is always one: ``max_jobs`` is at most
        ``max_sockets``."""
        self._forget_closed()
        for socket in list(self._sockets):
            if len(self._sockets) + self._opening < self._options.max_sockets:
                return
            if not socket.is_wanted:
                socket.drop()
                self._forget_closed()

    def _forget_closed(self) -> None:
        for socket in list(self._sockets):
            if socket.closing is not None:
                del self._sockets[socket]
                self._closings.add(socket.closing)
                socket.closing.add_done_callback(self._closings.discard)

    async def _keep(self) -> None:
        """Close or ping the sockets that no job uses, once a second."""
        while True:
            # When a second begins, as the server's tick: a process at rest wakes up once for both.
            await asyncio.sleep(_TICK_S - _now() % _TICK_S)
            self._tend()

    def _tend(self) -> None:
        now = _now()
        for socket in self._sockets:
            if socket.is_wanted:
                continue
            is_stale = socket.is_free or now - socket.used_at > self._options.socket_idle_s
            if is_stale or not self._is_usable(socket):
                socket.drop()
            else:
                socket.ping(now, _SILENCE_S)
        self._forget_closed()


def _now() -> float:
    return asyncio.get_running_loop().time()
