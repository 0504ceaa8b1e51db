"""Distributes the live updates of one process to its watchers.

Updates are made only while there are subscribers, each update once for all of them.
"""

import asyncio
import logging
from collections.abc import Callable

from slipring.observation import live
from slipring.server.admin.live_view import LiveView

log = logging.getLogger("slipring")


class LiveFeed:
    """Sends each subscriber a complete update first, then one with what has changed, twice a second."""

    def __init__(self, view: LiveView) -> None:
        self._view = view
        self._subscribers: list[live.Receive] = []
        self._new: list[live.Receive] = []
        """Those that are to be sent a complete update."""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def subscribe(self, receive: live.Receive) -> Callable[[], None]:
        """Send updates to ``receive`` until the returned function is called. If it gets them already, it gets
        a complete one again, beside the others."""
        self._new.append(receive)
        self._wake.set()
        if self._task is None:
            self._view.begin()
            self._task = asyncio.create_task(self._run())

        def unsubscribe() -> None:
            for receivers in (self._new, self._subscribers):
                if receive in receivers:
                    receivers.remove(receive)
            if not self._subscribers and not self._new:
                self.close()

        return unsubscribe

    def close(self) -> None:
        """Stop to make updates."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
            self._view.end()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                # In this order: the complete update contains the changes.
                _send(self._view.changes(), self._subscribers)
                new, self._new = self._new, []
                self._subscribers += [receive for receive in new if receive not in self._subscribers]
                if new:
                    _send(self._view.complete(), new)
            except Exception:
                log.exception("a live update failed")
            await self._pause()

    async def _pause(self) -> None:
        """Wait until the next update is due. A new watcher does not wait."""
        try:
            async with asyncio.timeout(live.INTERVAL_S):
                await self._wake.wait()
        except TimeoutError:
            return


def _send(update: live.Update, subscribers: list[live.Receive]) -> None:
    line = live.encode(update)
    for receive in list(subscribers):
        receive(line)
