"""What every process that serves sets up for itself first: its log and its event loop."""

import asyncio
import logging
import sys

from slipring.aiohttp_internals import is_client_fault
from slipring.server import turn_log


def set_up_logging(level: str, *, names_process: bool = False) -> None:
    """Log to standard error, with short turn lines if that is a terminal. ``names_process``: several
    processes write there."""
    process = "[%(process)d] " if names_process else ""
    line = f"%(asctime)s %(levelname)s {process}%(name)s %(message)s"
    handler = logging.StreamHandler(sys.stderr)
    is_terminal = sys.stderr.isatty()
    handler.setFormatter(turn_log.TerminalFormatter(line) if is_terminal else logging.Formatter(line))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def http_logger() -> logging.Logger:
    """For the HTTP library, to say what is wrong here.

    What is no HTTP is the fault of whoever sent it, and could fill the log with tracebacks and its own words.
    """
    logger = logging.getLogger("slipring.http")
    logger.addFilter(_is_our_fault)
    return logger


def _is_our_fault(record: logging.LogRecord) -> bool:
    return not is_client_fault(record.exc_info[1] if record.exc_info else None)


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
