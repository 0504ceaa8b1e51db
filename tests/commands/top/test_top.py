"""``slipring top`` against a scripted admin listener, and against real servers."""

import asyncio
import json
import os
import pty
import signal
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from slipring.commands.cli import main
from slipring.commands.top.options import TopOptions
from slipring.commands.top.run import snapshot
from slipring.commands.top.state import State, View
from slipring.commands.top.stream import StreamRefused, Unreachable, watch
from slipring.observation.live_messages import Message, encode
from tests.commands.top.sample import busy_update, connection, ended, greeting, update
from tests.harness import PuppetEngine, serve
from tests.server.admin.watching import ANY_PORT, admin_url
from tests.server.process.test_workers import workers

COMMAND = (sys.executable, "-m", "slipring", "top")
KEY = "the-admin-key"
CLOSED_PORT = "http://127.0.0.1:9"
LEAVE_SCREEN, SHOW_CURSOR = "\x1b[?1049l", "\x1b[?25h"

Answer = list[Message] | web.Response


class Listener:
    """An admin listener that answers each request with the next of its answers, and the last one again."""

    def __init__(self, answers: tuple[Answer, ...]) -> None:
        self._answers = answers
        self.url = ""
        self.requests: list[web.Request] = []
        self.is_holding = True
        """Whether the last stream stays open."""

    async def live(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        place = min(len(self.requests), len(self._answers)) - 1
        answer = self._answers[place]
        if isinstance(answer, web.Response):
            return answer
        stream = web.StreamResponse()
        await stream.prepare(request)
        for message in answer:
            await stream.write(encode(message))
        if self.is_holding and place == len(self._answers) - 1:
            await asyncio.Event().wait()
        return stream


@asynccontextmanager
async def listening(*answers: Answer) -> AsyncIterator[Listener]:
    listener = Listener(answers)
    app = web.Application()
    app.router.add_get("/live", listener.live)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    listener.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield listener
    finally:
        await runner.cleanup()


async def command(*arguments: str) -> int:
    """The exit code of the command in this process."""
    return await asyncio.wait_for(asyncio.to_thread(main, ["top", *arguments]), 300)


async def failure(capsys: pytest.CaptureFixture[str], url: str, *arguments: str) -> str:
    """The one line that a snapshot that cannot be taken writes."""
    assert await command("--url", url, "--once", *arguments) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    return line


# --- Snapshots --------------------------------------------------------------------------------------


async def test_a_snapshot_waits_for_every_worker_and_is_one_json_object(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with listening(
        [greeting(2), busy_update(1), update(1, is_complete=False), busy_update(0)]
    ) as server:
        assert await command("--url", server.url, "--once", "--json") == 0
    view = msgspec.json.decode(capsys.readouterr().out, type=View)
    assert view.is_complete
    assert [process.process for process in view.processes] == [0, 1]
    assert len(view.connections) == 8


async def test_a_snapshot_as_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    async with listening([greeting(), busy_update()]) as server:
        assert await command("--url", f"{server.url}/", "--once") == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith(f"slipring 0.1.0 · {server.url.removeprefix('http://')} · up")
    assert any(line.startswith("#2      waits for tool") for line in shown)
    assert max(map(len, shown)) <= 100


async def test_a_snapshot_does_not_wait_for_ever_for_a_worker_that_is_silent() -> None:
    more = [update(is_complete=False) for _ in range(20)]
    async with listening([greeting(2), busy_update(), *more]) as server:
        view = await snapshot(TopOptions(server.url))
    assert not view.is_complete
    assert len(view.processes) == 1


async def test_long_lines_are_read() -> None:
    many = [connection(number, recent=[ended(number, number)]) for number in range(1, 501)]
    async with listening([greeting(), update(connections=many)]) as server:
        view = await snapshot(TopOptions(server.url))
    assert len(view.connections) == 500


@pytest.mark.parametrize("by", ["flag", "variable"])
async def test_the_admin_key_is_sent(
    by: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPRING_ADMIN_KEY", KEY if by == "variable" else "another")
    flag = ("--admin-key", KEY) if by == "flag" else ()
    async with listening([greeting(), update()]) as server:
        assert await command("--url", server.url, "--once", *flag) == 0
    assert [request.headers["Authorization"] for request in server.requests] == [f"Bearer {KEY}"]


# --- Failures ---------------------------------------------------------------------------------------


async def test_a_server_that_cannot_be_reached_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert await failure(capsys, CLOSED_PORT) == f"slipring: cannot reach {CLOSED_PORT}: Connection refused"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (web.Response(status=404), "the server answered 404 Not Found; this is not the admin listener of a"),
        (web.Response(status=503), "the server answered 503 Service Unavailable"),
        (web.Response(text="<html>\n"), "the server sends no live stream that this version of slipring"),
        ([update()], "this is not the admin listener of a slipring server"),
    ],
)
async def test_other_answers_are_reported(
    answer: Answer, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with listening(answer) as server:
        line = await failure(capsys, server.url)
    assert line.startswith(f"slipring: cannot watch {server.url}: {reason}")


async def test_a_missing_or_wrong_key_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLIPRING_ADMIN_KEY", raising=False)
    async with serve(admin=ANY_PORT, admin_key=KEY) as server:
        url = admin_url(server)
        line = await failure(capsys, url)
        assert line.endswith("the server needs its admin key; set SLIPRING_ADMIN_KEY to it")
        line = await failure(capsys, url, "--admin-key", "wrong")
        assert line.endswith("the server refused the admin key; set SLIPRING_ADMIN_KEY to it")
        assert "wrong" not in line


async def test_a_stream_that_ends_before_the_snapshot_is_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with listening([greeting()]) as server:
        server.is_holding = False
        line = await failure(capsys, server.url)
    assert line == f"slipring: cannot watch {server.url}: the server has ended the stream"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--url", "ftp://127.0.0.1"), "--url: must be http://HOST:PORT or https://HOST:PORT"),
        (("--url", "http://127.0.0.1:port"), "--url: must be"),
        (("--url", ""), "--url: must be"),
        (("--admin-key", "schlüssel"), "--admin-key: a key consists of printable ASCII characters"),
        ((), "top draws on a terminal; elsewhere use --once or --json"),
    ],
)
def test_wrong_usage_is_reported(
    arguments: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"slipring: {problem}")


# --- Following a stream -----------------------------------------------------------------------------


class Seen:
    """Keeps what ``watch`` tells; ``until`` waits for so many messages."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self._changed = asyncio.Event()

    def changed(self, state: State, message: Message) -> None:
        self._add(type(message).__name__)

    def interrupted(self, trouble: str) -> None:
        self._add(trouble)

    def _add(self, text: str) -> None:
        self.told.append(text)
        self._changed.set()

    async def until(self, count: int) -> list[str]:
        async with asyncio.timeout(300):
            while len(self.told) < count:
                await self._changed.wait()
                self._changed.clear()
        return self.told


async def test_a_lost_stream_is_opened_again() -> None:
    seen = Seen()
    stream: Answer = [greeting(), update()]
    async with listening(stream, web.Response(status=502), stream) as server:
        task = asyncio.create_task(watch(TopOptions(server.url), seen, first_pause_s=0))
        told = await seen.until(6)
        task.cancel()
        await asyncio.wait([task])
    assert told == [
        *("Greeting", "Update", "reconnecting in 0 s: the server has ended the stream"),
        f"reconnecting in 0 s: cannot watch {server.url}: the server answered 502 Bad Gateway",
        *("Greeting", "Update"),
    ]


async def test_trying_again_ends_where_it_does_not_help() -> None:
    async with listening([greeting()], web.Response(status=401)) as server:
        with pytest.raises(StreamRefused, match="needs its admin key"):
            await asyncio.wait_for(watch(TopOptions(server.url), Seen(), first_pause_s=0), 300)
    with pytest.raises(Unreachable, match="Connection refused"):
        await watch(TopOptions(CLOSED_PORT), Seen(), first_pause_s=0)


async def test_json_has_a_line_for_each_update_and_ends_with_its_reader() -> None:
    async with listening(
        [greeting(), update(), *[update(is_complete=False)] * 3], [greeting(), update()]
    ) as server:
        process = await asyncio.create_subprocess_exec(
            *(*COMMAND, "--json", "--url", server.url),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        lines = [await asyncio.wait_for(process.stdout.readline(), 300) for _ in range(4)]
        assert {json.loads(line)["version"] for line in lines} == {"0.1.0"}
        process.stdout._transport.close()  # type: ignore[attr-defined]
        assert await asyncio.wait_for(process.wait(), 300) == 0
        errors = (await process.stderr.read()).decode()
    assert errors == "slipring: reconnecting in 0.5 s: the server has ended the stream\n"


@pytest.mark.parametrize("flags", [(), ("--json",)])
async def test_a_snapshot_whose_reader_has_ended_is_no_error(flags: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    async with listening([greeting(), update()]) as server:
        with os.fdopen(writing, "wb") as out:
            process = await asyncio.create_subprocess_exec(
                *(*COMMAND, "--once", *flags, "--url", server.url), stdout=out, stderr=asyncio.subprocess.PIPE
            )
        _, errors = await asyncio.wait_for(process.communicate(), 300)
    assert (process.returncode, errors) == (0, b"")


# --- On a terminal ----------------------------------------------------------------------------------


@asynccontextmanager
async def on_a_terminal(url: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    descriptor, end = pty.openpty()
    termios.tcsetwinsize(end, (24, 80))
    environ = {**os.environ, "TERM": "xterm"}
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, "--url", url), env=environ, stdin=end, stdout=end, stderr=end
    )
    try:
        yield process, descriptor
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(end)
        os.close(descriptor)


async def read_until(descriptor: int, text: str) -> str:
    seen = ""
    while text not in seen:
        piece = await asyncio.wait_for(asyncio.to_thread(os.read, descriptor, 65536), 300)
        seen += piece.decode(errors="replace")
    return seen


@pytest.mark.parametrize("key", ["q", "ctrl-c"])
async def test_it_draws_until_it_is_ended_and_restores_the_terminal(key: str) -> None:
    async with listening([greeting(), busy_update()]) as server, on_a_terminal(server.url) as (process, end):
        before = termios.tcgetattr(end)
        drawn = await read_until(end, "waits for tool")
        assert LEAVE_SCREEN not in drawn
        assert termios.tcgetattr(end) != before
        if key == "q":
            os.write(end, b"q")
        else:
            process.send_signal(signal.SIGINT)
        rest = await read_until(end, LEAVE_SCREEN)
        assert await asyncio.wait_for(process.wait(), 300) == 0
        assert termios.tcgetattr(end) == before
    assert SHOW_CURSOR in rest
    assert "Traceback" not in rest


async def test_the_reason_is_readable_after_the_screen_is_left() -> None:
    async with on_a_terminal(CLOSED_PORT) as (process, end):
        shown = await read_until(end, "Connection refused")
        assert await asyncio.wait_for(process.wait(), 300) == 1
    assert LEAVE_SCREEN in shown.partition("slipring: cannot reach")[0]


# --- Real servers -----------------------------------------------------------------------------------


async def test_a_real_server_is_shown() -> None:
    engine = PuppetEngine()
    async with serve(engine, admin=ANY_PORT, admin_key=KEY) as server, server.connect() as socket:
        options = TopOptions(admin_url(server).rstrip("/"), KEY)
        await socket.create(input="Hello")
        performance = await engine.next()
        performance.say("Hi")
        view = await snapshot(options)
        (shown,) = view.connections
        (turn,) = shown.connection.running
        assert (turn.report.status, shown.last_turn, view.in_flight) == ("running", None, 1)
        performance.finish()
        await socket.until("response.completed")
        view = await snapshot(options)
    assert view.is_complete
    (shown,) = view.connections
    assert shown.last_turn is not None
    assert shown.last_turn.report.status == "completed"
    assert shown.idle_s is not None
    assert view.totals.turns == {"completed": 1}
    assert [each.engine.name for each in view.engines] == ["puppet"]


async def test_workers_are_shown_together(tmp_path: Path) -> None:
    async with workers("--admin", ANY_PORT, "--store", f"sqlite:{tmp_path}/store.db") as process:
        (url,) = [line.split()[-1] for line in process.output if "live page" in line]
        view = await snapshot(TopOptions(url.rstrip("/")))
    assert view.is_complete
    assert (view.workers, len(view.processes), len({each.pid for each in view.processes})) == (2, 2, 2)
