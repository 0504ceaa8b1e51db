"""What every process that serves sets up first: its log, its event loop, and how it gives memory back."""

import asyncio
import contextlib
import ctypes
import logging

from aiohttp import web
from aiohttp.http import HttpProcessingError

_KIB = 1024
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""Of glibc's ``malloc.h``."""
_MALLOC_OPTIONS = {
    # Without this glibc raises the threshold with each large buffer that is freed, up to 32 MiB, and keeps
    # such buffers in its heap from then on, behind whatever was allocated after them.
    _M_MMAP_THRESHOLD: 256 * _KIB,
    _M_TRIM_THRESHOLD: 256 * _KIB,
    _M_ARENA_MAX: 2,  # one for the loop, one for all other threads
}


def give_memory_back() -> None:
    """Have the memory of a large buffer go back to the system as soon as the buffer is freed.

    Does something where the C library is glibc; others do so by themselves, or offer no choice.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 - an AttributeError where it is another library
        for option, value in _MALLOC_OPTIONS.items():
            library.mallopt(option, value)


def set_up_logging(level: str, *, names_process: bool = False) -> None:
    """Log to standard error. ``names_process``: several processes write there."""
    process = "[%(process)d] " if names_process else ""
    logging.basicConfig(
        level=level.upper(), format=f"%(asctime)s %(levelname)s {process}%(name)s %(message)s", force=True
    )


def http_logger() -> logging.Logger:
    """For the HTTP library, to say what is wrong here.

    What is no HTTP is the fault of whoever sent it, and could fill the log with tracebacks and its own words.
    """
    logger = logging.getLogger("slipring.http")
    logger.addFilter(_is_our_fault)
    return logger


def _is_our_fault(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | web.RequestPayloadError)


def loop_factory() -> "type[asyncio.AbstractEventLoop] | None":
    try:
        import uvloop
    except ImportError:  # not to be had on every platform; everything works without it
        return None
    return uvloop.Loop
