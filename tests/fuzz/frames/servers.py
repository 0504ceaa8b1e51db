"""The servers that inputs are sent to: real processes with different settings that report their coverage."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TextIO

from tests.attack.server import SIGNS, Server, announced
from tests.fuzz.frames.traced_server import ALL, LENGTH, NEW

KEYS = ("fuzz-key-a", "fuzz-key-b")
CONTROL_KEY = "fuzz-key-control"
_START_S = 300.0
_STOP_S = 60.0
_FAST = "simulated:tokens_per_s=0,output_tokens=5"
_SLOW = "simulated:tokens_per_s=200,ttft_ms=20,output_tokens=20,parallel_calls=2"
"""Answers last long enough to be steered, appended to and left."""
_TOOL_SERVER = Path(__file__).parents[2] / "mcp" / "stdio_server.py"
_TABLES = f"""
[[mcp]]
name = "tools"
command = "{sys.executable}"
args = ["{_TOOL_SERVER}", "echo"]
env = ["STDIO_LOG"]

[builtin_tools.web_search]
server = "tools"
tool = "echo"
"""
_CHECKS = """
[[check]]
name = "words"
source = "patterns"
action = "block"
timeout_s = 60
subjects = ["input", "output"]
[check.settings]
secrets = true
[check.settings.patterns]
word = "forbidden"
"""
_LIMITS: Mapping[str, float] = {"rollout_wait_s": 1, "compile_timeout_s": 0.5, "send_timeout_s": 20}
"""Of all servers: what a response waits for ends soon."""
_TIGHT: Mapping[str, float] = {
    "max_frame_bytes": 65_536,
    "max_in_flight": 2,
    "max_lanes": 4,
    "max_queued": 8,
    "max_queued_bytes": 20_000,
    "max_steers": 2,
    "max_tool_output_bytes": 1000,
    "max_grammars": 2,
    "max_grammar_bytes": 500,
    "max_schema_bytes": 1000,
    "connection_cache_bytes": 20_000,
    "tenant_cache_bytes": 60_000,
    "store_bytes": 2_000_000,
    "recent_bytes": 20_000,
    "parked_bytes": 20_000,
    "parked_s": 1,
    "recognised_bytes": 20_000,
    "send_buffer_bytes": 4096,
    "ping_interval_s": 1,
}


@dataclass(frozen=True)
class Spec:
    """The settings of a server."""

    name: str
    engine: str = _FAST
    tables: str = ""
    flags: tuple[str, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    store: str = "memory"


SPECS = (
    Spec("plain", tables=_TABLES),
    Spec("slow", engine=_SLOW, limits={"max_in_flight": 3, "max_queued": 20}, store="sqlite", tables=_TABLES),
    Spec("tight", flags=("--compression",), limits=_TIGHT, store="sqlite", tables=_CHECKS),
    Spec(
        "tokens",
        engine=f"{_FAST},vocabulary=smollm2,context_tokens=4096,parallel_calls=2",
        flags=("--compression",),
        tables=_TABLES + _CHECKS,
    ),
)
Arcs = set[tuple[str, int, int]]
"""Files, and two lines of each that were run one after the other."""


class TracedServer:
    """A running server, as a target of inputs."""

    def __init__(self, server: Server, line: socket.socket, log: TextIO) -> None:
        self.port = server.port
        self.process = server
        self._line = line
        self._log = log
        self._asking = asyncio.Lock()

    def faults(self) -> list[str]:
        """Faults that were logged since the last call, and the end of the process."""
        found = faults_in(self._log.read())
        if not self.process.is_alive:
            ended = f"the server ended with {self.process.process.returncode}"
            found.append(f"{ended}: {self.process.log()[-1500:]}")
        return found

    async def new_arcs(self) -> set[str]:
        """Names of the arcs that the server has run for the first time since the last call."""
        return set(await self._ask(NEW))

    async def all_arcs(self) -> Arcs:
        """All arcs that the server has run."""
        found = await self._ask(ALL)
        return {(path, first, second) for path, pairs in found.items() for first, second in pairs}

    async def _ask(self, question: bytes) -> Any:
        loop = asyncio.get_running_loop()
        async with self._asking:
            await loop.sock_sendall(self._line, question)
            (length,) = LENGTH.unpack(await self._receive(LENGTH.size))
            return json.loads(await self._receive(length))

    async def _receive(self, count: int) -> bytes:
        loop = asyncio.get_running_loop()
        received = b""
        while len(received) < count:
            if not (chunk := await loop.sock_recv(self._line, count - len(received))):
                raise ConnectionResetError("the server does not report any more")
            received += chunk
        return received


def faults_in(log: str) -> list[str]:
    """The places of a log that report an unexpected fault."""
    lines = log.splitlines()
    return [
        "logged: " + "\n".join(lines[place : place + 60])
        for place, line in enumerate(lines)
        if SIGNS.search(line)
    ][:1]


@contextlib.asynccontextmanager
async def running(spec: Spec, *, judged: bool = True) -> AsyncIterator[TracedServer]:
    """Run a server on a free loopback port until the block ends. If it is ``judged``, raises
    ``AssertionError`` if it has logged a fault or does not stop as it should."""
    with tempfile.TemporaryDirectory(prefix="slipring-fuzz-") as directory:
        config, log = Path(directory) / "slipring.toml", Path(directory) / "log"
        config.write_text(f'[models.simulated]\nengine = "{spec.engine}"\nmodel = "simulated"\n{spec.tables}')
        own, other = socket.socketpair()
        own.setblocking(False)
        with log.open("wb") as errors, other:
            process = _started(_command(spec, config, other.fileno()), errors, other.fileno())
        server = Server(process, log)
        with own, log.open(errors="replace") as written:
            try:
                server.url = announced(process, _START_S) or ""
                if not server.url:
                    raise RuntimeError(f"the server did not start: {server.log()[-2000:]}")
                target = TracedServer(server, own, written)
                yield target
                if judged:
                    await _stop(target)
            finally:
                process.kill()
                process.wait()
                assert process.stdout is not None
                process.stdout.close()


def _started(command: list[str], errors: IO[bytes], number: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command, env=_environment(), stdout=subprocess.PIPE, stderr=errors, text=True, pass_fds=(number,)
    )


async def _stop(target: TracedServer) -> None:
    process = target.process.process
    faults = target.faults()
    process.terminate()
    try:
        code = await asyncio.to_thread(process.wait, _STOP_S)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"the server did not stop in {_STOP_S:.0f} s") from None
    log = target.process.log()
    faults += faults_in(log)
    if code or faults:
        raise AssertionError(f"the server stopped with {code}; {faults or log[-1500:]}")


def _command(spec: Spec, config: Path, number: int) -> list[str]:
    store = spec.store if spec.store == "memory" else f"sqlite:{config.parent}/slipring.db"
    limits = {**_LIMITS, **spec.limits}
    return [
        *(sys.executable, "-m", "tests.fuzz.frames.traced_server", str(number)),
        *("serve", "--port", "0", "--config", str(config), "--store", store, "--admin", "off"),
        *("--log-level", "warning"),
        *(f"--{name.replace('_', '-')}={value:.10g}" for name, value in limits.items()),
        *spec.flags,
    ]


def _environment() -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLIPRING_")}
    keys = f"a:{KEYS[0]},b:{KEYS[1]},control:{CONTROL_KEY}"
    return {**clean, "SLIPRING_API_KEYS": keys, "STDIO_LOG": os.devnull}
