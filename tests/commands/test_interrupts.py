"""Ctrl-C at any moment of any command prints no traceback: in imports, while it runs, and at its end.

The moment is exact: the process sends itself the signal when it imports a module, or calls a function.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.commands.test_cli import FAST, environment
from tests.server.process.test_workers import pids_of, workers

AT_IMPORT = """
import importlib.abc, os, runpy, signal, sys

class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            sys.meta_path.remove(self)
            print("interrupted", flush=True)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.argv[0] = "slipring"
runpy.run_module("slipring", run_name="__main__", alter_sys=True)
"""
AT_EXIT = """
import atexit, os, runpy, signal, sys

def interrupt():
    print("interrupted", flush=True)
    os.kill(os.getpid(), signal.SIGINT)

atexit.register(interrupt)
sys.argv[0] = "slipring"
runpy.run_module("slipring", run_name="__main__", alter_sys=True)
"""
COMMANDS = {
    "serve": ["serve", "--port", "0", "--engine", "simulated"],
    "workers": ["serve", "--port", "0", "--engine", "simulated", "--workers", "2", "--store", "sqlite:x.db"],
    "inspect": ["inspect", "."],
    "chat": ["chat", "--url", "http://127.0.0.1:9/v1", "hello"],
    "top": ["top", "--url", "http://127.0.0.1:9", "--once"],
    "keys": ["keys", "list", "--store", "sqlite:x.db"],
    "openapi": ["openapi"],
    "bench": ["bench", "--url", "http://127.0.0.1:9/v1"],
    "load": ["bench", "load", "--url", "http://127.0.0.1:9/v1"],
    "launch": ["launch", "codex", "--url", "http://127.0.0.1:9/v1"],
}
MOMENTS = {
    "serve": [
        "slipring.base.standard_streams",
        "slipring.commands.cli",
        "aiohttp",
        "slipring.server.process.server",
    ],
    "workers": ["slipring.server.process.supervisor"],
    "inspect": ["slipring.commands.inspection.printed_report", "jinja2"],
    "chat": ["slipring.commands.chat.run", "aiohttp", "slipring.commands.chat.connection"],
    "top": ["slipring.commands.top.run", "aiohttp"],
    "keys": ["slipring.commands.keys", "apsw"],
    "openapi": ["slipring.commands.openapi"],
    "bench": ["slipring.commands.bench.command", "uvloop"],
    "load": ["slipring.commands.bench.load.command", "uvloop"],
    "launch": ["slipring.commands.launch", "slipring.base.connection_failures"],
}


async def run(script: str, *arguments: str, directory: Path) -> tuple[int, str, str]:
    codex = directory / "codex"
    codex.write_text("#!/bin/sh\n")
    codex.chmod(0o755)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, *arguments),
        env=environment(PATH=f"{directory}{os.pathsep}{os.environ['PATH']}"),
        cwd=directory,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 300)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize(
    ("command", "module"), [(name, module) for name, modules in MOMENTS.items() for module in modules]
)
async def test_an_early_interrupt_prints_nothing(command: str, module: str, tmp_path: Path) -> None:
    code, out, err = await run(AT_IMPORT.format(name=module), *COMMANDS[command], directory=tmp_path)
    assert out == "interrupted\n"
    assert err == ""
    assert code in (-signal.SIGINT, 130)


@pytest.mark.parametrize("command", ["keys", "chat", "bench", "openapi"])
async def test_a_late_interrupt_prints_no_traceback(command: str, tmp_path: Path) -> None:
    _, out, err = await run(AT_EXIT, *COMMANDS[command], directory=tmp_path)
    assert out.endswith("interrupted\n")
    assert "Traceback" not in err
    assert "Exception" not in err


async def test_an_interrupt_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    ignoring = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    script = ignoring + AT_IMPORT.format(name="slipring.commands.openapi")
    code, out, _ = await run(script, "openapi", directory=tmp_path)
    assert code == 0
    assert '"openapi"' in out


async def test_ctrl_c_in_a_terminal_does_not_reach_workers() -> None:
    """The terminal signals all processes of its foreground, from the first moment of their life."""
    async with workers(*FAST) as server:
        for pid in await pids_of(server.url):
            assert os.getpgid(pid) != os.getpgid(server.process.pid)
        assert await server.stop() == 0
