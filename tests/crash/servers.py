"""Real servers that are started on a store, and killed with SIGKILL."""

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.commands.test_cli import COMMAND, ROOT, environment

ENGINE = "simulated:tokens_per_s=400,output_tokens=20"
PATIENCE_S = 180.0
"""Long, because machines on which tests run are busy; only what is broken takes as long."""
_LEASE_S = "0.6"
_ERROR_PATTERNS = ("unexpectedly", "never retrieved", "Traceback")
"""Log messages of unexpected errors. An unavailable store or engine is not one."""


class Unexpected(Exception):
    """A server did not start, did not recover, or logged an unexpected error."""


class Server:
    """A server, with the processes that it has started."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, log: Path) -> None:
        self.process = process
        self.url = url
        self._log = log
        self._is_killed = False

    def kill(self) -> None:
        """Kill its first process. The others have to notice that by themselves."""
        if not self._is_killed:  # asyncio may not know yet that the process has ended
            self._is_killed = True
            self._below = descendants(self.process.pid)
            self.process.kill()

    async def wait(self) -> None:
        """Wait until all its processes have ended; raise ``Unexpected`` if it has logged an error."""
        await self.process.wait()
        await gone(self._below)
        lines = self._log.read_text().splitlines()
        for index, line in enumerate(lines):
            if any(sign in line for sign in _ERROR_PATTERNS):
                raise Unexpected("\n".join(lines[index : index + 40]))


@asynccontextmanager
async def serving(
    spec: str,
    *arguments: str,
    engine: str = ENGINE,
    command: Sequence[str] = COMMAND,
    port: int = 0,
) -> AsyncIterator[Server]:
    """Run a server on a store until it is killed or the block ends."""
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        settings = ("--engine", engine, "--store", spec, "--run-lease-s", _LEASE_S, "--log-level", "warning")
        with log.open("wb") as errors:  # not a pipe, which would fill up unread
            process = await asyncio.create_subprocess_exec(
                *(*command, "serve", "--port", str(port), "--admin", "off", *settings, *arguments),
                env=environment(),
                cwd=ROOT,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )
        server = Server(process, "", log)
        try:
            assert process.stdout is not None
            line = await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)
            server.url = line.decode().rpartition(" ")[2].strip()
            if not server.url:
                raise Unexpected(log.read_text())
            yield server
        finally:
            server.kill()
            await server.wait()


def children(pid: int) -> list[int]:
    """Return the ids of the processes that a process has started and that run."""
    found = []
    with suppress(OSError):  # it has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (thread / "children").read_text().split()]
    return [child for child in found if is_running(child)]


def descendants(pid: int) -> list[int]:
    below = children(pid)
    return below + [each for child in below for each in descendants(child)]


def is_running(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def kill(*pids: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, signal.SIGKILL)


async def until(holds: Callable[[], bool], complaint: str) -> None:
    """Poll: other processes cannot set an event here. Raise ``Unexpected`` if it takes too long."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise Unexpected(complaint) from None


async def gone(pids: Sequence[int]) -> None:
    """Wait until these processes have ended."""
    commands = {pid: command_of(pid) for pid in pids}
    await until(lambda: not any(map(is_running, pids)), f"of these, one does not end: {commands}")
