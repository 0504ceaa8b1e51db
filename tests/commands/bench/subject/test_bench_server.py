"""The server that the bench starts, and servers given by process id."""

import sys
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from slipring.commands.argument_parser import CommandFailed
from slipring.commands.bench import results
from slipring.commands.bench.subject.endpoint import start_server
from slipring.commands.cli import main
from tests.commands.bench.process import FAST

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@linux
def test_cpu_time_of_a_server_given_by_pid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "record.json"
    command = ["bench", "--workload", "short", "--repeats", "1", "--mode", "websocket"]
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(start_server(FAST[1])) as server,
    ):
        command += ["--url", server.url, "--server-pid", str(server.meter.pid)]
        assert main([*command, "--json", str(path)]) == 0
    (loop,) = results.read(path).loops
    assert loop.cpu_ms is not None
    assert loop.cpu_ms > 0
    capsys.readouterr()
    assert main(command) == 3
    line = f"slipring: --server-pid {command[-1]}: no such process, or its CPU time cannot be read\n"
    assert capsys.readouterr().err == line


async def test_a_server_with_an_unknown_engine_does_not_start() -> None:
    with pytest.raises(CommandFailed, match="before it was ready"):
        async with start_server("no-such-engine"):
            pass
