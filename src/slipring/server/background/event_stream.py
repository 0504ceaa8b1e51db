"""Streams the events of a background run over SSE, from any sequence number, on any node."""

import asyncio
import math
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncGenerator

from aiohttp import web

from slipring.base.errors import ApiError
from slipring.base.periodic_tasks import cancel_and_wait
from slipring.core.limits import Limits
from slipring.protocol.endpoints import translation
from slipring.protocol.events import TERMINAL
from slipring.protocol.responses import Response
from slipring.protocol.wire import encode, type_of
from slipring.server.background.cancelled_and_orphaned_runs import deletion_event
from slipring.server.background.runs import Background
from slipring.server.connections.client_connection import connection_of
from slipring.server.transports.http import STREAM_HEADERS
from slipring.stores.runs import Run, RunEvent

_TERMINAL_TYPES = frozenset(event.__struct_config__.tag for event in TERMINAL)
_PAGE = 500
_POLL_S = 0.25
"""Interval at which the store is read for new events of a run that another node makes."""


async def follow(
    background: Background, request: web.Request, tenant: str, response: Response, *, after: int
) -> web.StreamResponse:
    """Answer a request with all events after a number, until the run is over. ``response``: the response as
    of now, without its output."""
    stream = web.StreamResponse(headers=STREAM_HEADERS)
    follower = _Follower()
    connection = connection_of(request)
    connection.queued_bytes = follower.queued_bytes
    with background.service.serving(follower):
        await stream.prepare(request)
        batches = _batches(background, tenant, response, after)
        try:
            await _write_all(stream, batches, background.service.config.limits, follower)
        except (ConnectionError, ApiError):
            # An error cannot be sent within a stream: cut it off, so that the client asks for the rest.
            connection.cut_off()
        finally:
            connection.queued_bytes = None
            await batches.aclose()
    return stream


class _Follower:
    """A client that reads the events of a run."""

    in_flight = 0

    def __init__(self) -> None:
        self.must_leave = asyncio.Event()
        self.queued: list[RunEvent] = []
        """Events that were read and are not written yet, the latest first."""

    def queued_bytes(self) -> int:
        return sum(len(event.data) for event in self.queued)

    def tick(self) -> float:
        return math.inf  # it has no deadlines

    def wind_down(self, error: ApiError, grace_s: float) -> None:
        self.must_leave.set()


async def _write_all(
    stream: web.StreamResponse,
    batches: AsyncGenerator[list[RunEvent], None],
    limits: Limits,
    follower: _Follower,
) -> None:
    """Write events as they come, and keep-alive comments while there are none."""
    leaving = asyncio.ensure_future(follower.must_leave.wait())
    pending = asyncio.ensure_future(anext(batches, None))
    try:
        while True:
            done, _ = await asyncio.wait(
                [pending, leaving], timeout=limits.ping_interval_s or None, return_when=FIRST_COMPLETED
            )
            if not done:
                await stream.write(translation.KEEPALIVE)
                continue
            if pending not in done:
                raise ConnectionAbortedError  # the client can follow the rest on another node, or later
            batch = pending.result()
            if batch is None:
                break
            batch.reverse()
            follower.queued = batch
            while batch:
                await stream.write(translation.named_block(type_of(batch[-1].data), batch[-1].data))
                batch.pop()  # from the shared list, so that the generator frees it too
            pending = asyncio.ensure_future(anext(batches, None))
        await stream.write(translation.DONE)
        await stream.write_eof()
    finally:
        await cancel_and_wait([pending, leaving])


async def _batches(
    background: Background, tenant: str, response: Response, after: int
) -> AsyncGenerator[list[RunEvent], None]:
    """Yield all events after a number, in batches, until the run is over. Reads each event once.

    The last one is always a terminal event, also if the run is deleted; there is none only if the client has
    had it, by the number that it gave.
    """
    store, slots = background.service.store, background.service.retrieval_slots
    live = background.find(tenant, response.id)
    run: Run | None = None
    has_ended = False
    while True:
        is_over = live is None or live.is_over  # before its events are read: afterwards none are added
        events = live.recent_events.after(after) if live is not None else None
        if events is None or (is_over and not events):
            async with slots.hold(tenant):
                events = await store.runs.events(tenant, response.id, after=after, limit=_PAGE)
        if events:
            after = events[-1].sequence_number
            is_last = type_of(events[-1].data) in _TERMINAL_TYPES
            yield events
            if is_last:
                return
        elif live is not None and not live.is_over:
            await live.written.wait()
        elif has_ended:
            if run is None:
                last = await deletion_event(store, tenant, response, after + 1)
                yield [RunEvent(last.sequence_number, encode(last))]
            return
        else:
            async with slots.hold(tenant):
                run = await store.runs.read(tenant, response.id)
            has_ended = run is None or not run.is_open
            if not has_ended:
                await asyncio.sleep(_POLL_S)
