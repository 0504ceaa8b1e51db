"""Log, event loop and threads of a serving process."""

import asyncio
import logging
import sys

from slipring.server.observation import turn_log


def set_up_logging(level: str, *, names_process: bool = False) -> None:
    """Log to standard error, with short turn lines if that is a terminal. ``names_process``: several
    processes write there."""
    process = "[%(process)d] " if names_process else ""
    line = f"%(asctime)s %(levelname)s {process}%(name)s %(message)s"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(turn_log.formatter(line, is_terminal=sys.stderr.isatty()))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if level.upper() != "DEBUG":
        # The HTTP library of the model hub's client logs every request.
        logging.getLogger("httpx2").setLevel(logging.WARNING)


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
