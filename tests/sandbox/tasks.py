"""Tasks for sandboxes under test: each does one thing that a compiler might do."""

import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from slipring.base.errors import InvalidRequest


def echo(value: Any) -> Any:
    return value


def count(path: str) -> int:
    """Return how often it was called with this path."""
    with Path(path).open("ab") as file:
        file.write(b".")
    return Path(path).stat().st_size


def open_file(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        return str(error.strerror)


def open_socket() -> str:
    try:
        socket.socket().close()
    except OSError as error:
        return str(error.strerror)
    return "opened"


def hold(fifo: str) -> str:
    """Block on a named pipe, without using processor time."""
    return Path(fifo).read_text()


def spin() -> None:
    """Compute for ever."""
    while True:
        pass


def repeat(count: int) -> str:
    return "x" * count


def allocate(size_bytes: int) -> int:
    return len(bytearray(size_bytes))


_KEPT: list[bytes] = []


def retain(size_bytes: int) -> int:
    """Keep memory after the call."""
    _KEPT.append(b"x" * size_bytes)
    return len(_KEPT)


def crash(number: int) -> None:
    os.kill(os.getpid(), number)


def leave() -> None:
    os._exit(0)


def reject() -> None:
    raise InvalidRequest("No.", param="tools[1]", code="some_code")


def fail() -> None:
    raise RuntimeError("unexpected")


def nest(depth: int) -> int:
    return nest(depth - 1) if depth else 0


def chatter() -> int:
    """Print as a library might."""
    print("chatter", flush=True)
    print("chatter", file=sys.stderr, flush=True)
    return len(sys.stdin.read())


def whoami() -> dict[str, Any]:
    """Describe the environment of the child."""
    return {
        "pid": os.getpid(),
        "niceness": os.nice(0),
        "environment": sorted(os.environ),
        "files": sorted(_target(fd) for fd in os.listdir("/proc/self/fd")),
        "ignored": [
            number.name
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(number) is signal.SIG_IGN
        ],
    }


def _target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").partition(":")[0]
    except OSError:
        return ""


def processor_time() -> float:
    return time.process_time()
