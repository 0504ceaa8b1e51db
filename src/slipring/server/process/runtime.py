"""Log and event loop of a serving process."""

import asyncio
import logging
import sys

from aiohttp import web
from aiohttp.http import HttpProcessingError

_CLOSED = "Connection closed."
"""What aiohttp raises where a client leaves while the rest of its refused body is read."""


def set_up_logging(level: str, *, names_process: bool = False) -> None:
    """Log to standard error. ``names_process``: several processes write there."""
    process = "[%(process)d] " if names_process else ""
    logging.basicConfig(
        level=level.upper(), format=f"%(asctime)s %(levelname)s {process}%(name)s %(message)s", force=True
    )


def http_logger() -> logging.Logger:
    """The logger for aiohttp, which drops errors that clients cause.

    Malformed HTTP would otherwise fill the log with tracebacks and with text chosen by the client.
    """
    logger = logging.getLogger("slipring.http")
    logger.addFilter(_is_our_fault)
    return logger


def _is_our_fault(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, RuntimeError) and str(error) == _CLOSED:
        return False
    return not isinstance(error, HttpProcessingError | web.RequestPayloadError)


def loop_factory() -> "type[asyncio.AbstractEventLoop] | None":
    """uvloop, or None for asyncio's default."""
    try:
        import uvloop
    except ImportError:  # not available on every platform, and not required
        return None
    return uvloop.Loop


_SWITCH_INTERVAL_S = 0.0005


def shorten_switch_interval() -> None:
    """Let the event loop run soon while threads compute. It releases the interpreter lock with every system
    call, and would wait up to 5 ms, Python's default switch interval, to get it back."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
