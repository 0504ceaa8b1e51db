"""Engines that fail: retries, and when jobs are refused at once."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from slipring.base.errors import ApiError, InvalidRequest, RateLimited, ServerError, Unavailable
from slipring.engines.remote.retries_and_breaker import Admission, AdmissionPolicy, RequestFailed, Retryable
from tests.loop_clock import LoopClock

QUICK = {"probe_interval_s": 0.001, "first_token_timeout_s": 60.0}


class ScriptedEngine:
    """A scripted engine. Each attempt is a list of words to emit, or errors to raise."""

    def __init__(self, *attempts: Sequence[str | Exception]) -> None:
        self.attempts = list(attempts)
        self.made = 0
        self.closed = 0
        self.answers = asyncio.Event()
        self.probed = asyncio.Event()
        self.emitted: list[str] = []

    async def attempt(self, begin: Callable[[], None]) -> None:
        self.made += 1
        try:
            for step in self.attempts.pop(0):
                if isinstance(step, Exception):
                    raise step
                begin()
                self.emitted.append(step)
        finally:
            self.closed += 1

    async def probe(self) -> None:
        self.probed.set()
        if not self.answers.is_set():
            raise OSError("connection refused")


def gate_to(engine: ScriptedEngine, **policy: float) -> Admission:
    return Admission("the engine", AdmissionPolicy(**{**QUICK, **policy}), engine.probe)  # type: ignore[arg-type]


async def read_all(gate: Admission, engine: ScriptedEngine, model: str = "") -> list[str]:
    engine.emitted.clear()
    await gate.run(engine.attempt, model)
    return list(engine.emitted)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipring.engines.remote.retries_and_breaker._jittered", lambda seconds: 0.0)


async def test_an_attempt_that_fails_before_its_first_item_is_repeated() -> None:
    engine = ScriptedEngine([Retryable("gone")], [Retryable("gone")], ["a", "b"])
    assert await read_all(gate_to(engine), engine) == ["a", "b"]
    assert engine.closed == 3


async def test_attempts_are_bounded() -> None:
    engine = ScriptedEngine(*[[Retryable("gone")] for _ in range(4)])
    with pytest.raises(Unavailable, match="gone"):
        await read_all(gate_to(engine), engine)
    assert engine.made == 3


async def test_nothing_is_repeated_after_the_first_item() -> None:
    engine = ScriptedEngine(["a", Retryable("gone")], ["never"])
    with pytest.raises(Unavailable):
        await read_all(gate_to(engine), engine)
    assert (engine.emitted, engine.made) == (["a"], 1)


@pytest.mark.parametrize("error", [InvalidRequest("no"), RateLimited("later"), ServerError()])
async def test_a_refusal_is_not_repeated_and_is_no_failure_of_the_engine(error: ApiError) -> None:
    engine = ScriptedEngine(*[[error] for _ in range(9)])
    gate = gate_to(engine)
    for _ in range(9):
        with pytest.raises(type(error)):
            await read_all(gate, engine)
    assert engine.made == 9
    assert gate.trouble is None


async def test_an_answer_that_does_not_begin_in_time_fails() -> None:
    gate = gate_to(ScriptedEngine(), first_token_timeout_s=0.01)

    async def silent(begin: Callable[[], None]) -> None:
        await asyncio.Event().wait()

    with pytest.raises(ServerError, match="did not begin"):
        await gate.run(silent)


async def test_an_answer_that_has_begun_may_take_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, clock = gate_to(ScriptedEngine(), first_token_timeout_s=60), LoopClock(monkeypatch)

    async def slow(begin: Callable[[], None]) -> None:
        begin()
        clock.advance(61)
        await asyncio.sleep(0.001)  # a timer: those that are due before it run

    await gate.run(slow)


async def test_the_gate_closes_after_failures_until_a_probe_succeeds() -> None:
    engine = ScriptedEngine(*[[Retryable("gone")] for _ in range(3)])
    gate = gate_to(engine, failures_to_close=3)
    with pytest.raises(Unavailable):
        await read_all(gate, engine)
    assert gate.trouble == "the engine does not answer"
    with pytest.raises(Unavailable) as refused, gate.admission("t"):
        pass
    assert refused.value.retry_after_s is not None
    await engine.probed.wait()
    engine.answers.set()
    assert gate._breakers[""]._probing is not None
    await gate._breakers[""]._probing
    assert gate.trouble is None
    with gate.ticket("t") as ticket:
        await ticket.turn()
    await gate.close()


async def test_a_model_that_fails_closes_no_other() -> None:
    engine = ScriptedEngine([Retryable("gone")], ["a"])
    gate = gate_to(engine, failures_to_close=1, retries=0)
    with pytest.raises(Retryable):
        await read_all(gate, engine, "one")
    assert gate.trouble == "the engine (one) does not answer"
    with pytest.raises(Unavailable), gate.admission("t", "one"):
        pass
    with pytest.raises(Unavailable):
        gate.require_admission("t", "one")
    gate.require_admission("t", "two")
    with gate.admission("t", "two"):
        assert await read_all(gate, engine, "two") == ["a"]
    # A server that serves other models is not to be taken out of service.
    assert gate.trouble is None
    await gate.close()


@pytest.mark.parametrize(("retry_after_s", "attempts"), [(0.001, 2), (11.0, 1)])
async def test_a_pause_that_the_server_asks_for_is_made_if_it_is_short(
    retry_after_s: float, attempts: int
) -> None:
    busy = Retryable("busy", retry_after_s=retry_after_s)
    engine = ScriptedEngine([busy], [InvalidRequest("seen")])
    gate = gate_to(engine)
    with pytest.raises(InvalidRequest if attempts == 2 else Retryable) as failed:
        await read_all(gate, engine)
    assert engine.made == attempts
    assert attempts == 2 or failed.value.retry_after_s == retry_after_s


async def test_a_request_that_fails_by_itself_does_not_close_the_gate() -> None:
    engine = ScriptedEngine(*[[RequestFailed("over this one")] for _ in range(9)], ["a"])
    gate = gate_to(engine, failures_to_close=2)
    for _ in range(3):
        with pytest.raises(Unavailable):
            await read_all(gate, engine)
    assert gate.trouble is None
    assert await read_all(gate, engine) == ["a"]


async def test_a_success_resets_the_count_of_failures() -> None:
    engine = ScriptedEngine(
        [Retryable("gone")], ["a"], [Retryable("gone")], ["b"], [Retryable("gone")], ["c"]
    )
    gate = gate_to(engine, failures_to_close=2)
    assert [await read_all(gate, engine) for _ in range(3)] == [["a"], ["b"], ["c"]]


async def test_closing_a_gate_cancels_its_probes() -> None:
    engine = ScriptedEngine([Retryable("gone")])
    gate = gate_to(engine, failures_to_close=1, retries=0)
    with pytest.raises(Unavailable):
        await read_all(gate, engine)
    await gate.close()


# The job queue.
