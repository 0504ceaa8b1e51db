"""How a process that serves is told to stop, and, when it is told again, to wait for nobody."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


class Stopping:
    """What the process has been told so far."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()

    def ask(self) -> None:
        if self.asked.is_set():
            self.hurried.set()  # asked twice: do not wait for anybody
        self.asked.set()

    def heed_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ask)

    async def unless_asked(self, start: Coroutine[Any, Any, None]) -> bool:
        """Run a start, which may take minutes; whether it came to its end before the process was told."""
        starting, told = asyncio.create_task(start), asyncio.create_task(self.asked.wait())
        await asyncio.wait([starting, told], return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.wait([starting])
            return False
        await starting
        return True
