"""The standard set: every measurement behind a budget, one after the other, and the budgets held against it.

Takes up to ten minutes on two cores, and wants them for itself. Figures are no tests: it ends well whether
budgets are met or not, and fails only where something could not be measured. The page of measurements is
written anew.

    python benchmarks/standard.py
"""

import subprocess
import sys
import time
from pathlib import Path

import budgets
import page
from common import RESULTS

from slipring.bench import machine

HERE = Path(__file__).parent
LOOPS = ["-m", "slipring", "bench", "--workload", "coding,short", "--repeats", "5"]
FAST = ["-m", "slipring", "bench", "--tokens-per-s", "4000", "--repeats", "5"]
DEEP = ["-m", "slipring", "bench", "--deep", "20k,75k,150k", "--mode", "http-full,http-chained,websocket"]
PARTS: dict[str, list[str]] = {
    "agent loops": [*LOOPS, "--json", str(RESULTS / "loops.json")],
    "agent loops, faster": [*FAST, "--json", str(RESULTS / "fast.json")],
    "deep histories": [*DEEP, "--repeats", "5", "--json", str(RESULTS / "deep.json")],
    "continuations": [str(HERE / "continuation_cost.py")],
    "streams": [str(HERE / "stream_cost.py"), "--rounds", "9"],
    "rollouts": [str(HERE / "rollout.py")],
    "engines": [str(HERE / "engine_overhead.py")],
    "idle connections": [str(HERE / "idle_connections.py"), "--connections", "10000"],
}
LONGEST_S = 600


def main() -> int:
    failed = []
    began, since = time.monotonic(), machine.now()
    for number, (name, command) in enumerate(PARTS.items(), 1):
        print(f"── {number}/{len(PARTS)} {name} · {time.monotonic() - began:.0f} s so far", flush=True)
        try:
            code = subprocess.run([sys.executable, *command], timeout=LONGEST_S, check=False).returncode
        except subprocess.TimeoutExpired:
            code = -1
        if code:
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
