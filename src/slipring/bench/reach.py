"""Getting at what is to be measured: an endpoint that is named or a server of our own, at any distance.

Knows nothing of what is done there.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

from slipring.bench.engines import default_engine, simulated_speed
from slipring.bench.options import Target
from slipring.bench.probes import Unmeasurable
from slipring.bench.processes import Meter
from slipring.bench.proxy import proxied
from slipring.bench.results import Endpoint
from slipring.bench.server import own_server

_HTTP_PORT = 80


class Reach(NamedTuple):
    """An endpoint that is there."""

    url: str
    meter: Meter | None
    """Of its process, where it runs here and its costs can be read."""


@asynccontextmanager
async def reached(target: Target, engine: str | None) -> AsyncIterator[Reach]:
    """The endpoint that was named, or else a server of our own with this engine."""
    if target.url is not None:
        meter = _readable(Meter(target.server_pid)) if target.server_pid is not None else None
        if target.server_pid is not None and meter is None:
            raise Unmeasurable(
                f"--server-pid {target.server_pid}: there is no process whose costs can be read"
            )
        yield Reach(target.url, meter)
        return
    assert engine is not None
    async with own_server(engine, target.serve_flags) as server:
        yield Reach(server.url, _readable(server.meter))


@asynccontextmanager
async def distant(url: str, rtt_ms: float) -> AsyncIterator[str]:
    """A URL that leads to the same endpoint, but takes this much longer."""
    if not rtt_ms:
        yield url
        return
    parts = urlsplit(url)
    assert parts.hostname is not None
    async with proxied(parts.hostname, parts.port or _HTTP_PORT, rtt_ms / 1000) as port:
        yield urlunsplit(parts._replace(netloc=f"127.0.0.1:{port}"))


def described(target: Target) -> Endpoint:
    """What is to be measured, as records have it. The model may not be known yet."""
    if target.url is not None:
        return Endpoint(model=target.model or "", url=target.url)
    engine = target.engine or default_engine(target.tokens_per_s)
    return Endpoint(model=target.model or "", engine=engine, tokens_per_s=simulated_speed(engine))


def _readable(meter: Meter) -> Meter | None:
    return meter if meter.can_read else None
