"""Sandboxes without child processes, for tests whose subject is neither the sandbox nor its limits.

A child takes a fifth of a second of CPU time to start, as much as dozens of turns. In modules that use
``compiled_here``, the child's own code carries out the calls in a thread of this process. Queue, cache and
the encoding of calls and outcomes are the same. ``tests/sandbox``, ``tests/server/test_compiling.py``,
``tests/engines/test_contract.py`` and the attacks use real children.
"""

import asyncio

import pytest
from msgspec import structs

from slipring.sandbox import child, pipe_messages
from slipring.sandbox.pipe_messages import Answer, Outcome
from slipring.sandbox.sandbox import ChildProcess

_UNLIMITED_BYTES = 2**62
_MEMORY = child._MemoryInUse()


async def _run(process: ChildProcess, data: bytes) -> tuple[Outcome, int]:
    # A timeout of 0 switches the timer off, whose signal would end this process.
    limits = structs.replace(process._setup.limits, timeout_s=0.0, memory_bytes=_UNLIMITED_BYTES)
    setup = structs.replace(process._setup, limits=limits)
    call = pipe_messages.decode_call(data)
    answer = await asyncio.to_thread(child._answer, call, setup, _MEMORY)
    reply = pipe_messages.decode_reply(answer)
    assert isinstance(reply, Answer)
    return reply.outcome, len(answer)


@pytest.fixture
def compiled_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Carry out the calls of sandboxes in this process."""
    monkeypatch.setattr(ChildProcess, "run", _run)
