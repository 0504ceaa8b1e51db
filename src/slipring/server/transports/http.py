"""``POST /v1/responses``: the same turn, told as one JSON body or as an SSE stream.

Each request is a session of its own with one create; what it may continue comes from the store.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from aiohttp import web

from slipring.core.turn.stages import Stages
from slipring.errors import ApiError, InvalidRequest, RateLimited, UnsupportedParameter
from slipring.protocol import requests
from slipring.protocol.events import TERMINAL, Error, Event, Failed, ResponseEvent
from slipring.protocol.requests import CreateRequest
from slipring.protocol.responses import Response
from slipring.protocol.timing import TurnReport, server_timing
from slipring.server.access.auth import Caller
from slipring.server.access.beta_header import of_exchange
from slipring.server.background import event_stream
from slipring.server.background.runs import Background, Refused
from slipring.server.clock import clock, now
from slipring.server.cluster.state_lookup import StoredStates
from slipring.server.connections.http_connection import connection_of
from slipring.server.connections.request_bodies import read_body
from slipring.server.driver import Driver
from slipring.server.endpoints.replies import error_response, json_response, refusal
from slipring.server.service import Service
from slipring.server.transports import sse
from slipring.server.transports.outbox import Outbox

_EOF = b""
_GOING_AWAY = 1001
_FAILURES: dict[str, type[ApiError]] = {"rate_limit_exceeded": RateLimited, "invalid_prompt": InvalidRequest}


async def create_response(
    service: Service, background: Background, request: web.Request, caller: Caller
) -> web.StreamResponse:
    """Make one response and answer with it."""
    body = await read_body(service, request, caller)
    stages = Stages(clock)
    create = await service.reading.create(caller.tenant, body, read_create)
    stages.lap("decode")
    if create.background is True:
        return await _create_in_background(background, request, caller, create, stages, len(body))
    reply: JsonReply | _SseReply = _SseReply(service, request, stages) if create.stream else JsonReply()
    session = service.open_exchange(caller, of_exchange(request.headers))
    driver = Driver(service, caller, session, reply, states=StoredStates(service.store.responses))
    return await answer(driver, reply, create, stages, len(body))


async def answer(
    driver: Driver,
    reply: "JsonReply | _SseReply",
    create: CreateRequest,
    stages: Stages,
    size_bytes: int,
) -> web.StreamResponse:
    """See the one response of a session through."""
    service, session = driver.service, driver.session
    with service.serving(_Exchange(driver, reply)):
        try:
            driver.run(session.create(create, stages, size_bytes=size_bytes, now=now()))
            return await reply.finished()
        finally:
            await driver.stop()


async def _create_in_background(
    background: Background,
    request: web.Request,
    caller: Caller,
    create: CreateRequest,
    stages: Stages,
    size_bytes: int,
) -> web.StreamResponse:
    """Begin a response that goes on by itself; answer with it as it is now, or tell how it goes."""
    try:
        run = await background.begin(caller, create, stages, size_bytes)
    except Refused as refused:
        return refusal(refused.error)
    if create.stream:
        return await event_stream.follow(background, request, caller.tenant, run.promised.id, after=-1)
    return json_response(run.promised)


def read_create(body: bytes) -> CreateRequest:
    create = requests.read_create(body)
    if create.stream_id is not None:
        raise UnsupportedParameter(
            "Unsupported parameter: 'stream_id' exists only on a WebSocket.", param="stream_id"
        )
    return create


class _Exchange:
    """A request and its reply, as the server looks after them: the one response may finish, in time."""

    def __init__(self, driver: Driver, reply: "JsonReply | _SseReply") -> None:
        self.driver = driver
        self.reply = reply

    def tick(self) -> None:
        if self.driver.service.draining:
            self.driver.run(self.driver.session.tick(now()))
        self.reply.tick()

    def wind_down(self, error: ApiError, grace_s: float) -> None:
        self.driver.run(self.driver.session.end(error, code=_GOING_AWAY, grace_s=grace_s, now=now()))


class JsonReply:
    """Waits for the terminal event and answers with its response object, or what is to be told of it."""

    def __init__(self, shape: Callable[[Response], object] = lambda response: response) -> None:
        self._shape = shape
        self._answer: asyncio.Future[web.Response] = asyncio.get_running_loop().create_future()

    def send(self, events: list[Event]) -> None:
        for event in events:
            if self._answer.done():
                return  # answered already, or the client has just gone
            if isinstance(event, Error):
                self._answer.set_result(refusal(event))
            elif isinstance(event, TERMINAL):
                self._answer.set_result(self._final_response(event))

    def record(self, report: TurnReport) -> None:
        if self._answer.done() and not self._answer.cancelled():
            self._answer.result().headers["Server-Timing"] = server_timing(report.stages)

    def flush(self) -> None:
        return

    def close(self, code: int, reason: str) -> None:
        return

    def tick(self) -> None:
        return

    async def finished(self) -> web.Response:
        return await self._answer

    def _final_response(self, event: ResponseEvent) -> web.Response:
        response = event.response
        if isinstance(event, Failed) and response.error is not None:
            code = response.error.code
            return error_response(_FAILURES.get(code, ApiError)(response.error.message, code=code))
        return json_response(self._shape(response))


class _SseReply:
    """Streams events as they come. A request that is refused gets an ordinary HTTP error instead."""

    def __init__(self, service: Service, request: web.Request, stages: Stages) -> None:
        loop = asyncio.get_running_loop()
        self._stages = stages
        self._limits = service.config.limits
        self._request = request
        self._stream = web.StreamResponse(headers=sse.HEADERS)
        self._connection = connection_of(request)
        self._outbox = Outbox(
            self._write, self._limits.send_buffer_bytes, on_full=self._connection.queue_grew
        )
        self._spoke_at = loop.time()
        self._opened: asyncio.Future[Error | None] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()

    def send(self, events: list[Event]) -> None:
        if self._opened.cancelled() or self._ended.done():
            return  # answered already, or the client has just gone
        for event in events:
            if isinstance(event, Error):
                if not self._opened.done():
                    self._opened.set_result(event)
                return
            self._outbox.post(sse.block(event))
        if any(isinstance(event, TERMINAL) for event in events):
            self._outbox.post(sse.DONE)
            self._outbox.post(_EOF)
            self._ended.set_result(None)
        if events and not self._opened.done():
            self._opened.set_result(None)

    def flush(self) -> Awaitable[None] | None:
        return self._outbox.flush() if self._stream.prepared else None

    def close(self, code: int, reason: str) -> None:
        return

    def record(self, report: TurnReport) -> None:
        return

    def tick(self) -> None:
        """Keep a silent stream alive."""
        if self._ended.done() or not self._limits.ping_interval_s:
            return
        clock = asyncio.get_running_loop().time()
        if clock - self._spoke_at > self._limits.ping_interval_s:
            self._spoke_at = clock
            self._outbox.post(sse.KEEPALIVE)
            if self._stream.prepared:
                self._outbox.kick()

    async def finished(self) -> web.StreamResponse:
        error = await self._opened
        if error is not None:
            return refusal(error)
        # Headers come first, so they know only the stages until now; the event tells all.
        self._stream.headers["Server-Timing"] = server_timing(self._stages.laps)
        self._connection.queued_bytes = self._outbox.queued_bytes
        try:
            with contextlib.suppress(ConnectionError):  # the client left before the end
                await self._stream.prepare(self._request)
                self._outbox.kick()
                await self._ended
                await self._outbox.settle()
        finally:
            self._connection.queued_bytes = None
        return self._stream

    async def _write(self, block: bytes) -> None:
        self._spoke_at = asyncio.get_running_loop().time()
        await (self._stream.write(block) if block else self._stream.write_eof())
