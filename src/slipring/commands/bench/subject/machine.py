"""Describes the machine that runs the bench: CPU, memory, library versions, current time.

Also how many files this process may open, which limits its connections.
"""

import os
import platform
import re
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import aiohttp
import msgspec

from slipring import __version__
from slipring.commands.argument_parser import UsageError
from slipring.commands.bench.results import Machine


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def machine() -> Machine:
    return Machine(
        cpu=_cpu(),
        cores=os.cpu_count() or 1,
        memory_gib=round(_memory_bytes() / 2**30, 1),
        system=platform.system(),
    )


def versions() -> dict[str, str]:
    found = {
        "slipring": __version__,
        "python": platform.python_version(),
        "aiohttp": aiohttp.__version__,
        "msgspec": msgspec.__version__,
    }
    with suppress(PackageNotFoundError):
        found["uvloop"] = version("uvloop")
    return found


def _cpu() -> str:
    with suppress(OSError):
        if found := re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text()):
            return found.group(1)
    return platform.processor() or platform.machine()


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


_OTHER_FILES = 64
"""Open files that are not connections: libraries, pipes, listening sockets."""


def raise_file_limit(connections: int | None = None) -> None:
    """Allow this process and its children as many open files as the connections need, or else as the system's
    hard limit does. Raises ``UsageError`` if that is lower than what they need."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = hard if connections is None else connections + _OTHER_FILES
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise UsageError(f"--connections {connections}: the limit of open files is {hard} (see ulimit -n)")
    if connections is None or (soft != resource.RLIM_INFINITY and soft < needed):
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
