"""A test that hangs is ended by the timeout of pyproject.toml, which names it; the tests after it run."""

import asyncio
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HANGING = """
import asyncio
import threading


async def test_waits_in_a_loop():
    await asyncio.Event().wait()


def test_waits_for_a_lock():
    threading.Event().wait()


def test_passes():
    pass
"""


@pytest.mark.parametrize("workers", ["0", "1"], ids=["one process", "with workers"])
async def test_a_test_that_hangs_fails_by_name_and_the_next_one_runs(workers: str, tmp_path: Path) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGING, encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)),
        *("-p", "no:cacheprovider", "-n", workers, "--timeout", "0.5", str(tmp_path)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output = (await process.communicate())[0].decode()
    assert process.returncode == 1, output
    failed = set(re.findall(r"FAILED \S+::(\w+)", output))
    assert failed == {"test_waits_in_a_loop", "test_waits_for_a_lock"}, output
    assert len(re.findall(r"E +Failed: Timeout", output)) == 2, output
    assert "2 failed, 1 passed" in output
