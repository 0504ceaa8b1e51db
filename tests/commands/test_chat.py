"""``slipring chat`` against real servers: in this process with lines from the test, and as a process."""

import asyncio
import codecs
import io
import json
import os
import pty
import queue
import re
import signal
import sys
import termios
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, redirect_stderr, redirect_stdout
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType, web

from slipring.base.errors import RateLimited
from slipring.commands.chat.conversation import statistics
from slipring.commands.chat.options import ChatOptions
from slipring.commands.chat.run import INTERRUPTED, NO_ANSWER, run
from slipring.commands.chat.terminal import Screen
from slipring.commands.cli import main
from slipring.core.generation import CallArguments, CallStarted, Job, RefusalText, Text, Thought
from slipring.core.limits import Limits
from tests.harness import PuppetEngine, Running, serve

COMMAND = (sys.executable, "-m", "slipring", "chat")
ANSWER = "This is a simulated answer"
STATISTICS = (
    r"simulated · \d+ tokens in \(\d+ cached, \d+ new\) · \d+ out"
    r" · first token \d+ ms · \d+ tokens/s · \d+\.\d\d s"
)
SENT_AGAIN = "the server no longer has this conversation: sending it again"
CLOSED_PORT = "http://127.0.0.1:9/v1"


class TerminalStream(io.StringIO):
    def isatty(self) -> bool:
        return True


class ChatThread:
    """A chat that runs in a thread; the test types its lines."""

    def __init__(
        self, options: ChatOptions, out: io.StringIO, err: io.StringIO, is_interactive: bool
    ) -> None:
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._prompts = asyncio.Semaphore(0)
        self._out = out
        self._err = err
        self.greeting: list[str] = []
        screen = Screen(out, err, {"TERM": "xterm"})
        self._task = asyncio.create_task(
            asyncio.to_thread(run, options, self._typed(), screen, is_interactive=is_interactive)
        )

    def _typed(self) -> Iterator[str]:
        while True:
            self._loop.call_soon_threadsafe(self._prompts.release)
            line = self._lines.get()
            if line is None:
                return
            yield line

    async def prompt(self) -> tuple[str, list[str]]:
        """Wait until it asks for a line; return standard output and standard error since the last time."""
        prompt = asyncio.create_task(self._prompts.acquire())
        await asyncio.wait([prompt, self._task], timeout=60, return_when=asyncio.FIRST_COMPLETED)
        if not prompt.done():
            prompt.cancel()
            self._task.result()
        return take(self._out), take(self._err).splitlines()

    def type(self, line: str) -> None:
        self._lines.put(line)

    async def ask(self, line: str) -> tuple[str, list[str]]:
        self.type(line)
        return await self.prompt()

    async def end(self) -> int:
        self._lines.put(None)
        return await asyncio.wait_for(self._task, 300)


def take(stream: io.StringIO) -> str:
    text = stream.getvalue()
    stream.seek(0)
    stream.truncate()
    return text


@asynccontextmanager
async def chatting(
    url: str, *, out: io.StringIO | None = None, err: io.StringIO | None = None, **options: Any
) -> AsyncIterator[ChatThread]:
    """A chat, ready for its first line."""
    user = ChatThread(
        ChatOptions(url=url, **options),
        out or io.StringIO(),
        err or io.StringIO(),
        is_interactive=err is not None,
    )
    try:
        _, user.greeting = await user.prompt()
        yield user
    finally:
        await user.end()


def context_of(job: Job) -> list[tuple[str, str]]:
    """The context of a job: the role or type of each item, and its text."""
    words = []
    for item in job.context():
        body = json.loads(item.raw)
        content = body.get("content", body.get("output", body.get("arguments")))
        if isinstance(content, list):
            content = "".join(part["text"] for part in content)
        words.append((body.get("role", body["type"]), content))
    return words


async def close_sockets(server: Running) -> None:
    """Close all sockets from the server's side, and wait until the server has removed them."""
    for client in list(server.service.clients):
        client.close(1001, "restart")
    await asyncio.wait_for(server.service.wait_until_idle(), 300)


# --- Turns -----------------------------------------------------------------------------------


async def test_an_answer_is_followed_by_its_statistics() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, chatting(server.url) as user:
        user.type("hello")
        performance = await engine.next()
        assert context_of(performance.job) == [("user", "hello")]
        performance.say("Good ", "day.")
        performance.finish(input_tokens=412, cached_tokens=398, output_tokens=27)
        answer, (line,) = await user.prompt()
        assert answer == "Good day.\n"
        assert line.startswith("puppet · 412 tokens in (398 cached, 14 new) · 27 out · first token ")


async def test_an_answer_is_shown_before_it_is_complete() -> None:
    class Watched(io.StringIO):
        def write(self, text: str) -> int:
            loop.call_soon_threadsafe(written.put_nowait, text)
            return super().write(text)

    loop = asyncio.get_running_loop()
    written: asyncio.Queue[str] = asyncio.Queue()
    engine = PuppetEngine()
    async with serve(engine) as server, chatting(server.url, out=Watched()) as user:
        user.type("hello")
        performance = await engine.next()
        for word in ("One ", "two "):
            performance.say(word)
            assert await asyncio.wait_for(written.get(), 300) == word
        performance.finish()
        await user.prompt()


async def test_a_turn_sends_only_what_is_new() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, chatting(server.url, instructions="Be brief.") as user:
        parent = None
        for question in ("one", "two", "three"):
            user.type(question)
            performance = await engine.next()
            job = performance.job
            assert [json.loads(item.raw)["content"] for item in job.input] == [question]
            assert (job.parent.id if job.parent else None) == parent
            assert job.head.instructions == "Be brief."
            parent = job.response_id
            performance.say("Yes.")
            performance.finish()
            await user.prompt()
        assert server.service.sockets == 1


async def test_options_reach_the_server() -> None:
    engine = PuppetEngine()
    settings: dict[str, Any] = {"model": "large", "store": True, "max_output_tokens": 7}
    async with serve(engine, model=("small", "large")) as server, chatting(server.url, **settings) as user:
        user.type("hello")
        performance = await engine.next()
        assert performance.job.model.name == "large"
        assert performance.job.settings.max_output_tokens == 7
        performance.say("So much")
        performance.finish("max_output_tokens")
        answer, (cut, line) = await user.prompt()
        assert answer == "So much\n"
        assert cut == "the answer is cut short: max_output_tokens"
        assert "tokens in" in line
        user.type("go on")
        performance = await engine.next()
        assert context_of(performance.job) == [("user", "hello"), ("assistant", "So much"), ("user", "go on")]
        performance.finish()
        await user.prompt()


async def test_new_starts_a_new_chain_and_unknown_commands_show_help() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, chatting(server.url) as user:
        for question in ("one", "two"):
            user.type(question)
            performance = await engine.next()
            assert context_of(performance.job) == [("user", question)]
            performance.finish()
            await user.prompt()
            assert await user.ask("/new") == ("", ["a new conversation"])
        assert await user.ask("  ") == ("", [])
        assert (await user.ask("/help"))[1][0].startswith("/new starts a new conversation, /help")
        assert (await user.ask("/dance"))[1][0].startswith("unknown command /dance; /new")
        user.type("/etc/hosts is a file")
        performance = await engine.next()
        assert context_of(performance.job) == [("user", "/etc/hosts is a file")]
        performance.finish()
        await user.prompt()
        user.type("/quit")
        assert await user.end() == 0


async def test_reasoning_is_dimmed_and_separate_from_the_answer() -> None:
    engine = PuppetEngine()
    out, err = TerminalStream(), TerminalStream()
    async with serve(engine) as server, chatting(server.url, out=out, err=err) as user:
        user.type("hello")
        performance = await engine.next()
        performance.emit(Thought("Hm."))
        performance.emit(RefusalText("I \x1b[31mwill not."))
        performance.finish()
        answer, (reasoning, line, _) = await user.prompt()
        assert answer == "I \ufffd[31mwill not.\n"
        assert reasoning == "\x1b[2mHm.\x1b[0m"
        assert line.startswith("\x1b[2mpuppet · 3 tokens in")


async def test_a_tool_call_is_shown_and_answered_so_that_the_chain_can_continue() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, chatting(server.url) as user:
        user.type("weather?")
        performance = await engine.next()
        performance.emit(CallStarted("function", "get_weather"), CallArguments('{"city":"Rome"}'))
        performance.finish()
        answer, (call, _) = await user.prompt()
        assert answer == ""
        assert call == 'the model calls get_weather({"city":"Rome"}), but this chat has no tools'
        for lost in (False, True):
            if lost:
                await close_sockets(server)
            user.type("well?")
            performance = await engine.next()
            assert context_of(performance.job)[:4] == [
                ("user", "weather?"),
                ("function_call", '{"city":"Rome"}'),
                ("function_call_output", "There are no tools here."),
                ("user", "well?"),
            ]
            performance.say("Sunny.")
            performance.finish()
            await user.prompt()


# --- Failures -------------------------------------------------------------------------


async def test_an_error_is_one_line_and_the_chat_continues() -> None:
    async with serve() as server, chatting(server.url, model="nope", err=io.StringIO()) as user:
        for _ in range(2):
            answer, (line,) = await user.ask("hello")
            assert answer == ""
            assert line.startswith("error: The model 'nope' does not exist here.")
            assert line.endswith(" (model_not_found)")
        assert await user.end() == 0


async def test_a_failed_answer_is_left_out_of_the_conversation() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, chatting(server.url) as user:
        user.type("one")
        performance = await engine.next()
        performance.say("First.")
        performance.finish()
        await user.prompt()
        user.type("two")
        performance = await engine.next()
        performance.say("Sec")
        performance.fail(RateLimited("Too\nfast."))
        assert await user.prompt() == ("Sec\n", ["error: Too fast. (rate_limit_exceeded)"])
        user.type("three")
        performance = await engine.next()
        assert context_of(performance.job) == [("user", "one"), ("assistant", "First."), ("user", "three")]
        performance.finish()
        _, (line, _) = await user.prompt()
        assert line == SENT_AGAIN  # a failed continuation makes the server forget its parent
        assert await user.end() == NO_ANSWER


@pytest.mark.parametrize(("store", "parked_s"), [(False, 0), (False, 60), (True, 0)])
async def test_a_lost_connection_is_opened_again_and_nothing_is_lost(store: bool, parked_s: float) -> None:
    is_known = store or parked_s > 0
    engine, limits = PuppetEngine(), Limits(parked_s=parked_s)
    async with serve(engine, limits=limits) as server, chatting(server.url, store=store) as user:
        for question in ("one", "two"):
            user.type(question)
            performance = await engine.next()
            performance.emit(Thought("Hm."))
            performance.say(f"About {question}.")
            performance.finish()
            await user.prompt()
        await close_sockets(server)
        user.type("three")
        performance = await engine.next()
        spoken = [words for words in context_of(performance.job) if words[0] != "reasoning"]
        assert spoken == [
            ("user", "one"),
            ("assistant", "About one."),
            ("user", "two"),
            ("assistant", "About two."),
            ("user", "three"),
        ]
        assert (performance.job.parent is not None) is is_known
        performance.finish()
        _, lines = await user.prompt()
        assert (lines[0] == SENT_AGAIN) is not is_known
        assert await user.end() == 0


async def test_a_connection_lost_during_an_answer_is_reported() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, chatting(server.url) as user:
        user.type("one")
        performance = await engine.next()
        performance.say("Fir")
        await performance.pulled.acquire()
        await performance.pulled.acquire()
        await close_sockets(server)
        _, (line,) = await user.prompt()
        assert line == "error: the server closed the connection (1001)"
        user.type("two")
        performance = await engine.next()
        assert context_of(performance.job) == [("user", "two")]
        performance.finish()
        await user.prompt()


async def test_a_connection_that_is_too_old_is_opened_again() -> None:
    engine = PuppetEngine()
    async with serve(engine, limits=Limits(max_age_s=3600)) as server, chatting(server.url) as user:
        user.type("one")
        performance = await engine.next()
        performance.finish()
        await user.prompt()
        (client,) = server.service.clients
        session = client.driver.session
        client._run(session.tick(session.opened_at + 3601))
        user.type("two")
        performance = await engine.next()
        assert context_of(performance.job)[-1] == ("user", "two")
        performance.finish()
        _, lines = await user.prompt()
        assert [line for line in lines if line.startswith("error")] == []


async def test_an_interactive_chat_survives_a_stopped_server() -> None:
    async with serve() as server:
        async with chatting(server.url, err=io.StringIO()) as user:
            assert (await user.ask("one"))[0] == f"{ANSWER}\n"
            await server.server.stop()
            assert await user.ask("two") == ("", [f"error: cannot reach {server.url}: Connection refused"])
            assert await user.end() == 0
        await server.server.start()


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("wrong", "the server refused the API key in MY_KEY; set MY_KEY to a valid key"),
        ("", "the server needs an API key; set MY_KEY to a valid key"),
    ],
)
async def test_a_refused_key_is_reported_with_the_variable_to_set(key: str, reason: str) -> None:
    async with serve(api_key=("secret",)) as server:
        code, out, err = await run_command(
            "--url", server.url, "--api-key-env", "MY_KEY", "hello", MY_KEY=key
        )
        complaint = f"{reason}, or name another variable with --api-key-env"
        assert (code, out, err) == (3, "", f"slipring: cannot use {server.url}: {complaint}\n")


async def test_a_key_that_is_refused_during_a_chat_is_reported() -> None:
    async def endpoint(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive()
        await socket.send_json({"type": "error", "error": {"code": "invalid_api_key", "message": "Revoked."}})
        await socket.receive()
        return socket

    async with fake_server(endpoint) as url, chatting(url, key="old", err=io.StringIO()) as user:
        _, (line,) = await user.ask("hello")
        assert line.startswith("error: the server refused the API key in OPENAI_API_KEY; set OPENAI_API_KEY")


def screen() -> Screen:
    return Screen(io.StringIO(), io.StringIO(), {})


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (CLOSED_PORT, "Connection refused"),
        ("ftp://127.0.0.1/v1", "not a valid http:// or https:// URL"),
        ("::", "not a valid http:// or https:// URL"),
        ("http://127.0.0.1:99999/v1", "not a valid http:// or https:// URL"),
    ],
)
def test_an_unreachable_server_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], url: str, reason: str
) -> None:
    assert main(["chat", "--url", url, "hello"]) == 3
    assert capsys.readouterr() == ("", f"slipring: cannot reach {url}: {reason}\n")


async def test_pings_are_answered_while_the_user_types_nothing() -> None:
    pong: asyncio.Future[aiohttp.WSMessage] = asyncio.get_running_loop().create_future()

    async def endpoint(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        await socket.ping(b"there?")
        pong.set_result(await socket.receive(timeout=300))
        await socket.receive()
        return socket

    async with fake_server(endpoint) as url, chatting(url):
        message = await asyncio.wait_for(pong, 300)
        assert (message.type, message.data) == (WSMsgType.PONG, b"there?")


@asynccontextmanager
async def fake_server(endpoint: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """A server with nothing but a WebSocket; the URL of its API."""
    app = web.Application()
    app.router.add_get("/v1/responses", endpoint)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


# --- Numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usage", "first_s", "took_s", "line"),
    [
        (
            {"input_tokens": 412, "input_tokens_details": {"cached_tokens": 398}, "output_tokens": 27},
            0.085,
            0.79,
            "412 tokens in (398 cached, 14 new) · 27 out · first token 85 ms · 37 tokens/s · 0.79 s",
        ),
        (
            {"input_tokens": 9, "output_tokens": 1},
            0.5,
            0.5,
            "9 tokens in · 1 out · first token 500 ms · 0.50 s",
        ),
        ({"input_tokens": 9, "output_tokens": 0}, None, 2.0, "9 tokens in · 0 out · 2.00 s"),
        (None, 0.1, 2.0, "first token 100 ms · 2.00 s"),
    ],
)
def test_statistics_contain_what_the_server_sent(
    usage: dict[str, Any] | None, first_s: float | None, took_s: float, line: str
) -> None:
    assert statistics({"usage": usage}, first_s, took_s) == line
    assert statistics({"model": "small", "usage": usage}, first_s, took_s) == f"small · {line}"


@pytest.mark.parametrize(
    ("err", "environ", "shown"),
    [
        (TerminalStream(), {"TERM": "xterm"}, "\x1b[2mHm.\x1b[0m\n"),
        (TerminalStream(), {"TERM": "xterm", "NO_COLOR": "1"}, "Hm.\n"),
        (TerminalStream(), {"TERM": "dumb"}, "Hm.\n"),
        (io.StringIO(), {"TERM": "xterm"}, "Hm.\n"),
    ],
)
def test_only_a_terminal_gets_colours(err: io.StringIO, environ: dict[str, str], shown: str) -> None:
    Screen(io.StringIO(), err, environ).note("Hm.")
    assert err.getvalue() == shown


# --- As a command ----------------------------------------------------------------------------


def environment(**variables: str) -> dict[str, str]:
    hidden = ("OPENAI_", "SLIPRING_", "NO_COLOR")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return {**clean, **variables}


async def run_command(*arguments: str, **variables: str) -> tuple[int, str, str]:
    """Run the command in this process; exit code, standard output, standard error."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(os, "environ", environment(**variables))
        code = await asyncio.to_thread(main, ["chat", *arguments])
    return code, out.getvalue(), err.getvalue()


async def run_piped(typed: str, *arguments: str, **variables: str) -> tuple[int | None, str, str]:
    """Run a process that reads a pipe; exit code, standard output, standard error."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *arguments, env=environment(**variables), stdin=-1, stdout=-1, stderr=-1
    )
    out, err = await asyncio.wait_for(process.communicate(typed.encode()), 300)
    return process.returncode, out.decode(), err.decode()


async def test_a_message_on_the_command_line_is_one_turn() -> None:
    engine = PuppetEngine()
    async with serve(engine, api_key=("secret",)) as server:
        done = asyncio.create_task(
            run_command("--url", server.url, "--api-key-env", "MY_KEY", "hello", "there", MY_KEY="secret")
        )
        performance = await engine.next()
        assert context_of(performance.job) == [("user", "hello there")]
        performance.emit(Text("Good "))
        performance.emit(Text("day."))
        performance.finish()
        code, out, err = await done
    assert (code, out) == (0, "Good day.\n")
    assert err.startswith("puppet · 3 tokens in (0 cached, 3 new) · 2 out · first token ")
    assert err.count("\n") == 1


async def test_each_line_of_a_pipe_is_one_turn() -> None:
    async with serve() as server:
        code, out, err = await run_piped("one\n\ntwo", OPENAI_BASE_URL=server.url)
    assert (code, out) == (0, f"{ANSWER}\n" * 2)
    first, second = err.splitlines()
    assert re.fullmatch(STATISTICS, first)
    assert re.fullmatch(STATISTICS, second)


async def test_a_failure_in_a_pipe_sets_the_exit_code() -> None:
    async with serve() as server:
        code, out, err = await run_piped("one\ntwo\n", "--model", "nope", OPENAI_BASE_URL=server.url)
    assert (code, out) == (NO_ANSWER, "")
    assert err.count("(model_not_found)\n") == 2


async def test_an_unreachable_server_ends_the_command() -> None:
    code, out, err = await run_command("hello", OPENAI_BASE_URL=CLOSED_PORT)
    assert (code, out, err) == (3, "", f"slipring: cannot reach {CLOSED_PORT}: Connection refused\n")


async def test_ctrl_c_ends_a_single_turn() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "--url", server.url, "hello", env=environment(), stdout=-1, stderr=-1
        )
        performance = await engine.next()
        performance.say("Wait")
        assert process.stdout is not None
        assert await process.stdout.readexactly(4) == b"Wait"
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(performance.stopped.wait(), 300)
        out, err = await asyncio.wait_for(process.communicate(), 300)
    assert (process.returncode, out, err) == (INTERRUPTED, b"\n", b"stopped\n")


class Emulator:
    """The screen of a terminal: interprets the control sequences that the chat and readline write."""

    _TOKEN = re.compile(r"\x1b\[\??([\d;]*)([A-Za-z])|\x1b[=>]|[\r\n\b]|[^\x00-\x1f]", re.DOTALL)

    _UNFINISHED = re.compile(r"\x1b(\[\??[\d;]*)?$")

    def __init__(self, columns: int, height: int) -> None:
        self._rest = ""
        self.columns = columns
        self.height = height
        self.lines = [""]
        """All lines, those that have left the screen included, without colours."""
        self.bold: set[str] = set()
        """Characters that were written in bold."""
        self._row = self._column = 0
        self._is_bold = False

    def write(self, text: str) -> None:
        text, self._rest = self._rest + text, ""
        if cut := self._UNFINISHED.search(text):
            text, self._rest = text[: cut.start()], cut[0]
        end = 0
        for token in self._TOKEN.finditer(text):
            assert token.start() == end, f"unknown control sequence at {text[end : end + 10]!r}"
            end = token.end()
            if token[2] is not None:
                self._control(token[2], token[1])
            elif token[0] == "\r":
                self._column = 0
            elif token[0] == "\b":
                self._column -= 1
            elif token[0] == "\n":
                self._row += 1
                self.lines += [""] * (self._row + 1 - len(self.lines))
            elif token[0] >= " " and not token[0].startswith("\x1b"):
                self._put(token[0])
        assert end == len(text), f"unknown control sequence {text[end:]!r}"

    def _put(self, character: str) -> None:
        assert self._column < self.columns, f"a line is too long: {self.lines[self._row]!r}"
        line = self.lines[self._row].ljust(self._column)
        self.lines[self._row] = line[: self._column] + character + line[self._column + 1 :]
        self._column += 1
        if self._is_bold:
            self.bold.add(character)

    def _control(self, kind: str, arguments: str) -> None:
        if kind == "A":
            self._row -= int(arguments or 1)
            assert self._row >= max(0, len(self.lines) - self.height), "the cursor left the screen"
        elif kind in "JK":
            self.lines[self._row] = self.lines[self._row][: self._column]
            if kind == "J":
                del self.lines[self._row + 1 :]
        elif kind == "m":
            self._is_bold = "1" in arguments.split(";")
        else:
            assert kind in "hlC", f"unknown control sequence {kind}"


class Terminal:
    """A chat process on a pseudo-terminal."""

    def __init__(self, process: asyncio.subprocess.Process, descriptor: int, size: tuple[int, int]) -> None:
        self.process = process
        self.screen = Emulator(*size)
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._descriptor = descriptor

    async def wait_for(self, text: str) -> str:
        """Read until the process has written this text; return everything it wrote until then."""
        seen = ""
        while text not in seen:
            seen += await self._read()
        return seen

    async def shows(self, *lines: str) -> None:
        """Read until these are the last lines of the terminal."""
        while self.screen.lines[-len(lines) :] != list(lines):
            try:
                await self._read()
            except TimeoutError:
                assert self.screen.lines[-len(lines) :] == list(lines)

    async def _read(self) -> str:
        piece = await asyncio.wait_for(asyncio.to_thread(os.read, self._descriptor, 4096), 300)
        text = self._decoder.decode(piece)
        self.screen.write(text)
        return text

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())


@asynccontextmanager
async def on_a_terminal(
    url: str, *arguments: str, term: str = "xterm", size: tuple[int, int] = (40, 10)
) -> AsyncIterator[Terminal]:
    descriptor, end = pty.openpty()
    columns, height = size
    termios.tcsetwinsize(end, (height, columns))
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, "--url", url, *arguments),
        env=environment(TERM=term, INPUTRC="/dev/null"),
        stdin=end,
        stdout=end,
        stderr=end,
    )
    os.close(end)
    try:
        yield Terminal(process, descriptor, size)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        os.close(descriptor)


@pytest.mark.parametrize(("key", "term"), [("ctrl-c", "dumb"), ("ctrl-d", "xterm")])
async def test_ctrl_c_stops_an_answer_and_at_the_prompt_the_chat(key: str, term: str) -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, on_a_terminal(server.url, term=term, size=(200, 24)) as terminal:
        await terminal.wait_for("> ")
        terminal.type("one\n")
        performance = await engine.next()
        performance.say("First.")
        performance.finish()
        await terminal.wait_for("> ")
        terminal.type("two\n")
        performance = await engine.next()
        performance.say("Sec")
        await terminal.wait_for("Sec")
        terminal.process.send_signal(signal.SIGINT)
        await asyncio.wait_for(performance.stopped.wait(), 300)
        assert "stopped; the next message sends" in await terminal.wait_for("> ")
        terminal.type("three\n")
        performance = await engine.next()
        assert context_of(performance.job) == [("user", "one"), ("assistant", "First."), ("user", "three")]
        performance.finish()
        assert SENT_AGAIN not in await terminal.wait_for("> ")
        if key == "ctrl-c":
            terminal.process.send_signal(signal.SIGINT)
            # One that comes after the prompt and before readline waits is noticed with the next key only.
            terminal.type("\n")
        else:
            terminal.type("\x04")
        assert await asyncio.wait_for(terminal.process.wait(), 300) == 0


async def test_words_wrap_and_markdown_is_rendered_while_it_streams() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, on_a_terminal(server.url, size=(30, 12)) as terminal:
        await terminal.shows("> ")
        terminal.type("hello\n")
        performance = await engine.next()
        performance.say("## Par")
        await terminal.shows("> hello", "Par")
        performance.say("ts\n\nA slip ring trans")
        await terminal.shows("Parts", "", "A slip ring trans")
        performance.say("mits **power ")
        await terminal.shows("", "A slip ring transmits **power")
        performance.say("an")
        await terminal.shows("A slip ring transmits **power", "an")
        performance.say("d data** through `x`:\n\n- one\n- two\n\n")
        await terminal.shows("A slip ring transmits power", "and data through x:", "", " • one", " • two")
        performance.say("```python\nprint('hello')\n```\n\nDo")
        await terminal.shows(" • two", "", " print('hello')", "", "Do")
        performance.say("nesome of the anti")
        await terminal.shows("Donesome of the anti")
        performance.say("disestablish")  # no longer fits: the whole word moves
        await terminal.shows("Donesome of the", "antidisestablish")
        assert {"w", "•"} <= terminal.screen.bold
        performance.finish()
        await terminal.wait_for("> ")
        assert "antidisestablish" in terminal.screen.lines


MARKDOWN = """# Rings

A *slip ring* keeps the #include <stdio.h> and the &#27; apart,
line by line.

- one
- two
  1. nested
  2. nested as well

Setext
---

| a | b |
|---|---|
| 1 | 2 |

> quoted

```c
int main(void) { return 0; }
```
***
1986\\. A great year, and [a link](http://example.com/page).
"""


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_a_streamed_answer_looks_like_one_that_was_rendered_at_once(step: int) -> None:
    stream = TerminalStream()
    screen = Screen(stream, io.StringIO(), {"TERM": "xterm"})
    for start in range(0, len(MARKDOWN), step):
        screen.answer(MARKDOWN[start : start + step])
        screen.refresh()
    screen.finish_line()
    emulator = Emulator(80, 24)
    emulator.write(stream.getvalue().replace("\n", "\r\n"))
    assert emulator.lines[0].strip() == "Rings"
    assert emulator.lines[1:] == [
        "",
        "A slip ring keeps the #include <stdio.h> and the \ufffd apart,",
        "line by line.",
        "",
        " • one",
        " • two",
        "    1 nested",
        "    2 nested as well",
        "",
        "Setext",
        "",
        " a  b",
        " ────",
        " 1  2",
        "",
        "▌ quoted",
        "",
        " int main(void) { return 0; }",
        "",
        "-" * 80,
        "",
        "1986. A great year, and a link (http://example.com/page).",
        "",
    ]


def test_an_answer_that_is_not_for_a_terminal_is_not_changed() -> None:
    out = io.StringIO()
    screen = Screen(out, io.StringIO(), {"TERM": "xterm"})
    for start in range(0, len(MARKDOWN), 7):
        screen.answer(MARKDOWN[start : start + 7])
        screen.refresh()
    screen.finish_line()
    assert out.getvalue() == MARKDOWN


async def test_an_answer_taller_than_the_terminal_is_shown_completely() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, on_a_terminal(server.url, size=(30, 5)) as terminal:
        await terminal.shows("> ")
        terminal.type("hello\n")
        performance = await engine.next()
        for number in range(1, 20):
            performance.say(f"{number}. item{number}\n")
            await terminal.wait_for(f"item{number}")
        performance.finish()
        await terminal.wait_for("> ")
        items = [line.split()[-1] for line in terminal.screen.lines if "item" in line]
        assert items == [f"item{number}" for number in range(1, 20)]


async def test_text_typed_during_an_answer_becomes_the_next_lines() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, on_a_terminal(server.url) as terminal:
        await terminal.shows("> ")
        terminal.type("one\n")
        performance = await engine.next()
        performance.say("The first")
        await terminal.shows("> one", "The first")
        terminal.type("two\rthx\x7freex\x7f")
        performance.say(" answer.")
        await terminal.shows("> one", "The first answer.")
        performance.finish()
        performance = await engine.next()
        assert context_of(performance.job)[-1] == ("user", "two")
        performance.say("Second.")
        performance.finish()
        await terminal.shows("> three")
        assert "> two" in terminal.screen.lines
        terminal.type("\n")
        performance = await engine.next()
        assert context_of(performance.job)[-1] == ("user", "three")
        performance.finish()
        await terminal.shows("> ")


async def test_the_terminal_is_restored_at_the_end() -> None:
    async with serve() as server, on_a_terminal(server.url) as terminal:
        before = termios.tcgetattr(terminal._descriptor)
        await terminal.wait_for("> ")
        terminal.type("/quit\n")
        assert await asyncio.wait_for(terminal.process.wait(), 300) == 0
        assert termios.tcgetattr(terminal._descriptor) == before


@pytest.mark.parametrize(
    ("model", "greeting"),
    [("", "models small, large (choose one with --model)"), ("large", "model large")],
)
async def test_the_model_is_named_at_the_start(model: str, greeting: str) -> None:
    async with (
        serve(model=("small", "large")) as server,
        chatting(server.url, model=model, err=io.StringIO()) as user,
    ):
        assert user.greeting == [f"{server.url} · {greeting} · /help lists the commands"]


async def test_the_only_model_of_a_server_is_named_at_the_start() -> None:
    async with serve() as server, on_a_terminal(server.url, size=(200, 24)) as terminal:
        assert f"{server.url} · model simulated · /help" in await terminal.wait_for("> ")


async def test_a_server_that_lists_no_models_is_used_without_their_names() -> None:
    async def endpoint(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive()
        return socket

    async with fake_server(endpoint) as url, chatting(url, err=io.StringIO()) as user:
        assert user.greeting == [f"{url} · /help lists the commands"]
