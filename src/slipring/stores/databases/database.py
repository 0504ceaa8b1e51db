"""The interface between the SQL store and a database driver.

Each SQL statement is written once, for SQLite and PostgreSQL alike: placeholders are ``$1``, types are TEXT,
BIGINT, DOUBLE PRECISION and BYTEA, and only syntax that both databases accept is used.
"""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from msgspec import Struct

from slipring.base.errors import Unavailable
from slipring.stores.databases import schema

log = logging.getLogger(__name__)

Row = tuple[Any, ...]
_T = TypeVar("_T")
_PAUSES_S = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Pauses before the attempts to find out whether a write with an unknown outcome was committed."""


class Statement(Struct, frozen=True):
    """One SQL statement of a write, with its arguments."""

    sql: str
    args: tuple[Any, ...] = ()
    requires_row: bool = False
    """Roll the whole write back and raise ``RequiredRowMissing`` if this statement returns no row. Only for a
    statement that has a RETURNING clause or is a query."""


class Unusable(Unavailable):
    """The database cannot be used. ``reason`` says why to operators: it contains no address and no
    content. ``detail``, as of every ``ApiError``, is for the log, and may contain addresses."""

    def __init__(self, message: str, reason: str, detail: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.detail = detail or reason


class OutcomeUnknown(Unusable):
    """The connection was lost, or the disk has failed, while the write was executed: it was committed, is
    about to be, or was not."""


class WriteRefused(Exception):
    """The write contradicts the data in the database. It was rolled back."""


class RequiredRowMissing(WriteRefused):
    """A statement with ``requires_row`` returned no row."""


class ForeignKeyViolated(WriteRefused):
    """An inserted row refers to a missing row, or another row still refers to a deleted one."""


class UniqueViolated(WriteRefused):
    """A row with this key exists already."""


class Database(ABC):
    """Executes SQL. Raises ``Unavailable`` when the database cannot be reached or cannot write.

    Logs the first of equal failures, and the end of an outage: what is tried again while the disk is full
    must not fill the log too.
    """

    name: str
    is_shared: bool
    """Whether other processes may use the database at the same time."""
    on_commit: Callable[[float], None] | None = None
    """Called with the seconds that each write took, from the call to the commit."""
    failed_writes: int = 0
    """Writes that raised ``Unavailable``."""
    _shortage: str | None = None

    def __init__(self) -> None:
        self._troubles: dict[str, str] = {}
        """Why the last write failed, and the last read, if it did."""

    @property
    def trouble(self) -> str | None:
        """Why the last write failed, else why the last read did, else why the next write may; None if nothing
        is known to be wrong. A disk that is full can still be read."""
        return self._troubles.get("writing") or self._troubles.get("reading") or self._shortage

    @abstractmethod
    async def start(self) -> None:
        """Connect and migrate the schema. Raises ``StartupError`` if either fails."""

    @abstractmethod
    async def close(self) -> None:
        """Finish the pending writes, then disconnect."""

    async def read(self, sql: str, *args: Any) -> list[Row]:
        """Return the rows of a query."""
        return await self._noted("reading", self._read(sql, args))

    async def try_out(self) -> None:
        """Read and write something that changes nothing, so that ``trouble`` is up to date."""
        with suppress(Unavailable):
            await self.write(Statement(schema.TOUCH))
            await self.read(schema.READ_VERSION)
            shortage = await self._look_for_shortage()
            if shortage is not None and self._shortage is None:
                log.warning("store %s: %s", self.name, shortage)
            self._shortage = shortage

    async def _look_for_shortage(self) -> str | None:
        """Why larger writes would fail although a small one did not; None if that is not known."""
        return None

    async def write(self, *statements: Statement) -> list[list[Row]]:
        """Execute all statements in one transaction; return the rows that each of them returned.

        The write is completed even if the caller is cancelled. Raises ``WriteRefused`` after a rollback, and
        ``OutcomeUnknown`` if the database may have committed without being able to say so.
        """
        called_at = time.perf_counter()
        try:
            rows = await self._noted("writing", self._write(statements))
        except Unavailable:
            self.failed_writes += 1
            raise
        if self.on_commit is not None:
            self.on_commit(time.perf_counter() - called_at)
        return rows

    async def _noted(self, what: str, work: Coroutine[Any, Any, _T]) -> _T:
        """Do work, and note whether it fails. A failure is logged if the one before had another reason."""
        try:
            done = await work
        except Unavailable as error:
            reason = error.reason if isinstance(error, Unusable) else error.message
            if isinstance(error, Unusable) and reason != self._troubles.get(what):
                log.error("store %s: %s fails: %s", self.name, what, error.detail)
            self._troubles[what] = reason
            raise
        if self._troubles.pop(what, None) is not None:
            log.warning("store %s: %s works again", self.name, what)
        return done

    @abstractmethod
    async def _read(self, sql: str, args: Sequence[Any]) -> list[Row]:
        """Carry out ``read``."""

    @abstractmethod
    async def _write(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """Carry out ``write``."""

    async def used_bytes(self) -> int:
        """Return the size of the data if it is kept in this process's memory, else 0."""
        return 0

    async def largest_tenants(self, count: int) -> list[tuple[str, int]]:
        """Return the tenants with the most data in this process's memory, and the bytes of each."""
        return []


def batches(statements: Sequence[Statement]) -> list[list[Statement]]:
    """Group adjacent statements that have the same SQL and return no rows: each group is sent as one
    batch."""
    groups: list[list[Statement]] = []
    for statement in statements:
        if groups and groups[-1][0].sql == statement.sql and "RETURNING" not in statement.sql:
            groups[-1].append(statement)
        else:
            groups.append([statement])
    return groups


async def until_known(attempt: Callable[[], Awaitable[_T]], unknown: str) -> _T:
    """Call ``attempt`` until it raises no ``Unavailable``, and return its result: it repeats a write unless
    that has taken effect.

    If it never succeeds, raises an ``Unavailable`` which says what is ``unknown``.
    """
    for pause_s in _PAUSES_S:
        await asyncio.sleep(pause_s)
        try:
            return await attempt()
        except Unavailable:
            continue
    raise Unavailable(f"The store cannot be reached: it is not known {unknown}.")
