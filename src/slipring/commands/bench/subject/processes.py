"""The CPU time and the memory that processes use, of a server and of all others (Linux only)."""

import contextlib
import ctypes
import os
import time
from pathlib import Path

_PROC = Path("/proc")
_BUSY = (0, 1, 2, 5, 6, 7)
"""Indices in ``/proc/stat``: user, nice, system, irq, softirq, steal."""


class Meter:
    """Reads CPU time and memory of a process and its descendants."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._spent_ns: dict[int, int] = {}
        """By process of the family, also after it has ended."""

    @property
    def can_read(self) -> bool:
        return cpu_ns(self.pid) is not None

    def cpu_ms(self) -> float:
        """CPU time used so far. Never less than before: threads and processes that have ended count, too."""
        for pid in self._family():
            if (spent := cpu_ns(pid)) is not None:
                self._spent_ns[pid] = spent
        return sum(self._spent_ns.values()) / 1e6

    def resident_bytes(self) -> int:
        pages = 0
        for pid in self._family():
            with contextlib.suppress(OSError):
                pages += int((_PROC / str(pid) / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def _family(self) -> list[int]:
        """Ids of the process and its descendants."""
        found = [self.pid]
        for pid in found:
            for path in (_PROC / str(pid) / "task").glob("*/children"):
                with contextlib.suppress(OSError):
                    found += [int(child) for child in path.read_text().split()]
        return found


class OtherProcesses:
    """CPU use of all processes except the bench and the server behind ``meter``, from now on."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._since_s = time.monotonic()
        self._before_s = self._others_s()

    def cores(self) -> float:
        """Mean number of cores used since the start."""
        spent_s = self._others_s() - self._before_s
        return max(0.0, spent_s / max(time.monotonic() - self._since_s, 1e-9))

    def _others_s(self) -> float:
        return _busy_s() - time.process_time() - self._meter.cpu_ms() / 1000


def cpu_ns(pid: int) -> int | None:
    """CPU time of a process, with that of its threads that have ended; None if there is no such process, or
    the system does not tell."""
    if not _PROC.is_dir():
        return None
    clock = ctypes.c_int()
    if ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock)) != 0:
        return None
    try:
        return time.clock_gettime_ns(clock.value)
    except OSError:
        return None


def _busy_s() -> float:
    counters = (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(int(counters[place]) for place in _BUSY) / os.sysconf("SC_CLK_TCK")
