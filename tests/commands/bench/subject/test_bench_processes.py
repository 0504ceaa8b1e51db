"""CPU time and memory of processes."""

import os
import subprocess
import sys

import pytest

from slipring.commands.bench.subject.processes import Meter, OtherProcesses

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@linux
def test_cpu_time_grows_with_work() -> None:
    meter = Meter(os.getpid())
    assert meter.can_read
    before_ms = meter.cpu_ms()
    while meter.cpu_ms() <= before_ms:
        sum(range(100_000))
    assert OtherProcesses(meter).cores() >= 0


@linux
def test_the_cpu_time_of_threads_and_processes_that_have_ended_stays() -> None:
    """Otherwise the difference of two readings could be negative."""
    code = (
        "import threading\n"
        "work = threading.Thread(target=lambda: sum(range(3_000_000)))\n"
        "work.start(); print('working', flush=True); input()\n"
        "work.join(); print('ended', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        meter, family = Meter(child.pid), Meter(os.getpid())
        readings, of_family = [], []
        for line in (b"working\n", b"ended\n"):
            assert child.stdout.readline() == line
            readings.append(meter.cpu_ms())
            of_family.append(family.cpu_ms())
            child.stdin.write(b"\n")
            child.stdin.flush()
    of_family.append(family.cpu_ms())
    assert 0 < readings[0] <= readings[1]
    assert of_family == sorted(of_family)
    assert of_family[-1] >= readings[1], "the child has ended"


@linux
def test_memory_includes_descendants() -> None:
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
