"""``slipring launch``, with programs in place of the clients that write down what they were started with."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from slipring.commands import launch
from slipring.commands.cli import main
from slipring.commands.launch import CLIENTS, Target
from tests.harness import Running, serve

RECORDER = """#!{python}
import json, os, pathlib, signal, sys
files = {{}}
for word in sys.argv[1:]:
    place = pathlib.Path(word.partition("=")[2].strip('"') or word)
    if place.is_absolute():
        inner = [place] if place.is_file() else place.rglob("*")
        files |= {{str(each.relative_to(place.parent)): each.read_text() for each in inner if each.is_file()}}
seen = {{"arguments": sys.argv[1:], "variables": dict(os.environ), "files": files}}
pathlib.Path({record!r}).write_text(json.dumps(seen))
if "wait" in sys.argv:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    print("ready", flush=True)
    signal.pause()
sys.exit(7 if "fail" in sys.argv else 0)
"""


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All clients as programs that write to this file; the home directory is empty."""
    programs, home, record = tmp_path / "bin", tmp_path / "home", tmp_path / "record.json"
    programs.mkdir()
    home.mkdir()
    for client in CLIENTS.values():
        program = programs / client.program
        program.write_text(RECORDER.format(python=sys.executable, record=str(record)))
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    return record


@pytest.fixture
async def server() -> AsyncIterator[Running]:
    async with serve(model=("small", "gpt-5.4")) as running:
        yield running


async def launched(server: Running, record: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """Launch a client beside the server, which runs on this thread; return the exit code and the record."""
    command, _, rest = " ".join(words).partition(" -- ")
    argv = ["launch", *command.split(), "--url", server.url, "--", *rest.split()]
    code = await asyncio.to_thread(subprocess.call, [sys.executable, "-m", "slipring", *argv])
    return code, read(record)


def read(record: Path) -> dict[str, Any]:
    seen: dict[str, Any] = json.loads(record.read_text())
    assert list(Path(os.environ["HOME"]).iterdir()) == [], "the user's files are left alone"
    assert not any(Path(word).exists() for word in seen["arguments"] if "slipring-launch-" in word)
    return seen


async def test_codex_gets_flags_and_a_catalog(server: Running, record: Path) -> None:
    code, seen = await launched(server, record, "codex -- exec --json hi")
    assert code == 0
    assert seen["arguments"][-3:] == ["exec", "--json", "hi"]
    assert seen["variables"]["SLIPRING_KEY"] == "sk-test"
    given = tomllib.loads("\n".join(word for word in seen["arguments"] if "=" in word))
    assert (given["model"], given["model_provider"]) == ("small", "slipring")
    provider = given["model_providers"]["slipring"]
    assert (provider["base_url"], provider["supports_websockets"]) == (server.url, True)
    assert "sk-test" not in str(seen["arguments"])
    models = json.loads(seen["files"]["models.json"])["models"]
    assert [model["slug"] for model in models] == ["small", "gpt-5.4"]


async def test_claude_gets_variables(server: Running, record: Path) -> None:
    _, seen = await launched(server, record, "claude --model gpt-5.4 -- -p hi")
    assert seen["arguments"] == ["-p", "hi"]
    variables = seen["variables"]
    assert f"{variables['ANTHROPIC_BASE_URL']}/v1" == server.url
    assert (variables["ANTHROPIC_AUTH_TOKEN"], variables["ANTHROPIC_API_KEY"]) == ("sk-test", "")
    models = {value for name, value in variables.items() if name.endswith("_MODEL")}
    assert models == {"gpt-5.4"}


async def test_opencode_gets_variables(server: Running, record: Path) -> None:
    _, seen = await launched(server, record, "opencode --model gpt-5.4 -- run hi")
    assert seen["arguments"] == ["run", "hi"]
    settings = json.loads(seen["variables"]["OPENCODE_CONFIG_CONTENT"])
    assert settings["model"] == "openai/gpt-5.4"
    assert settings["provider"]["openai"]["options"] == {"baseURL": server.url}
    assert json.loads(seen["variables"]["OPENCODE_AUTH_CONTENT"])["openai"]["key"] == "sk-test"


async def test_pi_gets_an_extension(server: Running, record: Path) -> None:
    _, seen = await launched(server, record, "pi -- -p hi")
    assert seen["arguments"][2:] == ["--provider", "slipring", "--model", "small", "-p", "hi"]
    assert server.url in seen["files"]["slipring.ts"]
    assert seen["variables"]["SLIPRING_KEY"] == "sk-test"


@pytest.mark.parametrize(("model", "provider"), [("small", "openai"), ("gpt-5.4", "openai-native")])
async def test_cline_gets_a_provider_that_takes_the_name_of_the_model(
    server: Running, record: Path, model: str, provider: str
) -> None:
    _, seen = await launched(server, record, f"cline --model {model} -- hi")
    assert (seen["arguments"][0], seen["arguments"][2]) == ("--config", "hi")
    files = {Path(place).name: text for place, text in seen["files"].items()}
    state = json.loads(files["globalState.json"])
    assert state["actModeApiProvider"] == state["planModeApiProvider"] == provider
    assert model in (state.get("actModeOpenAiModelId"), state.get("actModeApiModelId"))
    assert state["openAiBaseUrl"] == seen["variables"]["OPENAI_BASE_URL"] == server.url
    assert set(json.loads(files["secrets.json"]).values()) == {"sk-test"}


async def test_continue_gets_a_configuration(server: Running, record: Path) -> None:
    _, seen = await launched(server, record, "continue -- hi")
    assert (seen["arguments"][0], seen["arguments"][2]) == ("--config", "hi")
    (model,) = json.loads(seen["files"]["config.yaml"])["models"]
    assert (model["model"], model["apiBase"], model["apiKey"]) == ("small", server.url, "sk-test")


async def test_aider_gets_flags_and_what_it_wants_to_know_of_the_model(server: Running, record: Path) -> None:
    _, seen = await launched(server, record, "aider -- --message hi")
    assert seen["arguments"][:2] == ["--model", "openai/small"]
    assert seen["arguments"][-2:] == ["--message", "hi"]
    assert (seen["variables"]["OPENAI_API_BASE"], seen["variables"]["OPENAI_API_KEY"]) == (
        server.url,
        "sk-test",
    )
    assert list(json.loads(seen["files"]["models.json"])) == ["openai/small"]


@pytest.mark.parametrize("name", ["codex", "claude", "pi", "cline", "continue", "aider"])
def test_a_client_learns_the_context_window_of_its_model(name: str, tmp_path: Path) -> None:
    described = {"models": [{"slug": "other"}, {"slug": "small", "context_window": 12_345}]}
    given = CLIENTS[name].point(Target("http://127.0.0.1:9/v1", "small", "k", described), tmp_path)
    written = [place.read_text() for place in tmp_path.rglob("*") if place.is_file()]
    assert "12345" in " ".join([*written, *given.variables.values()])


@pytest.mark.parametrize(
    ("name", "context", "is_short"),
    [
        ("claude", 8_192, True),
        ("claude", 29_999, True),
        ("claude", 30_000, False),
        ("claude", None, False),
        ("codex", 8_192, True),
        ("codex", 32_768, False),
        ("aider", 512, False),
    ],
)
def test_a_context_that_is_too_small_for_a_client_is_named(
    name: str, context: int | None, is_short: bool
) -> None:
    stated = {} if context is None else {"context_window": context}
    described = {"models": [{"slug": "other", "context_window": 1}, {"slug": "small", **stated}]}
    line = CLIENTS[name].shortage(Target("http://127.0.0.1:9/v1", "small", "k", described))
    assert (line is not None) is is_short
    if line is not None:
        assert f"small has a context of {context:,} tokens, and the first turn of {name} takes about" in line
        assert "'slipring serve --model Qwen/Qwen3-8B-GGUF'" in line


async def test_a_client_starts_after_one_line_about_a_context_that_is_too_small(
    record: Path, tiny_path: str
) -> None:
    async with serve(engine=f"llama:{tiny_path},context=512,slots=1", model=("small",)) as server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "slipring", "launch", "claude", "--url", server.url, "--", "fail"),
            stderr=subprocess.PIPE,
        )
        errors = (await process.communicate())[1].decode()
    assert process.returncode == 7
    assert read(record)["arguments"] == ["fail"]
    (line,) = errors.splitlines()
    assert line.startswith("slipring: small has a context of 512 tokens, and the first turn of claude takes")


async def test_the_exit_code_is_passed_on(server: Running, record: Path) -> None:
    assert (await launched(server, record, "codex -- fail"))[0] == 7


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 128 + signal.SIGINT), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
async def test_a_signal_ends_the_client_and_not_with_a_traceback(
    server: Running, record: Path, number: signal.Signals, code: int
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "slipring", "launch", "pi", "--url", server.url, "--", "wait"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    _, errors = await process.communicate()
    assert process.returncode == code
    assert b"slipring" not in errors


def test_without_a_server_one_is_started_and_stopped(
    record: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "DEFAULT_URL", "http://127.0.0.1:9/v1")
    assert main(["launch", "cline", "--engine", "simulated", "--", "fail"]) == 7
    url = read(record)["variables"]["OPENAI_BASE_URL"]
    assert "starting a server with --engine simulated" in capsys.readouterr().err
    assert main(["launch", "cline", "--url", url]) == 3
    assert capsys.readouterr().err == f"slipring: cannot reach {url}: Connection refused\n"
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    assert main(["launch", "cline"]) == 3
    assert capsys.readouterr().err == f"slipring: cannot reach {url}: Connection refused\n"


async def test_a_server_that_refuses_the_key_is_not_replaced_by_a_new_one(
    record: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serve(api_key=("secret",)) as server:
        monkeypatch.setattr(launch, "DEFAULT_URL", server.url)
        assert await asyncio.to_thread(main, ["launch", "codex"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"{server.url} answered with status 401: set OPENAI_API_KEY, or see --api-key-env")


def test_a_key_that_no_request_can_carry_is_reported_without_its_value(
    record: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-one\nsk-two")
    assert main(["launch", "codex"]) == 2
    assert (
        capsys.readouterr().err == "slipring: OPENAI_API_KEY: a key consists of printable ASCII characters\n"
    )
    assert not record.exists()


def test_a_client_that_is_not_installed_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["launch", "cline"]) == 3
    assert "cline is not installed: npm install -g cline" in capsys.readouterr().err
