"""Runs every benchmark that has a budget, one after the other, and compares the figures with the budgets.

Takes up to ten minutes on two cores that should be otherwise idle. A missed budget is not a failure: the exit
code is an error only if something could not be measured. Rewrites the page of measurements.

    python benchmarks/standard.py
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import budgets
import page
from common import RESULTS

from slipring.commands.bench.subject import machine

HERE = Path(__file__).parent
BENCH = ["-m", "slipring", "bench", "--repeats", "5"]
REBUILT = [*BENCH, "--serve-flags", "--recognised-s 0"]
"""Histories that are sent again are read like new ones, as by servers that do not recognise them."""
LOOPS = [*REBUILT, "--workload", "coding,short"]
FAST = [*REBUILT, "--tokens-per-s", "4000"]
DEEP = [*REBUILT, "--deep", "20k,75k,150k", "--mode", "http-full,http-chained,websocket"]
RECOGNISED = [*BENCH, "--workload", "coding,short"]
PARTS: dict[str, list[str]] = {
    "agent loops": [*LOOPS, "--json", str(RESULTS / "loops.json")],
    "agent loops, faster": [*FAST, "--json", str(RESULTS / "fast.json")],
    "deep histories": [*DEEP, "--json", str(RESULTS / "deep.json")],
    "agent loops, recognised": [*RECOGNISED, "--json", str(RESULTS / "recognised.json")],
    "continuations": [str(HERE / "continuation_cost.py")],
    "streams": [str(HERE / "stream_cost.py"), "--rounds", "9"],
    "rollouts": [str(HERE / "rollout.py")],
    "engines": [str(HERE / "engine_overhead.py")],
    "resent histories": [str(HERE / "resent_history.py")],
    "safety checks": [str(HERE / "check_cost.py")],
    "the live page": [str(HERE / "live_cost.py")],
    "idle connections": [str(HERE / "idle_connections.py"), "--connections", "10000"],
}
LONGEST_S = 600
ENDING_S = 10
"""Time for a part that was interrupted to end its child processes."""


def run(command: list[str], longest_s: float) -> int:
    """Run a part; return its exit code. Ends the part and its child processes in any case."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    part = subprocess.Popen([sys.executable, *command], start_new_session=True)
    try:
        return part.wait(longest_s)
    except subprocess.TimeoutExpired:
        return -1
    finally:
        part.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            part.wait(ENDING_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(part.pid, signal.SIGKILL)
        part.wait()


def main() -> int:
    failed = []
    began, since = time.monotonic(), machine.now()
    for number, (name, command) in enumerate(PARTS.items(), 1):
        print(f"── {number}/{len(PARTS)} {name} · {time.monotonic() - began:.0f} s so far", flush=True)
        if run(command, LONGEST_S):
            failed.append(name)
    budgets.show(budgets.all_budgets(since))
    print(f"all in {time.monotonic() - began:.0f} s; figures in {RESULTS.relative_to(HERE.parent)}")
    if failed:
        print(f"could not be measured: {', '.join(failed)}")
        return 1
    page.main()
    print(f"{page.PAGE.relative_to(HERE.parent)} and its figure show them")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
