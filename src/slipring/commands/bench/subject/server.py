"""Starts the ``slipring serve`` process that the bench measures, and stops it.

The bench keeps the standard input of the server open; when the bench dies, even if it is killed, it closes
and the server stops. See ``exit_with_parent.py``.
"""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from slipring.commands.bench.subject.machine import Meter
from slipring.commands.errors import CommandFailed

_STOP_TIMEOUT_S = 15.0
_NO_KEYS: Mapping[str, str] = {}
_URL = re.compile(rb"serves (http://\S+)")


class StartedServer:
    """A running server."""

    def __init__(self, url: str, meter: Meter) -> None:
        self.url = url
        self.meter = meter


@asynccontextmanager
async def start_server(
    engine: str, flags: Sequence[str] = (), keys: Mapping[str, str] = _NO_KEYS
) -> AsyncIterator[StartedServer]:
    """Start a server on a free port, without the caller's ``SLIPRING_*`` settings; stop it at the end of the
    block. ``keys``: API keys that it asks for, by tenant. Raises ``CommandFailed``."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLIPRING_")}
    if keys:
        clean["SLIPRING_API_KEYS"] = ",".join(f"{tenant}:{key}" for tenant, key in keys.items())
    command = [
        "-m",
        "slipring.commands.bench.subject.exit_with_parent",
        "serve",
        "--port",
        "0",
        "--log-level",
        "warning",
    ]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        *("--store", "memory", "--engine", engine, *flags),
        env=clean,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C goes to the bench alone, which then stops the server
    )
    try:
        assert process.stdout is not None
        while not (found := _URL.search(line := await process.stdout.readline())):
            if not line:
                raise CommandFailed(
                    f"slipring serve exited with code {await process.wait()} before it was ready"
                )
        drain = asyncio.create_task(process.stdout.read())
        yield StartedServer(found.group(1).decode(), Meter(process.pid))
        drain.cancel()
    finally:
        await _stop(process)


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
