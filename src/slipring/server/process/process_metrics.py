"""Metrics that every process of slipring has, those that serve no clients included: CPU, memory, version."""

import os
import platform
import secrets
import time
from collections.abc import Iterator

from slipring import __version__
from slipring.observation import metric_table as table
from slipring.observation.metric_counts import Reading, Registry, Snapshot

_STARTED_AT = time.time()
"""When this module was imported, which is soon after the process has started."""


def new_process_id() -> str:
    """A name for this process in its snapshots. The kernel gives the pid of an ended process again."""
    return f"{os.getpid()}-{secrets.token_hex(4)}"


def process_readings() -> Iterator[Reading]:
    """What this process uses now. Where there is no /proc, memory and file descriptors are left out."""
    yield table.CPU_SECONDS, (), time.process_time_ns()
    yield table.START_TIME, (), _STARTED_AT
    yield table.BUILD_INFO, (__version__, platform.python_version()), 1
    if (resident := resident_bytes()) is not None:
        yield table.RESIDENT_BYTES, (), resident
        yield table.OPEN_FDS, (), len(os.listdir("/proc/self/fd"))


def resident_bytes() -> int | None:
    """Physical memory of this process; None where there is no /proc."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def process_snapshot() -> Snapshot:
    """The snapshot of a process that serves no clients, such as a supervisor."""
    return Registry(new_process_id()).snapshot(process_readings())
