"""What processes cost, read from this very process and from a server's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slipring.bench import results
from slipring.bench.processes import Bystanders, Meter
from slipring.bench.server import CannotStart, own_server
from tests.bench.test_bench_command import FAST, run

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")


@linux
def test_cpu_time_grows_with_work() -> None:
    meter = Meter(os.getpid())
    assert meter.can_read
    before_ms = meter.cpu_ms()
    while meter.cpu_ms() <= before_ms:
        sum(range(100_000))
    assert Bystanders(meter).cores() >= 0


@linux
def test_descendants_are_counted() -> None:
    meter = Meter(os.getpid())
    alone_bytes = meter.resident_bytes()
    with subprocess.Popen(
        [sys.executable, "-c", "print('here', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"here\n"
        child_bytes = Meter(child.pid).resident_bytes()
        assert child_bytes > 1_000_000
        assert meter.resident_bytes() >= alone_bytes + child_bytes // 2
        child.communicate(b"\n")
    assert not Meter(child.pid).can_read


@linux
async def test_a_server_that_others_have_started_can_be_measured_by_its_pid(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    arguments = ("--workload", "short", "--repeats", "1", "--mode", "websocket")
    async with own_server(FAST[1]) as server:
        url, pid = server.url, server.meter.pid
        code, out, err = await run(*arguments, "--url", url, "--server-pid", str(pid), "--json", str(path))
        assert code == 0, out + err
    (loop,) = results.read(path).loops
    assert loop.cpu_ms is not None
    assert loop.cpu_ms > 0
    code, _, err = await run(*arguments, "--url", url, "--server-pid", str(pid))
    assert code == 3
    assert err == f"slipring: --server-pid {pid}: there is no process whose costs can be read\n"


async def test_a_server_that_cannot_start() -> None:
    with pytest.raises(CannotStart, match="before it served"):
        async with own_server("no-such-engine"):
            pass
