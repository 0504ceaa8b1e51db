"""Opens a store by the value of ``--store``."""

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
    """Return the store that ``spec`` names, not started yet. Raises ``StartupError`` for an unknown one.

    Responses and runs expire after ``retention_s``; 0: they are kept until they are deleted.
    """
    database = open_database(spec)
    return SqlStore(
        database,
        positions=positions,
        retention_s=retention_s,
        recent_bytes=limits.recent_bytes,
        max_bytes=limits.store_bytes,
        tenant_max_bytes=limits.tenant_store_bytes,
    )


def open_database(spec: str) -> Database:
    """Return only the database of the store that ``spec`` names, not started yet."""
    kind, _, rest = spec.partition(":")
    if spec == "memory":
        return SqliteDatabase(None)
    if spec == "sqlite":
        return SqliteDatabase(str(default_file()), creates_directory=True)
    if kind == "sqlite" and rest:
        return SqliteDatabase(rest)
    if kind in ("postgresql", "postgres") and rest.startswith("//"):
        return _postgres(spec)
    # Only the part before the colon: a mistyped address may contain a password.
    raise StartupError(f"--store {kind}: unknown store (known: {KNOWN})")


def _postgres(url: str) -> Database:
    try:
        from slipring.stores.databases.postgres import PostgresDatabase
    except ModuleNotFoundError as error:
        extra = "pip install 'slipring[postgres]'"
        raise StartupError(f"--store postgresql: {error.name} is not installed ({extra})") from None
    return PostgresDatabase(url)


def default_file() -> Path:
    """Return the path of the database file for ``--store sqlite``, which names none."""
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "slipring" / "slipring.db"
