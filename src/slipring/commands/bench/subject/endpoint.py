"""Opens the endpoint that is measured: the one at ``--url``, or a ``slipring serve`` that the bench starts
and stops.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

from slipring.base.connection_failures import reason
from slipring.commands import child_server
from slipring.commands.bench.results import Endpoint
from slipring.commands.bench.subject.processes import Meter
from slipring.commands.bench.subject.proxy import delaying_proxy
from slipring.commands.bench.subject.simulated_engine import default_engine, simulated_speed
from slipring.commands.bench.target import Target
from slipring.commands.failures import CommandFailed

_STOP_TIMEOUT_S = 15.0
_HTTP_PORT = 80
_NO_KEYS: Mapping[str, str] = {}


class OpenEndpoint(NamedTuple):
    """An endpoint that is ready to be measured."""

    url: str
    meter: Meter | None
    """Reads the CPU time and memory of its process; None if it is remote or cannot be read."""


@asynccontextmanager
async def start_server(
    engine: str, flags: Sequence[str] = (), keys: Mapping[str, str] = _NO_KEYS
) -> AsyncIterator[OpenEndpoint]:
    """Start a server on a free port, without the caller's ``SLIPRING_*`` settings; stop it at the end of the
    block. ``keys``: API keys that it asks for, by tenant. Raises ``CommandFailed``."""
    variables = {**child_server.environment()}
    if keys:
        variables["SLIPRING_API_KEYS"] = ",".join(f"{tenant}:{key}" for tenant, key in keys.items())
    process = await asyncio.create_subprocess_exec(
        *child_server.command(engine, flags),
        env=variables,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C goes to the bench alone, which then stops the server
    )
    try:
        assert process.stdout is not None
        while not (found := child_server.SERVES.search(line := await process.stdout.readline())):
            if not line:
                raise CommandFailed(
                    f"slipring serve exited with code {await process.wait()} before it was ready"
                )
        drain = asyncio.create_task(process.stdout.read())
        yield OpenEndpoint(found.group(1).decode(), _readable(Meter(process.pid)))
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


@asynccontextmanager
async def open_endpoint(
    target: Target, engine: str | None, keys: Mapping[str, str] | None = None
) -> AsyncIterator[OpenEndpoint]:
    """The endpoint at ``target.url``, or a server started with ``engine``, and with ``keys`` by tenant.

    Raises ``CommandFailed``, also if ``--server-pid`` names no readable process.
    """
    if target.url is not None:
        meter = _readable(Meter(target.server_pid)) if target.server_pid is not None else None
        if target.server_pid is not None and meter is None:
            raise CommandFailed(
                f"--server-pid {target.server_pid}: no such process, or its CPU time cannot be read"
            )
        yield OpenEndpoint(target.url, meter)
        return
    assert engine is not None
    async with start_server(engine, target.serve_flags, keys or {}) as server:
        yield server


@asynccontextmanager
async def with_round_trip(url: str, rtt_ms: float) -> AsyncIterator[str]:
    """A URL of the same endpoint behind a proxy that adds ``rtt_ms``; ``url`` itself if that is 0.

    Raises ``CommandFailed`` if the endpoint cannot be reached: behind the proxy, the reason would be lost.
    """
    if not rtt_ms:
        yield url
        return
    parts = urlsplit(url)
    assert parts.hostname is not None
    host, port = parts.hostname, parts.port or _HTTP_PORT
    try:
        _, writer = await asyncio.open_connection(host, port)
        writer.close()
    except OSError as error:
        raise CommandFailed(f"cannot reach {url}: {reason(error)}") from None
    async with delaying_proxy(host, port, rtt_ms / 1000) as proxy_port:
        yield urlunsplit(parts._replace(netloc=f"127.0.0.1:{proxy_port}"))


def describe(target: Target) -> Endpoint:
    """The endpoint as records store it. Its model is empty if ``target`` does not name one."""
    if target.url is not None:
        return Endpoint(model=target.model or "", url=target.url, api=target.api)
    engine = target.engine or default_engine(target.tokens_per_s)
    return Endpoint(
        model=target.model or "", engine=engine, tokens_per_s=simulated_speed(engine), api=target.api
    )


def _readable(meter: Meter) -> Meter | None:
    return meter if meter.can_read else None
