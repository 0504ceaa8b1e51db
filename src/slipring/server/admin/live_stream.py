"""The readers of the live stream: how many there may be, and that a slow one is disconnected."""

import asyncio
import contextlib
from collections.abc import Callable

from aiohttp import web

from slipring.base.errors import RateLimited
from slipring.observation import live_messages
from slipring.server.connections.client_connection import connection_of

_MOST_READERS = 16
_UNREAD_LINES = 8
"""Lines of a live stream that may wait for its reader; one that is slower is disconnected."""


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
