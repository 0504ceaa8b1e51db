"""What every process that serves sets up for itself first: its log and its event loop."""

import asyncio
import logging


def set_up_logging(level: str, *, names_process: bool = False) -> None:
    """Log to standard error. ``names_process``: several processes write there."""
    process = "[%(process)d] " if names_process else ""
    logging.basicConfig(
        level=level.upper(), format=f"%(asctime)s %(levelname)s {process}%(name)s %(message)s", force=True
    )


def loop_factory() -> "type[asyncio.AbstractEventLoop] | None":
    try:
        import uvloop
    except ImportError:  # not to be had on every platform; everything works without it
        return None
    return uvloop.Loop
