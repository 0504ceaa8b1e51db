"""Several workers that serve one port: started together, replaced when they die, drained together.

The supervisor serves nobody itself. It keeps the port, and runs those engines of which a machine should have
only one: workers get shares of them. With its end, however that comes, workers and engines end.
"""

import asyncio
import dataclasses
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from slipring.config import Config
from slipring.engines.catalog import open_owner
from slipring.engines.sharing import Owner
from slipring.errors import StartupError
from slipring.server.process.listener import base_url, reserve
from slipring.server.process.shutdown import Stopping
from slipring.server.process.worker_messages import Assignment, Hurry, Loan, Move, Serving, Stop, Suspicion
from slipring.server.process.worker_slot import Post

_PATIENCE_S = 10.0
"""How much longer than its deadline a worker may take before it is not waited for."""


def refuse_private_store(config: Config) -> None:
    """A chain must be found by whichever worker its next turn comes to."""
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
    """The workers of one machine, and what they share."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.port = config.port
        self._stopping = Stopping()
        self._owners: dict[str, Owner] = {}
        self._posts: list[Post] = []
        self._reserved: socket.socket | None = None

    @property
    def base_url(self) -> str:
        return base_url(self.config.host, self.port)

    async def serve(self, on_ready: Callable[["Supervisor", Serving], None]) -> None:
        """Have the port served until the process is told to stop; ``on_ready`` when all workers serve."""
        self._stopping.heed_signals()
        try:
            if await self._stopping.unless_asked(self._start()):
                on_ready(self, self._posts[0].serving.result())
                await self._stopping.asked.wait()
                drain_s = self.config.limits.drain_timeout_s
                await self._dismiss(Stop(), drain_s + _PATIENCE_S, unless=self._stopping.hurried)
        finally:
            await self._let_go()

    async def _start(self) -> None:
        self._reserved = reserve(self.config.host, self.config.port)
        self.port = self._reserved.getsockname()[1]
        for name in engine_names(self.config):
            owner = open_owner(name, self.config.workers)
            if owner is not None:
                self._owners[name] = owner
                await owner.start(partial(self._moved, name))
        for number in range(self.config.workers):
            self._posts.append(Post(partial(self._assignment, number), self._suspect))
            self._posts[-1].start()
        await asyncio.gather(*(post.serving for post in self._posts))

    def _assignment(self, number: int) -> Assignment:
        loans = {
            name: Loan(owner.share(number), owner.key, owner.address) for name, owner in self._owners.items()
        }
        return Assignment(dataclasses.replace(self.config, port=self.port), loans)

    def _moved(self, name: str) -> None:
        for post in self._posts:
            post.tell(Move(name, self._owners[name].address))

    def _suspect(self, suspicion: Suspicion) -> None:
        self._owners[suspicion.engine].suspect(suspicion.url)

    async def _dismiss(
        self, order: Stop | Hurry, within_s: float, unless: asyncio.Event | None = None
    ) -> None:
        """Let all workers go and wait for them, but not longer than that."""
        for post in self._posts:
            post.dismiss(order)
        waits: list[asyncio.Task[Any]] = [
            asyncio.create_task(asyncio.wait([post.gone for post in self._posts])),
            asyncio.create_task((unless or asyncio.Event()).wait()),
        ]
        await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _let_go(self) -> None:
        """Workers first: the responses that they finish need their engines."""
        if not all(post.gone.done() for post in self._posts):
            await self._dismiss(Hurry(), _PATIENCE_S)
        for post in self._posts:
            post.kill()
            await post.gone
        for owner in self._owners.values():
            await owner.close()
        if self._reserved is not None:
            self._reserved.close()


def engine_names(config: Config) -> list[str]:
    """Every engine of a configuration once, as it is named there."""
    return list(dict.fromkeys(model.engine for model in config.models)) or [config.engine]
