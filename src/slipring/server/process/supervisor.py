"""Runs several worker processes that serve one port: starts, replaces and stops them.

The supervisor serves no clients. It reserves the port, and runs the engines that should exist once per
machine; workers borrow shares of them. When the supervisor ends for any reason, workers and engines end too.
"""

import asyncio
import dataclasses
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from slipring.base.errors import StartupError
from slipring.config.settings import ADMIN_OFF, Config
from slipring.engines.catalog import open_owner
from slipring.engines.sharing import Owner
from slipring.observation.snapshots import BoundedLabels
from slipring.server.process.listener import base_url, reserve
from slipring.server.process.shutdown import StopRequest, run_until
from slipring.server.process.worker_messages import (
    Assignment,
    EngineMoved,
    EngineSuspected,
    Loan,
    Serving,
    Stop,
    StopNow,
)
from slipring.server.process.worker_restart import SlotObserver, WorkerSlot

if TYPE_CHECKING:
    from slipring.server.admin.listener import AdminListener

_OVERTIME_S = 10.0
"""Time after its deadline at which a worker is killed."""
_DRAIN_REPORT_S = 1.0
"""Time that workers get to report how many responses they wait for."""


def refuse_private_store(config: Config) -> None:
    """Raise ``StartupError`` if workers could not find each other's chains with these settings."""
    if config.workers > 1 and config.store.partition(":")[0] == "memory":
        raise StartupError(
            f"--workers {config.workers} with --store memory: each worker would know its own chains only;"
            " name a store that they can share, as in --store sqlite:PATH or --store postgresql://…"
        )
    if config.workers > 1 and config.node_url:
        raise StartupError(
            f"--workers {config.workers} with --node-url: one URL cannot lead to each worker; run one server"
            " per node, or workers without it"
        )


class Supervisor:
    """The workers of one machine, and the engines that they share."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.port = config.port
        self._stop_request = StopRequest()
        self._owners: dict[str, Owner] = {}
        self._slots: list[WorkerSlot] = []
        self._reserved: socket.socket | None = None
        self._admin: AdminListener | None = None

    @property
    def admin_url(self) -> str | None:
        """URL of the live page; None if it is not served."""
        return self._admin.url if self._admin is not None else None

    @property
    def base_url(self) -> str:
        return base_url(self.config.host, self.port)

    async def serve(self, on_ready: Callable[["Supervisor", Serving], None]) -> None:
        """Run workers until a signal stops the process. Calls ``on_ready`` when all workers serve.

        Raises ``StartupError`` if a worker or an engine cannot start.
        """
        self._stop_request.install_signal_handlers()
        try:
            if await run_until(self._stop_request.requested, self._start()):
                on_ready(self, self._slots[0].serving.result())
                await self._stop_request.requested.wait()
                timeout_s = self.config.limits.drain_timeout_s + _OVERTIME_S
                await run_until(self._stop_request.immediate, self._drain(), timeout_s=timeout_s)
        finally:
            await self._release()

    async def _start(self) -> None:
        self._reserved = reserve(self.config.host, self.config.port)
        self.port = self._reserved.getsockname()[1]
        for name in engine_names(self.config):
            owner = open_owner(name, self.config.workers)
            if owner is not None:
                self._owners[name] = owner
                await owner.start(partial(self._announce_move, name))
        observer = await self._open_admin()
        for number in range(self.config.workers):
            self._slots.append(WorkerSlot(number, partial(self._assignment, number), self._suspect, observer))
            self._slots[-1].start()
        await asyncio.gather(*(slot.serving for slot in self._slots))

    async def _open_admin(self) -> SlotObserver:
        """Serve the admin address, unless it is off; returns what has to observe the workers."""
        if self.config.admin == ADMIN_OFF:
            return SlotObserver()
        # Only here: the HTTP library takes memory that a supervisor needs for nothing else.
        from slipring.server.admin.listener import AdminListener
        from slipring.server.admin.workers_source import WorkersSource

        bounds = BoundedLabels(self.config.metrics_tenants, self.config.metrics_safety_ids)
        source = WorkersSource(self._slots, self.base_url, bounds)
        admin = AdminListener(self.config, source)
        await admin.start()
        self._admin = admin
        return source

    def _assignment(self, number: int) -> Assignment:
        loans = {
            name: Loan(owner.share(number), owner.key, owner.address) for name, owner in self._owners.items()
        }
        return Assignment(dataclasses.replace(self.config, port=self.port), loans, number)

    def _announce_move(self, name: str) -> None:
        for slot in self._slots:
            slot.send(EngineMoved(name, self._owners[name].address))

    def _suspect(self, suspicion: EngineSuspected) -> None:
        self._owners[suspicion.engine].suspect(suspicion.url)

    async def _drain(self) -> None:
        """Stop all workers, print what they wait for, and wait for them."""
        for slot in self._slots:
            slot.dismiss(Stop())
        await asyncio.wait([slot.draining for slot in self._slots], timeout=_DRAIN_REPORT_S)
        responses = sum(slot.draining.result() for slot in self._slots if slot.draining.done())
        self._stop_request.print_wait(responses, self.config.limits.drain_timeout_s)
        await asyncio.wait([slot.ended for slot in self._slots])

    async def _release(self) -> None:
        """End workers, then engines, which running responses need, then release the port."""
        running = [slot.ended for slot in self._slots if not slot.ended.done()]
        if running:
            for slot in self._slots:
                slot.dismiss(StopNow())
            await asyncio.wait(running, timeout=_OVERTIME_S)
        for slot in self._slots:
            slot.kill()
            await slot.ended
        if self._admin is not None:
            await self._admin.close()
        for owner in self._owners.values():
            await owner.close()
        if self._reserved is not None:
            self._reserved.close()


def engine_names(config: Config) -> list[str]:
    """The engines of a configuration, each once, as it is named there."""
    return list(dict.fromkeys(model.engine for model in config.models)) or [config.engine]
