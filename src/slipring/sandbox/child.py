"""The child process of a sandbox: reads calls from standard input, one at a time, and answers each.

It exits when its parent closes the pipe or dies. A timer measures processor time, and its signal kills the
process even within native code; the kernel limits memory. A sealed child can open no file and no socket: the
kernel gives it no further descriptor. The child ignores signals that a terminal or a
service manager sends to the whole process group: the parent decides when it exits.
"""

import os
import resource
import signal
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any, BinaryIO

import msgspec

from slipring.base.errors import InvalidRequest
from slipring.sandbox import pipe_messages
from slipring.sandbox.pipe_messages import (
    LENGTH_BYTES,
    Answer,
    Call,
    Crashed,
    Done,
    Exceeded,
    Outcome,
    Ready,
    Rejected,
    SandboxLimits,
    Setup,
)

_IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_MAX_TRACEBACK_CHARS = 4000


def main() -> None:
    """Answer calls until standard input ends."""
    for number in _IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    calls, replies = _take_pipes()
    first = _read(calls)
    if first is None:
        return
    setup = pipe_messages.decode_setup(first)
    _apply_limits(setup.limits)
    memory = _MemoryInUse()
    if setup.limits.is_sealed:
        for module in set(setup.tasks.values()):
            import_module(module)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
    _write(replies, pipe_messages.encode(Ready()))
    while (data := _read(calls)) is not None:
        _write(replies, _answer(pipe_messages.decode_call(data), setup, memory))


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """The pipes to the parent. Descriptors 0 and 1 become /dev/null, so that prints cannot corrupt them."""
    calls = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    return calls, replies


def _apply_limits(limits: SandboxLimits) -> None:
    os.nice(limits.niceness)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = limits.memory_bytes if hard == resource.RLIM_INFINITY else min(limits.memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


class _MemoryInUse:
    """The memory of this process, read from a file that stays open."""

    def __init__(self) -> None:
        try:
            self._file: int | None = os.open("/proc/self/statm", os.O_RDONLY)
        except OSError:
            self._file = None  # not Linux

    def is_half(self, limits: SandboxLimits) -> bool:
        """Whether half of the memory is in use, so that the next call could fail for want of it."""
        if self._file is None:
            return False
        resident_bytes = int(os.pread(self._file, 256, 0).split()[1]) * resource.getpagesize()
        return resident_bytes > limits.memory_bytes // 2


def _read(pipe: BinaryIO) -> bytes | None:
    """The next message, or None if the parent has closed the pipe."""
    length = pipe.read(LENGTH_BYTES)
    if len(length) < LENGTH_BYTES:
        return None
    size = int.from_bytes(length, "big")
    data = pipe.read(size)
    return data if len(data) == size else None


def _write(pipe: BinaryIO, data: bytes) -> None:
    try:
        pipe.write(pipe_messages.with_length(data))
        pipe.flush()
    except BrokenPipeError:
        os._exit(0)  # the parent has died


def _answer(call: Call, setup: Setup, memory: _MemoryInUse) -> bytes:
    """Carry out a call and encode its outcome."""
    limits = setup.limits
    try:
        outcome = _run(_find(call.task, setup), call.arguments, limits.timeout_s)
        data = pipe_messages.encode(Answer(outcome, memory.is_half(limits)))
    except MemoryError:
        return pipe_messages.encode(Answer(Exceeded(_out_of_memory(limits)), has_grown=True))
    except Exception:
        crashed = Crashed(traceback.format_exc()[-_MAX_TRACEBACK_CHARS:])
        return pipe_messages.encode(Answer(crashed, has_grown=False))
    if len(data) > limits.result_bytes:
        exceeded = Exceeded(f"expands to more than {limits.result_bytes} bytes ({limits.words.result})")
        return pipe_messages.encode(Answer(exceeded, has_grown=True))
    return data


def _find(task: str, setup: Setup) -> Callable[..., Any]:
    """Import a permitted function, before the timer starts."""
    function: Callable[..., Any] = getattr(import_module(setup.tasks[task]), task)
    return function


def _run(function: Callable[..., Any], arguments: list[Any], timeout_s: float) -> Outcome:
    signal.setitimer(signal.ITIMER_PROF, timeout_s)
    try:
        return Done(function(*arguments))
    except InvalidRequest as error:
        return Rejected(error.message, error.param, error.code)
    except RecursionError:
        return Exceeded("is nested too deeply")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _out_of_memory(limits: SandboxLimits) -> str:
    words = limits.words
    return f"takes more than {limits.memory_bytes} bytes of memory to {words.verb} ({words.memory})"


if __name__ == "__main__":
    try:
        main()
    except (msgspec.DecodeError, KeyboardInterrupt):
        os._exit(1)
