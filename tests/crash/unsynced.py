"""A file system for SQLite that loses in a crash what was not synced, and a site on it.

``Recorder`` passes everything through to the real files, and logs each write, truncation, deletion and sync
before it happens. ``lose_power`` makes the files again as they may be after a power failure: everything up to
the last sync of a file is there, and of what was written to it since then any part, or nothing.
"""

import struct
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import apsw

from tests.crash.servers import Server, serving, until
from tests.crash.sites import SqliteSite

if TYPE_CHECKING:
    from tests.crash.storm import Round

_HEAD = struct.Struct("<cQIQI")
"""Of a logged operation: its kind, when it began, and the lengths or values that follow."""
_WRITE, _TRUNCATE, _DELETE = b"w", b"t", b"d"
_SYNC, _SYNC_DIRECTORY, _SYNC_FAILED = b"s", b"D", b"f"
_JOURNALS = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL
_SECTOR = 512
"""Bytes that a disk writes as one; larger writes can be torn."""
_SHARED_MEMORY = "-shm"
_TWO_SERVERS = 0.3


class Operation(NamedTuple):
    """What was done to a file."""

    began_ns: int
    kind: bytes
    name: str
    offset: int = 0
    """Of a write; the new size for a truncation."""
    data: bytes = b""


class Recorder(apsw.VFS):
    """The file system that SQLite uses in this process, unless it asks for another one.

    Each process has its own log. A process that is killed while it writes to its log leaves an incomplete
    operation at the end, which never happened.
    """

    def __init__(self, log: Path, *, syncs: bool = True) -> None:
        """``syncs``: otherwise syncs are answered, and not carried out. They fail while there is a file with
        the name of the log and ``.failing``."""
        self._log = log.open("ab", buffering=0)
        self._failing = failing(log)
        self._syncs = syncs
        super().__init__("recorder", "unix", makedefault=True)

    def close(self) -> None:
        self.unregister()
        self._log.close()

    def record(self, kind: bytes, path: str, offset: int = 0, data: bytes = b"") -> None:
        if kind in (_SYNC, _SYNC_DIRECTORY) and not self._syncs:
            return
        name = Path(path).name.encode()
        if not name.endswith(_SHARED_MEMORY.encode()):
            head = _HEAD.pack(kind, time.monotonic_ns(), len(name), offset, len(data))
            self._log.write(head + name + data)

    def must_fail(self) -> bool:
        return self._failing.exists()

    def xOpen(self, name: "str | apsw.URIFilename | None", flags: list[int]) -> apsw.VFSFile:
        if name is None:  # a temporary file
            return apsw.VFSFile("unix", name, flags)
        path = name if isinstance(name, str) else name.filename()
        return _RecordedFile(self, path, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        self.record(_DELETE, filename)
        super().xDelete(filename, syncdir)
        if syncdir:
            self.record(_SYNC_DIRECTORY, filename)


class _RecordedFile(apsw.VFSFile):
    def __init__(
        self, recorder: Recorder, path: str, name: "str | apsw.URIFilename", flags: list[int]
    ) -> None:
        # SQLite's own file system syncs the directory together with a journal that it has created.
        self._syncs_directory = bool(flags[0] & _JOURNALS) and not Path(path).exists()
        super().__init__("unix", name, flags)
        self._recorder = recorder
        self._path = path

    def xWrite(self, data: bytes, offset: int) -> None:
        self._recorder.record(_WRITE, self._path, offset, data)
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        self._recorder.record(_TRUNCATE, self._path, newsize)
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        if self._recorder.must_fail():
            self._recorder.record(_SYNC_FAILED, self._path)
            raise apsw.IOError("the disk reports an error")
        # Logged at its beginning: what another process writes meanwhile is not covered.
        self._recorder.record(_SYNC, self._path)
        if self._syncs_directory:
            self._recorder.record(_SYNC_DIRECTORY, self._path)
            self._syncs_directory = False
        super().xSync(flags)


def failing(log: Path) -> Path:
    """Return the file that makes syncs fail while it is there."""
    return log.with_suffix(".failing")


def read_log(path: Path) -> Iterator[Operation]:
    """Yield the complete operations of a log."""
    content = path.read_bytes()
    at = 0
    while at + _HEAD.size <= len(content):
        kind, began_ns, name_length, offset, length = _HEAD.unpack_from(content, at)
        start = at + _HEAD.size + name_length
        at = start + length
        if at <= len(content):
            name = content[start - name_length : start].decode()
            yield Operation(began_ns, kind, name, offset, content[start:at])


class Disk:
    """A directory, and what of its files would survive a power failure."""

    def __init__(self, directory: Path, logs: Path, *, kept_by_failed_sync: float = 0.7) -> None:
        """``kept_by_failed_sync``: share of the writes that reach the disk although their sync has failed."""
        self._directory = directory
        self._logs = logs
        self._kept_by_failed_sync = kept_by_failed_sync
        self._durable: dict[str, bytes] = {}

    def lose_power(self, random: Random) -> None:
        """Make the files as they may be after a power failure. No process may use them."""
        operations = sorted(
            (each for log in self._logs.iterdir() for each in read_log(log)), key=lambda each: each.began_ns
        )
        files = dict(self._durable)
        unsynced: dict[str, list[Operation]] = {}
        for each in operations:
            if each.kind == _SYNC:
                _apply_all(files, unsynced.pop(each.name, []))
            elif each.kind == _SYNC_FAILED:
                # What could not be written is forgotten; a later sync says nothing about it.
                pending = unsynced.pop(each.name, [])
                _apply_all(files, [one for one in pending if random.random() < self._kept_by_failed_sync])
            elif each.kind == _SYNC_DIRECTORY:
                for name in [name for name, pending in unsynced.items() if pending[-1].kind == _DELETE]:
                    _apply_all(files, unsynced.pop(name))
            else:
                unsynced.setdefault(each.name, []).append(each)
        for pending in unsynced.values():
            _apply_all(files, _survivors(pending, random))
        self._replace(files)

    def _replace(self, files: dict[str, bytes]) -> None:
        for path in (*self._directory.iterdir(), *self._logs.iterdir()):
            path.unlink()
        for name, content in files.items():
            (self._directory / name).write_bytes(content)
        self._durable = files


def _survivors(pending: list[Operation], random: Random) -> list[Operation]:
    """Which of the operations that were not synced have reached the disk: none, some, or the first ones,
    the last of them in part."""
    share = random.choice([0.0, 0.5, 0.9])
    if random.random() < 0.5:
        kept = [each for each in pending if random.random() < share]
    else:
        kept = pending[: round(share * len(pending))]
    if kept and len(kept[-1].data) > _SECTOR and random.random() < 0.5:
        sectors = random.randrange(len(kept[-1].data) // _SECTOR)
        kept[-1] = kept[-1]._replace(data=kept[-1].data[: sectors * _SECTOR])
    return kept


def _apply_all(files: dict[str, bytes], operations: list[Operation]) -> None:
    """Carry out operations on the contents of files."""
    contents: dict[str, bytearray] = {}
    for each in operations:
        if each.kind == _DELETE:
            contents.pop(each.name, None)
            files.pop(each.name, None)
            continue
        content = contents.get(each.name)
        if content is None:
            content = contents[each.name] = bytearray(files.get(each.name, b""))
        if each.kind == _WRITE:
            content.extend(bytes(max(0, each.offset - len(content))))
            content[each.offset : each.offset + len(each.data)] = each.data
        else:
            del content[each.offset :]
            content.extend(bytes(each.offset - len(content)))
    files.update((name, bytes(content)) for name, content in contents.items())


class UnsyncedSite(SqliteSite):
    """One server or two on a file; when they have been killed, the machine loses power. Before that, syncs
    may fail for a while."""

    name = "unsynced"
    fault_share = 0.4

    async def open(self, stack: AsyncExitStack) -> None:
        await super().open(stack)
        assert self.directory is not None
        root = self.directory
        self.directory, self._logs = root / "disk", root / "logs"
        self.directory.mkdir()
        self._logs.mkdir()
        self._disk = Disk(self.directory, self._logs)
        self._started = 0
        self._running: list[Path] = []

    async def start(self, stack: AsyncExitStack, random: Random) -> list[Server]:
        servers = []
        self._running.clear()
        for _ in range(2 if random.random() < _TWO_SERVERS else 1):
            self._started += 1
            log = self._logs / f"{self._started:06}"
            self._running.append(log)
            command = (sys.executable, "-m", "tests.crash.unsynced_server", str(log))
            servers.append(await stack.enter_async_context(serving(self.spec, command=command)))
        return servers

    async def break_something(self, storm_round: "Round") -> str:
        """Let syncs fail, for so long that saves succeed in the end, or that turns fail."""
        crowd = storm_round.crowd
        crowd.may_refuse = True
        enough = crowd.refusals + storm_round.random.randint(1, 3)
        longest_s = storm_round.random.choice([0.3, 2.0, 20.0])
        ends_at = time.monotonic() + longest_s
        for log in self._running:
            failing(log).touch()
        await until(
            lambda: crowd.refusals >= enough or time.monotonic() > ends_at or not crowd.urls,
            "neither refusals nor the time have come",
        )
        for log in self._running:
            failing(log).unlink()
        return "syncs failed"

    async def end_round(self, random: Random) -> None:
        self._disk.lose_power(random)
