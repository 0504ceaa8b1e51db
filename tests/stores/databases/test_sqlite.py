"""The SQLite driver: the file, the single writer thread, and disk failures."""

import asyncio
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import apsw
import pytest

from slipring.base.errors import StartupError, Unavailable
from slipring.stores.databases import sqlite
from slipring.stores.databases.database import (
    ForeignKeyViolated,
    OutcomeUnknown,
    RequiredRowMissing,
    Statement,
    UniqueViolated,
)
from slipring.stores.databases.sqlite import SqliteDatabase
from tests.crash.unsynced import Disk, Recorder, failing

ADD = "INSERT INTO slipring_nodes (id, url, seen_at) VALUES ($1, $2, 0)"
ALL = "SELECT id FROM slipring_nodes ORDER BY id"


def add(name: str, url: str = "") -> Statement:
    return Statement(ADD, (name, url))


async def limit_pages(database: SqliteDatabase, count: int) -> None:
    """As a disk does that is full; with a large number, the disk has room again."""
    await database.write(Statement(f"PRAGMA max_page_count = {count}"))


async def names(database: SqliteDatabase) -> list[str]:
    return [name for (name,) in await database.read(ALL)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
async def database(path: Path) -> AsyncIterator[SqliteDatabase]:
    database = SqliteDatabase(str(path))
    await database.start()
    yield database
    await database.close()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the write lock, as another process would."""
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    yield
    other.execute("ROLLBACK")
    other.close()


async def test_only_the_owner_can_read_the_file_and_its_directory(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "down" / "store.db"
    database = SqliteDatabase(str(path), creates_directory=True)
    await database.start()
    await database.write(add("a"))
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    await database.close()


async def test_a_missing_directory_is_reported_and_not_created(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "store.db"
    with pytest.raises(StartupError) as refusal:
        await SqliteDatabase(str(path)).start()
    assert str(refusal.value) == f"--store sqlite:{path}: the directory {path.parent} does not exist"
    assert not path.parent.exists()


async def test_processes_can_start_at_the_same_time(path: Path) -> None:
    databases = [SqliteDatabase(str(path)) for _ in range(6)]
    await asyncio.gather(*(each.start() for each in databases))
    await asyncio.gather(*(each.write(add(str(number))) for number, each in enumerate(databases)))
    assert await names(databases[0]) == list("012345")
    await asyncio.gather(*(each.close() for each in databases))


async def test_the_file_has_a_write_ahead_log_and_full_sync_and_readers_cannot_write(
    database: SqliteDatabase,
) -> None:
    assert await database.read("PRAGMA journal_mode") == [("wal",)]
    assert await database.read("PRAGMA foreign_keys") == [(1,)]
    assert await database.write(Statement("PRAGMA synchronous")) == [[(2,)]]
    with pytest.raises(Unavailable):
        await database.read("DELETE FROM slipring_nodes RETURNING id")


async def test_commits_that_are_not_synced_are_read_by_other_processes(path: Path) -> None:
    database, other = SqliteDatabase(str(path), is_synced=False), SqliteDatabase(str(path))
    await database.start()
    await other.start()
    assert await database.write(Statement("PRAGMA synchronous")) == [[(1,)]]
    await database.write(add("a"))
    assert await names(other) == ["a"]
    await database.close()
    await other.close()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(b"not a database at all, but long enough to be one" * 50, "not a database"), (None, "directory")],
)
async def test_a_path_that_is_not_a_database_is_refused_in_one_line(
    tmp_path: Path, content: bytes | None, complaint: str
) -> None:
    path = tmp_path / "odd.db"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(StartupError, match=rf"^--store sqlite:.*odd\.db: .*{complaint}") as refusal:
        await SqliteDatabase(str(path)).start()
    assert "\n" not in str(refusal.value)
    if content is not None:
        assert path.read_bytes() == content


@pytest.mark.parametrize("beside", ["file", "/proc"])
async def test_a_directory_that_cannot_be_created_is_refused_in_one_line(tmp_path: Path, beside: str) -> None:
    (tmp_path / "file").write_text("")
    where = tmp_path / beside / "slipring" / "store.db"
    with pytest.raises(StartupError, match=r"^--store sqlite:.*: [A-Z][a-z ]+$"):
        await SqliteDatabase(str(where), creates_directory=True).start()


def damage(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: 4096 * 3] + b"\xa5" * (len(data) - 4096 * 3))


async def start_and_read(database: SqliteDatabase) -> None:
    await database.start()
    await names(database)


async def test_a_corrupt_file_fails_the_start_or_is_unavailable(path: Path) -> None:
    database = SqliteDatabase(str(path))
    await database.start()
    await database.write(*(add(f"{number:04}", "x" * 200) for number in range(200)))
    await database.close()
    damage(path)
    database = SqliteDatabase(str(path))
    with pytest.raises((StartupError, Unavailable)):
        await start_and_read(database)
    await database.close()


async def test_an_outdated_sqlite_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")
    with pytest.raises(StartupError, match=r"SQLite 3\.51\.2 is too old \(3\.51\.3 is needed\)"):
        await SqliteDatabase(None).start()


async def test_a_failing_write_does_not_affect_others_of_its_transaction(
    database: SqliteDatabase, path: Path
) -> None:
    columns = "tenant, response_id, sequence_number, data"
    orphan = Statement(f"INSERT INTO slipring_run_events ({columns}) VALUES ('t', 'r', 0, $1)", (b"",))
    unmatched = Statement("DELETE FROM slipring_nodes WHERE id = 'missing' RETURNING id", requires_row=True)
    with locked(path):
        # The first write waits for the lock, so that all the others queue up behind it.
        tasks = [asyncio.create_task(database.write(add(f"{number:03}"))) for number in range(100)]
        tasks.append(asyncio.create_task(database.write(add("lost"), add("007"))))
        tasks.append(asyncio.create_task(database.write(add("lost"), orphan)))
        tasks.append(asyncio.create_task(database.write(add("lost"), unmatched)))
        tasks.append(asyncio.create_task(database.write(Statement("not SQL"))))
        tasks.append(asyncio.create_task(database.write(add("last"))))
        await asyncio.sleep(0)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    kinds = [type(result) for result in results if isinstance(result, BaseException)]
    assert kinds == [UniqueViolated, ForeignKeyViolated, RequiredRowMissing, apsw.SQLError]
    assert await names(database) == [*(f"{number:03}" for number in range(100)), "last"]


def test_a_failing_commit_fails_all_its_writes() -> None:
    async def play() -> None:
        connection = apsw.Connection(":memory:")
        connection.execute("CREATE TABLE slipring_nodes (id TEXT PRIMARY KEY, url TEXT, seen_at)")
        connection.set_commit_hook(lambda: True)
        jobs = [sqlite._Job((add(name),), is_write=True) for name in "ab"]
        sqlite._write(jobs, connection)
        assert all(job.error is not None for job in jobs)
        assert not connection.in_transaction
        connection.set_commit_hook(None)
        again = [sqlite._Job((add(name),), is_write=True) for name in "ab"]
        sqlite._write(again, connection)
        assert [job.error for job in again] == [None, None]
        connection.close()

    asyncio.run(play())


async def test_a_write_completes_although_its_caller_was_cancelled(
    database: SqliteDatabase, path: Path
) -> None:
    with locked(path):
        task = asyncio.create_task(database.write(add("a")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await database.write(add("b"))
    assert await names(database) == ["a", "b"]


async def test_closing_finishes_the_pending_writes(path: Path) -> None:
    database = SqliteDatabase(str(path))
    await database.start()
    with locked(path):
        tasks = [asyncio.create_task(database.write(add(f"{number:03}"))) for number in range(600)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(database.close())
        await asyncio.sleep(0)
    await closing
    await asyncio.gather(*tasks)
    for refused in (database.write(add("late")), database.read(ALL)):
        with pytest.raises(Unavailable):
            await refused
    await database.close()
    again = SqliteDatabase(str(path))
    await again.start()
    assert len(await names(again)) == 600
    await again.close()


async def test_a_write_is_unavailable_while_another_process_holds_the_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_BUSY_MS", 20)
    database = SqliteDatabase(str(path))
    await database.start()
    with locked(path):
        with pytest.raises(Unavailable):
            await database.write(add("a"))
        assert await names(database) == [], "reads still work"
    await database.write(add("b"))
    assert await names(database) == ["b"]
    await database.close()


async def test_writes_fail_on_a_full_disk_and_succeed_once_there_is_room(
    database: SqliteDatabase, path: Path
) -> None:
    await database.write(add("a"))
    ((pages,),) = await database.read("PRAGMA page_count")
    await database.write(Statement(f"PRAGMA max_page_count = {pages + 2}"))
    with locked(path):
        tasks = [
            asyncio.create_task(database.write(add(name, "x" * size)))
            for name, size in (("first", 10), ("b", 10), ("huge", 100_000), ("c", 10))
        ]
        await asyncio.sleep(0)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[2], Unavailable)
    kept = [name for name, result in zip(("first", "b", "huge", "c"), results, strict=True) if result == [[]]]
    assert await names(database) == sorted(["a", *kept]), "exactly the acknowledged writes are stored"
    await database.write(Statement("PRAGMA max_page_count = 100000"))
    await database.write(add("huge", "x" * 100_000))
    assert "huge" in await names(database)


WRITER = """
import asyncio, sys
from slipring.stores.databases.database import Statement
from slipring.stores.databases.sqlite import SqliteDatabase

async def main(path, name):
    database = SqliteDatabase(path)
    await database.start()
    for number in range(100_000):
        own = f"{name}{number:05}"
        await database.write(Statement(sys.argv[3], (own, "")))
        print(own, flush=True)

asyncio.run(main(*sys.argv[1:3]))
"""


async def test_the_outcome_of_a_commit_is_unknown_if_the_disk_reports_an_error(tmp_path: Path) -> None:
    disk, after, logs = (tmp_path / name for name in ("disk", "after", "logs"))
    for directory in (disk, after, logs):
        directory.mkdir()
    recorder = Recorder(logs / "1")
    database = SqliteDatabase(str(disk / "store.db"))
    await database.start()
    await database.write(add("before"))
    failing(logs / "1").touch()
    with pytest.raises(OutcomeUnknown):
        await database.write(add("unknown"))
    failing(logs / "1").unlink()
    assert await names(database) == ["before"], "it was rolled back"
    Disk(after, logs, kept_by_failed_sync=1.0).lose_power(Random(1))
    await database.write(add("after"))
    assert await names(database) == ["after", "before"]
    await database.close()
    recorder.close()
    recovered = SqliteDatabase(str(after / "store.db"))
    await recovered.start()
    assert await names(recovered) == ["before", "unknown"], "its pages had reached the disk"
    await recovered.close()


async def test_killed_processes_lose_no_acknowledged_write(database: SqliteDatabase, path: Path) -> None:
    writers = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", WRITER, str(path), name, ADD, stdout=-1)
        for name in ("x", "y")
    ]
    acknowledged = []
    for number in range(60):
        stream = writers[number % 2].stdout
        assert stream is not None
        acknowledged.append((await stream.readline()).decode().strip())
        await database.write(add(f"{number:02}"))
    for writer in writers:
        writer.kill()
    for writer in writers:
        rest, _ = await writer.communicate()
        acknowledged += rest.decode().split("\n")[:-1]
    kept = await names(database)
    assert set(acknowledged) <= set(kept)
    assert kept[:60] == [f"{number:02}" for number in range(60)]
    assert await database.read("PRAGMA integrity_check") == [("ok",)]


async def test_a_database_in_memory_reads_its_writes_and_reports_its_size() -> None:
    database = SqliteDatabase(None)
    await database.start()
    before = await database.used_bytes()
    await asyncio.gather(*(database.write(add(str(number), "x" * 5000)) for number in range(100)))
    assert len(await names(database)) == 100
    assert await database.used_bytes() > before + 400_000
    await database.write(Statement("DELETE FROM slipring_nodes"))
    assert await database.used_bytes() < before + 100_000
    await database.close()


async def test_starting_waits_for_another_process_that_holds_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's busy timeout does not cover a change of the journal mode."""
    path = tmp_path / "new.db"
    other = apsw.Connection(str(path))
    other.execute("CREATE TABLE theirs (x)")
    other.execute("BEGIN EXCLUSIVE")
    waited = []

    def finish_theirs(seconds: float) -> None:
        waited.append(seconds)
        other.execute("COMMIT")

    monkeypatch.setattr("slipring.stores.databases.sqlite._BUSY_MS", 1)
    monkeypatch.setattr("slipring.stores.databases.sqlite.time.sleep", finish_theirs)
    database = SqliteDatabase(str(path))
    await database.start()
    await database.close()
    assert len(waited) == 1


async def test_an_outage_is_logged_when_it_begins_and_when_it_ends(
    database: SqliteDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    await limit_pages(database, 1)
    for number in range(3):
        with pytest.raises(Unavailable):
            await database.write(add(str(number), "x" * 10_000_000))
    assert database.failed_writes == 3
    assert caplog.messages == ["store sqlite: writing fails: database or disk is full"]
    await limit_pages(database, 1_000_000)
    await database.write(add("a"))
    assert caplog.messages[1:] == ["store sqlite: writing works again"]


async def test_a_shortage_lasts_until_the_disk_has_room(
    database: SqliteDatabase, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_free_bytes", lambda path: 2**20)
    await database.try_out()
    await database.write(add("a"))
    assert database.trouble == "the disk has only 1 MiB left"
    await database.try_out()
    assert caplog.messages == ["store sqlite: the disk has only 1 MiB left"]
    monkeypatch.setattr(sqlite, "_free_bytes", lambda path: 2**40)
    await database.try_out()
    assert database.trouble is None
