"""A chat from its first line to its last: where lines come from, commands, Ctrl-C.

Lines are read in the main thread, where the terminal and Ctrl-C are at home. The socket lives in a thread of
its own, so that it is read while the user types.
"""

import asyncio
import contextlib
import io
import os
import re
import sys
import threading
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any, TextIO, TypeVar

from slipring.chat.connection import Unreachable
from slipring.chat.conversation import Conversation
from slipring.chat.options import Options
from slipring.chat.screen import Screen

NO_ANSWER = 1
INTERRUPTED = 130
_PROMPT = "> "
_COMMAND = re.compile(r"/[a-z]+")
_HELP = "/new starts a new conversation, /quit or Ctrl-D ends; Ctrl-C stops an answer, or ends"

T = TypeVar("T")


def chat(options: Options, message: str) -> int:
    """Chat on this process's own streams; the exit code. ``message``: all there is to ask, if not empty."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an odd character is no reason to end
    screen = Screen(sys.stdout, sys.stderr, os.environ)
    is_interactive = not message and sys.stdin.isatty()
    lines = [message] if message else _typed(sys.stdout, sys.stderr) if is_interactive else sys.stdin
    try:
        return run(options, lines, screen, is_interactive=is_interactive)
    except BrokenPipeError:
        # Whoever read the answers has left. What is buffered must not fail once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO_ANSWER


def run(options: Options, lines: Iterable[str], screen: Screen, *, is_interactive: bool = False) -> int:
    """Have a turn for each line; the exit code. Raises ``Unreachable``, if interactive only at first."""
    try:
        with _Background() as background:
            conversation = Conversation(options, screen)
            try:
                background.run(conversation.connect())
                if is_interactive:
                    screen.note(f"{options.url} · /help lists the commands")
                return _Chat(conversation, background, screen, is_interactive).converse(lines)
            finally:
                background.run(conversation.disconnect())
    except KeyboardInterrupt:
        screen.finish_line()
        return INTERRUPTED


class _Chat:
    """Lines in, turns out. With somebody at the keyboard, no failure ends it."""

    def __init__(
        self, conversation: Conversation, background: "_Background", screen: Screen, is_interactive: bool
    ) -> None:
        self._conversation = conversation
        self._background = background
        self._screen = screen
        self._is_interactive = is_interactive

    def converse(self, lines: Iterable[str]) -> int:
        """Obey commands and ask everything else; the exit code."""
        code = 0
        for line in lines:
            text = line.strip()
            if text == "/quit":
                break
            if text == "/new":
                self._conversation.start_anew()
                self._screen.note("a new conversation")
            elif _COMMAND.fullmatch(text):
                self._screen.note(_HELP if text == "/help" else f"there is no {text}; {_HELP}")
            elif text:
                code = max(code, self._ask(text))
        return code

    def _ask(self, text: str) -> int:
        try:
            is_answered = self._background.run(self._conversation.turn(text))
        except KeyboardInterrupt:
            self._background.run(self._conversation.stop())
            if not self._is_interactive:
                raise
            return 0
        except Unreachable as error:
            if not self._is_interactive:
                raise
            self._screen.error(str(error))
            return 0
        return 0 if is_answered or self._is_interactive else NO_ANSWER


def _typed(out: TextIO, err: TextIO) -> Iterator[str]:
    """What the user types, until Ctrl-D or Ctrl-C."""
    with contextlib.suppress(ImportError):  # not to be had on every platform
        import readline  # noqa: F401, its presence gives ``input`` a history and keys to edit with
    while True:
        if not out.isatty():
            print(_PROMPT, end="", file=err, flush=True)
        try:
            line = input(_PROMPT if out.isatty() else "")
        except (EOFError, KeyboardInterrupt):
            print(file=err)
            return
        yield line


class _Background:
    """An event loop in a thread of its own, and a way to have things done there."""

    def __enter__(self) -> "_Background":
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live(ready)), daemon=True)
        self._thread.start()
        ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join()

    async def _live(self, ready: threading.Event) -> None:
        self._loop, self._done = asyncio.get_running_loop(), asyncio.Event()
        ready.set()
        await self._done.wait()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run to the end; Ctrl-C ends the waiting, not the coroutine."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
