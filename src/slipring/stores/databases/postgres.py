"""PostgreSQL, through a pool of connections. Knows SQL only as text.

A write that is one statement is one round trip; several are a transaction. What failed before anything was
executed is tried once more, and a transaction that collided with another a few times, after a pause; what may
have been executed is not, and whoever asked for it is told ``Unavailable``.

Works behind PgBouncer in session mode. Statements are prepared once per connection, so transaction mode
needs PgBouncer 1.21 or newer with ``max_prepared_statements`` of at least 100, and that is not tested.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg
from asyncpg import exceptions as pg
from asyncpg.pool import PoolConnectionProxy

from slipring.errors import StartupError, Unavailable
from slipring.stores.databases.database import (
    Database,
    ForeignKeyViolated,
    Row,
    Statement,
    UniqueViolated,
    Unmet,
    together,
)
from slipring.stores.sql import schema

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_Connection: TypeAlias = "PoolConnectionProxy[asyncpg.Record]"
_POOL = 10
_CONNECT_S = 5.0
_COMMAND_S = 30.0
_MIGRATE_S = 600.0
"""For a step of the schema, and for waiting until another node has done them all."""
_CLOSE_S = 5.0
_CONFLICTS = 5
"""How often a transaction that collided with another is tried."""
_APART_S = 0.01
"""Two that collided would meet again if both came back at once: the longest pause before the second attempt,
twice that before the third, and so on."""
_LOCK = 0x736C6970  # "slip": held while the schema is brought up to date

_GONE = (
    OSError,
    TimeoutError,
    pg.InterfaceError,
    pg.PostgresConnectionError,
    pg.OperatorInterventionError,
    pg.InsufficientResourcesError,
    pg.ReadOnlySQLTransactionError,
)
_COLLISIONS = (pg.SerializationError, pg.DeadlockDetectedError)
_SORRY = "The store cannot be reached at the moment."
_CLOSED = "The store is closed."


class _NotBegun(Exception):
    """There was no connection, so that surely nothing was executed."""


class PostgresDatabase(Database):
    name = "postgresql"
    is_shared = True

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self._is_closed = False
        self._writing: set[asyncio.Task[list[list[Row]]]] = set()

    async def start(self) -> None:
        try:
            self._pool = await asyncpg.create_pool(
                self._url,
                # The first comes with the schema. asyncpg would restore a floor by itself, and tell a whole
                # stack each time that it cannot: whoever needs a connection is told in one line.
                min_size=0,
                max_size=_POOL,
                timeout=_CONNECT_S,
                command_timeout=_COMMAND_S,
                init=_prepare,
                # Nothing here changes a session, so nothing has to be put back, which would be a round trip.
                reset=_keep,
            )
            await self._migrate()
        except (OSError, TimeoutError, ValueError, pg.PostgresError, pg.InterfaceError) as error:
            if self._pool is not None:
                self._pool.terminate()
            raise StartupError(f"--store {self._address}: {_hushed(self._url, _reason(error))}") from None
        except StartupError:
            assert self._pool is not None
            await self._pool.close()
            raise

    async def close(self) -> None:
        self._is_closed = True
        if self._writing:
            await asyncio.wait(self._writing)
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            async with asyncio.timeout(_CLOSE_S):
                await pool.close()
        except TimeoutError:
            pool.terminate()

    async def read(self, sql: str, *args: Any) -> list[Row]:
        async def fetch(connection: _Connection) -> list[Row]:
            return [tuple(record) for record in await connection.fetch(sql, *_storable(args))]

        for last in (False, True):
            try:
                return await self._with_connection(fetch)
            except (_NotBegun, *_GONE) as error:
                # Reading twice does no harm, and the first connection may have been a dead one.
                if last or isinstance(error, TimeoutError):
                    raise _unavailable(error) from None
        raise AssertionError("the last attempt returns or raises")

    async def write(self, *statements: Statement) -> list[list[Row]]:
        if self._is_closed:
            raise Unavailable(_CLOSED)
        task = asyncio.create_task(self._write(statements))
        self._writing.add(task)
        task.add_done_callback(self._written)
        return await asyncio.shield(task)

    def _written(self, task: "asyncio.Task[list[list[Row]]]") -> None:
        self._writing.discard(task)
        # Whoever waited may have stopped waiting: the outcome counts as seen in any case.
        with suppress(asyncio.CancelledError):
            task.exception()

    async def _write(self, statements: Sequence[Statement]) -> list[list[Row]]:
        may_begin_again = True
        for attempt in range(1, _CONFLICTS + 1):
            last = attempt == _CONFLICTS
            try:
                return await self._with_connection(lambda connection: _execute(connection, statements))
            except pg.ForeignKeyViolationError as error:
                raise ForeignKeyViolated(str(error)) from None
            except pg.UniqueViolationError as error:
                raise UniqueViolated(str(error)) from None
            except _COLLISIONS as error:
                if last:
                    raise _unavailable(error) from None
                await asyncio.sleep(random.uniform(0, _APART_S * 2 ** (attempt - 1)))
            except _NotBegun as error:
                if not may_begin_again or last:
                    raise _unavailable(error) from None
                may_begin_again = False
            except _GONE as error:
                raise _unavailable(error) from None
        raise AssertionError("the last attempt returns or raises")

    async def _with_connection(self, work: Callable[[_Connection], Awaitable[_T]]) -> _T:
        pool = self._pool
        if pool is None:
            raise Unavailable(_CLOSED)
        try:
            connection = await pool.acquire(timeout=_CONNECT_S)
        except (*_GONE, pg.PostgresError) as error:
            raise _NotBegun(_reason(error)) from None
        try:
            return await work(connection)
        finally:
            # A connection that died cannot be handed back in order, and need not be.
            with suppress(*_GONE):
                await pool.release(connection)

    async def _migrate(self) -> None:
        """Bring the schema up to date; of several nodes that start together, one does it."""
        assert self._pool is not None
        async with self._pool.acquire(timeout=_CONNECT_S) as connection:
            with suppress(pg.UndefinedTableError):
                version = await connection.fetchval(schema.READ_VERSION)
                if not schema.pending(version, self._address):
                    return
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK, timeout=_MIGRATE_S)
                await connection.execute(schema.VERSION_TABLE)
                version = await connection.fetchval(schema.READ_VERSION)
                for number, statements in schema.pending(version, self._address):
                    for sql in statements:
                        await connection.execute(sql, timeout=_MIGRATE_S)
                    await connection.execute(schema.WRITE_VERSION, number)

    @property
    def _address(self) -> str:
        """The address without its password."""
        try:
            parts = urlsplit(self._url)
        except ValueError:
            return "postgresql"  # whatever it is, a password may be in it
        user, _, host = parts.netloc.rpartition("@")
        name = user.partition(":")[0]
        return f"{parts.scheme}://{name}{'@' if name else ''}{host}{parts.path}"


def _hushed(url: str, text: str) -> str:
    """What was said about an address, in one line and without the password in it."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "not an address"
    password = parts.netloc.rpartition("@")[0].partition(":")[2]
    for secret in (password, unquote(password), *parse_qs(parts.query).get("password", ())):
        text = text.replace(secret, "…") if secret else text
    return " ".join(text.split())


async def _prepare(connection: Any) -> None:
    # To compile a query takes longer than any query of ours.
    await connection.execute("SET jit = off")


async def _keep(connection: Any) -> None:
    return


async def _execute(connection: _Connection, statements: Sequence[Statement]) -> list[list[Row]]:
    if len(statements) == 1:
        return [await _run(connection, statements[0])]
    results: list[list[Row]] = []
    transaction = connection.transaction()
    try:
        await transaction.start()
    except _GONE as error:
        raise _NotBegun(_reason(error)) from None
    try:
        for group in together(statements):
            if len(group) == 1:
                results.append(await _run(connection, group[0]))
            else:
                await connection.executemany(group[0].sql, [_storable(each.args) for each in group])
                results += [[] for _ in group]
    except BaseException:
        # Where the connection is gone, so is the transaction.
        with suppress(*_GONE):
            await transaction.rollback()
        raise
    await transaction.commit()
    return results


async def _run(connection: _Connection, statement: Statement) -> list[Row]:
    rows = [tuple(row) for row in await connection.fetch(statement.sql, *_storable(statement.args))]
    if statement.must and not rows:
        raise Unmet(statement.sql)
    return rows


def _storable(args: Sequence[Any]) -> list[Any]:
    """Texts without NUL, which no text of PostgreSQL can hold: only an id that a client made up has one."""
    return [arg.replace("\0", "\ufffd") if isinstance(arg, str) else arg for arg in args]


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _unavailable(error: BaseException) -> Unavailable:
    log.error("the store cannot be used: %s", _reason(error))
    return Unavailable(_SORRY)
