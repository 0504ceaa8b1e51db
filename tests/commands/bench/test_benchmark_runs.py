"""The programs in ``benchmarks``: records of peers, tolerated deviations, and processes they start."""

import importlib
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from slipring.commands.bench import results
from tests.commands.bench.faulty import Faulty, running
from tests.commands.bench.stage import faults, measured

ROOT = Path(__file__).parents[3]
BENCHMARKS = ROOT / "benchmarks"
PEERS = BENCHMARKS / "peers"
PATIENCE_S = 300.0
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has pidfds")


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes the programs importable; removes them afterwards, because their module names are common."""
    before = set(sys.modules)
    signals = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), str(PEERS), *sys.path])
    yield
    for number, heeded in signals.items():
        signal.signal(number, heeded)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCHMARKS)):
            del sys.modules[name]


def program(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.mark.usefixtures("programs")
def test_a_failed_measurement_leaves_no_old_record(tmp_path: Path) -> None:
    run, servers = program("run"), program("servers")
    path = tmp_path / "record.json"
    path.write_text("what another has left")
    unreachable = servers.Server("ogx", "http://127.0.0.1:9/v1", os.getpid(), "instant")
    with pytest.raises(run.Unmeasured, match=r"^ogx: slipring bench ended with 3: slipring: "):
        run.measure(unreachable, "short", "", path)
    assert not path.exists()


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize(
    ("fault", "is_only_form"),
    [
        ("sends no numbers", True),
        ("names another parent", True),
        ("numbers events wrongly", False),
        ("reorders events", False),
        ("swaps deltas", False),
        ("ends twice", False),
    ],
)
async def test_only_deviations_in_form_are_tolerated(fault: str, is_only_form: bool) -> None:
    table = program("table")
    async with running(Faulty(fault)) as url:
        record = await measured(url, modes=("http-full",))
    assert faults(record), "the bench itself found no fault"
    found = [fault for loop in record.loops for fault in table.faults_of(loop)]
    assert (found == []) is is_only_form


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize(
    ("sentence", "is_fault"),
    [
        ("sequence_number 3 comes after 4", True),
        ("events without a sequence_number", False),
        ("previous_response_id is None", False),
        ("response.output_text of item 0 never ends", False),
        ("response.content_part.done of item 0 before the end of its text", False),
        ("no response.in_progress at the beginning", False),
        ("history was lost: 3 input tokens after 400", True),
    ],
)
def test_deviations_in_form_are_matched_as_whole_sentences(sentence: str, is_fault: bool) -> None:
    turn = results.TurnResult(number=1, wrong=f"{sentence}; events without a sequence_number")
    loop = results.LoopResult(workload="w", mode="m", repeat=0, turns=[turn])
    assert program("table").faults_of(loop) == ([sentence] if is_fault else [])


@pytest.mark.usefixtures("programs")
def test_the_page_of_the_peers_shows_the_figures_that_are_kept() -> None:
    table = program("table")
    assert f"\n\n{table.tables()}\n" in table.README.read_text(), "run benchmarks/peers/table.py"


PART = """
import signal, subprocess, sys
server = subprocess.Popen([sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"],
                          stdout=subprocess.PIPE, text=True)
server.stdout.readline()
open(sys.argv[1] + ".part", "w").write(str(server.pid))
import os
os.rename(sys.argv[1] + ".part", sys.argv[1])
{then}
"""
"""Starts a child process, writes its id to a file, and never ends."""


@linux
@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize(
    "then", ["signal.pause()", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()"]
)
def test_a_part_that_takes_too_long_is_ended_with_its_children(
    then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standard = program("standard")
    pid_file = tmp_path / "pid"
    files: list[int] = []

    class Patient(subprocess.Popen[bytes]):
        """Times out as soon as the child process has started."""

        def wait(self, timeout: float | None = None) -> int:
            if timeout != LONGEST_S:
                return super().wait(timeout)
            while not pid_file.exists():
                os.sched_yield()
            files.append(os.pidfd_open(int(pid_file.read_text())))
            raise subprocess.TimeoutExpired(self.args, timeout)

    LONGEST_S = 12345.0
    monkeypatch.setattr(standard, "ENDING_S", 1)
    monkeypatch.setattr(standard.subprocess, "Popen", Patient)
    assert standard.run(["-c", PART.format(then=then), str(pid_file)], LONGEST_S) == -1
    assert select.select(files, [], [], PATIENCE_S)[0] == files, "the server of the part is still there"
    os.close(files[0])


@pytest.mark.usefixtures("programs")
def test_the_exit_code_of_a_part_is_returned() -> None:
    assert program("standard").run(["-c", "raise SystemExit(3)"], 60) == 3
    assert program("standard").run(["-c", ""], 60) == 0


def test_idle_connections_within_the_hard_limit_of_files(tmp_path: Path) -> None:
    """Run a copy of the program, which writes its results elsewhere, with a low soft limit of open files."""
    for name in ("idle_connections.py", "rest_cost.py", "common.py"):
        (tmp_path / name).write_text((BENCHMARKS / name).read_text())

    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    ended = subprocess.run(
        [sys.executable, str(tmp_path / "idle_connections.py"), "--connections", "100"],
        capture_output=True,
        text=True,
        preexec_fn=few_files,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "100 connections" in ended.stdout


@pytest.mark.usefixtures("programs")
def test_an_interpreter_that_does_not_run_is_not_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version manager's script for a version that is not installed exits with 127."""
    script = tmp_path / "python3.12"
    script.write_text("#!/bin/sh\nexit 127\n")
    script.chmod(0o755)
    (tmp_path / "python3.13").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    setup = program("setup")
    assert setup.first_interpreter(("python3.11", "python3.12", "python3.13")) == str(tmp_path / "python3.13")
    assert setup.first_interpreter(("python3.12",)) is None


def gateways(own: list[float], rival: list[float]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures of one mode, and none of idle connections."""
    names = {"agentic-api": rival, "slipring, responses": own, "slipring, chat": [9.0]}
    kinds = ("turn_ms", "cpu_ms", "delta_us", "first_ms")
    return {"websocket": {name: dict.fromkeys(kinds, each) for name, each in names.items()}}, {}


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize(
    ("own", "rival", "ratio", "verdict"),
    [
        ([1.0, 2.0, 1.5], [2.5, 3.0, 3.5], "0.50 ×", "slipring needs less: "),
        ([4.0, 5.0], [1.0, 2.0], "3.00 ×", "It needs more: "),
        ([1.0, 3.0], [2.0, 6.0], "0.50 ×", "The ranges overlap: "),
        ([1.0], [0.0], "against 0", "It needs more: "),
    ],
)
def test_the_table_of_gateways_says_who_needs_less(
    own: list[float], rival: list[float], ratio: str, verdict: str
) -> None:
    table = program("gateways_table")
    turns, rest = gateways(own, rival)
    _, _, *lines = table.table(turns, rest).splitlines()
    assert len(lines) == 4, "modes and idle connections that were not measured have no lines"
    assert all(line.endswith(f"| {ratio} |") for line in lines)
    assert lines[0].startswith("| WebSocket: added to a turn, ms | ")
    sentence = table.sentence(turns, rest)
    assert sentence.startswith(f"{verdict}WebSocket: added to a turn ({ratio}); ")
