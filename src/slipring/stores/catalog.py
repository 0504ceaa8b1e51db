"""Opens a store by the value of ``--store``."""

import os
from pathlib import Path

from slipring.base.errors import StartupError
from slipring.core.chain.state import Positions
from slipring.core.limits import Limits
from slipring.stores.databases.database import Database
from slipring.stores.databases.sqlite import SqliteDatabase
from slipring.stores.store import Store

KNOWN = "memory, sqlite, sqlite:PATH, postgresql://…"


def open_store(
    spec: str,
    limits: Limits,
    positions: Positions | None = None,
    retention_s: float = 0.0,
    *,
    is_synced: bool = True,
) -> Store:
    """Return the store that ``spec`` names, not started yet. Raises ``StartupError`` for an unknown one.

    Responses and runs expire after ``retention_s``; 0: they are kept until they are deleted. ``is_synced``:
    as for ``open_database``.
    """
    database = open_database(spec, is_synced=is_synced)
    return Store(
        database,
        positions=positions,
        retention_s=retention_s,
        recent_bytes=limits.recent_bytes,
        max_bytes=limits.store_bytes,
        tenant_max_bytes=limits.tenant_store_bytes,
    )


def open_database(spec: str, *, is_synced: bool = True) -> Database:
    """Return only the database of the store that ``spec`` names, not started yet. ``is_synced``: an SQLite
    file is on the disk at each commit. Raises ``StartupError`` if other stores should not be."""
    kind, _, rest = spec.partition(":")
    if not is_synced and kind != "sqlite":
        raise StartupError(f"--store-unsynced: it is for SQLite, and the store is {kind}")
    if spec == "memory":
        return SqliteDatabase(None)
    if spec == "sqlite":
        return SqliteDatabase(str(default_file()), creates_directory=True, is_synced=is_synced)
    if kind == "sqlite" and rest:
        return SqliteDatabase(rest, is_synced=is_synced)
    if kind in ("postgresql", "postgres") and rest.startswith("//"):
        return _postgres(spec)
    # Only the part before the colon: a mistyped address may contain a password.
    raise StartupError(f"--store {kind}: unknown store (known: {KNOWN})")


def _postgres(url: str) -> Database:
    try:
        from slipring.stores.databases.postgres import PostgresDatabase
    except ModuleNotFoundError as error:
        extra = "pip install '.[postgres]' in a checkout of slipring"
        raise StartupError(f"--store postgresql: {error.name} is not installed ({extra})") from None
    return PostgresDatabase(url)


def default_file() -> Path:
    """Return the path of the database file for ``--store sqlite``, which names none."""
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "slipring" / "slipring.db"
