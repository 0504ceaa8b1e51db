"""The way to an engine: places, turns, attempts, and when it is closed."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

import pytest

from slipring.engines.remote.admission import Gate, Policy, Retryable, Stumbled
from slipring.errors import ApiError, InvalidRequest, RateLimited, ServerError, Unavailable

QUICK = {"probe_interval_s": 0.001, "first_token_timeout_s": 5.0}
Attempt = Callable[[], AsyncGenerator[str, None]]


class Partner:
    """What an engine does, attempt by attempt: words, or an error to fail with."""

    def __init__(self, *attempts: Sequence[str | Exception]) -> None:
        self.attempts = list(attempts)
        self.made = 0
        self.closed = 0
        self.answers = asyncio.Event()
        self.probed = asyncio.Event()

    async def attempt(self) -> AsyncGenerator[str, None]:
        self.made += 1
        try:
            for step in self.attempts.pop(0):
                if isinstance(step, Exception):
                    raise step
                yield step
        finally:
            self.closed += 1

    async def probe(self) -> None:
        self.probed.set()
        if not self.answers.is_set():
            raise OSError("nobody there")


def gate_to(partner: Partner, **policy: float) -> Gate:
    return Gate("the engine", Policy(**{**QUICK, **policy}), partner.probe)  # type: ignore[arg-type]


async def hear(gate: Gate, partner: Partner) -> list[str]:
    return [word async for word in gate.stream(partner.attempt)]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipring.engines.remote.admission._jittered", lambda seconds: 0.0)


async def test_an_attempt_that_fails_before_its_first_word_is_repeated() -> None:
    partner = Partner([Retryable("gone")], [Retryable("gone")], ["a", "b"])
    assert await hear(gate_to(partner), partner) == ["a", "b"]
    assert partner.closed == 3


async def test_attempts_are_bounded() -> None:
    partner = Partner(*[[Retryable("gone")] for _ in range(4)])
    with pytest.raises(Unavailable, match="gone"):
        await hear(gate_to(partner), partner)
    assert partner.made == 3


async def test_nothing_is_repeated_after_the_first_word() -> None:
    partner = Partner(["a", Retryable("gone")], ["never"])
    words = gate_to(partner).stream(partner.attempt)
    assert await anext(words) == "a"
    with pytest.raises(Unavailable):
        await anext(words)
    assert partner.made == 1


@pytest.mark.parametrize("error", [InvalidRequest("no"), RateLimited("later"), ServerError()])
async def test_a_refusal_is_not_repeated_and_is_no_failure_of_the_engine(error: ApiError) -> None:
    partner = Partner(*[[error] for _ in range(9)])
    gate = gate_to(partner)
    for _ in range(9):
        with pytest.raises(type(error)):
            await hear(gate, partner)
    assert partner.made == 9
    assert gate.trouble is None


async def test_an_answer_that_does_not_begin_is_given_up() -> None:
    gate = gate_to(Partner(), first_token_timeout_s=0.01)

    async def silent() -> AsyncGenerator[str, None]:
        await asyncio.Event().wait()
        yield "never"

    with pytest.raises(ServerError, match="did not begin"):
        [word async for word in gate.stream(silent)]


async def test_an_engine_that_keeps_failing_is_closed_until_a_probe_succeeds() -> None:
    partner = Partner(*[[Retryable("gone")] for _ in range(3)])
    gate = gate_to(partner, failures_to_close=3)
    with pytest.raises(Unavailable):
        await hear(gate, partner)
    assert gate.trouble == "the engine does not answer"
    with pytest.raises(Unavailable) as refused, gate.ticket("t"):
        pass
    assert refused.value.retry_after_s is not None
    await partner.probed.wait()
    partner.answers.set()
    assert gate._probing is not None
    await gate._probing
    assert gate.trouble is None
    with gate.ticket("t") as ticket:
        await ticket.turn()
    await gate.close()


async def test_an_engine_that_stumbles_over_one_request_is_not_closed_for_others() -> None:
    partner = Partner(*[[Stumbled("over this one")] for _ in range(9)], ["a"])
    gate = gate_to(partner, failures_to_close=2)
    for _ in range(3):
        with pytest.raises(Unavailable):
            await hear(gate, partner)
    assert gate.trouble is None
    assert await hear(gate, partner) == ["a"]


async def test_a_success_ends_a_row_of_failures() -> None:
    partner = Partner([Retryable("gone")], ["a"], [Retryable("gone")], ["b"], [Retryable("gone")], ["c"])
    gate = gate_to(partner, failures_to_close=2)
    assert [await hear(gate, partner) for _ in range(3)] == [["a"], ["b"], ["c"]]


async def test_a_closed_gate_forgets_its_probes() -> None:
    partner = Partner([Retryable("gone")])
    gate = gate_to(partner, failures_to_close=1, retries=0)
    with pytest.raises(Unavailable):
        await hear(gate, partner)
    await gate.close()


# Places


async def test_tenants_take_turns_and_each_keeps_its_own_order() -> None:
    gate = gate_to(Partner(), max_jobs=1)
    order: list[str] = []

    async def job(name: str) -> None:
        with gate.ticket(name[0]) as ticket:
            await ticket.turn()
            order.append(name)
            await asyncio.sleep(0)

    names = ["a1", "a2", "a3", "b1", "b2", "c1"]
    await asyncio.gather(*map(job, names))
    assert order == ["a1", "a2", "b1", "c1", "a3", "b2"]


async def test_past_the_bound_jobs_are_refused_at_once() -> None:
    gate = gate_to(Partner(), max_jobs=1, max_waiting=1)
    with gate.ticket("a"):
        with gate.ticket("a"), pytest.raises(RateLimited) as refused, gate.ticket("b"):
            pass
        assert refused.value.retry_after_s == 1.0
        with gate.ticket("a"):
            pass  # the place in the queue has been given back


async def test_whoever_leaves_the_queue_or_its_place_lets_the_next_one_in() -> None:
    gate = gate_to(Partner(), max_jobs=1)
    entered = asyncio.Event()

    async def wait() -> None:
        with gate.ticket("t") as ticket:
            await ticket.turn()
            entered.set()

    with gate.ticket("t"):
        leaves, stays = asyncio.create_task(wait()), asyncio.create_task(wait())
        await asyncio.sleep(0)
        leaves.cancel()
        await asyncio.sleep(0)
    await asyncio.wait_for(stays, 60)
    assert entered.is_set()
    # Called and cancelled at once: the place is passed on.
    with gate.ticket("t"):
        called, after = asyncio.create_task(wait()), asyncio.create_task(wait())
        await asyncio.sleep(0)
    called.cancel()
    await asyncio.wait_for(after, 60)
    assert (gate._running, gate._waiters) == (0, 0)
