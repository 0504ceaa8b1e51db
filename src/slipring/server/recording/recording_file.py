"""The files of recordings: readable by their owner only, limited in size and in number."""

import os
import stat
import time
from datetime import UTC, datetime
from pathlib import Path

from slipring.base.errors import StartupError

SUFFIX = ".jsonl"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)


class NotRecorded(Exception):
    """A turn has no place in a recording. The text says why."""


class RecordingDirectory:
    """The directory that the files are created in. Several processes may share it."""

    def __init__(self, path: Path, *, max_files: int, max_file_bytes: int) -> None:
        self.path = path
        self._max_files = max_files
        self._max_file_bytes = max_file_bytes
        self._created = 0

    def prepare(self) -> None:
        """Create the directory. Raises ``StartupError`` if it cannot be used or others can read it."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            mode = self.path.stat().st_mode
            usable = os.access(self.path, os.R_OK | os.W_OK | os.X_OK)
        except OSError as error:
            raise StartupError(f"--record {self.path}: {error.strerror or error}") from None
        if not usable:
            raise StartupError(f"--record {self.path}: files cannot be created there")
        if os.name == "posix" and mode & _OTHERS:
            raise StartupError(
                f"--record {self.path}: recordings hold content, and other users have access to this"
                f" directory (chmod 700 {self.path})"
            )

    def create(self, begun_at: float) -> "RecordingFile":
        """Create a file. Raises ``NotRecorded`` and ``OSError``."""
        if sum(name.endswith(SUFFIX) for name in os.listdir(self.path)) >= self._max_files:
            raise NotRecorded("there are record_files recordings already")
        when = datetime.fromtimestamp(begun_at, UTC).strftime("%Y%m%dT%H%M%SZ")
        self._created += 1
        path = self.path / f"{when}-{os.getpid()}-{self._created}{SUFFIX}"
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, 0o600))
        return RecordingFile(path, begun_at, self._max_file_bytes)


class RecordingFile:
    """One file. It is opened for each line, so that any number of files can be written to."""

    def __init__(self, path: Path, begun_at: float, max_bytes: int) -> None:
        self.path = path
        self.begun_at = begun_at
        """Unix time of the arrival of its first turn."""
        self.turns = 0
        self.is_full = False
        self._max_bytes = max_bytes
        self._bytes = 0

    def append(self, line: bytes) -> None:
        """Write a line. Raises ``NotRecorded`` if it does not fit any more, and ``OSError``."""
        line += b"\n"
        if self.is_full or self._bytes + len(line) > self._max_bytes:
            self.is_full = True
            raise NotRecorded("its recording has record_file_bytes already")
        with os.fdopen(os.open(self.path, os.O_WRONLY | os.O_APPEND | _NO_FOLLOW), "ab") as file:
            file.write(line)
        self._bytes += len(line)


def utc_text(seconds: float) -> str:
    """A Unix time as in 2026-11-15T12:00:00.000Z."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03}Z"
