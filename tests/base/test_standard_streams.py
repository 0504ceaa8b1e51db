"""Commands whose standard streams are full, closed, or know ASCII only."""

import asyncio
import codecs
import json
import re
import shlex
import sys
from pathlib import Path

import aiohttp
import pytest

from slipring.base import standard_streams
from tests.commands.inspection.model_directories import write_directory
from tests.commands.test_cli import FAST, environment
from tests.prompts.templates.family_templates import source_of

COMMANDS = {
    "help": "--help",
    "version": "--version",
    "help of a command": "serve --help",
    "openapi": "openapi",
    "keys": "keys list --store sqlite:keys.db",
    "keys as JSON": "keys list --store sqlite:keys.db --json",
    "create": "keys create --store sqlite:keys.db --tenant a",
    "inspect": "inspect model",
    "inspect as JSON": "inspect model --json",
    "inspect with tokens": "inspect model --tokens",
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with a model."""
    write_directory(tmp_path / "model", source_of("qwen3"), bos_token="<s>", eos_token="<|im_end|>")
    return tmp_path


async def run(directory: Path, command: str, redirection: str = "", **variables: str) -> tuple[int, str, str]:
    """Run a command in a shell, with a redirection; return its exit code and what it printed."""
    process = await asyncio.create_subprocess_shell(
        f"exec {shlex.quote(sys.executable)} -m slipring {command} {redirection}",
        cwd=directory,
        env=environment(**variables),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 300)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize(
    ("redirection", "reason"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")]
)
@pytest.mark.parametrize("name", COMMANDS)
async def test_output_that_cannot_be_written_is_a_failure(
    name: str, redirection: str, reason: str, directory: Path
) -> None:
    code, _, err = await run(directory, COMMANDS[name], redirection)
    *before, last = err.splitlines()
    assert (code, last) == (1, f"slipring: cannot write to standard output: {reason}")
    assert len(before) == (name == "create")


async def test_a_key_that_could_not_be_printed_is_revoked(directory: Path) -> None:
    _, _, err = await run(directory, COMMANDS["create"], ">/dev/full")
    assert "could not be printed, and is revoked" in err
    _, out, _ = await run(directory, COMMANDS["keys as JSON"])
    (key,) = json.loads(out)
    assert key["revoked_at"] is not None


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-", "2>&- <&-"])
async def test_messages_that_cannot_be_written_change_nothing(redirection: str, directory: Path) -> None:
    code, out, _ = await run(directory, COMMANDS["create"], redirection)
    assert code == 0
    assert out.startswith("sk-slip-")
    assert (await run(directory, "inspect missing", redirection))[0] == 3


async def test_a_server_serves_though_it_cannot_print_where() -> None:
    process = await asyncio.create_subprocess_shell(
        f"exec {shlex.quote(sys.executable)} -m slipring serve --port 0 {shlex.join(FAST)} >/dev/full",
        env=environment(),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    line = (await asyncio.wait_for(process.stderr.readline(), 300)).decode()
    found = re.search(r"serves (http://\S+); cannot write to standard output: No space left", line)
    assert found is not None, line
    asked = {"input": "hello"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{found[1]}/responses", json=asked) as answer,
    ):
        assert (await answer.json())["status"] == "completed"
    process.terminate()
    _, err = await asyncio.wait_for(process.communicate(), 300)
    assert process.returncode == 0
    assert b"Traceback" not in err


@pytest.mark.parametrize("name", COMMANDS)
async def test_a_terminal_that_knows_ascii_only_gets_ascii(name: str, directory: Path) -> None:
    await run(directory, "keys create --store sqlite:keys.db --tenant a --name 'Zoë … 名'")
    code, out, err = await run(directory, COMMANDS[name], PYTHONIOENCODING="ascii")
    assert code == 0
    assert "Traceback" not in err
    if "JSON" not in name and name != "openapi":
        assert out.isascii()
    else:
        json.loads(out)  # programs read UTF-8
    if name == "keys":
        assert "Zo? ... ?" in out


def test_what_cannot_be_encoded_is_written_plainly() -> None:
    codecs.register_error("plain-here", standard_streams._written_plainly)
    assert "a … b – 1 × 2 → é".encode("ascii", "plain-here") == b"a ... b - 1 x 2 -> ?"
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("utf-8", "plain-here")


def test_empty_arguments_are_refused_before_anything_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    from slipring.commands.cli import main

    for command in (
        ["chat", ""],
        ["chat", " "],
        ["chat", "--url", "", "hello"],
        ["chat", "--model", "", "hello"],
        ["inspect", ""],
        ["launch", "codex", "--url", ""],
        ["launch", "codex", "--model", ""],
        ["launch", "codex", "--engine", ""],
        ["bench", "--url", ""],
        ["bench", "--model", ""],
        ["bench", "--engine", ""],
        ["bench", "load", "--engine", ""],
    ):
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == 2, command
        assert "must not be empty" in capsys.readouterr().err
    assert main(["bench", "--serve-flags", "'"]) == 2
    assert capsys.readouterr().err == "slipring: --serve-flags: no closing quotation\n"
