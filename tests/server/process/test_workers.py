"""Several workers on one port, in processes of their own: they serve, are replaced and end together."""

import asyncio
import dataclasses
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from slipring import __version__
from slipring.config import Config
from slipring.core.limits import Limits
from slipring.engines.sharing import Share
from slipring.models import ModelEntry
from slipring.server.cluster.ids import node_of
from slipring.server.process import worker_messages
from slipring.server.process.listener import reserve
from slipring.server.process.supervisor import Supervisor
from slipring.server.process.worker_slot import Post
from tests.test_cli import FAST, Process, launched, refused

PATIENCE_S = 60.0


@asynccontextmanager
async def workers(*arguments: str, count: int = 2, **variables: Any) -> AsyncIterator[Process]:
    async with launched("--workers", str(count), *arguments, **variables) as server:
        yield server


async def until(holds: Callable[[], bool]) -> None:
    """Look again and again, from outside: processes set no events."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def health(url: str) -> dict[str, Any]:
    """What the worker says that a new connection comes to."""
    async with (
        aiohttp.ClientSession() as http,
        http.get(url.removesuffix("/v1") + "/health") as answer,
    ):
        body = await answer.json()
        assert isinstance(body, dict)
        return body


async def look(url: str, holds: Callable[[dict[int, dict[str, Any]]], bool]) -> dict[int, dict[str, Any]]:
    """Ask until what the workers last said, by pid, is as expected. One may die while it is asked."""
    said: dict[int, dict[str, Any]] = {}
    async with asyncio.timeout(PATIENCE_S):
        while not holds(said):
            try:
                body = await health(url)
            except aiohttp.ClientError:
                continue
            said[body["pid"]] = body
    return said


async def pids_of(url: str) -> set[int]:
    """Both workers."""
    return set(await look(url, lambda said: len(said) == 2))


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
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{server.url}/responses", json={"input": "hello"}) as answer,
        ):
            assert (await answer.json())["status"] == "completed"
        assert await server.stop() == 0
        assert not any(map(is_alive, pids))
        assert await server.line() == "slipring: stopped"
        assert await server.errors() == ""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_worker_that_ends_is_replaced(number: int) -> None:
    async with workers(*FAST) as server:
        first, _ = await pids_of(server.url)
        os.kill(first, number)
        await until(lambda: not is_alive(first))
        assert (await health(server.url))["pid"] != first, "the port is served all the time"
        said = await look(server.url, lambda said: len(said) == 2)
        assert first not in said
        assert await server.stop() == 0


async def running_response(http: aiohttp.ClientSession, server: Process) -> aiohttp.ClientWebSocketResponse:
    ws = await http.ws_connect(f"{server.url}/responses")
    await ws.send_json({"type": "response.create", "input": "hello"})
    assert (await ws.receive_json(timeout=60))["type"] == "response.created"
    return ws


@pytest.mark.parametrize("at_terminal", [False, True])
async def test_running_responses_are_finished_on_every_worker(at_terminal: bool) -> None:
    """``at_terminal``: all processes get the signal, as from Ctrl-C or a service manager."""
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
                events.append(await ws.receive_json(timeout=60))
            assert events[-2]["type"] == "response.completed"
            assert events[-1]["error"]["code"] == "server_shutting_down"
            await ws.close()
        assert await stopped == 0


async def connected(server: Process) -> list[int]:
    """The workers that have a socket."""
    said = await look(server.url, lambda said: len(said) == 2)
    return [pid for pid, body in said.items() if body["connections"]]


async def test_a_second_signal_waits_for_nobody() -> None:
    async with (
        workers("--engine", "simulated:tokens_per_s=1,output_tokens=10000") as server,
        aiohttp.ClientSession() as http,
    ):
        ws = await running_response(http, server)
        pids = await pids_of(server.url)
        server.process.send_signal(signal.SIGTERM)
        # The worker without a running response has gone, so the first signal was heeded.
        await until(lambda: sum(map(is_alive, pids)) == 1)
        assert await server.stop() == 0, "long before the deadline of the response"
        assert not any(map(is_alive, pids))
        await ws.close()


async def test_no_worker_outlives_a_supervisor_that_was_killed() -> None:
    async with workers(*FAST) as server:
        pids = await pids_of(server.url)
        server.process.kill()
        await until(lambda: not any(map(is_alive, pids)))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--engine", "magic"], "unknown engine 'magic'"),
        (["--engine", "simulated:script=/no/such/file"], "/no/such/file"),
        (["--engine", "llama:/no/such.gguf"], "cannot read /no/such.gguf"),
        (["--store", "nowhere"], "--store nowhere: unknown store"),
        (["--host", "0.0.0.0"], "refusing to serve on 0.0.0.0 without API keys"),
    ],
)
async def test_what_cannot_be_started_is_told_in_one_line(arguments: list[str], said: str) -> None:
    code, line = await refused("--workers", "2", "--port", "0", *arguments)
    assert code == 3
    assert line.startswith("slipring: ")
    assert said in line


async def test_a_port_that_other_workers_serve_is_told_in_one_line() -> None:
    async with workers(*FAST) as server:
        port = server.url.removesuffix("/v1").rpartition(":")[2]
        code, line = await refused("--workers", "2", "--port", port)
    assert code == 3
    assert line == f"slipring: cannot listen on 127.0.0.1:{port}: Address already in use"


async def test_a_worker_that_cannot_be_replaced_is_tried_until_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slipring.server.process.worker_slot._FIRST_PAUSE_S", 0.01)
    good, bad = FAST[1], "magic"
    with reserve("127.0.0.1", 0) as reserved:
        config = Config(port=reserved.getsockname()[1], engine=good, workers=2)
        engines = iter([good, bad, bad])
        assigned: list[str] = []

        def assign() -> worker_messages.Assignment:
            assigned.append(next(engines, good))
            return worker_messages.Assignment(dataclasses.replace(config, engine=assigned[-1]), {})

        post = Post(assign, lambda suspicion: None)
        post.start()
        assert (await asyncio.wait_for(post.serving, PATIENCE_S)).models == ("simulated",)
        assert post._process is not None
        post._process.kill()
        url = f"http://127.0.0.1:{config.port}/v1"
        await look(url, lambda said: len(assigned) == 4 and len(said) == 1)
        assert assigned == [good, bad, bad, good]
        post.dismiss(worker_messages.Stop())
        await asyncio.wait_for(post.gone, PATIENCE_S)


async def test_a_worker_that_does_not_listen_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipring.server.process.supervisor._PATIENCE_S", 0.2)
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


def test_a_reserved_port_is_free_for_nobody_else() -> None:
    with reserve("127.0.0.1", 0) as one, reserve("127.0.0.1", 0) as other:
        assert one.getsockname() != other.getsockname()


def test_orders_and_reports_survive_their_way() -> None:
    model = ModelEntry("a", "llama", aliases=("b",), defaults=(("temperature", 0.2), ("effort", "low")))
    limits = Limits(max_lanes=3, drain_timeout_s=0.5)
    config = Config(port=1, workers=2, api_key=("team:key",), models=(model,), limits=limits)
    share = Share(slots=(1, 3), saved_bytes=5, directory="/d", mark="1-")
    for order in (
        worker_messages.Assignment(config, {"llama": worker_messages.Loan(share, "key", None)}),
        worker_messages.Move("llama", "http://127.0.0.1:1"),
        worker_messages.Stop(),
        worker_messages.Hurry(),
    ):
        assert worker_messages.read_order(worker_messages.encode(order)) == order
    for report in (
        worker_messages.Serving(("a", "b"), "sqlite", "2 configured", False),
        worker_messages.Failed("one line"),
        worker_messages.Suspicion("llama", "http://127.0.0.1:1"),
    ):
        assert worker_messages.read_report(worker_messages.encode(report)) == report


async def test_a_stored_chain_goes_from_worker_to_worker() -> None:
    async with workers(*FAST) as server:
        made_by: set[str | None] = set()
        previous, tokens = None, 0
        async with asyncio.timeout(PATIENCE_S):
            while len(made_by) < 2:
                # A new connection each time: the kernel chooses who serves it.
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
