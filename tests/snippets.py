"""Runs Python programs of the documentation, each in a module of its own.

They run in a thread of this process: a new interpreter would spend a second on importing the openai package.
"""

import asyncio
import contextlib
import gc
import io
import types
import warnings
from collections.abc import Iterator
from pathlib import Path


async def run_snippet(code: str, directory: Path | None = None) -> str:
    """Run a program in a directory; return what it prints. Raises what the program raises."""
    return await asyncio.to_thread(_run, code, directory)


def _run(code: str, directory: Path | None) -> str:
    printed = io.StringIO()
    with contextlib.ExitStack() as stack:
        if directory:
            stack.enter_context(contextlib.chdir(directory))
        stack.enter_context(_cleared())
        stack.enter_context(contextlib.redirect_stdout(printed))
        runner = stack.enter_context(asyncio.Runner())
        asyncio.set_event_loop(runner.get_loop())  # the main thread of an interpreter has one too
        exec(compile(code, "snippet", "exec", dont_inherit=True), types.ModuleType("__main__").__dict__)
    return printed.getvalue()


@contextlib.contextmanager
def _cleared() -> Iterator[None]:
    """Delete what a program leaves behind. It may leave connections open, as at the end of an interpreter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()
