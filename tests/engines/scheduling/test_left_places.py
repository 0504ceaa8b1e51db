"""Whatever turns do, in whatever order: when all have ended, and nothing that they have left can be continued
any more, no loop has a place."""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from slipring.engines.scheduling.loop_schedule import Need, Rules, Turn
from slipring.engines.scheduling.replica_placement import ReplicaSchedules


@dataclass(eq=False)
class Asked:
    """A turn, and the response that it belongs to."""

    key: str
    turn: Turn
    runs: bool = False


class Clients(RuleBasedStateMachine):
    """Clients of one engine, and the ends of chains as an engine notices them: each response that may be
    continued is watched, until the loop goes on with another one; it can be gone at any moment, also while a
    turn that continues it waits or runs."""

    def __init__(self) -> None:
        super().__init__()
        self.schedules = ReplicaSchedules(
            Rules(capacity=1000, most_running=3, patience_s=10.0, slice_s=5.0), count=2
        )
        self.now = 0.0
        self.asked: list[Asked] = []
        self.keys: list[str] = []
        self.watched: set[str] = set()

    def _ask(self, key: str, tokens: int, **fields: str | int | bool) -> None:
        need = Need(key, tokens, shared=50, **fields)  # type: ignore[arg-type]
        self.asked.append(Asked(key, self.schedules.ask(need.route, need, self.now)))
        self._start()

    def _start(self) -> None:
        """What may run, runs."""
        while (turn := self.schedules.next(self.now)) is not None:
            (asked,) = [each for each in self.asked if each.turn is turn]
            asked.runs = True

    @rule(
        data=st.data(),
        tokens=st.integers(1, 1200),
        route=st.sampled_from("abc"),
        replaces=st.booleans(),
    )
    def ask(self, data: st.DataObject, tokens: int, route: str, *, replaces: bool) -> None:
        """A turn that begins a loop, or continues a response: the latest of a loop, an older one, or one that
        a store has brought back."""
        after = data.draw(st.sampled_from(["", *self.keys[-2:], *sorted(self.watched)]))
        self.keys.append(str(len(self.keys)))
        self._ask(
            self.keys[-1], tokens, after=after, branch=route, source=route, replaces=replaces, route=route
        )

    @precondition(lambda self: self.keys)
    @rule(data=st.data(), tokens=st.integers(1, 1200), route=st.sampled_from("abc"))
    def step(self, data: st.DataObject, tokens: int, route: str) -> None:
        """A further step of a response, or another choice beside it."""
        self._ask(data.draw(st.sampled_from(self.keys[-3:])), tokens, branch=route, route=route)

    @property
    def running(self) -> list[Asked]:
        return [each for each in self.asked if each.runs]

    @precondition(lambda self: self.running)
    @rule(data=st.data(), replica=st.sampled_from(["r1", "r2", "r3"]))
    def answer(self, data: st.DataObject, replica: str) -> None:
        asked = data.draw(st.sampled_from(self.running))
        self.schedules.placed(asked.turn, replica, None, self.now)
        self._start()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), tokens=st.integers(1, 1200))
    def end(self, data: st.DataObject, tokens: int) -> None:
        asked = data.draw(st.sampled_from(self.running))
        self.asked.remove(asked)
        self.watched.discard(asked.turn.loop.former)
        self.watched.add(asked.key)
        self.schedules.end(asked.turn, tokens, ["read"], self.now)
        self._start()

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        """An engine fails, a turn is cancelled, or its client leaves, while it waits or runs."""
        asked = data.draw(st.sampled_from(self.asked))
        self.asked.remove(asked)
        self.schedules.withdraw(asked.turn, self.now)
        self._start()

    @precondition(lambda self: self.watched)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        """A response cannot be continued any more."""
        key = data.draw(st.sampled_from(sorted(self.watched)))
        self.watched.remove(key)
        self.schedules.drop(key)

    @rule(seconds=st.sampled_from([0.1, 3.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self._start()

    def teardown(self) -> None:
        for asked in self.asked:
            self.schedules.withdraw(asked.turn, self.now)
        for key in sorted(self.watched):
            self.schedules.drop(key)
        status = self.schedules.status(self.now)
        assert (status.running, status.waiting, status.paused, status.held_tokens) == (0, 0, 0, 0)
        assert all(replica.schedule.is_empty for replica in self.schedules._replicas)


TestClients = Clients.TestCase
TestClients.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
