"""The small contract between the stores and a database.

SQL is written once, for SQLite and PostgreSQL alike: placeholders are ``$1``, types are TEXT, BIGINT, DOUBLE
PRECISION and BYTEA, and nothing is used that only one of the two understands. Knows no table.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

Row = tuple[Any, ...]


class Statement(Struct, frozen=True):
    sql: str
    args: tuple[Any, ...] = ()
    must: bool = False
    """Whether the whole write is off when this returns no row. Such a statement has a RETURNING, or reads."""


class Refused(Exception):
    """The database holds what contradicts a write. Nothing of the write was done."""


class Unmet(Refused):
    """A statement that had to return a row returned none."""


class ForeignKeyViolated(Refused):
    """A row refers to one that is not there, or is still referred to."""


class UniqueViolated(Refused):
    """There is a row with this key already."""


class Database(ABC):
    """Rows by SQL. Raises ``Unavailable`` when it cannot be reached or cannot write."""

    name: str
    is_shared: bool

    @abstractmethod
    async def start(self) -> None:
        """Connect and bring the schema up to date, or raise ``StartupError``."""

    @abstractmethod
    async def close(self) -> None:
        """Finish what was asked for, then let go."""

    @abstractmethod
    async def read(self, sql: str, *args: Any) -> list[Row]:
        """The rows of a query."""

    @abstractmethod
    async def write(self, *statements: Statement) -> list[list[Row]]:
        """All of these in one transaction, or none; the rows of each one's RETURNING.

        It is done even when whoever waits for it stops waiting.
        """

    async def used_bytes(self) -> int:
        """How much room the data takes, where that is memory of this process."""
        return 0


def together(statements: Sequence[Statement]) -> list[list[Statement]]:
    """Neighbours that differ only in their arguments and return nothing: they can be sent as one."""
    groups: list[list[Statement]] = []
    for statement in statements:
        if groups and groups[-1][0].sql == statement.sql and "RETURNING" not in statement.sql:
            groups[-1].append(statement)
        else:
            groups.append([statement])
    return groups
