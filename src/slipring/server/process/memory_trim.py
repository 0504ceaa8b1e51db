"""Memory of large requests and answers, given back to the system when they are over.

glibc keeps large buffers that are freed in its heap, where they stay resident for as long as the process
lives. To have each of them mapped by itself instead (M_MMAP_THRESHOLD) makes a request of 15 MiB cost two
thirds more CPU. So free memory is given back now and then, when much has been freed, by a thread.
"""

import asyncio
import ctypes
from collections.abc import Callable, Iterable

from slipring.core.byte_ledger import Ledger

WORTHWHILE_BYTES = 16 * 1024 * 1024
"""Freed since the last time."""
_PAUSE_S = 10.0

Trim = Callable[[], object]


def find_trim() -> Trim | None:
    """The C library's way to give free memory back; None: it has none, or needs none."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    trim.argtypes = [ctypes.c_size_t]
    return lambda: trim(0)


class FreedMemory:
    """What requests and unread answers have freed since it was last given back."""

    def __init__(self, ledgers: Iterable[Ledger], trim: Trim | None) -> None:
        """``ledgers``: where their bytes are counted."""
        self._ledgers = tuple(ledgers)
        self._trim = trim
        self._returned_bytes = 0
        self._not_before = 0.0

    async def give_back(self, clock: float) -> None:
        """Give it back, if it is worth while and has not been done just now."""
        freed_bytes = sum(ledger.removed_bytes for ledger in self._ledgers)
        if self._trim is None or clock < self._not_before:
            return
        if freed_bytes - self._returned_bytes >= WORTHWHILE_BYTES:
            self._returned_bytes, self._not_before = freed_bytes, clock + _PAUSE_S
            await asyncio.to_thread(self._trim)
