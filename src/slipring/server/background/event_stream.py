"""Telling a background run's events over SSE, from any number on and on any node."""

import asyncio
import math
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncGenerator

from aiohttp import web
from msgspec import Struct, json

from slipring.core.limits import Limits
from slipring.errors import ApiError
from slipring.server.background.runs import Background
from slipring.server.connections.http_connection import connection_of
from slipring.server.transports import sse
from slipring.stores.base import RunEvent

_PAGE = 500
_POLL_S = 0.25
"""How often a run that another node makes is looked at."""


class _Outline(Struct):
    type: str


_outline = json.Decoder(_Outline)


async def follow(
    background: Background, request: web.Request, tenant: str, response_id: str, *, after: int
) -> web.StreamResponse:
    """Answer with all events after a number, until the run is over."""
    stream = web.StreamResponse(headers=sse.HEADERS)
    follower = _Follower()
    connection = connection_of(request)
    connection.queued_bytes = follower.queued_bytes
    with background.service.serving(follower):
        await stream.prepare(request)
        batches = _batches(background, tenant, response_id, after)
        try:
            await _tell(stream, batches, background.service.config.limits, follower)
        except (ConnectionError, ApiError):
            # In the middle of an answer nothing else can be said: it is cut off, and can be asked for again.
            if request.transport is not None:
                request.transport.abort()
        finally:
            connection.queued_bytes = None
            await batches.aclose()
    return stream


class _Follower:
    """Somebody who is told of a run, as the server looks after its clients."""

    def __init__(self) -> None:
        self.told_to_leave = asyncio.Event()
        self.untold: list[RunEvent] = []
        """What was read and is not written yet."""

    def queued_bytes(self) -> int:
        return sum(len(event.data) for event in self.untold)

    def tick(self) -> float:
        return math.inf  # it has no deadlines of its own

    def wind_down(self, error: ApiError, grace_s: float) -> None:
        self.told_to_leave.set()


async def _tell(
    stream: web.StreamResponse,
    batches: AsyncGenerator[list[RunEvent], None],
    limits: Limits,
    follower: _Follower,
) -> None:
    """Write events as they come, and something in between where none do."""
    leaving = asyncio.ensure_future(follower.told_to_leave.wait())
    pending = asyncio.ensure_future(anext(batches, None))
    try:
        while True:
            done, _ = await asyncio.wait(
                [pending, leaving], timeout=limits.ping_interval_s or None, return_when=FIRST_COMPLETED
            )
            if not done:
                await stream.write(sse.KEEPALIVE)
                continue
            if pending not in done:
                raise ConnectionAbortedError  # on another node, or later, it can be followed to its end
            batch = pending.result()
            if batch is None:
                break
            follower.untold = batch
            while batch:
                event = batch.pop(0)  # whoever else has the list lets go of it, too
                kind = _outline.decode(event.data).type
                await stream.write(sse.named_block(kind, event.data))
            pending = asyncio.ensure_future(anext(batches, None))
        await stream.write(sse.DONE)
        await stream.write_eof()
    finally:
        for task in (pending, leaving):
            task.cancel()
        await asyncio.wait([pending, leaving])


async def _batches(
    background: Background, tenant: str, response_id: str, after: int
) -> AsyncGenerator[list[RunEvent], None]:
    """All events after a number, as many at once as there are, until the run is over. What is new is found
    without looking at what has been told already."""
    runs = background.service.store.runs
    live = background.find(tenant, response_id)
    while True:
        is_over = live is None or live.is_over
        events = live.tail.after(after) if live is not None else None
        run = None
        if events is None or (is_over and not events):
            # Not in memory here, or not any more: the store has everything.
            async with background.service.retrieving.place(tenant):
                run = await runs.read(tenant, response_id)
                events = await runs.events(tenant, response_id, after=after, limit=_PAGE)
        if events:
            after = events[-1].sequence_number
            yield events
        elif live is not None and not live.is_over:
            await live.written.wait()
        elif run is None or not run.is_open:
            return  # read before its events: nothing can have come in between
        else:
            await asyncio.sleep(_POLL_S)
