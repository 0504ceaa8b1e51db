"""The suite of attacks can fail: memory that grows with each attack, and a server that is slow by itself."""

import pytest

from tests.attack.catalog import ATTACKS
from tests.attack.limits import EVENT_MS, REPEATED_SLACK_MIB, SLACK_MIB
from tests.attack.runner import Arena, Campaign, Outcome
from tests.attack.server import Server, Spec
from tests.attack.watching import Report, Times, Watch

ATTACK = next(attack for attack in ATTACKS if attack.event_ms is None)
COUNT = 1000


class Alive(Server):
    """A server that does not run, and has not ended either."""

    def __init__(self) -> None:
        """It needs nothing."""

    @property
    def is_alive(self) -> bool:
        return True


class FakeArena(Arena):
    """Attacks that leave so much more memory each."""

    def __init__(self, *grown_mib: float) -> None:
        super().__init__(Alive(), Watch.__new__(Watch), Spec(), timed=False)
        self.grown_mib = list(grown_mib)

    def run(self, attack: object, seed: int, slack_mib: float = SLACK_MIB) -> Outcome:
        outcome = Outcome(ATTACK, before_mib=50.0, after_mib=50.0 + self.grown_mib.pop(0))
        self._judge_server(outcome, slack_mib)
        return outcome


@pytest.mark.parametrize(
    ("grown_mib", "is_leak"),
    [
        ([SLACK_MIB - 1], False),
        ([SLACK_MIB + 2, REPEATED_SLACK_MIB - 1], False),
        ([SLACK_MIB + 2, REPEATED_SLACK_MIB + 1], True),
        ([2 * SLACK_MIB + 1], True),
    ],
)
def test_memory_that_is_kept_must_not_grow_with_a_repetition(
    grown_mib: list[float], is_leak: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena = FakeArena(*grown_mib)
    monkeypatch.setattr(Campaign, "_ready", lambda campaign, spec: arena)
    outcome = Campaign(print, seed=1, timed=False).run(ATTACK)
    assert bool(outcome.faults) is is_leak
    assert not arena.grown_mib


@pytest.mark.parametrize(("lag_ms", "is_slow"), [(1.0, True), (60.0, False)])
def test_the_time_for_which_a_timer_waits_is_not_the_servers(lag_ms: float, is_slow: bool) -> None:
    during = Report(
        times=Times(COUNT, p50=5.0, p99=EVENT_MS + 47, max=200.0), lag=Times(COUNT, 0.0, lag_ms, 80.0)
    )
    outcome = Outcome(ATTACK)
    FakeArena()._judge_victim(outcome, during, Report(), turns_came=True)
    assert bool(outcome.slow) is is_slow
    assert not outcome.faults
