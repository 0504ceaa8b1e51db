"""Schedules garbage collection in a serving process: none while it starts or exits, none among what it has
loaded at startup, and full collections, over all that its connections hold, only when one is due.

A full collection stops the process for half a second with 10,000 connections, although they hold no garbage.
Python starts one whenever the number of objects has grown by a quarter, which is every few seconds while
connections are opened or many responses run.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_YOUNG = (5_000, 5)
"""Thresholds of the collections that look at new objects only. Each takes a few milliseconds at most."""
_NEVER = 2**31 - 1
_LOOK_S = 10.0
_REST = 500.0
"""A full collection runs after so many times the time that the last one took: they take a fifth of a percent
of the time."""
_LONGEST_REST_S = 600.0
_MIN_GROWTH_BYTES = 32 * 1024 * 1024


@contextmanager
def collection_paused() -> Iterator[None]:
    """Collect nothing while the block imports modules, and exempt from later collections what exists at its
    end. What modules define stays for good, and looking for garbage among it again and again takes an eighth
    of the time in which a server starts."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def exempt_from_collection() -> None:
    """Exempt what exists now from garbage collection. For a process that has just started: what it has loaded
    stays for good, and full collections need not look at it."""
    gc.collect()
    gc.freeze()


class FullCollections:
    """The full collections of a serving process, instead of those that Python would start.

    The longer the last one took, the later the next one runs: every ten seconds in a small process, after
    minutes in one with 10,000 connections. Sooner if memory has grown by a quarter since it was lowest, or by
    a sixteenth if no response is being generated: a few objects in garbage can hold many megabytes, and a
    process at rest makes no new objects that would have Python look for them.
    """

    def __init__(
        self,
        resident_bytes: Callable[[], int | None],
        is_busy: Callable[[], bool],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``resident_bytes``: memory of the process; None if unknown. ``is_busy``: whether responses are
        being generated. ``clock``: measures collections. From now on, Python starts no full collections
        itself."""
        self._resident_bytes = resident_bytes
        self._is_busy = is_busy
        self._clock = clock
        self._rest_s = 0.0
        self._lowest_bytes = resident_bytes() or 0
        """The memory after the last collection, or less if it has fallen since."""
        self._next_look_s: float | None = None
        self._last_s = 0.0
        gc.set_threshold(*_YOUNG, _NEVER)

    def run_if_due(self, clock_s: float) -> bool:
        """Collect if that is due; returns whether it was. Looks at most every 10 s."""
        if self._next_look_s is None:
            self._last_s, self._next_look_s = clock_s, clock_s + _LOOK_S
        if clock_s < self._next_look_s:
            return False
        self._next_look_s = clock_s + _LOOK_S
        if not self._is_due(clock_s):
            return False
        began = self._clock()
        gc.collect()
        self._rest_s = min(_REST * (self._clock() - began), _LONGEST_REST_S)
        self._last_s, self._lowest_bytes = clock_s, self._resident_bytes() or 0
        return True

    def _is_due(self, clock_s: float) -> bool:
        if gc.get_count()[2] and clock_s - self._last_s >= self._rest_s:
            return True
        resident = self._resident_bytes() or 0
        self._lowest_bytes = min(self._lowest_bytes, resident)
        growth = resident - self._lowest_bytes - _MIN_GROWTH_BYTES
        if growth < self._lowest_bytes / 16:
            return False
        return growth >= self._lowest_bytes / 4 or not self._is_busy()


def skip_last_collection() -> None:
    """Exempt every object from the collection with which the interpreter exits. It takes a tenth of a second,
    and the kernel frees the memory anyway."""
    gc.freeze()
