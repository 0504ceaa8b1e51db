"""The embedded engine's process: started, watched, started again.

A child that dies is started again after a pause that grows with each failure. Meanwhile there is no URL, and
whoever asks for one is told that the engine is not there.
"""

import asyncio
import json
import logging
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct, structs

from slipring.errors import StartupError, Unavailable

log = logging.getLogger("slipring")

_LOAD_TIMEOUT_S = 600.0
_PREFIX = "slipring-kv-"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0


class ChildSettings(Struct, frozen=True):
    """What the child is told."""

    path: str
    context: int
    slots: int
    threads: int
    gpu_layers: int = 0
    chunk: int = 256
    directory: str = ""
    """Where slots are saved. It belongs to the child and is removed with it."""


def _ignore() -> None:
    return


class ChildProcess:
    """A llama.cpp of our own, in a child process."""

    def __init__(self, settings: ChildSettings) -> None:
        self.key = secrets.token_hex(16)
        """Without it the child answers nobody: other users of the machine can reach its port."""
        self._directory = Path(settings.directory) if settings.directory else None
        self._settings = json.dumps({**structs.asdict(settings), "key": self.key})
        self._child: asyncio.subprocess.Process | None = None
        self._url: str | None = None
        self._watch: asyncio.Task[None] | None = None
        self._on_loss = self._on_return = _ignore
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    @property
    def url(self) -> str:
        """Where the engine listens, or the error for an engine that is not there just now."""
        if self._url is None:
            raise Unavailable("The engine is starting again. Try again in a moment.")
        return self._url

    @property
    def trouble(self) -> str | None:
        return "the embedded engine is starting again" if self._url is None else None

    def suspect(self) -> None:
        """It has not answered for too long: a child that hangs is ended and started again."""
        if self._child is not None and self._child.returncode is None:
            log.error("the embedded engine hangs; ending it")
            self._child.kill()

    async def start(
        self, on_loss: Callable[[], None] = _ignore, on_return: Callable[[], None] = _ignore
    ) -> None:
        """Run the child. ``on_loss`` is told when all that it held is lost, ``on_return`` when another one is
        there."""
        self._on_loss, self._on_return = on_loss, on_return
        if self._directory is not None:
            self._directory.mkdir(mode=0o700, exist_ok=True)
        await self._spawn()
        self._watch = asyncio.create_task(self._restart_when_it_dies())

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        await self._end()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    async def _spawn(self) -> None:
        """Start the child and wait until it has loaded its model."""
        self._child = child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "slipring.engines.llama.child"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            # Its threads wait for each other many times per token. By default they spin for long, and when
            # anybody else needs a core (this process does), all come to a near stop.
            env={"GOMP_SPINCOUNT": "1000", **os.environ},
        )
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdin.write(self._settings.encode() + b"\n")
        complaints = asyncio.create_task(_drain(child.stderr))
        try:
            async with asyncio.timeout(_LOAD_TIMEOUT_S):
                line = await child.stdout.readline()
        except TimeoutError:
            line = b""
        try:
            self._url = json.loads(line)["url"]
        except (ValueError, TypeError, LookupError):  # it has died, perhaps with last words
            await self._end()
            raise StartupError(f"the embedded engine did not start: {await complaints}") from None

    async def _restart_when_it_dies(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            assert self._child is not None
            code = await self._child.wait()
            self._url = None
            self._on_loss()
            log.error("the embedded engine ended with %s; starting it again", code)
            await asyncio.sleep(pause_s)
            try:
                await self._spawn()
            except StartupError as error:
                log.error("%s", error)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            self.restarts += 1
            self._on_return()
            pause_s = _FIRST_PAUSE_S

    async def _end(self) -> None:
        self._url = None
        if self._child is not None and self._child.returncode is None:
            self._child.kill()  # it holds nothing that has to be saved
            await self._child.wait()


def kv_directory(limit_bytes: int) -> Path:
    """A name for a directory of this process, in memory where that has room for the files."""
    memory, disk = Path("/dev/shm"), Path(tempfile.gettempdir())
    fits = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > limit_bytes
    place = memory if fits else disk
    _sweep(place)
    return place / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"


def _sweep(place: Path) -> None:
    """Remove what processes left behind that were killed together with their engines."""
    for left in place.glob(f"{_PREFIX}*"):
        owner = left.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not _is_alive(int(owner)):
            shutil.rmtree(left, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's
    return True


async def _drain(stream: asyncio.StreamReader) -> str:
    """Read a log so that its writer never waits; the last line that says something."""
    last = "it said nothing"
    async for line in stream:
        text = line.decode("utf-8", "replace").strip()
        if text:
            log.debug("llama: %s", text)
            last = text
    return last
