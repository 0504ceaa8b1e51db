"""SQLite driver: a file that several processes may share, or a database in memory.

One thread writes. It executes all waiting writes in one transaction, so that they share one sync to disk;
each write has its own savepoint, so that one that fails does not affect the others. If the disk reports an
error at the commit, the outcome of all of them is unknown. Two more threads read a file; an in-memory
database has only the one thread.

Triggers on the tables of a database in memory count the bytes of each tenant, which are bounded there. A
count is the size of what rows hold, with an estimate of what SQLite needs to keep a row and its index
entries.
"""

import asyncio
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import apsw

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
)

_T = TypeVar("_T")
OLDEST = (3, 51, 3)
"""Earlier versions can corrupt a WAL file that several connections write and checkpoint at the same time."""
_MAX_BATCH = 256
"""Most writes in one transaction: each waits until the last of them is committed."""
_READERS = 2
_BUSY_MS = 5000
"""How long SQLite waits for another process to finish its transaction."""
_START_S, _RETRY_S = 10.0, 0.02
"""At startup: how long to retry while another process holds the file, and the pause between two attempts."""
LEAST_FREE_BYTES = 64 * 2**20
"""A disk with less is reported as trouble: a chain of responses may be larger, and so may the log."""
_IN_MEMORY = ":memory:"
_UNIQUE = (apsw.SQLITE_CONSTRAINT_PRIMARYKEY, apsw.SQLITE_CONSTRAINT_UNIQUE)


class _Job:
    """One read or write for a database thread, with the future that its caller awaits."""

    __slots__ = ("_future", "_loop", "error", "is_write", "result", "statements")

    def __init__(self, statements: Sequence[Statement], *, is_write: bool) -> None:
        self.statements = statements
        self.is_write = is_write
        self.result: list[list[Row]] = []
        self.error: Exception | None = None
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[list[list[Row]]] = self._loop.create_future()

    def wait(self) -> asyncio.Future[list[list[Row]]]:
        return self._future

    def resolve(self) -> None:
        """Set the caller's future from the database thread. Ignored if its event loop is closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        if self._future.done():
            return  # the caller was cancelled
        if self.error is not None:
            self._future.set_exception(self.error)
        else:
            self._future.set_result(self.result)


_Queue = SimpleQueue[_Job | None]


def _enqueued(
    queue: _Queue, statements: Sequence[Statement], *, is_write: bool
) -> "asyncio.Future[list[list[Row]]]":
    """The result of a new job. No variable of the caller refers to the job: an error, which refers to its
    callers' variables, would keep it and its statements until a garbage collection."""
    job = _Job(statements, is_write=is_write)
    queue.put(job)
    return job.wait()


class SqliteDatabase(Database):
    def __init__(self, path: str | None, *, creates_directory: bool = False, is_synced: bool = True) -> None:
        """Use the file at ``path``; None: a database in memory, which is discarded by ``close``.

        The directory of the file must exist unless ``creates_directory``. ``is_synced``: each commit waits
        until it is on the disk. If not, the file is consistent whatever happens, and has every commit after
        the process dies, but may lack the last ones after the machine does.
        """
        super().__init__()
        self._path = path
        self._creates_directory = creates_directory
        self._is_synced = is_synced
        self.name = "sqlite" if path is not None else "memory"
        self.is_shared = path is not None
        self._writes: _Queue = SimpleQueue()
        self._reads: _Queue = SimpleQueue() if path is not None else self._writes
        self._threads: list[threading.Thread] = []
        self._is_open = False

    async def start(self) -> None:
        version = apsw.sqlite_lib_version()
        if tuple(int(part) for part in version.split(".")) < OLDEST:
            needed = ".".join(map(str, OLDEST))
            raise StartupError(f"--store {self.name}: SQLite {version} is too old ({needed} is needed)")
        connections = await asyncio.to_thread(self._connect)
        for number, connection in enumerate(connections):
            queue = self._reads if number else self._writes
            thread = threading.Thread(
                target=_serve, args=(connection, queue), name=f"slipring-{self.name}-{number}", daemon=True
            )
            thread.start()
            self._threads.append(thread)
        self._is_open = True

    async def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        for number in range(len(self._threads)):
            (self._reads if number else self._writes).put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)
        self._threads.clear()

    async def _read(self, sql: str, args: Sequence[Any]) -> list[Row]:
        return (await self._submit(self._reads, (Statement(sql, tuple(args)),), is_write=False))[0]

    async def _write(self, statements: Sequence[Statement]) -> list[list[Row]]:
        return await self._submit(self._writes, statements, is_write=True)

    async def _look_for_shortage(self) -> str | None:
        # A small write may fit into what the write-ahead log has already.
        if self._path is None:
            return None
        free = await asyncio.to_thread(_free_bytes, self._path)
        return f"the disk has only {free // 2**20} MiB left" if free < LEAST_FREE_BYTES else None

    async def used_bytes(self) -> int:
        rows = await self.read(
            "SELECT (page_count - freelist_count) * page_size"
            " FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
        )
        return int(rows[0][0])

    async def largest_tenants(self, count: int) -> list[tuple[str, int]]:
        if self._path is not None:
            return []
        return [(tenant, used_bytes) for tenant, used_bytes in await self.read(_LARGEST_TENANTS, count)]

    async def _submit(
        self, queue: _Queue, statements: Sequence[Statement], *, is_write: bool
    ) -> list[list[Row]]:
        if not self._is_open:
            raise Unavailable("The store is closed.")
        return await _enqueued(queue, statements, is_write=is_write)

    def _connect(self) -> list[apsw.Connection]:
        """Create the file and its tables if needed; return the writer's connection, then the readers'."""
        if self._path is None:
            writer = _prepared(apsw.Connection(_IN_MEMORY))
            _migrate(writer, "memory")
            for sql in _counting_statements():
                writer.execute(sql)
            return [writer]
        where = f"sqlite:{self._path}"
        try:
            path = _make_file(self._path, creates_directory=self._creates_directory)
            writer = _retry_while_busy(lambda: _prepared(apsw.Connection(path)))
            if _retry_while_busy(lambda: writer.execute("PRAGMA journal_mode = WAL").get) != "wal":
                raise StartupError(f"--store {where}: the file system does not support a write-ahead log")
            _retry_while_busy(lambda: _migrate(writer, where))
            if not self._is_synced:
                writer.execute("PRAGMA synchronous = NORMAL")
            readers = [_retry_while_busy(lambda: _prepared(apsw.Connection(path))) for _ in range(_READERS)]
        except OSError as error:
            raise StartupError(f"--store {where}: {error.strerror or error}") from None
        except apsw.Error as error:
            raise StartupError(f"--store {where}: {error}") from None
        for reader in readers:
            reader.execute("PRAGMA query_only = ON")
        return [writer, *readers]


def _retry_while_busy(work: Callable[[], _T]) -> _T:
    """Call ``work`` until no other process holds the file, for ``_START_S`` at most.

    SQLite's busy timeout covers most statements, but not a change of the journal mode.
    """
    until = time.monotonic() + _START_S
    while True:
        try:
            return work()
        except apsw.BusyError:
            if time.monotonic() > until:
                raise
            time.sleep(_RETRY_S)


def _make_file(path: str, *, creates_directory: bool) -> str:
    """Create the file with mode 0600, because SQLite would create one that others can read."""
    absolute = Path(path).expanduser().absolute()
    if creates_directory:
        absolute.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    elif not absolute.parent.exists():
        raise StartupError(f"--store sqlite:{path}: the directory {absolute.parent} does not exist")
    os.close(os.open(absolute, os.O_RDWR | os.O_CREAT, 0o600))
    return str(absolute)


def _free_bytes(path: str) -> int:
    """What is left on the disk of a file."""
    return shutil.disk_usage(Path(path).expanduser().absolute().parent).free


def _prepared(connection: apsw.Connection) -> apsw.Connection:
    connection.set_busy_timeout(_BUSY_MS)
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")
    # Sorting must not write users' content to temporary files outside the database.
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def _migrate(connection: apsw.Connection, where: str) -> None:
    """Run the pending migrations in one transaction, which locks other processes out."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(schema.VERSION_TABLE)
        version: int = connection.execute(schema.READ_VERSION).get
        oldest = connection.execute(schema.READ_OLDEST).get if schema.is_newer(version) else version
        for number, statements in schema.pending(version, oldest, where):
            for sql in statements:
                connection.execute(_dialect(sql))
            connection.execute(schema.WRITE_VERSION, {"1": number})
        connection.execute("COMMIT")
    except BaseException:
        with suppress(apsw.Error):
            connection.execute("ROLLBACK")
        raise


@lru_cache(maxsize=256)
def _dialect(sql: str) -> str:
    """Translate the one type name that SQLite does not know."""
    return sql.replace("BYTEA", "BLOB")


_ROW_BYTES = 200
"""What a row takes besides its contents, roughly."""
_COUNTED_COLUMNS = {
    "slipring_heads": ("instructions", "tools"),
    "slipring_responses": ("response", "input", "output", "carry", "position"),
    "slipring_conversations": ("metadata",),
    "slipring_conversation_items": ("data",),
    "slipring_deleted_items": ("id",),
    "slipring_runs": ("response",),
    "slipring_run_events": ("data",),
    "slipring_run_beginnings": ("instructions", "tools", "input"),
    "slipring_approvals": ("id",),
    "slipring_item_names": ("name", "item"),
    "slipring_pictures": ("digest", "data"),
    "slipring_picture_uses": ("digest",),
}
"""The columns of variable size, by table."""
_LARGEST_TENANTS = "SELECT tenant, bytes FROM slipring_tenant_bytes ORDER BY bytes DESC LIMIT $1"
"""The tenants with the most bytes, and how many they have."""


def _counting_statements() -> list[str]:
    """Return the statements that create the table of counts and its triggers in an empty database."""
    created = ["CREATE TABLE slipring_tenant_bytes (tenant TEXT PRIMARY KEY, bytes BIGINT NOT NULL)"]
    for table, columns in _COUNTED_COLUMNS.items():
        created += [
            _counting_trigger(table, "insert", "INSERT", _grow_count("new", _counted_size("new", columns))),
            _counting_trigger(
                table, "delete", "DELETE", _grow_count("old", f"-({_counted_size('old', columns)})")
            ),
            _counting_trigger(
                table,
                "update",
                f"UPDATE OF {', '.join(columns)}",
                _grow_count("new", f"{_counted_size('new', columns)} - ({_counted_size('old', columns)})"),
            ),
        ]
    return created


def _counting_trigger(table: str, name: str, event: str, body: str) -> str:
    return f"CREATE TRIGGER {table}_bytes_{name} AFTER {event} ON {table} BEGIN {body} END"


def _grow_count(row: str, size: str) -> str:
    # Not an upsert: within a trigger, the conflict clause of the statement that fired it would apply.
    return f"""
        INSERT INTO slipring_tenant_bytes (tenant, bytes) SELECT {row}.tenant, 0
            WHERE NOT EXISTS (SELECT 1 FROM slipring_tenant_bytes WHERE tenant = {row}.tenant);
        UPDATE slipring_tenant_bytes SET bytes = bytes + ({size}) WHERE tenant = {row}.tenant;
        DELETE FROM slipring_tenant_bytes WHERE tenant = {row}.tenant AND bytes = 0;
    """


def _counted_size(row: str, columns: tuple[str, ...]) -> str:
    return " + ".join([str(_ROW_BYTES), *(f"COALESCE(LENGTH({row}.{name}), 0)" for name in columns)])


# The functions below run in the database threads.


def _serve(connection: apsw.Connection, queue: _Queue) -> None:
    """Execute queued jobs until a None arrives, then close the connection."""
    is_last = False
    while not is_last:
        jobs = []
        job = queue.get()
        while job is not None:
            jobs.append(job)
            if not job.is_write and len(jobs) == 1:
                break  # one read at a time: the other reader takes the next
            if len(jobs) == _MAX_BATCH:
                break
            try:
                job = queue.get_nowait()
            except Empty:
                break
        is_last = job is None
        _write([each for each in jobs if each.is_write], connection)
        for each in jobs:
            if not each.is_write:
                _attempt(connection, each)
        for each in jobs:
            each.resolve()
    connection.close()


def _write(jobs: list[_Job], connection: apsw.Connection) -> None:
    """Execute all jobs in one transaction. If it fails, every job that has no error yet gets its error."""
    if not jobs:
        return
    try:
        connection.execute("BEGIN IMMEDIATE")
        for job in jobs:
            connection.execute("SAVEPOINT one")
            _attempt(connection, job)
            if not connection.in_transaction:
                # On a full disk, for example, SQLite rolls back the whole transaction.
                raise job.error or Unavailable(_UNUSABLE)
            if job.error is not None:
                connection.execute("ROLLBACK TO one")
            connection.execute("RELEASE one")
        _commit(connection)
    except Exception as error:
        reported = _translated(error)
        for job in jobs:
            job.error = job.error or reported
        if connection.in_transaction:
            with suppress(apsw.Error):
                connection.execute("ROLLBACK")


def _commit(connection: apsw.Connection) -> None:
    """Commit. Raises ``OutcomeUnknown`` if the disk reports an error.

    The transaction is then rolled back, but all its pages may have reached the disk. If this process is
    killed before it writes others in their place, the one that recovers the file finds the transaction.
    """
    try:
        connection.execute("COMMIT")
    except apsw.IOError as error:
        raise OutcomeUnknown(_UNUSABLE, str(error)) from None


def _execute(connection: apsw.Connection, statement: Statement) -> list[Row]:
    named = {str(number): arg for number, arg in enumerate(statement.args, 1)}
    rows: list[Row] = connection.execute(_dialect(statement.sql), named).fetchall()
    if statement.requires_row and not rows:
        raise RequiredRowMissing(statement.sql)
    return rows


def _attempt(connection: apsw.Connection, job: _Job) -> None:
    try:
        job.result = [_execute(connection, statement) for statement in job.statements]
    except RequiredRowMissing as error:
        job.error = error.with_traceback(None)  # it is expected, and refers to the job by its frames
    except Exception as error:
        job.error = _translated(error)


_UNUSABLE = "The store cannot be used at the moment."


def _translated(error: Exception) -> Exception:
    """Translate an SQLite error to the errors of ``Database``; return any other error unchanged."""
    if isinstance(error, apsw.ConstraintError):
        # vars(), because apsw's stubs lack the attribute.
        code = vars(error)["extendedresult"]
        if code == apsw.SQLITE_CONSTRAINT_FOREIGNKEY:
            return ForeignKeyViolated(str(error))
        return UniqueViolated(str(error)) if code in _UNIQUE else error
    if isinstance(error, apsw.Error) and not isinstance(error, apsw.SQLError | apsw.BindingsError):
        return Unusable(_UNUSABLE, str(error))
    return error
