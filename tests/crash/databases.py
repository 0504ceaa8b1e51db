"""The databases of a crash storm. Each can be read directly, and PostgreSQL can be crashed too."""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Protocol

import apsw
import asyncpg

from tests.postgres import Postgres

_IDS = "SELECT id FROM slipring_responses WHERE hidden = 0"
_PATIENCE_S = 30.0


class StormDatabase(Protocol):
    name: str
    spec: str
    can_crash: bool

    async def stored_ids(self) -> list[str]:
        """Return the ids of the visible responses, read directly from the database."""

    async def crash(self, random: Random) -> None:
        """Kill the database's process without warning, and wait until it is back."""


class SqliteFile:
    """An SQLite file. It has no process of its own, so only the servers that write it can be crashed."""

    name = "sqlite"
    can_crash = False

    def __init__(self, directory: Path) -> None:
        self._path = directory / "slipring.db"
        self.spec = f"sqlite:{self._path}"

    async def stored_ids(self) -> list[str]:
        return await asyncio.to_thread(self._look)

    def _look(self) -> list[str]:
        connection = apsw.Connection(str(self._path))
        assert connection.execute("PRAGMA integrity_check").get == "ok"
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        ids = [row[0] for row in connection.execute(_IDS)]
        connection.close()
        return ids

    async def crash(self, random: Random) -> None:
        raise NotImplementedError


class PostgresServer:
    """A PostgreSQL server, which can be crashed too."""

    name = "postgresql"
    can_crash = True

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self.spec = server.url

    async def stored_ids(self) -> list[str]:
        connection = await asyncpg.connect(self.spec)
        rows = await connection.fetch(_IDS)
        await connection.close()
        return [row[0] for row in rows]

    async def crash(self, random: Random) -> None:
        """Kill one of its processes, after which PostgreSQL ends all others and recovers; or kill all at
        once."""
        if random.random() < 0.5:
            await asyncio.to_thread(self._server.crash_and_restart)
        else:
            await self._kill_a_backend(random)
        async with asyncio.timeout(_PATIENCE_S):
            while not await self._is_back():  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def _kill_a_backend(self, random: Random) -> None:
        connection = await asyncpg.connect(self.spec)
        rows = await connection.fetch(
            "SELECT pid FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY pid"
        )
        if rows:
            with suppress(ProcessLookupError):  # its client was killed a moment ago
                os.kill(random.choice(rows)[0], signal.SIGKILL)
        connection.terminate()

    async def _is_back(self) -> bool:
        try:
            connection = await asyncpg.connect(self.spec)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False
        await connection.close()
        return True
