"""Hosted calls of background responses whose server is killed: they have failed, and never run again."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from slipring.core.chain.hosted_items_in_context import UNKNOWN_OUTCOME
from slipring.core.limits import Limits
from slipring.stores.runs import RunEvent
from tests.api import Api
from tests.commands.test_cli import launched
from tests.harness import serve
from tests.mcp.fakes import Exchange, FakeServer, Reply, serving, text
from tests.server.hosted_tools.running import registered
from tests.server.hosted_tools.turns import call, scripted, server

Json = dict[str, Any]
LEASE_S = 3.0
CODE_TOOL = {"type": "code_interpreter", "container": {"type": "auto"}}
CALLS = [
    {"function_call": {"name": "code_interpreter", "arguments": {"code": "1 + 1"}}},
    call("strike", n=1),
]
CONFIGURED = """
[[mcp]]
name = "fake"
url = "{url}"
[builtin_tools.code_interpreter]
server = "fake"
tool = "run"
"""


@asynccontextmanager
async def striking() -> AsyncIterator[tuple[FakeServer, list[int]]]:
    """An MCP server whose tool ``strike`` kills the processes in the list as soon as ``run`` runs too."""
    fake, pids = FakeServer(modern=True), []
    runs = asyncio.Event()

    async def run(exchange: Exchange) -> Reply:
        runs.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def strike(exchange: Exchange) -> Reply:
        await runs.wait()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return text("struck")

    fake.tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("run", "strike")]
    fake.calls = {"run": run, "strike": strike}
    async with serving(fake) as served:
        yield served, pids


async def begin(url: str, **fields: Any) -> str:
    body = {"input": "go", "background": True, **fields}
    async with aiohttp.ClientSession() as http, http.post(f"{url}/responses", json=body) as answer:
        response_id: str = (await answer.json())["id"]
        return response_id


async def test_calls_that_ran_when_their_server_was_killed_have_failed_and_run_once(tmp_path: Path) -> None:
    """The calls themselves kill it: no event of theirs is written later than they run."""
    store = f"sqlite:{tmp_path / 'slipring.db'}"
    file = tmp_path / "slipring.toml"
    engine = scripted(tmp_path, CALLS, [{"text": "Done."}])
    async with striking() as (fake, pids):
        file.write_text(CONFIGURED.format(url=fake.url))
        flags = ("--engine", engine, "--store", store, "--run-lease-s", str(LEASE_S), "--config", str(file))
        async with launched(*flags) as killed:
            pids.append(killed.process.pid)
            response_id = await begin(killed.url, tools=[CODE_TOOL, server()])
            assert await asyncio.wait_for(killed.process.wait(), 300) == -signal.SIGKILL
        async with serve(
            engine, store=store, limits=Limits(run_lease_s=LEASE_S), mcp=(registered(fake, headers=()),)
        ) as other:
            failed = await Api(other).ended(response_id)
            events = await Api(other).events(response_id)
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
    ran, struck = (item for item in failed["output"] if item["type"] != "mcp_list_tools")
    assert (ran["type"], ran["status"], ran["code"]) == ("code_interpreter_call", "failed", "1 + 1")
    assert (struck["status"], struck["arguments"]) == ("failed", '{"n":1}')
    assert struck["error"]["message"] == UNKNOWN_OUTCOME
    assert events[-1]["response"] == failed
    assert fake.count("tools/call") == 2


async def test_a_call_whose_events_cannot_be_written_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that its server cannot be killed with a call that nobody knows of."""
    engine = scripted(tmp_path, *2 * [[call(a=1, b=2)]], *2 * [[{"text": "3"}]])
    async with (
        serving(FakeServer(modern=True)) as fake,
        serve(engine, mcp=(registered(fake, headers=()),)) as running,
    ):
        runs = running.service.store.runs
        append, written, go_on = runs.append, asyncio.Event(), asyncio.Event()

        async def append_later(lease: Any, events: list[RunEvent], *rest: Any, **more: Any) -> None:
            if any(b"mcp_call_arguments.done" in each.data for each in events):
                written.set()
                await go_on.wait()
            await append(lease, events, *rest, **more)

        monkeypatch.setattr(runs, "append", append_later)
        api = Api(running)
        begun = await api.begin(tools=[server()])
        await asyncio.wait_for(written.wait(), 300)
        # Time enough for a call that does not wait: another client's whole response with the same call.
        status, response = await running.post(input="1 + 2?", tools=[server()])
        assert (status, response["output"][1]["output"]) == (200, "3")
        assert fake.count("tools/call") == 1
        go_on.set()
        assert (await api.ended(begun["id"]))["output"][1]["output"] == "3"
        assert fake.count("tools/call") == 2
