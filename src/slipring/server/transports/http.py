"""Turns over HTTP: a session with a single create, answered with a JSON body or an SSE stream.

What the client sends and gets is that of its API (``Translation``). A response that it continues is loaded
from the store. The headers and the chunks of a stream are made here.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import ClassVar, cast

from aiohttp import hdrs, web
from msgspec import Struct

from slipring.base.aiohttp_internals import StreamedResponse
from slipring.base.errors import ApiError
from slipring.core.session.session import Session
from slipring.core.turn.stages import Stages
from slipring.protocol.endpoints.translation import RESPONSES, Api, Translation, failure_of
from slipring.protocol.events import DELTAS, TERMINAL, Error, Event, Failed, ResponseEvent
from slipring.protocol.requests import CreateRequest
from slipring.protocol.turn_report import TurnReport, server_timing
from slipring.server.access.auth import Caller
from slipring.server.clock import clock, now, unix_time
from slipring.server.connections.client_connection import connection_of
from slipring.server.connections.request_bodies import read_body
from slipring.server.driver import Driver, Exchange, Sink
from slipring.server.endpoints.replies import error_reply, json_response
from slipring.server.observation.ended_turns import EndedTurn, Origin, Transport
from slipring.server.request_decoding import ReadCreate
from slipring.server.service import Service
from slipring.server.transports.outbox import Outbox, run_until_waiting

STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
"""Of a stream of server-sent events."""


class PostedCreate(Struct, frozen=True):
    """A create request that was sent with POST."""

    request: CreateRequest
    stages: Stages
    size_bytes: int
    traceparent: str | None


async def read_posted(
    service: Service, request: web.Request, caller: Caller, read: ReadCreate, api: Api = "responses"
) -> PostedCreate:
    """Read the body of a request and decode it with ``read``. If it is not valid, its turn is reported as
    refused, like one that is refused later. ``api``: that of the request."""
    body = await read_body(service, request, caller)
    stages, traceparent = Stages(clock), request.headers.get("traceparent")
    try:
        create = await service.decoder.create(caller.tenant, body, read)
    except ApiError as error:
        stages.lap("decode")
        report = TurnReport("refused", len(body), stages.laps, stages.total_ms, error_code=error.code)
        origin = Origin("http", traceparent=traceparent, api=api)
        started_at = unix_time(stages.arrived)
        service.turn_ended(EndedTurn(report, None, caller, origin, started_at, traceparent))
        error.is_reported = True
        raise
    stages.lap("decode")
    return PostedCreate(create, stages, len(body), traceparent)


async def answer(
    service: Service, caller: Caller, session: Session, reply: "Reply", posted: PostedCreate
) -> web.StreamResponse:
    """Run the single turn of a session and return its HTTP response. What it continues is in the store."""
    async with driving(service, caller, session, reply, posted) as driver:
        driver.run(session.create(posted.request, posted.stages, size_bytes=posted.size_bytes, now=now()))
        return await reply.finished()


@asynccontextmanager
async def driving(
    service: Service,
    caller: Caller,
    session: Session,
    reply: "Reply",
    posted: PostedCreate,
    sink: Sink | None = None,
) -> AsyncIterator[Driver]:
    """The driver of a session that answers one request, which ends with the block. ``sink``: what its events
    go to on their way to the reply."""
    driver = Driver(
        service,
        caller,
        session,
        sink or reply,
        origin=Origin(reply.transport, traceparent=posted.traceparent, api=reply.api),
        states=service.stored_states,
    )
    with service.serving(_HttpExchange(driver, reply)):
        try:
            yield driver
        finally:
            await driver.stop()


class JsonReply(Sink):
    """Answers with what the client's API makes of the response of the terminal event."""

    transport: ClassVar[Transport] = "http"

    def __init__(self, translation: Translation = RESPONSES) -> None:
        self.api = translation.api
        self._translation = translation
        self._answer: asyncio.Future[web.Response] = asyncio.get_running_loop().create_future()

    def send(self, events: list[Event]) -> None:
        for event in events:
            if self._answer.done():
                return  # answered already, or the client has disconnected
            if isinstance(event, Error):
                self._answer.set_result(error_reply(self._translation.error(event)))
            elif isinstance(event, TERMINAL):
                try:
                    if self._translation.ends(event):
                        self._answer.set_result(self._final_response(event))
                except Exception as error:  # nothing follows that could be answered instead
                    self._answer.set_exception(error)
                    raise

    def record(self, turn: EndedTurn) -> None:
        if self._answer.done() and not self._answer.cancelled():
            self._answer.result().headers["Server-Timing"] = server_timing(turn.report.stages)

    def counted(self, tokens: int) -> None:
        if not self._answer.done():
            self._answer.set_result(json_response(self._translation.counted(tokens)))

    def keep_alive(self) -> None:
        """Nothing can be sent before the response."""

    async def finished(self) -> web.Response:
        """Wait for the HTTP response."""
        return await self._answer

    def _final_response(self, event: ResponseEvent) -> web.Response:
        response = event.response
        if isinstance(event, Failed) and response.error is not None:
            return error_reply(self._translation.error(Error.of(failure_of(response.error))))
        return json_response(self._translation.body(response))


class SseReply(Sink):
    """Streams events as they arrive. A request that is refused gets an ordinary HTTP error instead."""

    transport: ClassVar[Transport] = "sse"

    def __init__(
        self, service: Service, request: web.Request, stages: Stages, translation: Translation = RESPONSES
    ) -> None:
        loop = asyncio.get_running_loop()
        self.api = translation.api
        self._translation = translation
        self._stages = stages
        self._limits = service.config.limits
        self._request = request
        self._stream = StreamedResponse(headers=STREAM_HEADERS)
        self._connection = connection_of(request)
        self._writes_chunks = False
        """Whether the headers have been sent, with the first blocks, and the body is chunked. aiohttp writes
        those and the end; through it, each small write between them would run two coroutines."""
        self._outbox = Outbox(
            self._write,
            self._limits.send_buffer_bytes,
            abort=self._connection.abort,
            encode=translation.frames,
            head=no_head,
            on_full=self._connection.queue_grew,
        )
        self._clock = loop.time
        self._written_at = loop.time()
        self._opened: asyncio.Future[Error | None] = loop.create_future()
        """Done when the first event, or the error that refuses the request, has arrived."""
        self._ended: asyncio.Future[None] = loop.create_future()

    def send(self, events: list[Event]) -> None:
        if self._opened.cancelled() or self._ended.done():
            return  # answered already, or the client has disconnected
        ends = False
        try:
            for event in events:
                # Not ``isinstance``: one that fails takes as long as encoding the event.
                if type(event) is Error:
                    if not self._opened.done():
                        self._opened.set_result(event)
                    return
                self._outbox.post(self._translation.frames(event))
                if type(event) in TERMINAL:
                    ends = self._translation.ends(cast(ResponseEvent, event))
        except Exception as error:
            self._fail(error)
            raise
        if ends:
            self._outbox.post(self._translation.end())
            self._ended.set_result(None)
        if events and not self._opened.done():
            self._opened.set_result(None)

    def _fail(self, error: Exception) -> None:
        """End the stream: an event of it cannot be sent, and the client must not wait for it."""
        waited_for = self._ended if self._opened.done() else self._opened
        waited_for.set_exception(error)
        waited_for.exception()  # marked as retrieved: the client may have disconnected
        if not self._ended.done():
            self._ended.cancel()

    def flush(self) -> None:
        if self._stream.prepared:
            self._outbox.flush()

    def room(self) -> Awaitable[None] | None:
        return self._outbox.room() if self._stream.prepared else None

    def deliver(self, events: list[Event]) -> Awaitable[None] | None:
        # Hot path: one event per token, of a class that neither begins nor ends a response.
        if len(events) == 1 and self._writes_chunks and type(events[0]) in DELTAS:
            return self._outbox.deliver(events)
        return super().deliver(events)

    def keep_alive(self) -> None:
        """Send a comment if nothing has been written for ``ping_interval_s``."""
        if self._ended.done() or not self._limits.ping_interval_s:
            return
        at = self._clock()
        if at - self._written_at > self._limits.ping_interval_s:
            self._written_at = at
            self._outbox.post(self._translation.keepalive)
            self.flush()

    async def finished(self) -> web.StreamResponse:
        """Stream until the terminal event has been written or the client has disconnected."""
        try:
            error = await self._opened
            if error is not None:
                return error_reply(self._translation.error(error))
            # Headers are sent first, so they have only the stages until now.
            self._stream.headers["Server-Timing"] = server_timing(self._stages.laps)
            self._connection.queued_bytes = self._outbox.queued_bytes
            with contextlib.suppress(ConnectionError):  # the client disconnected before the end
                await self._stream.prepare(self._request)
                self._outbox.flush()
                await self._ended
                await self._outbox.settle()
        finally:
            self._connection.queued_bytes = None
            self._outbox.discard()  # it refers to this reply: so memory is freed without a collection
        return self._stream

    def _write(self, blocks: bytes) -> Awaitable[None] | None:
        self._written_at = self._clock()
        if self._ended.done() and not self._outbox.queued_bytes():
            return run_until_waiting(self._stream.write_eof(blocks))
        if self._writes_chunks:
            return self._connection.write(_chunk(blocks))
        waiting = run_until_waiting(self._stream.write(blocks))
        self._writes_chunks = _is_chunked(self._stream)
        return waiting


Reply = JsonReply | SseReply


def reply_to(
    service: Service,
    request: web.Request,
    posted: PostedCreate,
    *,
    streams: bool,
    translation: Translation = RESPONSES,
) -> Reply:
    """What answers a create: a stream, or one body."""
    return SseReply(service, request, posted.stages, translation) if streams else JsonReply(translation)


class _HttpExchange(Exchange):
    """The client of a POST: its reply sends something when a stream has been silent for long."""

    def __init__(self, driver: Driver, reply: Reply) -> None:
        super().__init__(driver)
        self.reply = reply

    def tick(self) -> float | None:
        self.reply.keep_alive()
        return super().tick()


def _is_chunked(response: web.StreamResponse) -> bool:
    """Whether the body of a response whose headers have been sent is chunked: not for HTTP/1.0."""
    return response.headers.get(hdrs.TRANSFER_ENCODING) == "chunked"


def no_head(_: int) -> bytes:
    """What is written before a block: nothing."""
    return b""


def _chunk(data: bytes) -> bytes:
    """Data, which must not be empty, as one chunk of a body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
