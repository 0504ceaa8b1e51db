"""The command line, as a process of its own: what it says, how it stops, how it refuses."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from slipring import __version__
from slipring.cli import main

COMMAND = (sys.executable, "-m", "slipring")
SCRIPT = (str(Path(sys.executable).with_name("slipring")),)
FAST = ("--engine", "simulated:tokens_per_s=0,output_tokens=3")


def environment(**variables: str) -> dict[str, str]:
    """The environment without settings of slipring, but these."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLIPRING_")}
    return {**clean, **variables}


def complaints(errors: bytes) -> list[str]:
    """The lines of a standard error, but for the one which says on a busy machine that a start takes long."""
    lines = errors.decode().splitlines()
    return [line for line in lines if not line.startswith("slipring: starting the engine")]


class Process:
    """A running server."""

    def __init__(self, process: asyncio.subprocess.Process, told: list[str]) -> None:
        self.process = process
        self.told = told
        """What it said when it was ready."""

    @property
    def url(self) -> str:
        return self.told[0].rpartition(" ")[2]

    async def line(self, within_s: float = 10) -> str:
        assert self.process.stdout is not None
        return (await asyncio.wait_for(self.process.stdout.readline(), within_s)).decode().rstrip()

    async def stop(self, number: int = signal.SIGTERM) -> int:
        """Tell it to stop; the exit code."""
        self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), 60)

    async def errors(self) -> str:
        assert self.process.stderr is not None
        return "\n".join(complaints(await self.process.stderr.read()))


@asynccontextmanager
async def launched(
    *arguments: str, command: tuple[str, ...] = COMMAND, **variables: str
) -> AsyncIterator[Process]:
    """A server on a free port, ready."""
    process = await asyncio.create_subprocess_exec(
        *command,
        "serve",
        *("--port", "0", "--log-level", "warning"),
        *arguments,
        env=environment(**variables),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    running = Process(process, [])
    try:
        while not (running.told and "OPENAI_BASE_URL" in running.told[-1]):
            running.told.append(await running.line(60))  # a model may have to be loaded
            assert process.returncode is None, await running.errors()
            assert running.told[0], await running.errors()
        yield running
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        # Workers of one that was killed may hold its pipes for a moment.
        process._transport.close()  # type: ignore[attr-defined]


async def refused(*arguments: str, command: tuple[str, ...] = COMMAND, **variables: str) -> tuple[int, str]:
    """Start what cannot start; the exit code and its one line."""
    process = await asyncio.create_subprocess_exec(
        *command,
        "serve",
        *arguments,
        env=environment(**variables),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert out == b""
    assert process.returncode is not None
    (line,) = complaints(err)
    return process.returncode, line


@pytest.mark.parametrize("command", [COMMAND, SCRIPT])
async def test_a_server_says_where_it_is_and_how_to_use_it(command: tuple[str, ...]) -> None:
    async with launched(*FAST, "--model", "small", "--model", "large", command=command) as server:
        url = server.url
        assert url.startswith("http://127.0.0.1:")
        assert server.told == [
            f"slipring {__version__} serves {url}",
            f"  websocket  {url.replace('http', 'ws')}/responses",
            f"  engine     {FAST[1]}",
            "  model      small, large",
            "  store      sqlite",
            "  API keys   none: any key is accepted",
            "",
            "Point a client at it:",
            f"  OPENAI_BASE_URL={url} OPENAI_API_KEY=any",
        ]
        async with aiohttp.ClientSession() as http:
            async with http.post(f"{url}/responses", json={"input": "hello"}) as answer:
                assert (await answer.json())["status"] == "completed"
            async with http.ws_connect(f"{url}/responses") as ws:
                await ws.send_json({"type": "response.create", "input": "hello"})
                assert (await ws.receive_json(timeout=60))["type"] == "response.created"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_it_after_the_running_response(number: int) -> None:
    engine = "simulated:tokens_per_s=100,output_tokens=40"
    async with launched("--engine", engine) as server, aiohttp.ClientSession() as http:
        async with http.ws_connect(f"{server.url}/responses") as ws:
            await ws.send_json({"type": "response.create", "input": "hello"})
            events = [await ws.receive_json(timeout=60)]
            assert events[0]["type"] == "response.created"
            stopped = asyncio.create_task(server.stop(number))
            while events[-1]["type"] != "error":
                events.append(await ws.receive_json(timeout=60))
            assert events[-2]["type"] == "response.completed"
            assert events[-2]["response"]["usage"]["output_tokens"] == 40
            assert events[-1]["error"]["code"] == "server_shutting_down"
            assert (await ws.receive(timeout=60)).type is aiohttp.WSMsgType.CLOSE
            assert ws.close_code == 1001
        assert await stopped == 0
        assert await server.line() == "slipring: stopped"
        assert await server.errors() == ""


async def test_an_idle_server_stops_at_once_and_leaves_nothing_to_say() -> None:
    async with launched(*FAST) as server:
        assert await server.stop() == 0
        assert await server.errors() == ""


async def test_keys_from_the_environment_are_asked_for() -> None:
    async with (
        launched(*FAST, SLIPRING_API_KEYS="team:secret-key") as server,
        aiohttp.ClientSession() as http,
    ):
        assert "  API keys   1 configured" in server.told
        assert not any("secret-key" in line for line in server.told)
        assert server.told[-1].endswith("OPENAI_API_KEY=YOUR_KEY")
        for headers, status in [({}, 401), ({"Authorization": "Bearer secret-key"}, 200)]:
            async with http.get(f"{server.url}/models", headers=headers) as answer:
                assert answer.status == status
        with pytest.raises(aiohttp.WSServerHandshakeError, match="401"):
            await http.ws_connect(f"{server.url}/responses")


async def test_a_file_is_read_and_a_flag_wins_over_it(tmp_path: Path) -> None:
    file = tmp_path / "slipring.toml"
    file.write_text('port = 1\nmodel = ["from-the-file"]\n[limits]\nmax_frame_bytes = 300\n')
    async with launched("--config", str(file), *FAST) as server, aiohttp.ClientSession() as http:
        assert "  model      from-the-file" in server.told
        body = json.dumps({"input": "x" * 300})
        async with http.post(f"{server.url}/responses", data=body) as answer:
            assert answer.status == 413


async def test_a_script_is_played_and_its_end_does_not_end_the_server(tmp_path: Path) -> None:
    file = tmp_path / "script.jsonl"
    file.write_text('[{"text": "Good morning."}]\n')
    async with launched("--engine", f"simulated:script={file}") as server, aiohttp.ClientSession() as http:
        answers = []
        for _ in range(3):
            async with http.post(f"{server.url}/responses", json={"input": "hello"}) as answer:
                answers.append((answer.status, await answer.json()))
        assert [status for status, _ in answers] == [200, 500, 500]
        assert answers[0][1]["output"][0]["content"][0]["text"] == "Good morning."
        assert await server.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--no-such-flag"], 2, "--no-such-flag"),
        (["--port", "70000"], 2, "flag --port: must be from 0 to 65535"),
        (["--engine", "magic"], 3, "unknown engine 'magic' (known: llama, chat, simulated"),
        (["--engine", "simulated:speed=1"], 3, "unknown option 'speed' (known: tokens_per_s,"),
        (["--host", "0.0.0.0"], 3, "refusing to serve on 0.0.0.0 without API keys"),
        (
            ["--workers", "2", "--store", "memory"],
            3,
            "--workers 2 with --store memory: each worker would know its own chains only",
        ),
        (["--host", "a..b", "--insecure-no-auth"], 3, "cannot use the address a..b: not a host name"),
    ],
)
async def test_what_cannot_be_started_is_told_in_one_line(arguments: list[str], code: int, said: str) -> None:
    ended, line = await refused(*arguments)
    assert ended == code
    assert line.startswith("slipring")
    assert said in line


async def test_a_port_in_use_is_told_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, line = await refused("--port", str(port))
    assert code == 3
    assert line == f"slipring: cannot listen on 127.0.0.1:{port}: Address already in use"


@pytest.mark.parametrize("content", [b'[{"txt": "x"}]', b"\xff\xfe"])
async def test_a_bad_script_is_told_in_one_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "script.jsonl"
    file.write_bytes(content)
    code, line = await refused("--engine", f"simulated:script={file}")
    assert code == 3
    assert str(file) in line


async def test_a_bad_file_is_told_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "slipring.toml"
    file.write_text("port = ")
    code, line = await refused(SLIPRING_CONFIG=str(file))
    assert code == 2
    assert line.startswith(f"slipring: {file}: is not valid TOML: ")


async def test_the_version_is_printed() -> None:
    process = await asyncio.create_subprocess_exec(*COMMAND, "--version", stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, out.decode()) == (0, f"slipring {__version__}\n")


# The same function without a process: what is wrong is found before anything is started.


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line about a mistake in how the command was called."""
    try:
        code: Any = main(arguments)
    except SystemExit as end:
        code = end.code
    assert code == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return line


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "slipring: the following arguments are required: COMMAND (see slipring --help)"),
        (
            ["serve", "--port"],
            "slipring serve: argument --port: expected one argument (see slipring serve --help)",
        ),
        (["serve", "--port", "many"], "slipring: flag --port: must be a whole number"),
        (["serve", "--max-lanes", "0"], "slipring: flag --max-lanes: must be finite and above 0"),
        (["serve", "--config", "/no.toml"], "slipring: /no.toml: cannot be read: No such file or directory"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    assert told(capsys, *arguments) == line


def test_an_unknown_command_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "dance" in told(capsys, "dance")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot = 1", "'prot' in"),
        ("port = 'x'", "port in"),
        ("\n\n[limits]\nlanes = 1", "'limits.lanes' in"),
    ],
)
def test_a_mistake_in_the_file_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "slipring.toml"
    file.write_text(text)
    line = told(capsys, "serve", "--config", str(file))
    assert line.startswith(f"slipring: {said} {file}: ")


def test_a_mistake_in_a_variable_is_told_without_its_value(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPRING_PORT", "sk-oops")
    assert told(capsys, "serve") == "slipring: variable SLIPRING_PORT: must be a whole number"
