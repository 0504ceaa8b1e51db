"""Telling a background run's events over SSE, from any number on and on any node."""

import asyncio
from collections.abc import AsyncGenerator

from aiohttp import web
from msgspec import Struct, json

from slipring.server import sse
from slipring.server.background import Background
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
    limits = background.service.config.limits
    await stream.prepare(request)
    events = _events(background, tenant, response_id, after)
    pending = asyncio.ensure_future(anext(events, None))
    try:
        while True:
            done, _ = await asyncio.wait([pending], timeout=limits.ping_interval_s or None)
            if not done:
                await _write(stream, sse.KEEPALIVE, limits.send_timeout_s)
                continue
            event = pending.result()
            if event is None:
                break
            kind = _outline.decode(event.data).type
            await _write(stream, sse.named_block(kind, event.data), limits.send_timeout_s)
            pending = asyncio.ensure_future(anext(events, None))
        await _write(stream, sse.DONE, limits.send_timeout_s)
        await stream.write_eof()
    except (ConnectionError, TimeoutError):
        if request.transport is not None:
            request.transport.abort()
    finally:
        pending.cancel()
        await asyncio.wait([pending])
        await events.aclose()
    return stream


async def _write(stream: web.StreamResponse, data: bytes, timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s):
        await stream.write(data)


async def _events(
    background: Background, tenant: str, response_id: str, after: int
) -> AsyncGenerator[RunEvent, None]:
    runs = background.service.store.runs
    live = background.find(tenant, response_id)
    while live is not None:
        ready = [event for event in live.events if event.sequence_number > after]
        for event in ready:
            after = event.sequence_number
            yield event
        if not ready and live.is_over:
            break
        if not ready:
            await live.written.wait()
    while True:
        run = await runs.read(tenant, response_id)
        events = await runs.events(tenant, response_id, after=after, limit=_PAGE)
        for event in events:
            after = event.sequence_number
            yield event
        if not events:
            if run is None or not run.is_open:
                return  # read before its events: nothing can have come in between
            await asyncio.sleep(_POLL_S)
