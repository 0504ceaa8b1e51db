"""Slots: which chain's context lies where in the engine.

A slot holds the KV of one context. A continuation goes to the slot that holds its parent, if that one is
free; else the slot that was used longest ago is taken. Those who find all slots at work wait in order.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from slipring.prompts.rendering import Body


class Slot:
    """A place for one context in the engine."""

    __slots__ = ("held", "number", "tenant")

    def __init__(self, number: int) -> None:
        self.number = number
        self.held: Body | None = None
        """The newest context whose KV lies here, if that is known."""
        self.tenant: str | None = None
        """Whose it is. The engine reuses any common beginning, so nobody else's slot may be reused."""

    def hold(self, body: Body | None, tenant: str) -> None:
        self.held, self.tenant = body, tenant


class Slots:
    """All slots of an engine."""

    def __init__(self, count: int) -> None:
        self._free: list[Slot] = [Slot(number) for number in range(count)]  # least recently used first
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def taken(self, parent: Body | None) -> AsyncIterator[Slot]:
        """A slot for one job, preferably the one that holds what the job continues."""
        while not self._free:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._call_next()  # it was this one's turn: pass it on
                raise
        slot = next((slot for slot in self._free if parent is not None and slot.held is parent), None)
        if slot is None:
            empty = (slot for slot in self._free if slot.tenant is None)
            slot = next(empty, self._free[0])
        self._free.remove(slot)
        try:
            yield slot
        finally:
            self._free.append(slot)
            self._call_next()

    def _call_next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
