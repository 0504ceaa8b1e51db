"""A pytest plugin that makes a quiet machine act like a busy one: ``pytest -p tests.stalled``.

At random moments of a test, each of these happens to it:

- **stalls**: its event loops stand still, each time for longer than most short timeouts in the suite, while
  other threads and processes go on;
- **leaps**: the clocks of its process go forward by seconds, as if the whole machine had stood still. They
  cost no time;
- **stops**: a child process stands still (``SIGSTOP``, then ``SIGCONT``) while the test goes on.

A test that fails only with this plugin depends on luck. ``SLIPRING_STALLS`` chooses some of them
(``leaps,stops``). The moments follow from ``SLIPRING_STALL_SEED`` and the name of the test, those of stops
also from when the child process gets the processor.
"""

import asyncio
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from threading import Timer
from typing import Any

import pytest

_EVERY = 40
"""How many rounds of a loop there are between two events of a kind, on average."""


class Moments:
    """The random moments of the running test at which one kind of event happens."""

    def __init__(self, kind: str, most: int) -> None:
        self._kind, self._most = kind, most
        self._seed = os.environ.get("SLIPRING_STALL_SEED", "1")
        self.random = random.Random()
        self._left = 0

    def begin(self, name: str) -> None:
        self.random.seed(f"{self._seed} {self._kind} {name}")
        self._left = self._most

    def now(self) -> bool:
        if self._left and self.random.random() < 1 / _EVERY:
            self._left -= 1
            return True
        return False


class Stalls:
    _LONGEST_S = 0.7

    def __init__(self) -> None:
        self._moments = Moments("stalls", most=25)

    def begin(self, name: str) -> None:
        self._moments.begin(name)

    def maybe(self) -> None:
        if self._moments.now():
            time.sleep(self._moments.random.uniform(self._LONGEST_S / 4, self._LONGEST_S))


class Leaps:
    """Moves the clocks of the process forward, and back to the true time before the next test."""

    _LONGEST_S = 10.0

    def __init__(self) -> None:
        self._moments = Moments("leaps", most=3)
        self._ahead_s = 0.0
        for name in ("monotonic", "perf_counter", "time"):
            setattr(time, name, self._ahead_of(getattr(time, name)))

    def _ahead_of(self, clock: Callable[[], float]) -> Callable[[], float]:
        return lambda: clock() + self._ahead_s

    def begin(self, name: str) -> None:
        self._moments.begin(name)
        self._ahead_s = 0.0

    def maybe(self) -> None:
        if self._moments.now():
            self._ahead_s += self._moments.random.uniform(self._LONGEST_S / 2, self._LONGEST_S)


class Stops:
    """Stops one of the child processes that the test started."""

    _LONGEST_S = 3.0

    def __init__(self) -> None:
        self._moments = Moments("stops", most=3)
        self._children: list[subprocess.Popen[Any]] = []
        start: Any = subprocess.Popen.__init__

        def started(child: subprocess.Popen[Any], *args: Any, **options: Any) -> None:
            start(child, *args, **options)
            self._children.append(child)

        subprocess.Popen.__init__ = started  # type: ignore[assignment]

    def begin(self, name: str) -> None:
        self._moments.begin(name)
        self._children.clear()

    def maybe(self) -> None:
        if self._children and self._moments.now():
            child = self._moments.random.choice(self._children)
            seconds = self._moments.random.uniform(self._LONGEST_S / 4, self._LONGEST_S)
            # Popen sends nothing to a process whose end it knows: its id may be another's by now.
            child.send_signal(signal.SIGSTOP)
            timer = Timer(seconds, child.send_signal, (signal.SIGCONT,))
            timer.daemon = True
            timer.start()


_KINDS: dict[str, Callable[[], Stalls | Leaps | Stops]] = {"stalls": Stalls, "leaps": Leaps, "stops": Stops}
_events: list[Stalls | Leaps | Stops] = []


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for event in _events:
        event.begin(item.nodeid)


def pytest_configure() -> None:
    _events[:] = [_KINDS[kind]() for kind in os.environ.get("SLIPRING_STALLS", ",".join(_KINDS)).split(",")]
    run_once: Any = asyncio.BaseEventLoop._run_once  # type: ignore[attr-defined]

    def stalled(loop: asyncio.BaseEventLoop) -> None:
        for event in _events:
            event.maybe()
        run_once(loop)

    asyncio.BaseEventLoop._run_once = stalled  # type: ignore[attr-defined]
