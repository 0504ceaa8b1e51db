"""The child process of llama.cpp when its model cannot be loaded."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from slipring.base.errors import StartupError, Unavailable
from slipring.engines.llama.child_process import ChildProcess, ChildSettings
from tests.prompts.gguf_writer import write_hollow_model
from tests.prompts.vocabulary import small_metadata
from tests.server.raw import until


def process_for(path: Path) -> ChildProcess:
    settings = ChildSettings(path=str(path), context=64, slots=1, threads=1, chunk=32)
    return ChildProcess(settings)


async def test_start_fails_if_the_model_cannot_be_loaded(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF and nothing that follows from it")
    with pytest.raises(StartupError, match="did not start"):
        await process_for(path).start()


async def test_a_log_line_of_any_length_is_read_so_that_the_child_never_blocks(tmp_path: Path) -> None:
    log = asyncio.StreamReader()
    log.feed_data(b"first\n" + b"x" * 200_000)
    reading = asyncio.create_task(process_for(tmp_path)._drain(log))
    await asyncio.sleep(0)
    log.feed_data(b"y" * 200_000 + b"\nlast\n")
    log.feed_eof()
    assert await reading == "last"


async def test_a_dead_child_is_restarted_until_its_model_can_be_loaded(tmp_path: Path) -> None:
    path, aside = tmp_path / "hollow.gguf", tmp_path / "aside.gguf"
    write_hollow_model(path, small_metadata())
    process = process_for(path)
    await process.start()
    try:
        first = process.pid
        path.rename(aside)
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: process.pid != first)
        second = process.pid
        with pytest.raises(Unavailable):
            _ = process.url
        assert process.trouble is not None
        await until(lambda: process.pid != second)  # the first restart failed
        aside.rename(path)
        await until(lambda: bool(process.restarts))
        assert process.trouble is None
    finally:
        await process.close()


async def test_a_child_that_cannot_be_started_for_a_while_is_started_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As when the machine has no memory for another process, which may be why the child was killed."""
    path = tmp_path / "hollow.gguf"
    write_hollow_model(path, small_metadata())
    process = process_for(path)
    with monkeypatch.context() as during:
        during.setattr(sys, "executable", str(tmp_path / "missing"))
        with pytest.raises(StartupError, match="did not start: No such file"):
            await process.start()
    await process.start()
    try:
        with monkeypatch.context() as during:
            during.setattr(sys, "executable", str(tmp_path / "missing"))
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            await until(lambda: "did not start: No such file" in caplog.text)
        await until(lambda: bool(process.restarts))
    finally:
        await process.close()
