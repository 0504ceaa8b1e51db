"""Reads the live stream of an admin listener."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from slipring.observation import live_messages
from tests.harness import Running

ANY_PORT = "127.0.0.1:0"
PATIENCE_S = 300.0


class Stream:
    """A live stream that is being read. Keeps every line, to look for what must not be there."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content
        self._unread = b""
        self.text = b""

    async def next(self) -> live_messages.Message:
        async with asyncio.timeout(PATIENCE_S):
            while b"\n" not in self._unread:
                received = await self._content.readany()
                assert received, "the stream has ended"
                self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        self.text += line
        return live_messages.decode(line)

    async def update(
        self, holds: Callable[[live_messages.Update], bool] = lambda update: True
    ) -> live_messages.Update:
        """The next update for which this holds."""
        while True:
            message = await self.next()
            if isinstance(message, live_messages.Update) and holds(message):
                return message


@asynccontextmanager
async def watch(
    url: str, http: aiohttp.ClientSession, **options: Any
) -> AsyncIterator[tuple[live_messages.Greeting, Stream]]:
    async with http.get(f"{url}live", **options) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.content_type == "application/x-ndjson"
        stream = Stream(answer.content)
        greeting = await stream.next()
        assert isinstance(greeting, live_messages.Greeting)
        yield greeting, stream


def admin_url(server: Running) -> str:
    url = server.server.admin_url
    assert url is not None
    return url
