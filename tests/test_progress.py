"""The progress line while an engine starts."""

import asyncio
import contextlib
import io

import pytest

from slipring.progress import Loading


class Stream(io.StringIO):
    """A stream that sets an event when it is written to."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal
        self.written = asyncio.Event()

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        self.written.set()
        return super().write(text)


@pytest.mark.parametrize(
    ("is_terminal", "shown"),
    [
        (False, "slipring: starting the engine llama …\n"),
        (True, "\r\x1b[Kloading small … 0 s\r\r\x1b[K"),
    ],
)
async def test_a_slow_start_is_shown_and_erased_from_a_terminal(is_terminal: bool, shown: str) -> None:
    stream = Stream(is_terminal)
    with Loading(stream, "llama", "small", delay_s=0) as loading:
        await asyncio.wait_for(stream.written.wait(), 60)
        loading.end()
    assert stream.getvalue() == shown


async def test_a_failure_erases_the_line_too() -> None:
    stream = Stream(is_terminal=True)
    loading = Loading(stream, "llama", "small", delay_s=0)
    with contextlib.suppress(RuntimeError), loading:
        await asyncio.wait_for(stream.written.wait(), 60)
        raise RuntimeError
    assert stream.getvalue().endswith(" s\r\r\x1b[K")


async def test_nothing_is_shown_for_a_fast_start() -> None:
    stream = Stream(is_terminal=True)
    with Loading(stream, "simulated", "small"):
        await asyncio.sleep(0)
    assert stream.getvalue() == ""
