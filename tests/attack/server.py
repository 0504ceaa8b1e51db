"""Runs a real server in another process and observes its memory, descriptors, CPU and log."""

import contextlib
import functools
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.attack.limits import LIMITS, MIB

ATTACKER_KEY, VICTIM_KEY = "attacker-key-5d1f", "victim-key-93ab"
PACE_MS = 5.0
OUTPUT_TOKENS = 20
_SIMULATED = f"simulated:tokens_per_s={1000 / PACE_MS:g},output_tokens={OUTPUT_TOKENS}"
ENGINES = {
    "simulated": {"simulated": _SIMULATED},
    "tokens": {"simulated": f"{_SIMULATED},vocabulary=smollm2,context_tokens=8192"},
    "llama": {"simulated": _SIMULATED, "llama": "llama:threads=1"},
    "scheduled": {"simulated": _SIMULATED, "scheduled": "vllm:URL,tokenizer=FILES"},
    "seeing": {"simulated": _SIMULATED, "seeing": "chat:URL,images=true"},
}
"""The models of a server, by the name of its engine. The victim uses all of them."""
_FAKES = {"scheduled": "tests.attack.small_cache", "seeing": "tests.attack.seeing"}
"""What URL stands for, as a process."""
_START_S = 60.0
_STOP_S = 20.0
_SAMPLED_S = 0.05
SIGNS = re.compile(r"Traceback|unexpectedly|never retrieved|never awaited|Fatal|Task was destroyed|\bERROR\b")
"""Log messages of unexpected faults."""

_MOST_WARNINGS = 100


@dataclass(frozen=True)
class Spec:
    """The settings of a server."""

    engine: str = "simulated"
    limits: Mapping[str, float] = field(default_factory=dict)
    """Limits that differ from those of the suite."""
    flags: tuple[str, ...] = ()
    descriptors: int | None = None
    """The process's limit of open files; None: that of the suite's process."""


class Server:
    """One running server."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self.process = process
        self.url = ""
        self._log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def port(self) -> int:
        return int(self.url.split(":")[2].split("/")[0])

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def resident_mib(self) -> float:
        """Resident memory of the process and its descendants."""
        return sum(map(_resident_bytes, family(self.pid))) / MIB

    def descriptors(self) -> int:
        with contextlib.suppress(OSError):
            return len(os.listdir(f"/proc/{self.pid}/fd"))
        return 0

    def cpu_s(self) -> float:
        """CPU time of the process, without its children."""
        return _cpu_s(self.pid)


def foreign_cpu_s() -> float:
    """Return the CPU time of all processes of the machine except this one and its descendants."""
    ticks = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]))
    busy_s = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
    return busy_s - sum(map(_cpu_s, family(os.getpid())))


def faults_in(log: str) -> list[str]:
    """Return log lines that must not exist: unexpected faults, too many warnings, and secrets of clients."""
    lines = log.splitlines()
    found = [" | ".join(lines[place : place + 30]) for place, line in enumerate(lines) if SIGNS.search(line)]
    warnings = sum(" WARNING " in line for line in lines)
    if warnings > _MOST_WARNINGS:
        found.append(f"{warnings} warnings, an attack must not fill the log; the last: {lines[-1]}")
    secrets = [key for key in (ATTACKER_KEY, VICTIM_KEY) if key in log]
    return [f"logged: {each[:1500]}" for each in found[-2:]] + [
        f"the log contains the key {key}" for key in secrets
    ]


@contextlib.contextmanager
def running(spec: Spec) -> Iterator[Server]:
    """Run a server on a free loopback port, with its own store, until the block ends."""
    with (
        tempfile.TemporaryDirectory(prefix="slipring-attack-") as directory,
        contextlib.ExitStack() as stack,
    ):
        log, config = Path(directory) / "log", Path(directory) / "slipring.toml"
        models = _models(spec.engine)
        if "URL" in models:
            url, files = stack.enter_context(_fake(_FAKES[spec.engine]))
            models = models.replace("URL", url).replace("FILES", files)
        config.write_text(models)
        flags = ("--port", "0", "--config", str(config), "--store", f"sqlite:{directory}/slipring.db")
        with log.open("wb") as errors:  # not a pipe, which would fill up unread
            process = subprocess.Popen(
                [sys.executable, "-m", "slipring", "serve", *flags, *_limit_flags(spec), *spec.flags],
                env=_environment(),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                preexec_fn=functools.partial(_bound_descriptors, spec.descriptors),
            )
        server = Server(process, log)
        try:
            server.url = announced(process) or ""
            if not server.url:
                raise RuntimeError(f"the server did not start: {server.log()[-2000:]}")
            yield server
        finally:
            _end(process)


@contextlib.contextmanager
def _fake(module: str) -> Iterator[tuple[str, str]]:
    """A fake engine: its address, and where its tokenizer is, if it has one."""
    process = subprocess.Popen([sys.executable, "-m", module], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url, _, files = process.stdout.readline().strip().partition(" ")
        if not url:
            raise RuntimeError(f"{module} did not start")
        yield url, files
    finally:
        _end(process)


def _end(process: "subprocess.Popen[str]") -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:  # frozen
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()


def announced(process: "subprocess.Popen[str]", within_s: float = _START_S) -> str | None:
    """Return the URL that a server prints when it is ready. None: it has ended, or takes too long."""
    timer = threading.Timer(within_s, process.kill)
    timer.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"http://\S+", line):
                return found.group()
        return None
    finally:
        timer.cancel()


def _models(engine: str) -> str:
    return "\n".join(
        f'[models.{name}]\nengine = "{text}"\nmodel = "{name}"\n'
        if name == "simulated"
        else f'[models.{name}]\nengine = "{text}"\n'
        for name, text in ENGINES[engine].items()
    )


def _environment() -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLIPRING_")}
    keys = f"attacker:{ATTACKER_KEY},victim:{VICTIM_KEY}"
    return {**clean, "SLIPRING_API_KEYS": keys, "SLIPRING_LOG_LEVEL": "info"}


def _limit_flags(spec: Spec) -> list[str]:
    limits = {**LIMITS, **spec.limits}
    return [f"--{name.replace('_', '-')}={value:.10g}" for name, value in limits.items()]


def _bound_descriptors(most: int | None) -> None:
    """Runs in the child before exec: sets the limit of open files and restores the default signal
    handlers."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    if most is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{parent}/task").iterdir():
                found += map(int, (thread / "children").read_text().split())
    return found


def _cpu_s(pid: int) -> float:
    """Return the CPU time of a process and of its children that have ended."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _resident_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


class Peak:
    """Samples the memory of a server while the block runs, and keeps the highest value."""

    def __init__(self, server: Server) -> None:
        self.mib = 0.0
        self._server = server
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(_SAMPLED_S):
            self.mib = max(self.mib, self._server.resident_mib())
