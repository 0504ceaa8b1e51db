"""`slipring` with a planted fault, to see that a soak finds it.

    python -m tests.soak.planted memory serve …

Works for servers of one process: workers are started by the supervisor, without the fault.
"""

import asyncio
import os
import sys
import time
from typing import Any

from msgspec import structs

from slipring.commands.cli import main
from slipring.core.generation import Emit, Job
from slipring.engines.simulated.engine import SimulatedEngine
from slipring.server.service import Service

_LEAKED_BYTES = 20_000
_SLOWER = 0.0003
"""Seconds that a turn takes longer for each second since the first."""
_LOST_EVERY = 500
_leaked: list[Any] = []


def _leak_memory() -> None:
    _leaked.append(bytearray(_LEAKED_BYTES))


def _leak_descriptor() -> None:
    if not len(_leaked) % 10:
        os.dup(0)
    _leaked.append(None)


def _leak_task() -> None:
    if not len(_leaked) % 10:
        _leaked.append(asyncio.ensure_future(asyncio.sleep(3600)))
    _leaked.append(None)


def _slow_down() -> None:
    # By time, not by turns: a server that becomes slow has fewer turns, and would stay as slow as it is.
    _leaked.append(time.monotonic())
    time.sleep((_leaked[-1] - _leaked[0]) * _SLOWER)


FAULTS = {
    "memory": _leak_memory,
    "descriptors": _leak_descriptor,
    "tasks": _leak_task,
    "latency": _slow_down,
}
"""What happens after each turn, by the figure that has to show it."""


def plant(kind: str) -> None:
    """Plant one of the faults, or ``answers``: now and then the engine does not get what the client sent."""
    if kind == "answers":
        _lose_input()
        return
    fault, ended = FAULTS[kind], Service.turn_ended

    def turn_ended(self: Service, *arguments: Any, **named: Any) -> None:
        ended(self, *arguments, **named)
        fault()

    Service.turn_ended = turn_ended  # type: ignore[method-assign]


def _lose_input() -> None:
    generate = SimulatedEngine.generate

    async def lossy(self: SimulatedEngine, job: Job, emit: Emit) -> None:
        _leaked.append(None)
        await generate(self, job if len(_leaked) % _LOST_EVERY else structs.replace(job, input=()), emit)

    SimulatedEngine.generate = lossy  # type: ignore[method-assign]


if __name__ == "__main__":
    plant(sys.argv[1])
    sys.exit(main(sys.argv[2:]))
