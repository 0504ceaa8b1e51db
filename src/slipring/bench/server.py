"""A slipring of the bench's own: a process that is started, found, and ended by its id.

Its standard input stays open for as long as the bench lives, however that ends: see ``tether.py``.
"""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from slipring.bench.processes import Meter

_STOP_TIMEOUT_S = 15.0
_URL = re.compile(rb"serves (http://\S+)")


class CannotStart(Exception):
    """There is no server to measure. The text is one line."""


class OwnServer:
    """A running server."""

    def __init__(self, url: str, meter: Meter) -> None:
        self.url = url
        self.meter = meter


@asynccontextmanager
async def own_server(engine: str, flags: Sequence[str] = ()) -> AsyncIterator[OwnServer]:
    """A server on a free port, without settings of whoever runs this; ended with the block."""
    command = ["-m", "slipring.bench.tether", "serve", "--port", "0", "--log-level", "warning"]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        *("--store", "memory", "--engine", engine, *flags),
        env={name: value for name, value in os.environ.items() if not name.startswith("SLIPRING_")},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the bench, which ends the server when it has ended itself
    )
    try:
        assert process.stdout is not None
        while not (found := _URL.search(line := await process.stdout.readline())):
            if not line:
                raise CannotStart(f"slipring serve ended with {await process.wait()} before it served")
        drain = asyncio.create_task(process.stdout.read())
        yield OwnServer(found.group(1).decode(), Meter(process.pid))
        drain.cancel()
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
