"""Signals and closed terminals: the server stops with the bench, and the record is written."""

import asyncio
import os
import pty
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from slipring.commands.bench import results
from tests.commands.bench.process import COMMAND, FAST, children_of, is_running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and pidfds")
ENDLESS = ("--repeats", "100000", "--workload", "short", "--mode", "websocket")
PATIENCE_S = 300.0
Start = Callable[..., Awaitable["Started"]]


class Watched:
    """A process that is not a child of this one: waits for its end with a pidfd."""

    def __init__(self, pid: int) -> None:
        self._file = os.pidfd_open(pid)

    async def ended(self) -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._file, ended.set)
        try:
            await asyncio.wait_for(ended.wait(), PATIENCE_S)
        finally:
            loop.remove_reader(self._file)
            os.close(self._file)


def ignores(pid: int, number: signal.Signals) -> bool:
    mask = Path(f"/proc/{pid}/status").read_text().split("SigIgn:")[1].split()[0]
    return bool(int(mask, 16) & 1 << (number - 1))


class Started:
    """A bench that never finishes by itself, at a terminal that shows its progress."""

    def __init__(self, process: Process, terminal: int) -> None:
        self.process = process
        self.terminal: int | None = terminal
        self._shown = b""

    async def measures(self) -> list[Watched]:
        """Wait until it is measuring; returns its server and the server's workers."""
        async with asyncio.timeout(PATIENCE_S):
            while b"/100000 websocket" not in self._shown:
                self._shown += await self._read()
        (pid,) = children_of(self.process.pid)
        return [Watched(each) for each in (pid, *children_of(pid))]

    async def ended(self) -> str:
        """Wait for its end; returns what it has shown."""
        async with asyncio.timeout(PATIENCE_S):
            while read := await self._read():
                self._shown += read
            await self.process.wait()
        return self._shown.decode(errors="replace")

    async def _read(self) -> bytes:
        assert self.terminal is not None
        try:
            return await asyncio.to_thread(os.read, self.terminal, 4096)
        except OSError:  # the other end is closed
            return b""

    def close_terminal(self) -> None:
        if self.terminal is not None:
            os.close(self.terminal)
        self.terminal = None


@pytest.fixture
async def start(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    """Starts benches that never finish, and kills them after the test."""
    monkeypatch.setenv("TERM", "xterm")
    benches: list[Started] = []

    async def start(*arguments: str) -> Started:
        ours, theirs = pty.openpty()
        command = (*COMMAND, *FAST, *ENDLESS, *arguments)
        process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=theirs, stderr=theirs)
        os.close(theirs)
        benches.append(Started(process, ours))
        return benches[-1]

    yield start
    for bench in benches:
        if bench.process.returncode is None:
            bench.process.kill()
        await bench.process.wait()
        bench.close_terminal()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_stops_the_bench_and_writes_the_record(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    path = tmp_path / "record.json"
    bench = await start("--json", str(path))
    await bench.measures()
    children = children_of(bench.process.pid)
    bench.process.send_signal(number)
    err = await bench.ended()
    assert bench.process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert results.read(path).endpoint.engine == FAST[1]
    assert not any(is_running(child) for child in children)


@pytest.mark.parametrize("workers", [1, 2])
async def test_the_server_exits_when_the_bench_is_killed(start: Start, workers: int, tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'store.db'}"
    flags = ("--serve-flags", f"--workers {workers} --store {store}") if workers > 1 else ()
    bench = await start(*flags)
    servers = await bench.measures()
    assert len(servers) == (1 if workers == 1 else 1 + workers)
    bench.process.kill()
    for server in servers:
        await server.ended()
    assert "Traceback" not in await bench.ended()


async def test_sighup_stops_the_bench_and_writes_the_record(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    bench = await start("--json", str(path))
    servers = await bench.measures()
    bench.process.send_signal(signal.SIGHUP)
    await bench.ended()
    assert bench.process.returncode == 130
    assert results.read(path).endpoint.engine == FAST[1]
    for server in servers:
        await server.ended()


async def test_the_record_is_written_after_the_terminal_is_closed(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    bench = await start("--json", str(path))
    servers = await bench.measures()
    bench.close_terminal()  # from now on, writing to the terminal fails
    bench.process.send_signal(signal.SIGHUP)  # as the system does for a controlling terminal
    assert await asyncio.wait_for(bench.process.wait(), PATIENCE_S) == 130
    assert results.read(path).endpoint.engine == FAST[1]
    for server in servers:
        await server.ended()


async def test_an_ignored_sighup_stays_ignored(start: Start) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        bench = await start()
    finally:
        signal.signal(signal.SIGHUP, before)
    servers = await bench.measures()
    bench.process.send_signal(signal.SIGHUP)
    assert ignores(bench.process.pid, signal.SIGHUP)
    bench.process.send_signal(signal.SIGTERM)
    await bench.ended()
    assert bench.process.returncode == 130
    for server in servers:
        await server.ended()
