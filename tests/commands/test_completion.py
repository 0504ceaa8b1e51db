"""``slipring completion``: shells read the script, and complete commands and flags by it."""

import shutil
import subprocess

import pytest

from slipring.commands.cli import main


def script(capsys: pytest.CaptureFixture[str], shell: str) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "some"),
    [
        (["slipring", "ser"], ["serve"]),
        (["slipring", "serve", "--max-la"], ["--max-lanes"]),
        (["slipring", "serve", "--port", "1", "--ech"], ["--echo"]),
        (["slipring", "keys", "cre"], ["create"]),
        (["slipring", "keys", "create", "--ten"], ["--tenant"]),
        (["slipring", "bench", "load", "--jso"], ["--json"]),
        (["slipring", "launch", "cod"], ["codex"]),
        (["slipring", "nothing", "--versi"], ["--version"]),
    ],
)
def test_bash_completes(capsys: pytest.CaptureFixture[str], words: list[str], some: list[str]) -> None:
    ask = (
        f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _slipring; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script(capsys, "bash") + ask], capture_output=True, text=True, check=True
    )
    assert (done.stdout.split(), done.stderr) == (some, "")


def test_zsh_reads_the_script_of_bash(capsys: pytest.CaptureFixture[str]) -> None:
    first, _, rest = script(capsys, "zsh").partition("\n")
    assert "bashcompinit" in first
    assert rest == script(capsys, "bash")


def test_fish_gets_every_flag_with_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    text = script(capsys, "fish")
    assert (
        "complete -c slipring -n '__fish_seen_subcommand_from serve' -l port -d 'port to listen on;" in text
    )
    assert "-n 'not __fish_seen_subcommand_from serve " in text
    if fish := shutil.which("fish"):
        assert subprocess.run([fish, "--no-execute"], input=text, text=True, check=False).returncode == 0
