"""Servers that are processes: their life and death, and what they can do wrong."""

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from slipring.mcp.failures import (
    ConnectionLost,
    Malformed,
    McpFailure,
    Outcome,
    TimedOut,
    TooLarge,
    Unreachable,
)
from slipring.mcp.limits import McpLimits
from slipring.mcp.pool import Pool
from slipring.mcp.protocol.session import ProgressUpdate
from slipring.mcp.protocol.tools import TextContent, ToolResult
from slipring.mcp.servers import StdioServer
from slipring.mcp.transports import connection
from tests.loop_clock import LoopClock

SCRIPT = str(Path(__file__).parents[1] / "stdio_server.py")


class Stage:
    """Makes descriptions of servers, and reads what they logged."""

    def __init__(self, directory: Path) -> None:
        self.log = directory / "log"

    def server(self, mode: str, era: str = "old", **limits: Any) -> StdioServer:
        return StdioServer(
            name=mode,
            # Isolated and without site packages: starting it should cost little.
            command=(sys.executable, "-I", "-S", SCRIPT, mode, era),
            env={"STDIO_LOG": str(self.log), "STDIO_TOKEN": "SECRET-VALUE"},
            limits=McpLimits(**{"close_grace_s": 0.5, **limits}),
        )

    @property
    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def pids(self, word: str) -> list[int]:
        return [int(line.split()[1]) for line in self.lines if line.startswith(word)]

    async def logged(self, line: str) -> None:
        while line not in self.lines:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def said(result: ToolResult) -> Any:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return json.loads(block.text)


@pytest.mark.parametrize("era", ["old", "modern"])
async def test_tools_are_listed_and_called(pool: Pool, stage: Stage, era: str) -> None:
    server = stage.server("echo", era)
    assert [tool.name for tool in (await pool.tools(server)).tools] == ["echo"]
    # Line breaks in arguments must not break the line that the message is.
    assert said(await pool.call(server, "echo", b'{"a":\n\r\n [1]}')) == {"a": [1]}
    assert stage.lines.count("initialize") == (era == "old")
    assert stage.lines.count("subscriptions/listen") == (era == "modern")


@pytest.mark.parametrize("mode", ["strict", "silent"])
async def test_old_servers_that_do_not_answer_the_probe_are_recognised(
    pool: Pool, stage: Stage, mode: str
) -> None:
    assert (await pool.tools(stage.server(mode, probe_timeout_s=0.2))).tools
    assert len(stage.pids("started")) == (2 if mode == "strict" else 1)


async def test_the_environment_is_filtered(pool: Pool, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-server")
    monkeypatch.setenv("SLIPRING_KEYS", "secret")
    found = said(await pool.call(stage.server("echo"), "env", {}))
    assert found["STDIO_TOKEN"] == "SECRET-VALUE"
    assert found["PATH"] == os.environ["PATH"]
    assert not {"OPENAI_API_KEY", "SLIPRING_KEYS"} & set(found)


@pytest.mark.parametrize("mode", ["crash", "half"])
async def test_a_crash_in_a_call_leaves_its_outcome_unknown_and_the_next_call_restarts(
    pool: Pool, stage: Stage, mode: str
) -> None:
    for _ in range(2):
        with pytest.raises(ConnectionLost) as caught:
            await pool.call(stage.server(mode), mode, {})
        assert caught.value.outcome is Outcome.UNKNOWN
    assert stage.lines.count("tools/call") == 2
    assert len(stage.pids("started")) == 2


async def test_a_last_answer_without_a_line_break_is_read(pool: Pool, stage: Stage) -> None:
    assert (await pool.call(stage.server("unterminated"), "unterminated", {})).content == ()


async def test_a_process_that_died_between_calls_is_started_again(pool: Pool, stage: Stage) -> None:
    server = stage.server("echo")
    await pool.call(server, "echo", {})
    (pid,) = stage.pids("started")
    os.kill(pid, 9)
    while is_running(pid):  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.01)
    # The end of the pipe may be read only after the next call was written: then nobody knows.
    with contextlib.suppress(ConnectionLost):
        assert said(await pool.call(server, "echo", {"a": 1})) == {"a": 1}
    assert said(await pool.call(server, "echo", {"a": 2})) == {"a": 2}


@pytest.mark.parametrize(
    ("mode", "kind"), [("malformed", Malformed), ("huge", TooLarge), ("endless", TooLarge)]
)
async def test_what_is_no_message_ends_the_process(
    pool: Pool, stage: Stage, mode: str, kind: type[McpFailure]
) -> None:
    server = stage.server(mode, max_message_bytes=100_000, max_stream_bytes=500_000)
    with pytest.raises(kind) as caught:
        await pool.call(server, mode, {})
    assert caught.value.outcome is Outcome.UNKNOWN
    (pid,) = stage.pids("started")
    while is_running(pid):  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.01)


async def test_noise_on_both_outputs_is_borne(pool: Pool, stage: Stage) -> None:
    assert said(await pool.call(stage.server("noisy"), "noisy", {"a": 1})) == {"a": 1}


async def test_a_process_that_only_makes_noise_is_given_up(pool: Pool, stage: Stage) -> None:
    server = StdioServer("yes", ("yes", "no message"), limits=McpLimits(close_grace_s=0.5))
    with pytest.raises(Malformed) as caught:
        await pool.call(server, "any", {})
    assert caught.value.outcome is Outcome.NOT_SENT


@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_the_process_is_told_that_nobody_waits_any_more(
    pool: Pool, stage: Stage, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LoopClock(monkeypatch)
    task = asyncio.create_task(pool.call(stage.server("hang", call_timeout_s=60), "hang", {}))
    await stage.logged("tools/call")
    if how == "timeout":
        clock.advance(61)
        with pytest.raises(TimedOut) as caught:
            await task
        assert caught.value.outcome is Outcome.UNKNOWN
    else:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await stage.logged("notifications/cancelled")
    assert len(stage.pids("started")) == 1


async def test_what_the_process_asks_is_declined(pool: Pool, stage: Stage) -> None:
    assert said(await pool.call(stage.server("curious"), "curious", {}))["code"] == -32601


async def test_progress_reaches_the_caller(pool: Pool, stage: Stage) -> None:
    reported: list[ProgressUpdate] = []
    await pool.call(stage.server("progress"), "progress", {}, progress=reported.append)
    assert reported == [ProgressUpdate(1, None, "working")]


async def test_a_changed_list_is_fetched_again(pool: Pool, stage: Stage) -> None:
    server = stage.server("changing")
    await pool.tools(server)
    await pool.tools(server)
    assert stage.lines.count("tools/list") == 1
    await pool.call(server, "changing", {})
    # A second call is answered after the announcement was read.
    await pool.call(server, "changing", {})
    await pool.tools(server)
    assert stage.lines.count("tools/list") == 2


async def test_a_subscription_that_the_server_ends_is_made_again(
    pool: Pool, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_LISTEN_RETRY_S", (0.0, 0.0))
    server = stage.server("restless", "modern")
    await pool.tools(server)
    while stage.lines.count("subscriptions/listen") < 2:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.01)
    # Answered after the acknowledgement was read.
    await pool.call(server, "restless", {})
    listed = stage.lines.count("tools/list")
    await pool.tools(server)
    assert stage.lines.count("tools/list") == listed + 1, "the gap counts as a change"


@pytest.mark.parametrize("era", ["old", "modern"])
async def test_an_answer_after_its_timeout_is_not_that_of_the_next_call(
    pool: Pool, stage: Stage, era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LoopClock(monkeypatch)
    server = stage.server("late", era, call_timeout_s=60)
    first = asyncio.create_task(pool.call(server, "late", {"a": 1}))
    await stage.logged("tools/call")
    clock.advance(61)
    with pytest.raises(TimedOut):
        await first
    assert said(await pool.call(server, "late", {"a": 2})) == {"a": 2}
    assert len(stage.pids("started")) == 1


async def test_a_second_answer_to_a_call_is_not_that_of_the_next_one(pool: Pool, stage: Stage) -> None:
    server = stage.server("twice")
    for number in range(3):
        assert said(await pool.call(server, "twice", {"a": number})) == {"a": number}
    assert len(stage.pids("started")) == 1


async def test_grandchildren_end_with_the_pool(stage: Stage) -> None:
    async with Pool() as pool:
        await pool.tools(stage.server("grandchild", close_grace_s=0.1))
    # The kernel ends killed processes in its own time.
    async with asyncio.timeout(300):
        for pid in (*stage.pids("started"), *stage.pids("grandchild")):
            while is_running(pid):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_a_process_that_exits_by_itself_is_given_the_time(stage: Stage) -> None:
    async with Pool() as pool:
        await pool.tools(stage.server("echo", close_grace_s=30))
    assert "input closed" in stage.lines


async def test_tenants_have_their_own_processes_unless_shared(pool: Pool, stage: Stage) -> None:
    for tenant in ("a", "b"):
        await pool.tools(stage.server("echo"), tenant=tenant)
    assert len(stage.pids("started")) == 2


async def test_a_command_that_does_not_exist_is_unreachable(pool: Pool) -> None:
    with pytest.raises(Unreachable) as caught:
        await pool.call(StdioServer("none", ("/no/such/SECRET",)), "any", {})
    assert caught.value.outcome is Outcome.NOT_SENT
    assert "SECRET" not in str(caught.value)


async def test_the_log_of_a_crash_has_no_secrets(
    pool: Pool, stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    server = stage.server("noisy", max_message_bytes=10)
    with pytest.raises(McpFailure):
        await pool.tools(server)
    assert "SECRET-VALUE" not in caplog.text
