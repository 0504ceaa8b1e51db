"""What this process uses of the machine: CPU time, memory, file descriptors."""

import os
import time

from msgspec import Struct

STARTED_AT = time.time()
"""Unix time at which this module was imported, which is soon after the process has started."""


class Usage(Struct, frozen=True):
    """What a process uses. None: there is no /proc that tells."""

    cpu_ns: int
    resident_bytes: int | None
    open_fds: int | None


def own_usage() -> Usage:
    """What this process uses now."""
    cpu_ns = time.process_time_ns()
    try:
        with open("/proc/self/statm", "rb") as statm:
            resident_bytes = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return Usage(cpu_ns, resident_bytes, len(os.listdir("/proc/self/fd")))
    except OSError:
        return Usage(cpu_ns, None, None)
