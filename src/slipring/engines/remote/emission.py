"""Deltas that an engine emits as they arrive, instead of yielding them: see ``Job.emit``."""

from collections.abc import Awaitable

from slipring.core.generation import Delta, Emit


class CutOff(Exception):
    """The rest of an answer is not wanted: raised out of whatever reads it, which ends the request."""


def emit_until(emit: Emit, deltas: list[Delta], fault: Exception | None) -> Awaitable[None] | None:
    """Emit deltas, then raise the fault that followed them, if any: at once, or by what is returned."""
    waiting = emit(deltas) if deltas else None
    return waiting if fault is None else then_raise(waiting, fault)


def then_raise(waiting: Awaitable[None] | None, error: Exception) -> Awaitable[None]:
    """Raise an error now, or return an awaitable that raises it when ``waiting`` is over."""
    if waiting is None:
        raise error
    return _raise_after(waiting, error)


async def _raise_after(waiting: Awaitable[None], error: Exception) -> None:
    await waiting
    raise error
