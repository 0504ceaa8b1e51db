"""The progress line of long commands: on a terminal, and nowhere else."""

import contextlib
import io
import os
import pty
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TextIO

import pytest

from slipring.base.progress_line import ProgressLine, bar
from slipring.commands.bench.command import BenchProgress
from slipring.commands.bench.load.command import LoadProgress
from slipring.commands.bench.load.service_level import Level
from slipring.commands.bench.measure.modes import MODES
from slipring.commands.bench.results import LoopResult
from slipring.commands.cli import main
from tests.commands.bench.stage import tiny

CLEAR = "\r\x1b[K"
PATIENCE_S = 300.0
AT_ONCE = {"delay_s": 0.0, "tick_s": 0.01}


class Terminal:
    """A pseudo terminal: ``stream`` is what a command writes to."""

    def __init__(self) -> None:
        self._ours, theirs = pty.openpty()
        self.stream: TextIO = os.fdopen(theirs, "w", encoding="utf-8")
        self._seen = b""

    def read_until(self, text: str) -> str:
        """What has been shown, up to the first time that it contains ``text``."""
        while text.encode() not in self._seen:
            self._seen += os.read(self._ours, 4096)
        return self._seen.decode(errors="replace")

    def close(self) -> None:
        self.stream.close()
        os.close(self._ours)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm")
    opened = Terminal()
    yield opened
    opened.close()


@pytest.fixture
def pipe() -> Iterator[tuple[TextIO, Callable[[], str]]]:
    """The writing end of a pipe, and a function that closes it and reads everything."""
    ours, theirs = os.pipe()
    stream = os.fdopen(theirs, "w", encoding="utf-8")

    def content() -> str:
        stream.close()
        with os.fdopen(os.dup(ours), encoding="utf-8") as reading:
            return reading.read()

    yield stream, content
    stream.close()
    os.close(ours)


def immediate(text: str = "", *, stream: TextIO) -> ProgressLine:
    return ProgressLine(text, stream=stream, **AT_ONCE)


def test_the_line_is_shown_and_erased(terminal: Terminal) -> None:
    with immediate("loading small", stream=terminal.stream) as line:
        terminal.read_until(f"{CLEAR}loading small … 0 s\r")
        line.show("loading large")
        terminal.read_until(f"{CLEAR}loading large … 0 s\r")
    terminal.stream.write("end")
    terminal.stream.flush()
    assert terminal.read_until("end").endswith(f"\r{CLEAR}end")


def test_a_failure_erases_the_line_too(terminal: Terminal) -> None:
    with contextlib.suppress(RuntimeError), immediate("loading", stream=terminal.stream):
        terminal.read_until("loading")
        raise RuntimeError
    terminal.stream.write("end")
    terminal.stream.flush()
    assert terminal.read_until("end").endswith(f"\r{CLEAR}end")


def test_nothing_is_shown_for_a_fast_command(terminal: Terminal) -> None:
    with ProgressLine("loading", stream=terminal.stream):
        pass
    terminal.stream.write("end")
    terminal.stream.flush()
    assert terminal.read_until("end") == "end"


def test_a_line_fits_the_terminal_and_cannot_control_it(terminal: Terminal) -> None:
    with immediate("\x1b[2J" + "x" * 500, stream=terminal.stream):
        shown = terminal.read_until(" s\r")
    assert shown.removeprefix(CLEAR).partition("\r")[0] == " [2J" + "x" * 69 + " … 0 s"


def test_a_terminal_that_was_closed(terminal: Terminal) -> None:
    line = immediate("loading", stream=terminal.stream)
    with line:
        terminal.read_until("loading")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(line, "_stream", _Closed())
            line.report("lost")


class _Closed(io.StringIO):
    """A terminal whose other end is closed."""

    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")


def test_a_pipe_gets_failures_only(pipe: tuple[TextIO, Callable[[], str]]) -> None:
    stream, content = pipe
    with immediate("loading", stream=stream) as line:
        line.show("still loading")
        line.report("broken\x1b[0m")
    assert content() == "broken [0m\n"


def test_a_dumb_terminal_gets_no_line(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with immediate("loading", stream=terminal.stream) as line:
        line.report("broken")
    assert terminal.read_until("\n") == "broken\r\n"


def test_bars() -> None:
    assert bar(1, 2) == "━━━━━━━━━━────────── 1/2"
    assert bar(0, 0) == "──────────────────── 0/0"


def test_the_progress_of_a_bench(terminal: Terminal) -> None:
    mode = MODES["websocket"]
    with BenchProgress(stream=terminal.stream, **AT_ONCE) as shown:
        shown.endpoint_opened()
        terminal.read_until("trying the modes …")
        shown.workload_started(tiny(), [mode, MODES["http-full"]], 2)
        shown.loop_started(mode, 0)
        terminal.read_until("tiny ──────────────────── 0/4 websocket … ")
        shown.turn_finished(2)
        terminal.read_until("websocket, turn 2 of 3 … ")
        shown.loop_finished(
            mode, [LoopResult(workload="tiny", mode=mode.name, repeat=0, error="turn 1: lost")]
        )
        terminal.read_until("\x1b[31mwebsocket: turn 1: lost\x1b[0m\r\n")
        shown.loop_started(mode, 1)
        terminal.read_until("1/4 websocket … ")


def test_the_progress_of_a_load(terminal: Terminal) -> None:
    with LoadProgress(2, stream=terminal.stream, **AT_ONCE) as shown:
        shown.endpoint_opened()
        terminal.read_until("trying the endpoint …")
        shown.level_started(10, 15)
        terminal.read_until("0/2: 10 connections for 15 s … 0 s")
        shown.level_finished(level("too slow"))
        terminal.read_until("\x1b[31m10 connections: too slow\x1b[0m\r\n")


def level(broken: str) -> Level:
    return Level(
        connections=10,
        open_connections=10,
        seconds=1.0,
        turns=0,
        turns_per_s=0.0,
        client_cores=0.0,
        broken=broken,
    )


def test_a_server_shows_that_it_loads_a_model(terminal: Terminal, silent_server: socket.socket) -> None:
    engine = f"vllm:http://127.0.0.1:{silent_server.getsockname()[1]}"
    command = [sys.executable, "-m", "slipring", "serve", "--port", "0", "--store", "memory"]
    with subprocess.Popen(
        [*command, "--engine", engine], stdout=subprocess.DEVNULL, stderr=terminal.stream
    ) as server:
        terminal.read_until("loading vllm … ")
        server.terminate()


COMMANDS = [
    (["inspect", "vllm:http://{address}"], "reading the model … "),
    (["keys", "list", "--store", "postgresql://{address}/slipring"], "opening the store … "),
]


@pytest.fixture
def silent_server() -> Iterator[socket.socket]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.mark.parametrize(("arguments", "text"), COMMANDS)
def test_commands_show_their_progress(
    terminal: Terminal,
    silent_server: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    text: str,
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    address = f"127.0.0.1:{silent_server.getsockname()[1]}"
    command = threading.Thread(target=main, args=([each.format(address=address) for each in arguments],))
    command.start()
    assert text in terminal.read_until(text)
    silent_server.close()
    command.join(PATIENCE_S)
    assert not command.is_alive()


@pytest.mark.parametrize(("arguments", "text"), COMMANDS)
def test_commands_are_silent_in_a_pipe(
    silent_server: socket.socket, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    address = f"127.0.0.1:{silent_server.getsockname()[1]}"
    silent_server.close()
    assert main([each.format(address=address) for each in arguments]) == 3
    assert capsys.readouterr().err.count("\n") == 1, "nothing but the reason"
