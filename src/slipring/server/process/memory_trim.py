"""Returns freed memory of large requests and responses to the operating system.

glibc keeps large freed buffers in its heap, where they stay resident. Mapping each buffer separately instead
(M_MMAP_THRESHOLD) makes a request of 15 MiB cost two thirds more CPU. So a thread calls ``malloc_trim`` from
time to time, after enough bytes were freed, and after each full garbage collection.
"""

import asyncio
import ctypes
from collections.abc import Callable, Iterable

from slipring.core.byte_ledger import Ledger

MIN_FREED_BYTES = 16 * 1024 * 1024
"""Bytes that must have been freed since the last trim."""
_MIN_INTERVAL_S = 10.0

MallocTrim = Callable[[], object]


def find_malloc_trim() -> MallocTrim | None:
    """glibc's ``malloc_trim``; None if the C library has no such function."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    trim.argtypes = [ctypes.c_size_t]
    return lambda: trim(0)


class MemoryTrimmer:
    """Trims the heap after enough bytes of the ledgers were freed, or garbage was collected, at most every
    10 s."""

    def __init__(self, ledgers: Iterable[Ledger], malloc_trim: MallocTrim | None) -> None:
        self._ledgers = tuple(ledgers)
        self._malloc_trim = malloc_trim
        self._trimmed_at_bytes = 0
        self._not_before = 0.0
        self._has_collected = False

    def garbage_collected(self) -> None:
        """A full collection has run. How much it freed is not known."""
        self._has_collected = True

    async def trim(self, clock: float) -> None:
        """Trim in a thread, if it is due."""
        freed_bytes = sum(ledger.removed_bytes for ledger in self._ledgers)
        if self._malloc_trim is None or clock < self._not_before:
            return
        if self._has_collected or freed_bytes - self._trimmed_at_bytes >= MIN_FREED_BYTES:
            self._has_collected = False
            self._trimmed_at_bytes, self._not_before = freed_bytes, clock + _MIN_INTERVAL_S
            await asyncio.to_thread(self._malloc_trim)
