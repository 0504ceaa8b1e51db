"""``python -m tests.mutants`` plants each mutant in a copy of the source, and shows that a machine finds it.

Ends with 1 if a mutant is not found, or if a machine fails without one.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutants.mutants import MUTANTS, SRC, Mutant

ROOT = SRC.parent


def find(machine: str, mutant: Mutant | None, seconds: float) -> tuple[str | None, float]:
    """Run a machine over the source, with a mutant or without; returns what it finds, and its seconds."""
    with tempfile.TemporaryDirectory() as directory:
        src = Path(directory) / "src"
        shutil.copytree(SRC, src, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.gguf"))
        if mutant is not None:
            mutant.plant(src)
        began = time.monotonic()
        try:
            run = subprocess.run(
                [sys.executable, "-m", "tests.mutants.run_machine", machine],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": f"{src}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"},
                capture_output=True,
                text=True,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired:
            return None, seconds
    took = time.monotonic() - began
    if run.returncode not in (0, 1):
        sys.exit(run.stderr)
    lines = run.stdout.strip().splitlines() or run.stderr.strip().splitlines()
    return (lines[-1] if run.returncode else None), took


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    parser.add_argument("--seconds", type=float, default=300.0, help="the most for one mutant")
    arguments = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if arguments.only in mutant.name]
    missed = 0
    for machine in dict.fromkeys(mutant.machine for mutant in chosen):
        fault, took = find(machine, None, arguments.seconds)
        missed += fault is not None
        print(f"{took:4.0f} s  {machine} without a mutant: {fault or 'passes'}", flush=True)
    for mutant in chosen:
        fault, took = find(mutant.machine, mutant, arguments.seconds)
        missed += fault is None
        print(f"{took:4.0f} s  {mutant.name}: {fault or 'NOT FOUND'}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
