"""What every process that serves sets up for itself first: its log and its event loop."""

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
    """For the HTTP library, to say what is wrong here.

    What is no HTTP is the fault of whoever sent it, and could fill the log with tracebacks and its own words.
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
    try:
        import uvloop
    except ImportError:  # not to be had on every platform; everything works without it
        return None
    return uvloop.Loop


_SWITCH_S = 0.0005


def favour_the_loop() -> None:
    """Let the event loop go on soon while threads compute: it gives way with every call to the system, and
    would wait for each of them as long as Python lets a thread run, which is 5 ms."""
    sys.setswitchinterval(_SWITCH_S)
