"""A child process of a sandbox: reads calls from its standard input, one at a time, and answers each.

It ends when its parent closes the pipe or is gone. Processor time is measured by a timer whose signal ends
the process, even within native code; memory is bounded by the kernel. Signals that are meant for the server
and reach all processes of its group are ignored: the parent decides when this process ends.
"""

import os
import resource
import signal
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any, BinaryIO

import msgspec

from slipring.errors import InvalidRequest
from slipring.sandbox import pipe_messages
from slipring.sandbox.pipe_messages import (
    LENGTH_BYTES,
    Answer,
    Broken,
    Call,
    Done,
    Exceeded,
    Orders,
    Outcome,
    Ready,
    Refused,
)

_NICENESS = 10
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_LONGEST_TRACEBACK = 4000


def main() -> None:
    """Serve calls until the standard input ends."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    calls, answers = _take_pipes()
    first = _read(calls)
    if first is None:
        return
    orders = pipe_messages.orders.decode(first)
    _bound(orders)
    _write(answers, pipe_messages.encode(Ready()))
    while (data := _read(calls)) is not None:
        _write(answers, _answer(pipe_messages.call.decode(data), orders))


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """The pipes to the parent. What libraries print goes nowhere."""
    calls = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return calls, answers


def _bound(orders: Orders) -> None:
    os.nice(_NICENESS)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = orders.memory_bytes if hard == resource.RLIM_INFINITY else min(orders.memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _has_grown(orders: Orders) -> bool:
    """Whether half of the memory is in use: what one call leaves behind must not be missing to the next."""
    try:
        with open("/proc/self/statm", "rb") as file:
            resident = int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return False  # not Linux
    return resident > orders.memory_bytes // 2


def _read(pipe: BinaryIO) -> bytes | None:
    """The next message; None: the parent wants no more."""
    length = pipe.read(LENGTH_BYTES)
    if len(length) < LENGTH_BYTES:
        return None
    size = int.from_bytes(length, "big")
    data = pipe.read(size)
    return data if len(data) == size else None


def _write(pipe: BinaryIO, data: bytes) -> None:
    try:
        pipe.write(pipe_messages.framed(data))
        pipe.flush()
    except BrokenPipeError:
        os._exit(0)  # the parent is gone


def _answer(call: Call, orders: Orders) -> bytes:
    """The outcome of a call, as a message."""
    try:
        outcome = _run(_found(call.task, orders), call.arguments, orders.timeout_s)
        data = pipe_messages.encode(Answer(outcome, _has_grown(orders)))
    except MemoryError:
        return pipe_messages.encode(Answer(Exceeded(out_of_memory(orders.memory_bytes)), has_grown=True))
    except Exception:
        return pipe_messages.encode(
            Answer(Broken(traceback.format_exc()[-_LONGEST_TRACEBACK:]), has_grown=False)
        )
    if len(data) > orders.result_bytes:
        outcome = Exceeded(f"expands to more than {orders.result_bytes} bytes (max_compiled_bytes)")
        return pipe_messages.encode(Answer(outcome, has_grown=True))
    return data


def _found(task: str, orders: Orders) -> Callable[..., Any]:
    """A function that may be called. Its module is imported before the time is taken."""
    function: Callable[..., Any] = getattr(import_module(orders.tasks[task]), task)
    return function


def _run(function: Callable[..., Any], arguments: list[Any], timeout_s: float) -> Outcome:
    signal.setitimer(signal.ITIMER_PROF, timeout_s)
    try:
        return Done(function(*arguments))
    except InvalidRequest as error:
        return Refused(error.message, error.param, error.code)
    except RecursionError:
        return Exceeded("is nested too deeply")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def out_of_memory(memory_bytes: int) -> str:
    return f"takes more than {memory_bytes} bytes of memory to compile (compile_memory_bytes)"


if __name__ == "__main__":
    try:
        main()
    except (msgspec.DecodeError, KeyboardInterrupt):
        os._exit(1)
