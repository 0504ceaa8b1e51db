"""The embedded engine's process: started, watched, started again.

A child that dies is started again after a pause that grows with each failure. Meanwhile there is no URL, and
whoever asks for one is told that the engine is not there.
"""

import asyncio
import json
import logging
import secrets
import sys
from collections.abc import Mapping
from typing import Any

from slipring.errors import StartupError, Unavailable

log = logging.getLogger("slipring")

_LOAD_TIMEOUT_S = 600.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0


class Process:
    """A llama.cpp of our own, in a child process."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.key = secrets.token_hex(16)
        """Without it the child answers nobody: other users of the machine can reach its port."""
        self._settings = json.dumps({**settings, "key": self.key})
        self._child: asyncio.subprocess.Process | None = None
        self._url: str | None = None
        self._watch: asyncio.Task[None] | None = None
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

    async def start(self) -> None:
        await self._spawn()
        self._watch = asyncio.create_task(self._restart_when_it_dies())

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        await self._end()

    async def _spawn(self) -> None:
        """Start the child and wait until it has loaded its model."""
        self._child = child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "slipring.engines.llama.child"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
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
        if not line:
            await self._end()
            raise StartupError(f"the embedded engine did not start: {await complaints}")
        self._url = json.loads(line)["url"]

    async def _restart_when_it_dies(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            assert self._child is not None
            code = await self._child.wait()
            self._url = None
            log.error("the embedded engine ended with %s; starting it again", code)
            await asyncio.sleep(pause_s)
            try:
                await self._spawn()
            except StartupError as error:
                log.error("%s", error)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            self.restarts += 1
            pause_s = _FIRST_PAUSE_S

    async def _end(self) -> None:
        self._url = None
        if self._child is not None and self._child.returncode is None:
            self._child.kill()  # it holds nothing that has to be saved
            await self._child.wait()


async def _drain(stream: asyncio.StreamReader) -> str:
    """Read a log so that its writer never waits; the last line that says something."""
    last = "it said nothing"
    async for line in stream:
        text = line.decode("utf-8", "replace").strip()
        if text:
            log.debug("llama: %s", text)
            last = text
    return last
