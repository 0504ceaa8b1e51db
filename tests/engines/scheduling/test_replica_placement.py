"""Several replicas behind one address: whose cache a loop is in, and what happens when it goes elsewhere."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from slipring.engines.scheduling.loop_schedule import Need, Rules, Turn
from slipring.engines.scheduling.replica_placement import _MOST_REPLICAS, ReplicaSchedules

RULES = Rules(capacity=1000, most_running=8)


class Loops:
    def __init__(self, rules: Rules = RULES, count: int = 2) -> None:
        self.demoted: list[str] = []
        self.schedules = ReplicaSchedules(rules, lambda loop: self.demoted.append(loop.key), count)
        self.now = 0.0

    def ask(self, key: str, tokens: int, tenant: str = "one", **fields: Any) -> Turn:
        return self.schedules.ask(tenant, Need(key, tokens, **{"route": key, **fields}), self.now)

    def started(self) -> list[str]:
        found = []
        while (turn := self.schedules.next(self.now)) is not None:
            found.append(turn.loop.key)
        return found

    def run(self, key: str, tokens: int, replica: str = "", **fields: Any) -> None:
        """A whole turn, answered by a replica."""
        turn = self.ask(key, tokens, **fields)
        assert self.started() == [key]
        if replica:
            self.schedules.placed(turn, replica, None, self.now)
        self.schedules.end(turn, tokens, ["read"], self.now)

    @property
    def held(self) -> dict[str, int]:
        return {each.name: each.held_tokens for each in self.schedules.status(self.now).replicas}


def test_without_names_there_is_one_replica() -> None:
    loops = Loops(count=1)
    loops.run("a", 600)
    assert loops.held == {"": 600}
    turn = loops.ask("b", 1000)
    assert loops.started() == ["b"]  # the pause of the other costs more than its prefill
    loops.schedules.end(turn, 1000, (), loops.now)


def test_operators_see_that_as_many_turns_run_as_may_on_all_replicas_together() -> None:
    loops = Loops(Rules(capacity=1000, most_running=2))
    loops.run("a", 300, "r1")
    loops.run("b", 300, "r2")
    for key in "abc":
        loops.ask(key, 310)
    assert len(loops.started()) == 2
    assert [each.why for each in loops.schedules.status(loops.now).listed if each.why] == [
        "as many turns run as may"
    ]


def test_what_is_told_of_a_loop_reaches_its_replica() -> None:
    loops = Loops()
    loops.run("a", 600, "r1")
    loops.run("b", 600, "r2")
    replicas = loops.schedules._replicas
    (loop,) = [each.schedule._loops["b"] for each in replicas if "b" in each.schedule._loops]
    loops.now += 1000.0
    assert loops.schedules.is_silent(loop, loops.now)
    loops.schedules.output_grew("b", loops.now)
    assert not loops.schedules.is_silent(loop, loops.now)
    loops.schedules.expect(Need("b", 0), loops.now)
    assert loop.kept_until > loops.now
    loops.schedules.expect(Need("unknown", 0), loops.now)


def test_each_replica_has_a_cache_of_its_own() -> None:
    loops = Loops()
    loops.run("a", 600, "r1")
    loops.run("b", 600, "r2")
    loops.run("c", 300, "r1")
    assert loops.held == {"r1": 900, "r2": 600}
    assert not loops.demoted
    replicas = loops.schedules._replicas
    known = [loop for each in replicas for loop in each.schedule._loops.values()]
    assert [each.key for each in known if loops.schedules.is_silent(each, loops.now)] == []
    loops.schedules.drop("c")
    assert [each.key for each in known if loops.schedules.is_silent(each, loops.now)] == ["c"]
    loops.run("c", 300, "r1")
    status = loops.schedules.status(loops.now)
    assert (status.capacity_tokens, status.held_tokens, status.paused) == (2000, 1500, 3)
    assert [(each.replica, each.tokens) for each in status.listed] == [("r1", 600), ("r2", 600), ("r1", 300)]


def test_a_loop_waits_for_room_where_its_chain_is() -> None:
    loops = Loops()
    loops.run("a", 300, "r1")
    loops.run("b", 300, "r2")
    large = loops.ask("large", 900, route="a")
    running = loops.ask("a2", 950, after="a", route="a")
    assert loops.started() == ["a2"]  # `large` waits on r1, though r2 has room
    loops.schedules.end(running, 950, ["read"], loops.now)
    loops.schedules.drop("a2")
    assert loops.started() == ["large"]
    loops.schedules.end(large, 900, (), loops.now)
    assert loops.held == {"r1": 900, "r2": 300}


def test_a_loop_that_begins_is_counted_where_most_is_free_until_it_is_answered() -> None:
    loops = Loops()
    loops.run("a", 600, "r1")
    loops.run("b", 300, "r2")
    turn = loops.ask("new", 200)
    assert loops.started() == ["new"]
    assert loops.held == {"r1": 600, "r2": 500}
    loops.schedules.placed(turn, "r1", None, loops.now)
    assert loops.held == {"r1": 800, "r2": 300}
    loops.schedules.end(turn, 220, (), loops.now)
    assert loops.held == {"r1": 820, "r2": 300}


def test_a_replica_that_overflows_gives_up_what_pauses() -> None:
    loops = Loops()
    loops.run("a", 600, "r1")
    loops.run("b", 900, "r2")
    loops.run("c", 350, "r2")
    assert loops.demoted == ["b"]
    assert loops.held == {"r1": 600, "r2": 350}


def test_a_chain_of_a_replica_that_died_goes_on_elsewhere_once() -> None:
    loops = Loops()
    loops.run("a", 400, "r1")
    loops.run("b", 400, "r1")
    loops.run("c", 400, "r2")
    # The next turn of `a` is answered by the other one: `r1` has died.
    loops.run("a2", 450, "r2", after="a", route="a")
    assert loops.held == {"r2": 850}
    status = loops.schedules.status(loops.now)
    assert (status.capacity_tokens, status.paused) == (1000, 2)
    # The other chain of `r1` needs room on a replica that lives.
    loops.ask("b2", 900, after="b", route="b")
    loops.schedules.drop("c")
    loops.schedules.drop("a2")
    assert loops.started() == ["b2"]
    assert loops.held == {"r2": 900}
    assert [each.name for each in loops.schedules._replicas] == ["r2"]
    assert [each.turns for each in loops.schedules.status(loops.now).listed] == [1]


def test_what_waits_for_a_replica_that_died_waits_for_another() -> None:
    loops = Loops()
    loops.run("a", 900, "r1")
    loops.run("b", 300, "r2")
    moved = loops.ask("a2", 900, after="a", route="a")
    waiting = loops.ask("w", 900, route="a")
    assert loops.started() == ["a2"]
    loops.schedules.placed(moved, "r2", None, loops.now)
    loops.schedules.end(moved, 900, ["read"], loops.now)
    assert loops.demoted[-1] == "b"
    loops.schedules.drop("a2")
    assert loops.started() == ["w"]
    loops.schedules.placed(waiting, "r2", None, loops.now)
    loops.schedules.end(waiting, 900, (), loops.now)
    assert loops.held == {"r2": 900}


def test_a_replica_that_answers_again_is_back() -> None:
    loops = Loops()
    for key in "ab":
        loops.run(key, 100, "r1")
    loops.run("c", 100, "r2")
    loops.run("a2", 120, "r2", after="a", route="a")
    assert set(loops.held) == {"r2"}
    loops.run("a3", 130, "r1", after="a2", route="a")
    assert loops.held["r1"] == 100 + 130
    assert loops.schedules.replica_of("a") == "r1"


def test_a_replica_may_tell_how_much_it_holds() -> None:
    loops = Loops()
    turn = loops.ask("a", 3000)
    assert loops.started() == ["a"]
    loops.schedules.placed(turn, "r1", 4000, loops.now)
    loops.schedules.end(turn, 3000, (), loops.now)
    assert loops.schedules.status(loops.now).capacity_tokens == 5000
    assert loops.held == {"": 0, "r1": 3000}


def test_replicas_together_run_no_more_than_may() -> None:
    loops = Loops(Rules(capacity=1000, most_running=2))
    loops.run("a", 10, "r1")
    loops.run("b", 10, "r2")
    for at in range(4):
        loops.ask(str(at), 10, route="ab"[at % 2])
    assert len(loops.started()) == 2
    assert not loops.schedules.is_open_to(Need("x", 0, route="x"))


def test_names_without_end_are_bounded() -> None:
    loops = Loops()
    for at in range(2 * _MOST_REPLICAS):
        loops.run(str(at), 10, f"r{at}")
    assert len(loops.schedules._replicas) == _MOST_REPLICAS


class AnyOrder(RuleBasedStateMachine):
    """Chains begin, go on, fail and end; their turns are answered by any replica, or by none."""

    def __init__(self) -> None:
        super().__init__()
        self.loops = Loops(Rules(capacity=1000, most_running=4, patience_s=10.0, slice_s=5.0))
        self.turns: list[Turn] = []
        self.keys: list[str] = []
        self.count = 0

    @rule(data=st.data(), tokens=st.integers(1, 1200), route=st.sampled_from("abc"))
    def ask(self, data: st.DataObject, tokens: int, route: str) -> None:
        self.count += 1
        after = data.draw(st.sampled_from(["", *self.keys[-4:]]))
        self.keys.append(str(self.count))
        fields = {"after": after, "branch": route, "source": route, "shared": 50, "route": route}
        self.turns.append(self.loops.ask(str(self.count), tokens, tenant=route, **fields))

    @rule()
    def start(self) -> None:
        self.loops.started()

    def running(self) -> list[Turn]:
        replicas = self.loops.schedules._replicas
        return [turn for turn in self.turns if any(turn in each.schedule._running for each in replicas)]

    @precondition(lambda self: self.running())
    @rule(data=st.data(), replica=st.sampled_from(["r1", "r2", "r3"]))
    def answer(self, data: st.DataObject, replica: str) -> None:
        turn = data.draw(st.sampled_from(self.running()))
        self.loops.schedules.placed(turn, replica, None, self.loops.now)

    @precondition(lambda self: self.turns)
    @rule(data=st.data(), tokens=st.integers(0, 1200))
    def end(self, data: st.DataObject, tokens: int) -> None:
        turn = data.draw(st.sampled_from(self.turns))
        if turn in self.running() and tokens:
            self.loops.schedules.end(turn, tokens, ["read"], self.loops.now)
        else:
            self.loops.schedules.withdraw(turn, self.loops.now)
        self.turns.remove(turn)

    @precondition(lambda self: self.keys)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.loops.schedules.drop(data.draw(st.sampled_from(self.keys)))

    @rule(seconds=st.sampled_from([0.1, 3.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.loops.now += seconds

    @invariant()
    def every_replica_adds_up(self) -> None:
        for replica in self.loops.schedules._replicas:
            schedule = replica.schedule
            residents = {turn.loop for turn in (*schedule._running, *schedule._waiting)} | {*schedule._paused}
            assert sum(loop.charged for loop in residents) == schedule.resident_tokens
            assert sum(schedule._held.values()) == schedule.resident_tokens
            assert sum(turn.tokens for turn in schedule._waiting) == schedule._waiting_tokens
            in_branches = [loop for loops in schedule._branches.values() for loop in loops]
            assert sorted(map(id, in_branches)) == sorted(map(id, schedule._loops.values()))

    @invariant()
    def every_turn_is_at_one_replica(self) -> None:
        replicas = self.loops.schedules._replicas
        for turn in self.turns:
            at = [each for each in replicas if turn in {*each.schedule._running, *each.schedule._waiting}]
            assert at == [self.loops.schedules._at[turn]]
        assert set(self.loops.schedules._at) == set(self.turns)
        assert len(self.running()) <= 4

    def teardown(self) -> None:
        """Every turn runs in the end."""
        schedules = self.loops.schedules
        for _ in range(300):
            if not schedules.status(self.loops.now).waiting:
                break
            for turn in self.running():
                schedules.end(turn, turn.tokens, ["read"], self.loops.now)
                self.turns.remove(turn)
            self.loops.now += 30.0
            self.loops.started()
        waiting = [turn for each in schedules._replicas for turn in each.schedule._waiting]
        assert not waiting


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
