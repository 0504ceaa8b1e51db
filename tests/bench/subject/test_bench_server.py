"""The server that the bench starts, and servers given by process id."""

import sys
from pathlib import Path

import pytest

from slipring.bench import results
from slipring.bench.errors import CannotStart
from slipring.bench.subject.server import start_server
from tests.bench.process import FAST, run

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@linux
async def test_cpu_time_of_a_server_given_by_pid(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    arguments = ("--workload", "short", "--repeats", "1", "--mode", "websocket")
    async with start_server(FAST[1]) as server:
        url, pid = server.url, server.meter.pid
        code, out, err = await run(*arguments, "--url", url, "--server-pid", str(pid), "--json", str(path))
        assert code == 0, out + err
    (loop,) = results.read(path).loops
    assert loop.cpu_ms is not None
    assert loop.cpu_ms > 0
    code, _, err = await run(*arguments, "--url", url, "--server-pid", str(pid))
    assert code == 3
    assert err == f"slipring: --server-pid {pid}: no such process, or its CPU time cannot be read\n"


async def test_a_server_with_an_unknown_engine_does_not_start() -> None:
    with pytest.raises(CannotStart, match="before it was ready"):
        async with start_server("no-such-engine"):
            pass
