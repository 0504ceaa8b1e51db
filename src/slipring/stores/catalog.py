"""Which stores there are, by the name that an operator gives."""

import os
from pathlib import Path

from slipring.core.chain.state import Positions
from slipring.core.limits import Limits
from slipring.errors import StartupError
from slipring.stores.base import Store
from slipring.stores.databases.database import Database
from slipring.stores.databases.sqlite import SqliteDatabase
from slipring.stores.sql.store import SqlStore

KNOWN = "memory, sqlite, sqlite:PATH, postgresql://…"


def open_store(
    spec: str, limits: Limits, positions: Positions | None = None, retention_s: float = 0.0
) -> Store:
    """Make the store that ``spec`` names. It is not started yet.

    Things are kept for ``retention_s``; 0: until they are deleted.
    """
    database = open_database(spec)
    return SqlStore(
        database,
        positions=positions,
        retention_s=retention_s,
        recent_bytes=limits.recent_bytes,
        most_bytes=limits.store_bytes if spec == "memory" else None,
    )


def open_database(spec: str) -> Database:
    """Only what lies below the store, not started either."""
    kind, _, rest = spec.partition(":")
    if spec == "memory":
        return SqliteDatabase(None)
    if spec == "sqlite":
        return SqliteDatabase(str(default_file()), creates_directory=True)
    if kind == "sqlite" and rest:
        return SqliteDatabase(rest)
    if kind in ("postgresql", "postgres") and rest.startswith("//"):
        return _postgres(spec)
    # Not the whole of it: what was meant to be an address may hold a password.
    raise StartupError(f"--store {kind}: unknown store (known: {KNOWN})")


def _postgres(url: str) -> Database:
    try:
        from slipring.stores.databases.postgres import PostgresDatabase
    except ModuleNotFoundError as error:
        extra = "pip install 'slipring[postgres]'"
        raise StartupError(f"--store postgresql: {error.name} is not installed ({extra})") from None
    return PostgresDatabase(url)


def default_file() -> Path:
    """Where the data lies of whoever names no file."""
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "slipring" / "slipring.db"
