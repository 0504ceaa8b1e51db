"""What a server on this machine costs: CPU time and memory of a process and its descendants."""

import contextlib
import os
from pathlib import Path

_PROC = Path("/proc")


class Meter:
    """Reads the costs of one process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    @property
    def can_read(self) -> bool:
        return bool(list((_PROC / str(self.pid) / "task").glob("*/schedstat")))

    def cpu_ms(self) -> float:
        """CPU time that all threads have used, to the nanosecond that the kernel keeps."""
        spent_ns = 0
        for pid in self._family():
            for path in (_PROC / str(pid) / "task").glob("*/schedstat"):
                with contextlib.suppress(OSError):
                    spent_ns += int(path.read_text().split()[0])
        return spent_ns / 1e6

    def resident_bytes(self) -> int:
        pages = 0
        for pid in self._family():
            with contextlib.suppress(OSError):
                pages += int((_PROC / str(pid) / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def _family(self) -> list[int]:
        """The process and all that descend from it."""
        found = [self.pid]
        for pid in found:
            for path in (_PROC / str(pid) / "task").glob("*/children"):
                with contextlib.suppress(OSError):
                    found += [int(child) for child in path.read_text().split()]
        return found
