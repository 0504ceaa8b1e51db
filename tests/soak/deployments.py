"""The servers of a soak: one process, several workers, or two nodes on PostgreSQL."""

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from slipring.commands.bench.subject.processes import Meter
from tests.attack.server import family
from tests.commands.test_cli import environment
from tests.postgres import running_postgres
from tests.soak.clients import HOSTED_SERVER, KEYS, LONG, MAX_FRAME_BYTES, SHORT
from tests.soak.judging import MIB
from tests.soak.probe import PROBED

MAX_AGE_S = 60.0
PARKED_S = 15.0
_TOOL_SERVER = Path(__file__).parent.parent / "mcp" / "stdio_server.py"
_START_S = 90.0
_STOP_S = 40.0
_MODELS = {
    SHORT: "simulated:tokens_per_s=400,output_tokens=16,tool_calls=2,digest=true,prefix_cache=false",
    LONG: "simulated:tokens_per_s=200,output_tokens=80,tool_calls=2,digest=true,prefix_cache=false",
    PROBED: "simulated:tokens_per_s=0,output_tokens=2,digest=true,prefix_cache=false",
}
"""Without the prefix cache of the simulated engine, which tens of thousands of turns would fill."""
_LIMITS = {
    "max_frame_bytes": MAX_FRAME_BYTES,
    "max_age_s": MAX_AGE_S,
    "age_grace_s": 5,
    "parked_s": PARKED_S,
    "recognised_s": 20,
    "recognised_bytes": 8 * MIB,
    "recent_bytes": 8 * MIB,
    "steer_after_tokens": 8,
    "header_timeout_s": 15,
    "body_timeout_s": 15,
    "keepalive_timeout_s": 30,
}
"""Deadlines and caches so small that they are reached within the warm-up, and no deadline so short that a
client on a busy machine misses it."""
_FAULTS = re.compile(r"Traceback|unexpectedly|never retrieved|never awaited|Task was destroyed|\bERROR\b")
"""Log messages of unexpected faults."""


class BadServer(Exception):
    """A server did not start, did not stop, or logged an unexpected fault."""


class Server:
    """One running server, with its workers if it has some."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self.url = ""
        self.admin_url = ""
        self._log = log
        self._meter = Meter(process.pid)

    def resident_mib(self) -> float:
        return self._meter.resident_bytes() / MIB

    def cpu_ms(self) -> float:
        return self._meter.cpu_ms()

    def waited_ms(self) -> float:
        """How long the event loops of its processes have waited for a CPU."""
        return sum(map(_waited_ms, family(self.process.pid)))

    def descriptors(self) -> int:
        return sum(map(_descriptors, family(self.process.pid)))

    def check_log(self) -> None:
        """Raise ``BadServer`` if it has logged an unexpected fault, or has ended."""
        if self.process.returncode is not None:
            raise BadServer(
                f"a server has ended with {self.process.returncode}: {self._log.read_text()[-3000:]}"
            )
        lines = self._log.read_text(errors="replace").splitlines()
        for place, line in enumerate(lines):
            if _FAULTS.search(line):
                raise BadServer("logged: " + "\n".join(lines[place : place + 40]))

    async def metrics(self, http: aiohttp.ClientSession) -> dict[str, float]:
        """All metrics, by name, and by name and label values."""
        async with http.get(f"{self.admin_url}metrics") as answer:
            families = text_string_to_metric_families(await answer.text())
            found: dict[str, float] = {}
            for each in families:
                for sample in each.samples:
                    found[sample.name] = found.get(sample.name, 0.0) + sample.value
                    found[f"{sample.name}:{','.join(sample.labels.values())}"] = sample.value
        return found

    async def stop(self) -> None:
        """Stop it in order. Raises ``BadServer`` if it does not."""
        self.check_log()
        self.process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_S):
                code = await self.process.wait()
        except TimeoutError:
            raise BadServer(f"a server did not stop within {_STOP_S:.0f} s") from None
        if code:
            raise BadServer(f"a server stopped with {code}: {self._log.read_text()[-3000:]}")


@asynccontextmanager
async def _serving(
    directory: Path, flags: Sequence[str], planted: str, name: str = "server"
) -> AsyncIterator[Server]:
    log = directory / f"{name}.log"
    config = directory / "slipring.toml"
    config.write_text(
        f'[[mcp]]\nname = "{HOSTED_SERVER}"\ncommand = "{sys.executable}"\n'
        f'args = ["{_TOOL_SERVER}", "mirror"]\nenv = ["STDIO_LOG"]\n'
        + "\n".join(
            f'[models.{name}]\nengine = "{text}"\nmodel = "simulated"\n' for name, text in _MODELS.items()
        )
    )
    limits = [f"--{name.replace('_', '-')}={value:.10g}" for name, value in _LIMITS.items()]
    program = ("-m", "tests.soak.planted", planted) if planted else ("-m", "slipring")
    with log.open("wb") as errors:  # not a pipe, which would fill up unread
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *program, "serve", "--config", str(config), "--admin", "127.0.0.1:0"),
            *("--log-level", "warning", *limits, *flags),
            env=environment(
                SLIPRING_API_KEYS=",".join(f"{name}:{key}" for name, key in KEYS.items()),
                STDIO_LOG=os.devnull,
            ),
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # Ctrl-C goes to the soak alone, which then stops its servers
        )
    server = Server(process, log)
    try:
        async with asyncio.timeout(_START_S):
            await _read_urls(server)
        yield server
        await server.stop()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _read_urls(server: Server) -> None:
    assert server.process.stdout is not None
    while not server.admin_url:
        line = (await server.process.stdout.readline()).decode()
        if not line:
            raise BadServer(f"a server did not start: {server._log.read_text()[-3000:]}")
        if found := re.search(r"serves (http://\S+)", line):
            server.url = found.group(1)
        elif found := re.search(r"live page +(http://\S+)", line):
            server.admin_url = found.group(1)


@asynccontextmanager
async def single(planted: str) -> AsyncIterator[list[Server]]:
    """One process on SQLite."""
    with TemporaryDirectory(prefix="slipring-soak-") as name:
        flags = ("--port", "0", "--store", f"sqlite:{name}/slipring.db")
        async with _serving(Path(name), flags, planted) as server:
            yield [server]


@asynccontextmanager
async def workers(planted: str) -> AsyncIterator[list[Server]]:
    """Two workers on SQLite."""
    with TemporaryDirectory(prefix="slipring-soak-") as name:
        flags = ("--port", "0", "--workers", "2", "--store", f"sqlite:{name}/slipring.db")
        async with _serving(Path(name), flags, planted) as server:
            yield [server]


@asynccontextmanager
async def nodes(planted: str) -> AsyncIterator[list[Server]]:
    """Two nodes on PostgreSQL, which fetch parked chains from each other."""
    with TemporaryDirectory(prefix="slipring-soak-") as name, running_postgres() as postgres:
        async with AsyncExitStack() as stack:
            servers = []
            for number, port in enumerate(_free_ports(2)):
                address = ("--port", str(port), "--node-url", f"http://127.0.0.1:{port}")
                flags = (*address, "--store", postgres.url)
                node = _serving(Path(name), flags, planted, f"node-{number}")
                servers.append(await stack.enter_async_context(node))
            yield servers


FORMS = {"single": single, "workers": workers, "nodes": nodes}


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on. A node has to know its own before it starts."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def _waited_ms(pid: int) -> float:
    """As Linux counts it; 0 for a process that has ended, and where it is not counted."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e6
    return 0.0


def _descriptors(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:  # it has just ended
        return 0
