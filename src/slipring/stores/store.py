"""The store: responses, conversations, runs, used approvals, API keys and nodes, on the database that
``--store`` names."""

import math
import os
import time
from collections.abc import Callable
from pathlib import Path

from slipring.base.errors import StartupError
from slipring.core.chain.state import Positions
from slipring.core.limits import Limits
from slipring.stores.conversations import Conversations
from slipring.stores.databases.database import Database
from slipring.stores.databases.sqlite import SqliteDatabase
from slipring.stores.item_references import ItemReferences
from slipring.stores.keys import Keys
from slipring.stores.nodes import Cluster
from slipring.stores.pictures import Pictures
from slipring.stores.pruning import Expiry, Pruning
from slipring.stores.responses import RecentStates, Responses
from slipring.stores.runs import Runs
from slipring.stores.used_approvals import Approvals


class Store:
    """The six parts of a store, on one database."""

    def __init__(
        self,
        database: Database,
        *,
        positions: Positions | None = None,
        retention_s: float = 0.0,
        recent_bytes: int = 0,
        max_bytes: float = math.inf,
        tenant_max_bytes: float = math.inf,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create a store on a database that is not started yet.

        Responses, runs and used approvals expire after ``retention_s`` (0: never). Up to ``recent_bytes`` of
        states are cached in memory. If the database is in memory, pruning also removes the oldest data of the
        tenant that has the most, while it has more than ``tenant_max_bytes`` or all have more than
        ``max_bytes``.
        """
        self.name = database.name
        self.is_shared = database.is_shared
        self._database = database
        self.pruning = Pruning(database, max_bytes=max_bytes, tenant_max_bytes=tenant_max_bytes)
        expiry = Expiry(retention_s, clock)
        pictures = Pictures(database)
        self.responses = Responses(database, RecentStates(recent_bytes), expiry, positions, pictures)
        self.conversations = Conversations(database, expiry, pictures)
        self.runs = Runs(database, expiry, pictures)
        self.approvals = Approvals(database, expiry)
        self.keys = Keys(database)
        self.cluster = Cluster(database)
        self.item_references = ItemReferences(self.responses, self.conversations)

    @property
    def failed_writes(self) -> int:
        """Writes that failed because the store could not be used."""
        return self._database.failed_writes

    @property
    def trouble(self) -> str | None:
        """Why the store could not be used the last time; None if it could. For operators: contains no address
        and no content."""
        return self._database.trouble

    async def try_out(self) -> None:
        """Use the store without changing anything, so that ``trouble`` is up to date."""
        await self._database.try_out()

    def watch_commits(self, on_commit: Callable[[float], None]) -> None:
        """Call ``on_commit`` with the seconds that each write took, from the call to the commit."""
        self._database.on_commit = on_commit

    async def start(self) -> None:
        """Connect. Raises ``StartupError`` with a one-line message for the operator if that fails."""
        await self._database.start()

    async def close(self) -> None:
        await self._database.close()


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
