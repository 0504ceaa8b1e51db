"""The health of a server, for operators, and whether it is ready, for load balancers."""

import asyncio
import os
from collections.abc import Callable

from slipring import __version__
from slipring.base.periodic_tasks import cancel_and_wait
from slipring.protocol.endpoints.reply_bodies import CheckHealth, EngineHealth, Health, Readiness
from slipring.server.service import Service
from slipring.stores.store import Store

_TRIED_S, _TROUBLED_S = 5.0, 1.0
"""Seconds after which a question about its health tries the store out again; the second while it has
trouble."""
_PATIENCE_S = 2.0
"""How long an answer waits for a store that is tried out."""


class StoreHealth:
    """Whether a store can be used: it is tried out when that is asked for, at most every few seconds."""

    def __init__(self, store: Store, clock: Callable[[], float], *, patience_s: float | None = None) -> None:
        """``patience_s``: how long an answer waits for the store."""
        self._store = store
        self._patience_s = _PATIENCE_S if patience_s is None else patience_s
        self._clock = clock
        self._tried_at: float | None = None
        self._trial: asyncio.Task[None] | None = None

    async def trouble(self) -> str | None:
        """Why the store cannot be used at present; None if it can."""
        pause_s = _TRIED_S if self._store.trouble is None else _TROUBLED_S
        is_due = self._tried_at is None or self._clock() - self._tried_at >= pause_s
        if self._trial is None and is_due:
            self._trial = asyncio.create_task(self._try_out())
        if self._trial is not None:
            await asyncio.wait([self._trial], timeout=self._patience_s)
        if self._trial is not None:
            return self._store.trouble or f"no answer within {self._patience_s:g} s"
        return self._store.trouble

    async def _try_out(self) -> None:
        try:
            await self._store.try_out()
        finally:
            self._tried_at, self._trial = self._clock(), None

    async def close(self) -> None:
        if self._trial is not None:
            await cancel_and_wait([self._trial])


def health_of(service: Service, store_trouble: str | None) -> tuple[Health, int]:
    """The body of ``GET /health`` and its status: 503 if no request can be served."""
    engines = [
        EngineHealth(engine.name, engine.trouble, engine.session_use) for engine in service.catalog.engines
    ]
    trouble = service.connections.trouble
    checks = [CheckHealth(check.name, check.trouble) for check in service.inspector.status()]
    troubles = [trouble, store_trouble]
    troubles += [engine.trouble for engine in engines] + [check.trouble for check in checks]
    body = Health(
        status="draining" if service.draining else "degraded" if any(troubles) else "ok",
        version=__version__,
        pid=os.getpid(),
        engines=engines,
        store=service.store.name,
        store_trouble=store_trouble,
        connections=service.sockets,
        render_fallbacks=service.render_fallbacks,
        trouble=trouble,
        traces=service.traces,
        checks=checks,
    )
    return body, 200 if _serves(service) else 503


def readiness_of(service: Service, store_trouble: str | None = None) -> tuple[Readiness, int]:
    """The body of ``GET /ready`` and its status: 503 if no request can be served, or the store is needed and
    has trouble."""
    if _serves(service) and store_trouble is None:
        return Readiness("ready"), 200
    return Readiness("not_ready"), 503


def _serves(service: Service) -> bool:
    """Whether any request can be served: with ``store: false``, no store is needed."""
    return not service.draining and any(engine.trouble is None for engine in service.catalog.engines)
