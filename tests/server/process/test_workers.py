"""Supervisor and worker processes: they serve one port, replace dead workers and stop together."""

import asyncio
import contextlib
import dataclasses
import itertools
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from slipring import __version__
from slipring.config.settings import Config
from slipring.config.tables import ModelEntry
from slipring.core.limits import Limits
from slipring.engines.engine_hosts import Share
from slipring.server.admin.workers_source import WorkersSource
from slipring.server.process import worker_messages
from slipring.server.process.listening_sockets import reserve
from slipring.server.process.supervisor import Supervisor, WorkerSlot
from slipring.server.random_ids import node_of
from tests.commands.test_cli import FAST, Process, launched, refused, refused_here

PATIENCE_S = 300.0
_ASKED_AT_ONCE = 10
"""By then the kernel has picked each of two workers, if both serve."""


@asynccontextmanager
async def workers(*arguments: str, count: int = 2, **variables: Any) -> AsyncIterator[Process]:
    async with launched("--workers", str(count), *arguments, **variables) as server:
        yield server


async def until(holds: Callable[[], bool]) -> None:
    """Poll: other processes cannot set an event here."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def health(url: str) -> dict[str, Any]:
    """``/health`` of the worker that the kernel picks for a new connection."""
    async with (
        aiohttp.ClientSession() as http,
        http.get(url.removesuffix("/v1") + "/health") as answer,
    ):
        body = await answer.json()
        assert isinstance(body, dict)
        return body


async def health_by_pid(
    url: str, holds: Callable[[dict[int, dict[str, Any]]], bool]
) -> dict[int, dict[str, Any]]:
    """Poll ``/health`` until the latest answers by pid satisfy a condition. A worker may die meanwhile."""
    answers: dict[int, dict[str, Any]] = {}
    async with asyncio.timeout(PATIENCE_S):
        for asked in itertools.count(1):
            with contextlib.suppress(aiohttp.ClientError):
                body = await health(url)
                answers[body["pid"]] = body
            if holds(answers):
                break
            if asked > _ASKED_AT_ONCE:
                await asyncio.sleep(0.02)  # a worker that is starting needs the processor
    return answers


async def pids_of(url: str) -> set[int]:
    """The process ids of both workers."""
    return set(await health_by_pid(url, lambda answers: len(answers) == 2))


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        return "zombie" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


async def test_workers_serve_one_port_and_stop_together() -> None:
    async with workers(*FAST) as server:
        assert server.output[:3] == [
            f"slipring {__version__} serves {server.url}",
            f"  websocket  {server.url.replace('http', 'ws')}/responses",
            "  workers    2",
        ]
        pids = await pids_of(server.url)
        assert pids == set(children_of(server.process.pid))
        async with aiohttp.ClientSession() as http:
            async with http.post(f"{server.url}/responses", json={"input": "hello"}) as answer:
                assert (await answer.json())["status"] == "completed"
            ws = await http.ws_connect(f"{server.url}/responses")
            assert await server.stop() == 0
            await ws.close()
        assert not any(map(is_alive, pids))
        assert await server.line() == "slipring: stopped"
        assert await server.errors() == "", "an idle socket is nothing to wait for"


async def test_workers_that_end_are_replaced() -> None:
    async with workers(*FAST) as server:
        pids = await pids_of(server.url)
        for pid, number in zip(pids, (signal.SIGKILL, signal.SIGTERM), strict=True):
            os.kill(pid, number)
            await until(lambda pid=pid: not is_alive(pid))  # type: ignore[misc]
            assert (await health(server.url))["pid"] != pid, "the other worker serves the port meanwhile"
            answers = await health_by_pid(server.url, lambda answers: len(answers) == 2)
            assert pid not in answers
        assert not pids & answers.keys(), "both were replaced"
        assert await server.stop() == 0


async def running_response(http: aiohttp.ClientSession, server: Process) -> aiohttp.ClientWebSocketResponse:
    ws = await http.ws_connect(f"{server.url}/responses")
    await ws.send_json({"type": "response.create", "input": "hello"})
    assert (await ws.receive_json(timeout=300))["type"] == "response.created"
    return ws


@pytest.mark.parametrize("at_terminal", [False, True])
async def test_running_responses_are_finished_on_every_worker(at_terminal: bool) -> None:
    """``at_terminal``: all processes get the signals, as from Ctrl-C or a service manager."""
    async with (
        workers("--engine", "simulated:tokens_per_s=50,output_tokens=100") as server,
        aiohttp.ClientSession() as http,
    ):
        sockets = [await running_response(http, server)]
        while len(await connected(server)) < 2:
            sockets.append(await running_response(http, server))
        if at_terminal:
            for pid in children_of(server.process.pid):
                os.kill(pid, signal.SIGTERM)
                os.kill(pid, signal.SIGINT)
        stopped = asyncio.create_task(server.stop())
        for ws in sockets:
            events = []
            while not events or events[-1]["type"] != "error":
                events.append(await ws.receive_json(timeout=300))
            assert events[-2]["type"] == "response.completed"
            assert events[-1]["error"]["code"] == "server_shutting_down"
            await ws.close()
        assert await stopped == 0


async def connected(server: Process) -> list[int]:
    """The process ids of workers that have a socket."""
    answers = await health_by_pid(server.url, lambda answers: len(answers) == 2)
    return [pid for pid, body in answers.items() if body["connections"]]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--engine", "magic"], "unknown engine 'magic'"),
        (["--engine", "llama:/no/such.gguf"], "cannot read /no/such.gguf"),
        (["--host", "0.0.0.0"], "refusing to serve on 0.0.0.0 without API keys"),
    ],
)
def test_a_failure_to_start_is_reported_in_one_line(
    arguments: list[str], reason: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, line = refused_here(capfd, monkeypatch, "--workers", "2", "--port", "0", *arguments)
    assert code == 3
    assert line.startswith("slipring: ")
    assert reason in line


async def test_a_worker_that_cannot_start_is_reported_in_one_line() -> None:
    code, line = await refused("--workers", "2", "--port", "0", "--store", "nowhere")
    assert code == 3
    assert line.startswith("slipring: --store nowhere: unknown store")


async def test_workers_keep_their_port_from_others_until_their_supervisor_is_killed() -> None:
    async with workers(*FAST) as server:
        pids = await pids_of(server.url)
        port = server.url.removesuffix("/v1").rpartition(":")[2]
        code, line = await refused("--workers", "2", "--port", port)
        server.process.kill()
        await until(lambda: not any(map(is_alive, pids)))
    assert code == 3
    assert line.startswith(f"slipring: cannot listen on 127.0.0.1:{port}: the port is in use")


async def test_a_worker_that_fails_to_start_is_started_again_until_it_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slipring.server.process.supervisor._FIRST_PAUSE_S", 0.01)
    good, bad = FAST[1], "magic"
    with reserve("127.0.0.1", 0) as reserved:
        config = Config(port=reserved.getsockname()[1], engine=good, workers=2)
        engines = iter([good, bad, bad])
        assigned: list[str] = []

        def assign() -> worker_messages.Assignment:
            assigned.append(next(engines, good))
            return worker_messages.Assignment(dataclasses.replace(config, engine=assigned[-1]), {})

        slot = WorkerSlot(0, assign, lambda suspicion: None, WorkersSource([], ""))
        slot.start()
        assert (await asyncio.wait_for(slot.serving, PATIENCE_S)).models == ("simulated",)
        assert slot._process is not None
        slot._process.kill()
        url = f"http://127.0.0.1:{config.port}/v1"
        await health_by_pid(url, lambda answers: len(assigned) == 4 and len(answers) == 1)
        assert assigned == [good, bad, bad, good]
        slot.dismiss(worker_messages.Stop())
        await asyncio.wait_for(slot.ended, PATIENCE_S)


async def test_a_worker_that_does_not_react_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipring.server.process.supervisor._OVERTIME_S", 0.2)
    supervisor = Supervisor(
        Config(port=0, engine=FAST[1], workers=2, limits=Limits(drain_timeout_s=0)),
    )
    ready = asyncio.Event()
    serving = asyncio.create_task(supervisor.serve(lambda *_: ready.set()))
    await asyncio.wait_for(ready.wait(), PATIENCE_S)
    pids = await pids_of(supervisor.base_url)
    os.kill(min(pids), signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(serving, PATIENCE_S)
    assert not any(map(is_alive, pids))


def test_a_reserved_port_is_not_given_out_again() -> None:
    with reserve("127.0.0.1", 0) as one, reserve("127.0.0.1", 0) as other:
        assert one.getsockname() != other.getsockname()


def test_commands_and_reports_survive_encoding() -> None:
    model = ModelEntry("a", "llama", aliases=("b",), defaults=(("temperature", 0.2), ("effort", "low")))
    limits = Limits(max_lanes=3, drain_timeout_s=0.5)
    config = Config(port=1, workers=2, api_key=("team:key",), models=(model,), limits=limits)
    share = Share(slots=(1, 3), saved_bytes=5, directory="/d", mark="1-")
    for command in (
        worker_messages.Assignment(config, {"llama": worker_messages.Loan(share, "key", None)}),
        worker_messages.EngineMoved("llama", "http://127.0.0.1:1"),
        worker_messages.Stop(),
        worker_messages.StopNow(),
    ):
        assert worker_messages.decode_command(worker_messages.encode(command)) == command
    for report in (
        worker_messages.Serving(("a", "b"), "sqlite", "2 configured", False),
        worker_messages.Failed("one line"),
        worker_messages.Draining(3),
        worker_messages.EngineSuspected("llama", "http://127.0.0.1:1"),
    ):
        assert worker_messages.decode_report(worker_messages.encode(report)) == report


async def test_any_worker_continues_a_stored_chain() -> None:
    async with workers(*FAST) as server:
        made_by: set[str | None] = set()
        previous, tokens = None, 0
        async with asyncio.timeout(PATIENCE_S):
            while len(made_by) < 2:
                # A new connection each time: the kernel chooses the worker.
                body = {"input": "go on", "previous_response_id": previous}
                async with (
                    aiohttp.ClientSession() as http,
                    http.post(f"{server.url}/responses", json=body) as answer,
                ):
                    response = await answer.json()
                assert answer.status == 200, response
                assert response["usage"]["input_tokens"] > tokens
                previous, tokens = response["id"], response["usage"]["input_tokens"]
                made_by.add(node_of(response["id"]))
