"""The databases of crash storms: what they have stored, read directly, and how PostgreSQL is killed."""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from random import Random

import apsw
import asyncpg

from tests.crash.servers import PATIENCE_S
from tests.postgres import Postgres

_IDS = "SELECT id FROM slipring_responses WHERE hidden = 0"


def ids_in_file(path: Path) -> list[str]:
    """Return the ids of the visible responses in an SQLite file, which must be in order."""
    connection = apsw.Connection(str(path))
    assert connection.execute("PRAGMA integrity_check").get == "ok"
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    ids = [row[0] for row in connection.execute(_IDS)]
    connection.close()
    return ids


async def ids_in_postgres(url: str) -> list[str]:
    connection = await asyncpg.connect(url)
    rows = await connection.fetch(_IDS)
    await connection.close()
    return [row[0] for row in rows]


async def until_it_answers(url: str) -> None:
    """Wait until a PostgreSQL server executes statements that write."""
    async with asyncio.timeout(PATIENCE_S):
        while not await _answers(url):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def _answers(url: str) -> bool:
    try:
        connection = await asyncpg.connect(url, timeout=5)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return False
    try:
        return not await connection.fetchval("SELECT pg_is_in_recovery()")
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return False
    finally:
        connection.terminate()


async def kill_postgres(server: Postgres, random: Random) -> str:
    """Kill all processes of PostgreSQL, or one, after which it ends all others; wait until it has recovered.
    Return what was done."""
    if random.random() < 0.6:
        what = "PostgreSQL killed"
        await asyncio.to_thread(server.crash_and_restart)
    else:
        what = "a process of PostgreSQL killed"
        await _kill_a_backend(server.url, random)
    await until_it_answers(server.url)
    return what


async def _kill_a_backend(url: str, random: Random) -> None:
    connection = await asyncpg.connect(url)
    rows = await connection.fetch(
        "SELECT pid FROM pg_stat_activity"
        " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY pid"
    )
    if rows:
        with suppress(ProcessLookupError):  # its client was killed a moment ago
            os.kill(random.choice(rows)[0], signal.SIGKILL)
    connection.terminate()
