"""Signals and closed terminals: the server stops with the bench, and the record is written."""

import asyncio
import os
import pty
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from slipring.bench import results
from tests.bench.process import COMMAND, FAST, children_of, is_running


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_stops_the_bench_and_writes_the_record(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "record.json"
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *FAST, *("--repeats", "100000", "--json", str(path)), stdout=-1, stderr=-1
    )
    assert process.stderr is not None
    assert (await asyncio.wait_for(process.stderr.readline(), 60)).startswith(b"coding: 100000 ")
    children = children_of(process.pid)
    process.send_signal(number)
    _, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 130
    assert b"interrupted" in err
    assert b"Traceback" not in err
    assert results.read(path).endpoint.engine == FAST[1]
    assert not any(is_running(child) for child in children)


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and pidfds")
ENDLESS = ("--repeats", "100000", "--workload", "short", "--mode", "websocket")
PATIENCE_S = 60
Start = Callable[..., Awaitable[Process]]


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


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts benches that never finish, and kills them after the test."""
    processes: list[Process] = []

    async def start(*arguments: str, to: int = PIPE) -> Process:
        command = (*COMMAND, *FAST, *ENDLESS, *arguments)
        process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=to, stderr=to)
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def measuring(process: Process) -> list[Watched]:
    """Wait until a bench is measuring; returns its server and the server's workers."""
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE_S):
        while not (line := await process.stderr.readline()).startswith(b"short: 100000 "):
            assert line, "it ended early"
    return servers_of(process)


def servers_of(process: Process) -> list[Watched]:
    (pid,) = children_of(process.pid)
    return [Watched(each) for each in (pid, *children_of(pid))]


@pytest.mark.parametrize("workers", [1, 2])
async def test_the_server_exits_when_the_bench_is_killed(start: Start, workers: int, tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'store.db'}"
    flags = ("--serve-flags", f"--workers {workers} --store {store}") if workers > 1 else ()
    process = await start(*flags)
    servers = await measuring(process)
    assert len(servers) == (1 if workers == 1 else 1 + workers)
    process.kill()
    _, err = await process.communicate()
    for server in servers:
        await server.ended()
    assert b"Traceback" not in err


async def test_sighup_stops_the_bench_and_writes_the_record(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    process = await start("--json", str(path))
    servers = await measuring(process)
    process.send_signal(signal.SIGHUP)
    _, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode == 130
    assert b"interrupted" in err
    assert results.read(path).endpoint.engine == FAST[1]
    for server in servers:
        await server.ended()


async def test_the_record_is_written_after_the_terminal_is_closed(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    ours, theirs = pty.openpty()
    process = await start("--json", str(path), to=theirs)
    os.close(theirs)
    seen = b""
    while b"websocket" not in seen:
        seen += await asyncio.wait_for(asyncio.to_thread(os.read, ours, 4096), PATIENCE_S)
    servers = servers_of(process)
    os.close(ours)  # from now on, writing to the terminal fails
    process.send_signal(signal.SIGHUP)  # as the system does for a controlling terminal
    assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 130
    assert results.read(path).endpoint.engine == FAST[1]
    for server in servers:
        await server.ended()


async def test_an_ignored_sighup_stays_ignored(start: Start) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        process = await start()
    finally:
        signal.signal(signal.SIGHUP, before)
    servers = await measuring(process)
    process.send_signal(signal.SIGHUP)
    assert ignores(process.pid, signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode == 130
    for server in servers:
        await server.ended()
