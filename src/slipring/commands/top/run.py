"""Runs ``slipring top``: follows the stream of a server and writes what it says.

The first connection must succeed. Later ones are tried again, with growing pauses.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import sys
from collections import Counter
from typing import TextIO

import msgspec

from slipring.base.standard_streams import discard_output
from slipring.commands.top.options import TopOptions, from_namespace
from slipring.commands.top.state import State, View
from slipring.commands.top.stream import StreamLost, Unreachable, live_stream, watch
from slipring.observation.live_messages import Message, Update

OK = 0
NOT_REACHED = 1
WRONG_USAGE = 2
INTERRUPTED = 130
_MOST_UPDATES = 10
"""Of one worker, five seconds long, while a snapshot waits for the others."""
_PLAIN_WIDTH = 160
"""Of a snapshot that is not printed to a terminal, unless COLUMNS says otherwise."""
_NOT_PLAIN = re.compile(r"[^\x20-\x7e]+")


def top(arguments: argparse.Namespace) -> int:
    """Watch a server on the standard streams and return the exit code."""
    options = from_namespace(arguments, os.environ)
    if options.output == "screen" and not _can_draw(sys.stdout):
        print("slipring: top draws on a terminal; elsewhere use --once or --json", file=sys.stderr)
        return WRONG_USAGE
    try:
        return asyncio.run(_run(options))
    except Unreachable as error:
        print(f"slipring: {error}", file=sys.stderr)
        return NOT_REACHED
    except KeyboardInterrupt:
        return INTERRUPTED if options.is_once else OK
    except BrokenPipeError:  # the reader of standard output has all that it wanted
        discard_output()
        return OK


def _can_draw(out: TextIO) -> bool:
    return out.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


async def _run(options: TopOptions) -> int:
    if options.is_once:
        view = await snapshot(options)
        if options.output == "json":
            print(as_json(view))
        else:
            _print_text(view, options.address, sys.stdout)
        sys.stdout.flush()
        return OK
    if options.output == "json_lines":
        await watch(options, JsonLines(sys.stdout, sys.stderr))
        return OK
    await _draw(options)
    return OK


# --- One snapshot -----------------------------------------------------------------------------------


async def snapshot(options: TopOptions) -> View:
    """Return a view as soon as every worker has reported; of a worker that stays silent, without it.

    Raises ``Unreachable`` if the stream ends before.
    """
    state = State()
    updates: Counter[int] = Counter()
    try:
        async with live_stream(options) as (greeting, stream):
            state.fold(greeting)
            while not state.is_complete and max(updates.values(), default=0) < _MOST_UPDATES:
                message = await anext(stream)
                state.fold(message)
                if isinstance(message, Update):
                    updates[message.process] += 1
    except StreamLost as error:
        raise Unreachable(f"cannot watch {options.url}: {error}") from None
    view = state.view()
    assert view is not None
    return view


def as_json(view: View) -> str:
    """A view as one line of ASCII: a terminal that shows it executes nothing of a client's names."""
    text = msgspec.json.encode(view).decode()
    return _NOT_PLAIN.sub(lambda found: json.dumps(found.group())[1:-1], text)


def _print_text(view: View, address: str, out: TextIO) -> None:
    # Imported here because it takes 0.1 s, and JSON does not need it.
    from rich.console import Console

    from slipring.commands.top.screen import lines

    width = shutil.get_terminal_size((_PLAIN_WIDTH, 0)).columns
    console = Console(file=out, width=width, highlight=False)
    with console.capture() as printed:  # rich itself would end the process if the reader has ended
        for line in lines(view, address, width, None):
            console.print(line, no_wrap=True, crop=True, end="\n")
    out.write(printed.get())


class JsonLines:
    """Writes the whole view as a line of JSON for each update; troubles go to standard error."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err

    def changed(self, state: State, message: Message) -> None:
        view = state.view()
        if isinstance(message, Update) and view is not None:
            print(as_json(view), file=self._out, flush=True)

    def interrupted(self, trouble: str) -> None:
        print(f"slipring: {trouble}", file=self._err, flush=True)


# --- The screen -------------------------------------------------------------------------------------


async def _draw(options: TopOptions) -> None:
    """Draw on the terminal until ``q``, Ctrl-C or SIGTERM."""
    from slipring.commands.top.screen import Drawing, quit_key

    ended = asyncio.Event()
    with contextlib.suppress(NotImplementedError):  # not available on every platform
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    with Drawing(options.address, sys.stdout) as drawing, quit_key(sys.stdin, ended.set):
        tasks = {
            asyncio.create_task(watch(options, drawing)),
            asyncio.create_task(drawing.draw_repeatedly()),
            asyncio.create_task(ended.wait()),
        }
        try:
            done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
