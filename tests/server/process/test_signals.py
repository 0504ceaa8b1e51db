"""Signals to real processes: which stop a server, which hurry it, which change nothing."""

import asyncio
import contextlib
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from slipring.config import Config
from slipring.server.process.server import Server
from tests.server.process.test_server import Slow
from tests.server.process.test_workers import children_of, is_alive, pids_of, running_response, until, workers
from tests.test_cli import FAST, Process, environment, launched

SLOW = ("--engine", "simulated:tokens_per_s=50,output_tokens=100")
NOHUP = (sys.executable, str(Path(__file__).with_name("ignoring.py")))
"""Runs slipring as nohup would."""


async def last_words(ws: aiohttp.ClientWebSocketResponse) -> list[dict[str, Any]]:
    """The terminal event and the notice, of a server that drains."""
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] != "error":
        events.append(await ws.receive_json(timeout=60))
    await ws.close()
    return events[-2:]


def assert_drained(events: list[dict[str, Any]]) -> None:
    completed, notice = events
    assert completed["type"] == "response.completed"
    assert completed["response"]["usage"]["output_tokens"] == 100
    assert notice["error"]["code"] == "server_shutting_down"


async def test_a_hangup_drains_however_often_it_comes() -> None:
    async with launched(*SLOW) as server, aiohttp.ClientSession() as http:
        ws = await running_response(http, server)
        stopped = asyncio.create_task(server.stop(signal.SIGHUP))
        for _ in range(3):
            assert (await ws.receive_json(timeout=60))["type"].startswith("response.")
            server.process.send_signal(signal.SIGHUP)
        assert_drained(await last_words(ws))
        assert await stopped == 0
        assert await server.line() == "slipring: stopped"


async def test_a_hangup_does_not_hurry_one_that_was_told_to_stop_and_is_not_the_first_of_two() -> None:
    async with launched(*SLOW) as server, aiohttp.ClientSession() as http:
        ws = await running_response(http, server)
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
            server.process.send_signal(number)
            assert (await ws.receive_json(timeout=60))["type"].startswith("response.")
        assert_drained(await last_words(ws))
        assert await asyncio.wait_for(server.process.wait(), 60) == 0


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
async def test_a_signal_without_a_meaning_is_logged_and_changes_nothing(number: signal.Signals) -> None:
    async with launched(*FAST) as server, aiohttp.ClientSession() as http:
        server.process.send_signal(number)
        assert server.process.stderr is not None
        line = (await asyncio.wait_for(server.process.stderr.readline(), 60)).decode()
        assert f"{number.name} is ignored" in line
        async with http.post(f"{server.url}/responses", json={"input": "hello"}) as answer:
            assert (await answer.json())["status"] == "completed"
        assert await server.stop() == 0


async def test_a_hangup_that_was_ignored_when_the_process_started_stays_ignored() -> None:
    async with launched(*FAST, command=NOHUP) as server, aiohttp.ClientSession() as http:
        server.process.send_signal(signal.SIGHUP)
        server.process.send_signal(
            signal.SIGUSR1
        )  # of two signals, the one with the higher number comes later
        assert server.process.stderr is not None
        await asyncio.wait_for(server.process.stderr.readline(), 60)
        async with http.post(f"{server.url}/responses", json={"input": "hello"}) as answer:
            assert (await answer.json())["status"] == "completed"
        assert await server.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
async def test_a_server_whose_engine_loads_stops(number: int) -> None:
    engine = Slow()
    server = Server(Config(port=0), engine=engine)
    serving = asyncio.create_task(server.serve(lambda server: None))
    await engine.loading.wait()
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), number)
    await asyncio.wait_for(serving, 60)
    assert engine.closed


# Several workers.


async def test_a_hangup_at_the_terminal_drains_all_workers() -> None:
    async with workers(*SLOW) as server, aiohttp.ClientSession() as http:
        ws = await running_response(http, server)
        for pid in [*children_of(server.process.pid), server.process.pid]:
            os.kill(pid, signal.SIGHUP)
        server.process.send_signal(signal.SIGHUP)
        assert_drained(await last_words(ws))
        assert await asyncio.wait_for(server.process.wait(), 60) == 0


async def test_workers_of_a_supervisor_that_survives_its_terminal_survive_it_too() -> None:
    async with launched("--workers", "2", *FAST, command=NOHUP) as server:
        pids = await pids_of(server.url)
        for pid in [*pids, server.process.pid]:
            os.kill(pid, signal.SIGHUP)
            os.kill(pid, signal.SIGUSR2)
        assert await ignoring(server, 3) == {*pids, server.process.pid}
        assert await pids_of(server.url) == pids, "nobody was replaced"
        assert all(map(is_alive, pids))
        assert await server.stop() == 0


async def ignoring(server: Process, count: int) -> set[int]:
    """The processes that have logged a signal which they ignore, when there are so many."""
    assert server.process.stderr is not None
    pids: set[int] = set()
    async with asyncio.timeout(60):
        while len(pids) < count:
            line = (await server.process.stderr.readline()).decode()
            assert line, "ended"
            if "is ignored" in line:
                pids.add(int(line.partition("[")[2].partition("]")[0]))
    return pids


# A terminal that goes away.


@asynccontextmanager
async def at_terminal(*arguments: str) -> AsyncIterator[tuple[Process, int]]:
    """A server that a terminal was opened for, and the terminal."""
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
            server.output.append(await server.line(60))
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
async def test_a_server_whose_terminal_goes_away_drains(arguments: tuple[str, ...]) -> None:
    async with at_terminal(*SLOW, *arguments) as (server, master), aiohttp.ClientSession() as http:
        ws = await running_response(http, server)
        children = children_of(server.process.pid)
        os.close(master)
        assert_drained(await last_words(ws))
        assert await asyncio.wait_for(server.process.wait(), 60) == 0
        await until(lambda: not any(map(is_alive, children)))
