"""Deltas that are emitted: in order, before the fault or the cut that follows them, also to slow clients."""

import asyncio

import pytest

from slipring.base.errors import ServerError
from slipring.core.generation import Delta, Emit, Text
from slipring.engines.remote.emission import CutOff, emit_until
from slipring.engines.remote.steered_cut import SteeredCut
from tests.engines.test_counts import job_of


class Client:
    """Takes deltas; a slow one has to be waited for."""

    def __init__(self, *, is_slow: bool) -> None:
        self.taken: list[Delta] = []
        self.waited = 0
        self._is_slow = is_slow

    def emit(self, deltas: list[Delta]) -> "asyncio.Future[None] | None":
        self.taken += deltas
        return asyncio.ensure_future(self._wait()) if self._is_slow else None

    async def _wait(self) -> None:
        self.waited += 1


async def emitted(emit: Emit, deltas: list[Delta], fault: Exception | None = None) -> None:
    waiting = emit_until(emit, deltas, fault)
    if waiting is not None:
        await waiting


@pytest.mark.parametrize("is_slow", [False, True])
async def test_a_fault_is_raised_after_the_deltas_before_it(*, is_slow: bool) -> None:
    client = Client(is_slow=is_slow)
    await emitted(client.emit, [Text("a")])
    with pytest.raises(ServerError):
        await emitted(client.emit, [Text("b")], ServerError("broken"))
    with pytest.raises(ServerError):
        await emitted(client.emit, [], ServerError("broken"))
    assert client.taken == [Text("a"), Text("b")]
    assert client.waited == 2 * is_slow


@pytest.mark.parametrize("is_slow", [False, True])
async def test_an_answer_is_cut_behind_the_deltas_that_were_emitted(*, is_slow: bool) -> None:
    client = Client(is_slow=is_slow)
    job = job_of(emit=client.emit)
    cut = SteeredCut(job)
    await emitted(cut.emit, [Text("a")])
    job.stop.asked = True
    with pytest.raises(CutOff):
        await emitted(cut.emit, [Text("b")])
    assert cut.is_made
    assert client.taken == [Text("a"), Text("b")]
    assert client.waited == 2 * is_slow
