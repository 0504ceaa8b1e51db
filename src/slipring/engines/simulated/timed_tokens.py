"""Emits the tokens of an answer at the times that its pace sets."""

import asyncio
from collections.abc import Awaitable
from typing import Protocol

from slipring.core.generation import Delta, Emit
from slipring.engines.simulated.pace import Pace


class Tokens(Protocol):
    """The tokens of an answer, in order."""

    def has_next(self) -> bool:
        """Whether another token follows. Asked before the token is due."""

    def take(self, count: int) -> list[Delta]:
        """The deltas of the next tokens, ``count`` of them unless the answer ends before; a token may have
        none."""


class TimedTokens:
    """Emits tokens from callbacks of the event loop; only a client that does not keep up is waited for in a
    task."""

    __slots__ = ("_emit", "_pace", "_stopped", "_tokens")

    def __init__(self, tokens: Tokens, pace: Pace, emit: Emit) -> None:
        self._tokens = tokens
        self._pace = pace
        self._emit = emit
        self._stopped: asyncio.Future[Awaitable[None] | None]
        """Done when no timer is set: with what has to be awaited, or None if there are no more tokens.
        Cancelled with the task that waits for it, after which nothing is emitted."""

    async def run(self) -> None:
        """Emit all tokens."""
        loop = asyncio.get_running_loop()
        while self._tokens.has_next():
            self._stopped = loop.create_future()
            self._pace.call_next(self._emit_due)
            if (waiting := await self._stopped) is not None:
                await waiting

    def _emit_due(self) -> None:
        if self._stopped.done():
            return
        try:
            deltas = self._tokens.take(self._pace.due())
            waiting = self._emit(deltas) if deltas else None
            if waiting is None and self._tokens.has_next():
                self._pace.call_next(self._emit_due)
                return
        except Exception as error:
            self._stopped.set_exception(error)
        else:
            self._stopped.set_result(waiting)
