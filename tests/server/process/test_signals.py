"""Signals to real processes: which start a graceful stop, which make it immediate, which are ignored."""

import asyncio
import contextlib
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from slipring.config.settings import Config
from slipring.server.process.server import Server
from tests.commands.test_cli import FAST, Process, environment, launched
from tests.server.process.test_server import LoadingEngine
from tests.server.process.test_workers import children_of, is_alive, pids_of, running_response, until, workers

SLOW = ("--engine", "simulated:tokens_per_s=50,output_tokens=100")
ENDLESS = ("--engine", "simulated:tokens_per_s=1,output_tokens=10000", "--drain-timeout-s", "600")
CTRL_C = b"\x03"
NOHUP = (sys.executable, str(Path(__file__).with_name("ignoring.py")))
"""Runs slipring with SIGHUP ignored, as nohup does."""


async def last_events(ws: aiohttp.ClientWebSocketResponse) -> list[dict[str, Any]]:
    """The terminal event and the error that announces the stop."""
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] != "error":
        events.append(await ws.receive_json(timeout=300))
    await ws.close()
    return events[-2:]


def assert_drained(events: list[dict[str, Any]]) -> None:
    completed, notice = events
    assert completed["type"] == "response.completed"
    assert completed["response"]["usage"]["output_tokens"] == 100
    assert notice["error"]["code"] == "server_shutting_down"


async def first_complaint(server: Process) -> str:
    """The first line on standard error."""
    assert server.process.stderr is not None
    line = await asyncio.wait_for(server.process.stderr.readline(), 300)
    assert line, "standard error was closed"
    return line.decode().rstrip("\n")


async def ended_by(server: Process, signal_it: Callable[[], object]) -> int:
    """Signal a server until it has ended, as an operator who keeps pressing Ctrl-C: one signal shortly after
    another counts as the same. Returns the exit code. ``signal_it`` uses no method of the process, because
    that would reap it."""
    async with asyncio.timeout(300):
        while server.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal_it()
            await asyncio.sleep(0.002)
    return server.process.returncode


async def test_repeated_hangups_stop_gracefully() -> None:
    async with launched(*SLOW) as server, aiohttp.ClientSession() as http:
        ws = await running_response(http, server)
        stopped = asyncio.create_task(server.stop(signal.SIGHUP))
        for _ in range(3):
            assert (await ws.receive_json(timeout=300))["type"].startswith("response.")
            with contextlib.suppress(ProcessLookupError):  # it may have stopped by now
                server.process.send_signal(signal.SIGHUP)
        assert_drained(await last_events(ws))
        assert await stopped == 0
        assert await server.line() == "slipring: stopped"


async def test_a_hangup_before_or_after_a_sigterm_does_not_make_the_stop_immediate() -> None:
    async with launched(*SLOW) as server, aiohttp.ClientSession() as http:
        ws = await running_response(http, server)
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
            with contextlib.suppress(ProcessLookupError):  # it may have stopped by now
                server.process.send_signal(number)
            assert (await ws.receive_json(timeout=300))["type"].startswith("response.")
        assert_drained(await last_events(ws))
        assert await asyncio.wait_for(server.process.wait(), 300) == 0


async def test_user_signals_are_logged_and_ignored() -> None:
    async with launched(*FAST) as server, aiohttp.ClientSession() as http:
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            server.process.send_signal(number)
            assert f"{number.name} is ignored" in await first_complaint(server)
        async with http.post(f"{server.url}/responses", json={"input": "hello"}) as answer:
            assert (await answer.json())["status"] == "completed"
        assert await server.stop() == 0


async def test_a_hangup_that_was_ignored_when_the_process_started_stays_ignored() -> None:
    async with launched(*FAST, command=NOHUP) as server, aiohttp.ClientSession() as http:
        server.process.send_signal(signal.SIGHUP)
        # Of two pending signals, the one with the higher number is delivered later.
        server.process.send_signal(signal.SIGUSR1)
        assert "SIGUSR1 is ignored" in await first_complaint(server)
        async with http.post(f"{server.url}/responses", json={"input": "hello"}) as answer:
            assert (await answer.json())["status"] == "completed"
        assert await server.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
async def test_a_signal_stops_a_server_whose_engine_is_loading(number: int) -> None:
    engine = LoadingEngine()
    server = Server(Config(port=0), engine=engine)
    serving = asyncio.create_task(server.serve(lambda server: None))
    await engine.loading.wait()
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), number)
    await asyncio.wait_for(serving, 300)
    assert engine.closed


# Several workers.


async def test_a_hangup_of_all_processes_stops_all_workers_gracefully() -> None:
    async with workers(*SLOW) as server, aiohttp.ClientSession() as http:
        ws = await running_response(http, server)
        for pid in [*children_of(server.process.pid), server.process.pid]:
            os.kill(pid, signal.SIGHUP)
        server.process.send_signal(signal.SIGHUP)
        assert_drained(await last_events(ws))
        assert await asyncio.wait_for(server.process.wait(), 300) == 0


async def test_workers_ignore_a_hangup_that_their_supervisor_ignores() -> None:
    async with launched("--workers", "2", *FAST, command=NOHUP) as server:
        pids = await pids_of(server.url)
        for pid in [*pids, server.process.pid]:
            os.kill(pid, signal.SIGHUP)
            os.kill(pid, signal.SIGUSR2)
        assert await pids_that_ignored(server, 3) == {*pids, server.process.pid}
        assert await pids_of(server.url) == pids, "no worker was replaced"
        assert all(map(is_alive, pids))
        assert await server.stop() == 0


async def pids_that_ignored(server: Process, count: int) -> set[int]:
    """The first ``count`` processes that log an ignored signal."""
    assert server.process.stderr is not None
    pids: set[int] = set()
    async with asyncio.timeout(300):
        while len(pids) < count:
            line = (await server.process.stderr.readline()).decode()
            assert line, "ended"
            if "is ignored" in line:
                pids.add(int(line.partition("[")[2].partition("]")[0]))
    return pids


# On a terminal.


@asynccontextmanager
async def at_terminal(*arguments: str) -> AsyncIterator[tuple[Process, int]]:
    """A server with a controlling terminal, and the terminal's other end."""
    master, slave = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(Path(__file__).with_name("ignoring.py")), "--terminal", str(slave)),
        "serve",
        *("--port", "0", "--log-level", "warning"),
        *arguments,
        env=environment(),
        pass_fds=[slave],
        start_new_session=True,
        stdout=asyncio.subprocess.PIPE,
        stderr=slave,
        stdin=slave,
    )
    os.close(slave)
    server = Process(process, [])
    try:
        while not (server.output and "OPENAI_BASE_URL" in server.output[-1]):
            server.output.append(await server.line())
            assert process.returncode is None
        yield server, master
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        with contextlib.suppress(OSError):
            os.close(master)
        process._transport.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("arguments", [(), ("--workers", "2")])
async def test_a_server_whose_terminal_closes_stops_gracefully(arguments: tuple[str, ...]) -> None:
    async with at_terminal(*SLOW, *arguments) as (server, master), aiohttp.ClientSession() as http:
        ws = await running_response(http, server)
        children = children_of(server.process.pid)
        os.close(master)
        assert_drained(await last_events(ws))
        assert await asyncio.wait_for(server.process.wait(), 300) == 0
        await until(lambda: not any(map(is_alive, children)))


async def read_until(terminal: int, text: str) -> str:
    """The output of a terminal, up to some text."""
    loop = asyncio.get_running_loop()
    os.set_blocking(terminal, False)
    output = ""
    async with asyncio.timeout(300):
        while text not in output:
            readable = asyncio.Event()
            loop.add_reader(terminal, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(terminal)
            output += os.read(terminal, 65536).decode()
    return output


@pytest.mark.parametrize("arguments", [(), ("--workers", "2")])
async def test_ctrl_c_prints_what_the_server_waits_for_and_a_second_one_stops_it(
    arguments: tuple[str, ...],
) -> None:
    async with at_terminal(*ENDLESS, *arguments) as (server, master), aiohttp.ClientSession() as http:
        sockets = [await running_response(http, server) for _ in range(2)]
        os.write(master, CTRL_C)
        output = await read_until(master, "at once")
        assert output.splitlines()[-1].endswith(
            "slipring: waiting for 2 running responses, up to 600 s; press Ctrl-C again to stop at once"
        )
        assert await ended_by(server, lambda: os.write(master, CTRL_C)) == 0
        assert await server.line() == "slipring: stopped"
        for ws in sockets:
            await ws.close()


@pytest.mark.parametrize("count", [1, 2])
async def test_without_a_terminal_the_same_line_is_printed_to_standard_error(count: int) -> None:
    async with workers(*ENDLESS, count=count) as server, aiohttp.ClientSession() as http:
        ws = await running_response(http, server)
        pids = children_of(server.process.pid)
        assert len(pids) == (count if count > 1 else 0)
        server.process.send_signal(signal.SIGTERM)
        assert await first_complaint(server) == (
            "slipring: waiting for 1 running response, up to 600 s; send SIGTERM again to stop at once"
        )
        # Workers without a running response exit after the first signal, all of them after the second.
        await until(lambda: sum(map(is_alive, pids)) == count - 1)
        assert await ended_by(server, lambda: os.kill(server.process.pid, signal.SIGTERM)) == 0
        assert not any(map(is_alive, pids))
        await ws.close()


async def test_a_server_without_running_responses_stops_without_a_line() -> None:
    async with launched(*FAST) as server, aiohttp.ClientSession() as http:
        ws = await http.ws_connect(f"{server.url}/responses")
        assert await server.stop(signal.SIGINT) == 0
        assert await server.errors() == ""
        await ws.close()


async def test_further_signals_do_not_disturb_the_stop() -> None:
    """As from an operator who keeps pressing Ctrl-C."""
    async with launched(*ENDLESS) as server, aiohttp.ClientSession() as http:
        ws = await running_response(http, server)
        assert await ended_by(server, lambda: os.kill(server.process.pid, signal.SIGINT)) == 0
        assert "Traceback" not in await server.errors()
        await ws.close()
