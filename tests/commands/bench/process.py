"""The command ``slipring bench``, and the processes that it starts."""

import sys
from pathlib import Path

COMMAND = (sys.executable, "-m", "slipring", "bench")
FAST = ("--engine", "simulated:tokens_per_s=0,output_tokens=4,digest=true")


def children_of(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in found for child in path.read_text().split()]


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
