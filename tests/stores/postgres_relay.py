"""A relay between a store and a real PostgreSQL server, which breaks connections when a test wants it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit


class Relay:
    """Forwards connections to the server, and can cut them. Also keeps back what the server replies."""

    def __init__(self, url: str, directory: Path) -> None:
        (host,) = parse_qs(urlsplit(url).query)["host"]
        self._server_path = f"{host}/.s.PGSQL.5432"
        self._path = directory / ".s.PGSQL.5432"
        self.url = url.replace(f"host={host}", f"host={directory}")
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None
        self._lost_after: bytes | None = None
        self._meanwhile: Callable[[], Awaitable[object]] = _nothing
        self.replies_lost = 0

    def lose_reply_to(self, text: bytes, meanwhile: Callable[[], Awaitable[object]] | None = None) -> None:
        """Break the next connection that sends ``text`` to the server, once the server has replied to it.

        ``meanwhile`` is awaited after the server has lost the connection and before the client does.
        """
        self._lost_after = text
        self._meanwhile = meanwhile or _nothing

    async def stop_listening(self) -> None:
        """Refuse new connections."""
        assert self._server is not None
        self._server.close()
        self._path.unlink(missing_ok=True)

    async def open(self) -> None:
        self._server = await asyncio.start_unix_server(self._join, self._path)

    async def cut(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
        await self._server.wait_closed()
        self._server = None
        self._path.unlink(missing_ok=True)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(self._server_path)
        self._writers += [writer, back]
        is_lost = asyncio.Event()
        await asyncio.gather(self._forward(reader, back, is_lost), self._return(there, writer, back, is_lost))

    async def _forward(
        self, reader: asyncio.StreamReader, server: asyncio.StreamWriter, is_lost: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if self._lost_after is not None and self._lost_after in data:
                    self._lost_after = None
                    is_lost.set()
                server.write(data)
                await server.drain()
        server.close()

    async def _return(
        self,
        reader: asyncio.StreamReader,
        client: asyncio.StreamWriter,
        server: asyncio.StreamWriter,
        is_lost: asyncio.Event,
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if is_lost.is_set():
                    self.replies_lost += 1
                    server.transport.abort()
                    await self._meanwhile()
                    client.transport.abort()
                    return
                client.write(data)
                await client.drain()
        client.close()


async def _nothing() -> None:
    return
