"""The terminal chat, against real servers: in this process with lines from the test, and as a process."""

import asyncio
import io
import json
import os
import pty
import queue
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType, web

from slipring.chat.answer import status
from slipring.chat.connection import Unreachable
from slipring.chat.options import Options
from slipring.chat.run import INTERRUPTED, NO_ANSWER, run
from slipring.chat.screen import Screen
from slipring.cli import main
from slipring.core.generation import CallArguments, CallStarted, Job, Refused, Text, Thought
from slipring.core.limits import Limits
from slipring.errors import RateLimited
from tests.harness import PuppetEngine, Running, serve

COMMAND = (sys.executable, "-m", "slipring", "chat")
ANSWER = "This is a simulated answer"
STATUS = r"\d+ tokens in \(\d+ cached, \d+ new\) · \d+ out · first token \d+ ms · \d+ tokens/s · \d+\.\d\d s"
SENT_AGAIN = "the server no longer has this conversation: sending it again"
NOBODY = "http://127.0.0.1:9/v1"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Talk:
    """A chat in a thread, and its user: the test."""

    def __init__(self, options: Options, out: io.StringIO, err: io.StringIO, is_interactive: bool) -> None:
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._prompts = asyncio.Semaphore(0)
        self._out = out
        self._err = err
        screen = Screen(out, err, {})
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
        """Wait until it asks for a line; the answer and the other lines since the last time."""
        prompt = asyncio.create_task(self._prompts.acquire())
        await asyncio.wait([prompt, self._task], timeout=60, return_when=asyncio.FIRST_COMPLETED)
        if not prompt.done():
            prompt.cancel()
            self._task.result()
        return take(self._out), take(self._err).splitlines()

    def say(self, line: str) -> None:
        self._lines.put(line)

    async def ask(self, line: str) -> tuple[str, list[str]]:
        self.say(line)
        return await self.prompt()

    async def end(self) -> int:
        self._lines.put(None)
        return await asyncio.wait_for(self._task, 60)


def take(stream: io.StringIO) -> str:
    text = stream.getvalue()
    stream.seek(0)
    stream.truncate()
    return text


@asynccontextmanager
async def talking(
    url: str, *, out: io.StringIO | None = None, err: io.StringIO | None = None, **options: Any
) -> AsyncIterator[Talk]:
    """A chat that waits for its first line."""
    talk = Talk(
        Options(url=url, **options),
        out or io.StringIO(),
        err or io.StringIO(),
        is_interactive=err is not None,
    )
    try:
        await talk.prompt()
        yield talk
    finally:
        await talk.end()


def said(job: Job) -> list[tuple[str, str]]:
    """The context of a job: who or what, and the words."""
    words = []
    for item in job.context():
        body = json.loads(item.raw)
        content = body.get("content", body.get("output", body.get("arguments")))
        if isinstance(content, list):
            content = "".join(part["text"] for part in content)
        words.append((body.get("role", body["type"]), content))
    return words


async def closed_by(server: Running) -> None:
    """Close all sockets from the server's side, and wait until they are gone."""
    for client in list(server.service.clients):
        client.close(1001, "restart")
    await asyncio.wait_for(server.service.quiet(), 60)


# --- Turns -----------------------------------------------------------------------------------


async def test_an_answer_is_streamed_and_summed_up() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, talking(server.url) as talk:
        talk.say("hello")
        performance = await engine.next()
        assert said(performance.job) == [("user", "hello")]
        performance.say("Good ", "day.")
        performance.finish(input_tokens=412, cached_tokens=398, output_tokens=27)
        answer, (line,) = await talk.prompt()
        assert answer == "Good day.\n"
        assert line.startswith("412 tokens in (398 cached, 14 new) · 27 out · first token ")


async def test_an_answer_is_shown_before_it_is_complete() -> None:
    class Watched(io.StringIO):
        def write(self, text: str) -> int:
            loop.call_soon_threadsafe(written.put_nowait, text)
            return super().write(text)

    loop = asyncio.get_running_loop()
    written: asyncio.Queue[str] = asyncio.Queue()
    engine = PuppetEngine()
    async with serve(engine) as server, talking(server.url, out=Watched()) as talk:
        talk.say("hello")
        performance = await engine.next()
        for word in ("One ", "two "):
            performance.say(word)
            assert await asyncio.wait_for(written.get(), 60) == word
        performance.finish()
        await talk.prompt()


async def test_a_turn_sends_only_what_is_new() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, talking(server.url, instructions="Be brief.") as talk:
        parent = None
        for question in ("one", "two", "three"):
            talk.say(question)
            performance = await engine.next()
            job = performance.job
            assert [json.loads(item.raw)["content"] for item in job.input] == [question]
            assert (job.parent.id if job.parent else None) == parent
            assert job.head.instructions == "Be brief."
            parent = job.response_id
            performance.say("Yes.")
            performance.finish()
            await talk.prompt()
        assert server.service.sockets == 1


async def test_options_reach_the_server() -> None:
    engine = PuppetEngine()
    settings: dict[str, Any] = {"model": "large", "store": True, "max_output_tokens": 7}
    async with serve(engine, model=("small", "large")) as server, talking(server.url, **settings) as talk:
        talk.say("hello")
        performance = await engine.next()
        assert performance.job.model.name == "large"
        assert performance.job.settings.max_output_tokens == 7
        performance.say("So much")
        performance.finish("max_output_tokens")
        answer, (cut, line) = await talk.prompt()
        assert answer == "So much\n"
        assert cut == "the answer is cut short: max_output_tokens"
        assert "tokens in" in line
        talk.say("go on")
        performance = await engine.next()
        assert said(performance.job) == [("user", "hello"), ("assistant", "So much"), ("user", "go on")]
        performance.finish()
        await talk.prompt()


async def test_new_starts_a_new_chain_and_other_commands_are_explained() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, talking(server.url) as talk:
        for question in ("one", "two"):
            talk.say(question)
            performance = await engine.next()
            assert said(performance.job) == [("user", question)]
            performance.finish()
            await talk.prompt()
            assert await talk.ask("/new") == ("", ["a new conversation"])
        assert await talk.ask("  ") == ("", [])
        assert (await talk.ask("/help"))[1][0].startswith("/new starts a new conversation, /quit")
        assert (await talk.ask("/dance"))[1][0].startswith("there is no /dance; /new")
        talk.say("/etc/hosts is a file")
        performance = await engine.next()
        assert said(performance.job) == [("user", "/etc/hosts is a file")]
        performance.finish()
        await talk.prompt()
        talk.say("/quit")
        assert await talk.end() == 0


async def test_thoughts_are_dimmed_and_kept_from_the_answer() -> None:
    engine = PuppetEngine()
    out, err = Terminal(), Terminal()
    async with serve(engine) as server, talking(server.url, out=out, err=err) as talk:
        talk.say("hello")
        performance = await engine.next()
        performance.emit(Thought("Hm."))
        performance.emit(Refused("I \x1b[31mwill not."))
        performance.finish()
        answer, (thought, line) = await talk.prompt()
        assert answer == "I \ufffd[31mwill not.\n"
        assert thought == "\x1b[2mHm.\x1b[0m"
        assert line.startswith("\x1b[2m3 tokens in")


async def test_a_call_is_shown_and_answered_so_that_the_chain_goes_on() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, talking(server.url) as talk:
        talk.say("weather?")
        performance = await engine.next()
        performance.emit(CallStarted("function", "get_weather"), CallArguments('{"city":"Rome"}'))
        performance.finish()
        answer, (call, _) = await talk.prompt()
        assert answer == ""
        assert call == 'calls get_weather({"city":"Rome"}), but this chat has no tools'
        for lost in (False, True):
            if lost:
                await closed_by(server)
            talk.say("well?")
            performance = await engine.next()
            assert said(performance.job)[:4] == [
                ("user", "weather?"),
                ("function_call", '{"city":"Rome"}'),
                ("function_call_output", "There are no tools here."),
                ("user", "well?"),
            ]
            performance.say("Sunny.")
            performance.finish()
            await talk.prompt()


# --- What goes wrong -------------------------------------------------------------------------


async def test_a_refusal_is_one_line_and_the_chat_goes_on() -> None:
    async with serve() as server, talking(server.url, model="nope", err=io.StringIO()) as talk:
        for _ in range(2):
            answer, (line,) = await talk.ask("hello")
            assert answer == ""
            assert line.startswith("error: The model 'nope' does not exist here.")
            assert line.endswith(" (model_not_found)")
        assert await talk.end() == 0


async def test_a_failed_answer_is_left_out_of_the_conversation() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, talking(server.url) as talk:
        talk.say("one")
        performance = await engine.next()
        performance.say("First.")
        performance.finish()
        await talk.prompt()
        talk.say("two")
        performance = await engine.next()
        performance.say("Sec")
        performance.fail(RateLimited("Too\nfast."))
        assert await talk.prompt() == ("Sec\n", ["error: Too fast. (rate_limit_exceeded)"])
        talk.say("three")
        performance = await engine.next()
        assert said(performance.job) == [("user", "one"), ("assistant", "First."), ("user", "three")]
        performance.finish()
        _, (line, _) = await talk.prompt()
        assert line == SENT_AGAIN  # a failed continuation makes the server forget its parent
        assert await talk.end() == NO_ANSWER


@pytest.mark.parametrize(("store", "parked_s"), [(False, 0), (False, 60), (True, 0)])
async def test_a_lost_connection_is_opened_again_and_nothing_is_lost(store: bool, parked_s: float) -> None:
    is_known = store or parked_s > 0
    engine, limits = PuppetEngine(), Limits(parked_s=parked_s)
    async with serve(engine, limits=limits) as server, talking(server.url, store=store) as talk:
        for question in ("one", "two"):
            talk.say(question)
            performance = await engine.next()
            performance.emit(Thought("Hm."))
            performance.say(f"About {question}.")
            performance.finish()
            await talk.prompt()
        await closed_by(server)
        talk.say("three")
        performance = await engine.next()
        spoken = [words for words in said(performance.job) if words[0] != "reasoning"]
        assert spoken == [
            ("user", "one"),
            ("assistant", "About one."),
            ("user", "two"),
            ("assistant", "About two."),
            ("user", "three"),
        ]
        assert (performance.job.parent is not None) is is_known
        performance.finish()
        _, lines = await talk.prompt()
        assert (lines[0] == SENT_AGAIN) is not is_known
        assert await talk.end() == 0


async def test_a_connection_lost_in_an_answer_is_told() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, talking(server.url) as talk:
        talk.say("one")
        performance = await engine.next()
        performance.say("Fir")
        await performance.pulled.acquire()
        await performance.pulled.acquire()
        await closed_by(server)
        _, (line,) = await talk.prompt()
        assert line == "error: the server closed the connection (1001)"
        talk.say("two")
        performance = await engine.next()
        assert said(performance.job) == [("user", "two")]
        performance.finish()
        await talk.prompt()


async def test_a_connection_that_is_too_old_is_opened_again() -> None:
    engine = PuppetEngine()
    async with serve(engine, limits=Limits(max_age_s=3600)) as server, talking(server.url) as talk:
        talk.say("one")
        performance = await engine.next()
        performance.finish()
        await talk.prompt()
        (client,) = server.service.clients
        session = client.driver.session
        client._run(session.tick(session._age._opened_at + 3601))
        talk.say("two")
        performance = await engine.next()
        assert said(performance.job)[-1] == ("user", "two")
        performance.finish()
        _, lines = await talk.prompt()
        assert [line for line in lines if line.startswith("error")] == []


async def test_a_server_that_is_gone_does_not_end_an_interactive_chat() -> None:
    async with serve() as server:
        async with talking(server.url, err=io.StringIO()) as talk:
            assert (await talk.ask("one"))[0] == f"{ANSWER}\n"
            await server.server.stop()
            assert await talk.ask("two") == ("", [f"error: cannot reach {server.url}: Connection refused"])
            assert await talk.end() == 0
        await server.server.start()


async def test_a_wrong_key_is_told() -> None:
    async with serve(api_key=("secret",)) as server:
        with pytest.raises(Unreachable, match="the server answered 401 Unauthorized"):
            await asyncio.to_thread(run, Options(url=server.url, key="wrong"), [], screen())
        assert await asyncio.to_thread(run, Options(url=server.url, key="secret"), ["hello"], screen()) == 0


def screen() -> Screen:
    return Screen(io.StringIO(), io.StringIO(), {})


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (NOBODY, "Connection refused"),
        ("ftp://127.0.0.1/v1", "not a URL of a web server"),
        ("::", "not a URL of a web server"),
    ],
)
def test_an_unreachable_server_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str], url: str, reason: str
) -> None:
    assert main(["chat", "--url", url, "hello"]) == 3
    assert capsys.readouterr() == ("", f"slipring: cannot reach {url}: {reason}\n")


async def test_pings_are_answered_while_nobody_types() -> None:
    pong: asyncio.Future[aiohttp.WSMessage] = asyncio.get_running_loop().create_future()

    async def endpoint(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        await socket.ping(b"there?")
        pong.set_result(await socket.receive(timeout=60))
        await socket.receive()
        return socket

    app = web.Application()
    app.router.add_get("/v1/responses", endpoint)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        async with talking(f"http://127.0.0.1:{port}/v1"):
            message = await asyncio.wait_for(pong, 60)
            assert (message.type, message.data) == (WSMsgType.PONG, b"there?")
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
def test_a_status_says_what_is_known(
    usage: dict[str, Any] | None, first_s: float | None, took_s: float, line: str
) -> None:
    assert status(usage, first_s, took_s) == line


@pytest.mark.parametrize(
    ("err", "environ", "shown"),
    [
        (Terminal(), {}, "\x1b[2mHm.\x1b[0m\n"),
        (Terminal(), {"NO_COLOR": "1"}, "Hm.\n"),
        (io.StringIO(), {}, "Hm.\n"),
    ],
)
def test_only_a_terminal_gets_colours(err: io.StringIO, environ: dict[str, str], shown: str) -> None:
    Screen(io.StringIO(), err, environ).note("Hm.")
    assert err.getvalue() == shown


# --- As a process ----------------------------------------------------------------------------


def environment(**variables: str) -> dict[str, str]:
    hidden = ("OPENAI_", "SLIPRING_", "NO_COLOR")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return {**clean, **variables}


async def chatted(*arguments: str, typed: str = "", **variables: str) -> tuple[int | None, str, str]:
    """Run a chat to its end; exit code, standard output, standard error."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *arguments, env=environment(**variables), stdin=-1, stdout=-1, stderr=-1
    )
    out, err = await asyncio.wait_for(process.communicate(typed.encode()), 20)
    return process.returncode, out.decode(), err.decode()


async def test_a_message_on_the_command_line_is_one_turn() -> None:
    engine = PuppetEngine()
    async with serve(engine, api_key=("secret",)) as server:
        done = asyncio.create_task(
            chatted("--url", server.url, "--api-key-env", "MY_KEY", "hello", "there", MY_KEY="secret")
        )
        performance = await engine.next()
        assert said(performance.job) == [("user", "hello there")]
        performance.emit(Text("Good "))
        performance.emit(Text("day."))
        performance.finish()
        code, out, err = await done
    assert (code, out) == (0, "Good day.\n")
    assert err.startswith("3 tokens in (0 cached, 3 new) · 2 out · first token ")
    assert err.count("\n") == 1


async def test_each_line_of_a_pipe_is_one_turn() -> None:
    async with serve() as server:
        code, out, err = await chatted(typed="one\n\ntwo", OPENAI_BASE_URL=server.url)
    assert (code, out) == (0, f"{ANSWER}\n" * 2)
    first, second = err.splitlines()
    assert re.fullmatch(STATUS, first)
    assert re.fullmatch(STATUS, second)


async def test_a_failure_in_a_pipe_is_seen_in_the_exit_code() -> None:
    async with serve() as server:
        code, out, err = await chatted("--model", "nope", typed="one\ntwo\n", OPENAI_BASE_URL=server.url)
    assert (code, out) == (NO_ANSWER, "")
    assert err.count("(model_not_found)\n") == 2


async def test_an_unreachable_server_ends_the_process() -> None:
    code, out, err = await chatted("hello", OPENAI_BASE_URL=NOBODY)
    assert (code, out, err) == (3, "", f"slipring: cannot reach {NOBODY}: Connection refused\n")


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
        await asyncio.wait_for(performance.stopped.wait(), 60)
        out, err = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, out, err) == (INTERRUPTED, b"\n", b"stopped\n")


class Keyboard:
    """A chat on a terminal of its own."""

    def __init__(self, process: asyncio.subprocess.Process, terminal: int) -> None:
        self.process = process
        self._terminal = terminal

    async def see(self, text: str) -> str:
        """Read until this text is on the screen; all that came until then."""
        seen = b""
        while text.encode() not in seen:
            seen += await asyncio.wait_for(asyncio.to_thread(os.read, self._terminal, 4096), 60)
        return seen.decode()

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())


@asynccontextmanager
async def at_a_keyboard(url: str) -> AsyncIterator[Keyboard]:
    terminal, end = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "--url", url, env=environment(TERM="dumb"), stdin=end, stdout=end, stderr=end
    )
    os.close(end)
    try:
        yield Keyboard(process, terminal)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        os.close(terminal)


@pytest.mark.parametrize("key", ["ctrl-c", "ctrl-d"])
async def test_ctrl_c_stops_an_answer_and_at_the_prompt_the_chat(key: str) -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, at_a_keyboard(server.url) as keyboard:
        await keyboard.see("> ")
        keyboard.type("one\n")
        performance = await engine.next()
        performance.say("First.")
        performance.finish()
        await keyboard.see("> ")
        keyboard.type("two\n")
        performance = await engine.next()
        performance.say("Sec")
        await keyboard.see("Sec")
        keyboard.process.send_signal(signal.SIGINT)
        await asyncio.wait_for(performance.stopped.wait(), 60)
        assert "stopped; the chain starts anew" in await keyboard.see("> ")
        keyboard.type("three\n")
        performance = await engine.next()
        assert said(performance.job) == [("user", "one"), ("assistant", "First."), ("user", "three")]
        performance.finish()
        assert SENT_AGAIN not in await keyboard.see("> ")
        if key == "ctrl-c":
            keyboard.process.send_signal(signal.SIGINT)
        else:
            keyboard.type("\x04")
        assert await asyncio.wait_for(keyboard.process.wait(), 60) == 0
