"""Runs ``slipring bench`` as a process."""

import asyncio
import os
import sys
from pathlib import Path

COMMAND = (sys.executable, "-m", "slipring", "bench")
FAST = ("--engine", "simulated:tokens_per_s=0,output_tokens=4,digest=true")


async def run(*arguments: str, **variables: str) -> tuple[int | None, str, str]:
    """Run it; returns exit code, standard output and standard error."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLIPRING_")}
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *arguments, env={**clean, **variables}, stdout=-1, stderr=-1
    )
    out, err = await asyncio.wait_for(process.communicate(), 120)
    return process.returncode, out.decode(), err.decode()


def children_of(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in found for child in path.read_text().split()]


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
