"""PostgreSQL driver: a pool of connections.

A write of one statement takes one round trip; a write of several is a transaction. A write that failed before
anything was executed is retried once; a transaction that was aborted because it collided with another is
retried up to four times, after a pause. A write that may have been executed is not retried: it raises
``OutcomeUnknown``.

Works behind PgBouncer in session mode. Statements are prepared once per connection, so transaction mode
needs PgBouncer 1.21 or newer with ``max_prepared_statements`` of at least 100.
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg
from asyncpg import exceptions as pg
from asyncpg.pool import PoolConnectionProxy

from slipring.base.errors import StartupError, Unavailable
from slipring.stores.databases import schema
from slipring.stores.databases.database import (
    Database,
    ForeignKeyViolated,
    OutcomeUnknown,
    RequiredRowMissing,
    Row,
    Statement,
    UniqueViolated,
    Unusable,
    batches,
)

_T = TypeVar("_T")
_Connection: TypeAlias = "PoolConnectionProxy[asyncpg.Record]"
_POOL = 10
_CONNECT_S = 5.0
_COMMAND_S = 30.0
_MIGRATE_S = 600.0
"""Timeout of one migration statement, and of waiting for another node that is migrating."""
_CLOSE_S = 5.0
_MAX_ATTEMPTS = 5
"""Attempts at a transaction that collides with others."""
_MAX_PAUSE_S = 0.01
"""Longest pause before the second attempt, doubled before each further one. The pause is random, so that two
transactions that collided do not collide again."""
_MIGRATION_LOCK = 0x736C6970  # "slip"; id of the advisory lock

_CONNECTION_LOST = (
    OSError,
    TimeoutError,
    pg.InterfaceError,
    pg.InternalClientError,  # of a connection whose termination asyncpg has read in part
    pg.PostgresConnectionError,
    pg.OperatorInterventionError,
    pg.InsufficientResourcesError,
    pg.ReadOnlySQLTransactionError,
)
_COLLISIONS = (pg.SerializationError, pg.DeadlockDetectedError)
_UNREACHABLE = "The store cannot be reached at the moment."
_CLOSED = "The store is closed."


class _NotExecuted(Exception):
    """No connection could be used, so nothing of the write was executed."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(_reason(cause))
        self.kind = _kind(cause)


class PostgresDatabase(Database):
    name = "postgresql"
    is_shared = True

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self._is_closed = False
        self._writing: set[asyncio.Task[list[list[Row]]]] = set()

    async def start(self) -> None:
        try:
            self._pool = await asyncpg.create_pool(
                self._url,
                # The migration opens the first connection. With a minimum size, asyncpg would reconnect in
                # the background and log a traceback for each failure; here a failure is one line in the log.
                min_size=0,
                max_size=_POOL,
                timeout=_CONNECT_S,
                command_timeout=_COMMAND_S,
                # The store has a fixed set of statements, so none has to be forgotten and prepared again.
                max_cached_statement_lifetime=0,
                init=_prepare,
                # No statement changes session state, so the round trip of a reset is saved.
                reset=_keep_session,
            )
            await self._migrate()
        except (OSError, TimeoutError, ValueError, pg.PostgresError, pg.InterfaceError) as error:
            if self._pool is not None:
                self._pool.terminate()
            raise StartupError(f"--store {self._address}: {_redacted(self._url, _reason(error))}") from None
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

    async def _read(self, sql: str, args: Sequence[Any]) -> list[Row]:
        async def fetch(connection: _Connection) -> list[Row]:
            return [tuple(record) for record in await connection.fetch(sql, *_storable(args))]

        for last in (False, True):
            try:
                return await self._with_connection(fetch)
            except (_NotExecuted, *_CONNECTION_LOST) as error:
                # Reading is repeatable, and the first connection from the pool may have been a dead one.
                if last or isinstance(error, TimeoutError):
                    raise _unavailable(error) from None
        raise AssertionError("the last attempt returns or raises")

    async def _write(self, statements: Sequence[Statement]) -> list[list[Row]]:
        if self._is_closed:
            raise Unavailable(_CLOSED)
        task = asyncio.create_task(self._attempt_write(statements))
        self._writing.add(task)
        task.add_done_callback(self._written)
        return await asyncio.shield(task)

    def _written(self, task: "asyncio.Task[list[list[Row]]]") -> None:
        self._writing.discard(task)
        # Retrieves the exception, which asyncio would log if the caller was cancelled and never saw it.
        with suppress(asyncio.CancelledError):
            task.exception()

    async def _attempt_write(self, statements: Sequence[Statement]) -> list[list[Row]]:
        may_reconnect = True
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            last = attempt == _MAX_ATTEMPTS
            try:
                return await self._with_connection(lambda connection: _execute(connection, statements))
            except pg.ForeignKeyViolationError as error:
                raise ForeignKeyViolated(str(error)) from None
            except pg.UniqueViolationError as error:
                raise UniqueViolated(str(error)) from None
            except _COLLISIONS as error:
                if last:
                    raise _unavailable(error) from None
                await asyncio.sleep(random.uniform(0, _MAX_PAUSE_S * 2 ** (attempt - 1)))
            except _NotExecuted as error:
                if not may_reconnect or last:
                    raise _unavailable(error) from None
                may_reconnect = False
            except _CONNECTION_LOST as error:
                raise _unavailable(error, OutcomeUnknown) from None
        raise AssertionError("the last attempt returns or raises")

    async def _with_connection(self, work: Callable[[_Connection], Awaitable[_T]]) -> _T:
        pool = self._pool
        if pool is None:
            raise Unavailable(_CLOSED)
        try:
            connection = await pool.acquire(timeout=_CONNECT_S)
        except (*_CONNECTION_LOST, pg.PostgresError) as error:
            raise _NotExecuted(error) from None
        try:
            return await work(connection)
        finally:
            # Releasing a dead connection raises; the pool drops it all the same.
            with suppress(*_CONNECTION_LOST):
                await pool.release(connection)

    async def _migrate(self) -> None:
        """Run the pending migrations; an advisory lock makes nodes that start together wait for one of
        them."""
        assert self._pool is not None
        async with self._pool.acquire(timeout=_CONNECT_S) as connection:
            with suppress(pg.UndefinedTableError):
                if not await self._pending(connection):
                    return
            async with connection.transaction():
                await connection.execute(
                    "SELECT pg_advisory_xact_lock($1)", _MIGRATION_LOCK, timeout=_MIGRATE_S
                )
                await connection.execute(schema.VERSION_TABLE)
                for number, statements in await self._pending(connection):
                    for sql in statements:
                        await connection.execute(sql, timeout=_MIGRATE_S)
                    await connection.execute(schema.WRITE_VERSION, number)

    async def _pending(self, connection: _Connection) -> list[tuple[int, tuple[str, ...]]]:
        version = await connection.fetchval(schema.READ_VERSION)
        newer = schema.is_newer(version)
        oldest = await connection.fetchval(schema.READ_OLDEST) if newer else version
        return schema.pending(version, oldest, self._address)

    @property
    def _address(self) -> str:
        """The address without its password."""
        try:
            parts = urlsplit(self._url)
        except ValueError:
            return "postgresql"  # an unparsable address may contain a password
        user, _, host = parts.netloc.rpartition("@")
        name = user.partition(":")[0]
        return f"{parts.scheme}://{name}{'@' if name else ''}{host}{parts.path}"


def _redacted(url: str, text: str) -> str:
    """Return an error message about ``url`` as one line, with the password replaced."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "not an address"
    password = parts.netloc.rpartition("@")[0].partition(":")[2]
    for secret in (password, unquote(password), *parse_qs(parts.query).get("password", ())):
        text = text.replace(secret, "…") if secret else text
    return " ".join(text.split())


async def _prepare(connection: Any) -> None:
    # Compiling a query takes longer than any query of the store.
    await connection.execute("SET jit = off")


async def _keep_session(connection: Any) -> None:
    return


async def _execute(connection: _Connection, statements: Sequence[Statement]) -> list[list[Row]]:
    if len(statements) == 1:
        return [await _run(connection, statements[0])]
    results: list[list[Row]] = []
    transaction = connection.transaction()
    try:
        await transaction.start()
    except _CONNECTION_LOST as error:
        raise _NotExecuted(error) from None
    try:
        for batch in batches(statements):
            if len(batch) == 1:
                results.append(await _run(connection, batch[0]))
            else:
                await connection.executemany(batch[0].sql, [_storable(each.args) for each in batch])
                results += [[] for _ in batch]
    except BaseException:
        # If the connection was lost, the server has rolled back already.
        with suppress(*_CONNECTION_LOST):
            await transaction.rollback()
        raise
    await transaction.commit()
    return results


async def _run(connection: _Connection, statement: Statement) -> list[Row]:
    rows = [tuple(row) for row in await connection.fetch(statement.sql, *_storable(statement.args))]
    if statement.requires_row and not rows:
        raise RequiredRowMissing(statement.sql)
    return rows


def _storable(args: Sequence[Any]) -> list[Any]:
    """Replace NUL in text, which PostgreSQL cannot hold. Only an id that a client made up can contain one."""
    return [arg.replace("\0", "\ufffd") if isinstance(arg, str) else arg for arg in args]


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _kind(error: BaseException) -> str:
    """What is wrong, without addresses and other values: /health says it to everybody."""
    if isinstance(error, _NotExecuted):
        return error.kind
    number = getattr(error, "errno", None)
    return os.strerror(number) if number and number > 0 else type(error).__name__


def _unavailable(error: BaseException, kind: type[Unusable] = Unusable) -> Unusable:
    return kind(_UNREACHABLE, f"it cannot be reached: {_kind(error)}", _reason(error))
