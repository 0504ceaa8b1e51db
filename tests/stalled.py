"""A pytest plugin that makes a quiet machine act like a busy one: ``pytest -p tests.stalled``.

Event loops of the tests stand still at random moments, each time for longer than most short timeouts in
the suite. A test that fails only with this plugin depends on luck. The moments follow from
``SLIPRING_STALL_SEED`` and the name of the test.
"""

import asyncio
import os
import random
import time
from typing import Any

import pytest

_EVERY = 40
"""How many rounds of a loop there are between two stalls, on average."""
_LONGEST_S = 0.7
_MOST = 25
"""In one test."""


class Stalls:
    """The stalls of the running test."""

    def __init__(self) -> None:
        self._random = random.Random()
        self._left = 0

    def begin(self, name: str) -> None:
        self._random.seed(f"{os.environ.get('SLIPRING_STALL_SEED', '1')} {name}")
        self._left = _MOST

    def maybe(self) -> None:
        if self._left and self._random.random() < 1 / _EVERY:
            self._left -= 1
            time.sleep(self._random.uniform(_LONGEST_S / 4, _LONGEST_S))


_stalls = Stalls()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _stalls.begin(item.nodeid)


def pytest_configure() -> None:
    run_once: Any = asyncio.BaseEventLoop._run_once  # type: ignore[attr-defined]

    def stalled(loop: asyncio.BaseEventLoop) -> None:
        _stalls.maybe()
        run_once(loop)

    asyncio.BaseEventLoop._run_once = stalled  # type: ignore[attr-defined]
