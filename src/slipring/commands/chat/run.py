"""Runs a chat: reads lines, executes commands, sends turns and handles Ctrl-C.

The main thread reads lines, because only it receives Ctrl-C. An event loop in a second thread owns the
connection, so that it is read while the user types.
"""

import argparse
import asyncio
import io
import os
import re
import sys
import threading
from collections.abc import Coroutine, Iterable
from contextlib import ExitStack
from typing import Any, TypeVar

from slipring.base.standard_streams import discard_output
from slipring.commands.chat.connection import Unreachable
from slipring.commands.chat.conversation import Conversation
from slipring.commands.chat.options import ChatOptions, from_namespace
from slipring.commands.chat.terminal import Keyboard, Screen

NO_ANSWER = 1
INTERRUPTED = 130
_COMMAND = re.compile(r"/[a-z]+")
_HELP = (
    "/new starts a new conversation, /help shows this, /quit or Ctrl-D exits;"
    " Ctrl-C stops an answer, and exits at the prompt"
)
_MOST_MODELS = 8

T = TypeVar("T")


def chat(arguments: argparse.Namespace) -> int:
    """Chat on the standard streams and return the exit code. A message in the arguments is the only turn."""
    options, message = from_namespace(arguments, os.environ), " ".join(arguments.message)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # bytes that are no text must not end the chat
    screen = Screen(sys.stdout, sys.stderr, os.environ)
    is_interactive = not message and sys.stdin.isatty()
    with ExitStack() as stack:
        lines: Iterable[str] = [message] if message else sys.stdin
        if is_interactive:
            lines = stack.enter_context(Keyboard(sys.stdin, sys.stdout, sys.stderr))
        try:
            return run(options, lines, screen, is_interactive=is_interactive)
        except BrokenPipeError:  # the reader of standard output has exited
            discard_output()
            return NO_ANSWER


def run(options: ChatOptions, lines: Iterable[str], screen: Screen, *, is_interactive: bool = False) -> int:
    """Send a turn for each line and return the exit code.

    Raises ``Unreachable`` if the first connection fails, and, unless ``is_interactive``, if a later one does.
    """
    try:
        with _LoopThread() as loop:
            conversation = Conversation(options, screen)
            try:
                loop.run(conversation.connect())
                if is_interactive:
                    models = [options.model] if options.model else loop.run(conversation.models())
                    screen.note(_greeting(options.url, models))
                return _Chat(conversation, loop, screen, is_interactive).converse(lines)
            finally:
                loop.run(conversation.disconnect())
    except KeyboardInterrupt:
        screen.finish_line()
        return INTERRUPTED


def _greeting(url: str, models: list[str]) -> str:
    if len(models) > 1:
        more = ", …" if len(models) > _MOST_MODELS else ""
        named = [f"models {', '.join(models[:_MOST_MODELS])}{more} (choose one with --model)"]
    else:
        named = [f"model {model}" for model in models]
    return " · ".join([url, *named, "/help lists the commands"])


class _Chat:
    """Executes commands and sends turns. If it is interactive, it continues after every failure."""

    def __init__(
        self, conversation: Conversation, loop: "_LoopThread", screen: Screen, is_interactive: bool
    ) -> None:
        self._conversation = conversation
        self._loop = loop
        self._screen = screen
        self._is_interactive = is_interactive

    def converse(self, lines: Iterable[str]) -> int:
        """Execute or send each line; return the exit code."""
        code = 0
        for line in lines:
            text = line.strip()
            if text == "/quit":
                break
            if text == "/new":
                self._conversation.start_over()
                self._screen.note("a new conversation")
            elif _COMMAND.fullmatch(text):
                self._screen.note(_HELP if text == "/help" else f"unknown command {text}; {_HELP}")
            elif text:
                code = max(code, self._send(text))
        return code

    def _send(self, text: str) -> int:
        try:
            is_answered = self._loop.run(self._conversation.turn(text))
        except KeyboardInterrupt:
            self._loop.run(self._conversation.stop())
            if not self._is_interactive:
                raise
            return 0
        except Unreachable as error:
            if not self._is_interactive:
                raise
            self._screen.error(str(error))
            return 0
        return 0 if is_answered or self._is_interactive else NO_ANSWER


class _LoopThread:
    """An event loop in a thread. Leaving the context ends both."""

    def __enter__(self) -> "_LoopThread":
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(ready)), daemon=True)
        self._thread.start()
        ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join()

    async def _run(self, ready: threading.Event) -> None:
        self._loop, self._done = asyncio.get_running_loop(), asyncio.Event()
        ready.set()
        await self._done.wait()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and return its result. Ctrl-C ends the waiting, not the coroutine."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
