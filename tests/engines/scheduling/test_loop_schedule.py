"""Who runs next, and whose context goes, when the contexts of all loops do not fit."""

import math
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from slipring.engines.scheduling.loop_schedule import (
    _MOST_RESIDENT,
    _MOST_REVIEWED,
    REVIEW_S,
    Loop,
    LoopSchedule,
    Need,
    Rules,
    Turn,
)

RULES = Rules(capacity=1000, most_running=8, patience_s=60.0, slice_s=20.0)


class Loops:
    """A schedule, its time, and what it demoted."""

    def __init__(self, rules: Rules = RULES) -> None:
        self.demoted: list[str] = []
        self.schedule = LoopSchedule(rules, lambda loop: self.demoted.append(loop.key))
        self.now = 0.0

    def ask(self, key: str, tokens: int, tenant: str = "one", **fields: Any) -> Turn:
        return self.schedule.ask(tenant, Need(key, tokens, **fields), self.now)

    def started(self) -> list[str]:
        """The loops whose turns begin to run now."""
        found = []
        while (turn := self.schedule.next(self.now)) is not None:
            found.append(turn.loop.key)
        return found

    def run(self, key: str, tokens: int, *tools: str, tenant: str = "one") -> None:
        """A whole turn, which takes no time."""
        turn = self.ask(key, tokens, tenant)
        assert self.started() == [key]
        self.schedule.end(turn, tokens, tools, self.now)

    def learn(self, tool: str, seconds: float, tenant: str = "one") -> None:
        """Let a loop of its own pause for a tool again and again."""
        for _ in range(60):
            self.run(f"{tenant} {tool}", 1, tool, tenant=tenant)
            self.now += seconds
        self.schedule.drop(f"{tenant} {tool}")
        self.demoted.clear()


def test_loops_that_fit_never_wait() -> None:
    loops = Loops()
    for at in range(10):
        for key in "abcd":
            loops.run(key, 20 * (at + 1), "read")
    assert loops.schedule.resident_tokens == 800
    assert not loops.demoted


def test_a_loop_that_does_not_fit_waits_until_another_has_ended() -> None:
    loops = Loops()
    first, second = loops.ask("a", 600), loops.ask("b", 600)
    assert loops.started() == ["a"]
    loops.schedule.end(first, 600, ["read"], loops.now)
    loops.schedule.drop("a")
    assert loops.started() == ["b"]
    assert loops.demoted == ["a"]
    loops.schedule.end(second, 600, [], loops.now)


def test_a_resident_loop_goes_on_before_one_that_begins() -> None:
    loops = Loops()
    loops.learn("read", 1.0)
    loops.schedule.measured(2000, 10.0)  # a slow engine: contexts are worth holding
    loops.schedule._prefill_rate = 200.0
    loops.run("a", 900, "read")
    loops.ask("b", 500)
    assert loops.started() == []
    loops.ask("a", 950)
    assert loops.started() == ["a"]
    assert not loops.demoted


def test_of_those_that_wait_a_loop_that_runs_goes_before_one_that_begins() -> None:
    loops = Loops()
    busy = loops.ask("busy", 900)
    assert loops.started() == ["busy"]
    loops.ask("new", 800)
    loops.run("old", 50, "read")
    loops.now += 1
    loops.ask("old", 800)
    loops.schedule.end(busy, 900, (), loops.now)
    loops.schedule.drop("busy")
    assert loops.started() == ["old"]


def test_a_context_is_given_up_where_its_prefill_costs_less_than_the_waiting() -> None:
    loops = Loops()
    loops.learn("build", 100.0)
    loops.run("a", 900, "build")
    loops.ask("b", 500)
    assert loops.started() == ["b"]
    assert loops.demoted == ["a"]


def rarely_returning() -> Loops:
    """Loops that wait for a tool after which few of them go on."""
    loops = Loops()
    loops.learn("read", 2.0)
    for number in range(200):
        loops.run(f"ended {number}", 1, "read")
        loops.schedule.drop(f"ended {number}")
    loops.demoted.clear()
    loops.schedule._prefill_rate = 200.0
    return loops


def test_a_loop_whose_tool_still_prints_is_waited_for() -> None:
    contexts = []
    for is_heard in (False, True):
        loops = rarely_returning()
        loops.run("a", 900, "read")
        (loop,) = loops.schedule._loops.values()
        if is_heard:
            loops.schedule.output_grew("a", loops.now)
        loops.ask("b", 500)
        contexts.append(loops.started())
        loops.now += 60.0
        if is_heard:
            loops.schedule.output_grew("a", loops.now)
        assert loops.schedule.is_silent(loop, loops.now) is not is_heard
    assert contexts == [["b"], []]


def test_a_loop_whose_tool_has_stopped_printing_is_not_waited_for() -> None:
    loops = rarely_returning()
    silence_s = loops.schedule.pauses.of(("one", "read")).silence_s
    loops.run("a", 900, "read")
    began_at = loops.now
    loops.schedule.output_grew("a", began_at)
    loops.ask("b", 500)
    for part in (0.3, 0.6, 0.9):
        loops.now = began_at + part * silence_s
        assert loops.started() == []
    loops.now = began_at + 1.01 * silence_s
    assert loops.started() == ["b"]


def test_what_a_tool_prints_while_the_answer_runs_says_nothing_about_the_pause_after_it() -> None:
    loops = rarely_returning()
    turn = loops.ask("a", 900)
    assert loops.started() == ["a"]
    loops.schedule.output_grew("a", loops.now)
    loops.ask("b", 500)
    loops.schedule.end(turn, 900, ["read"], loops.now)
    assert loops.started() == ["b"]


def test_a_loop_that_was_steered_keeps_its_place_for_the_turn_that_follows() -> None:
    for is_steered in (False, True):
        loops = Loops()
        loops.learn("", 1000.0)
        steered = loops.ask("a", 900)
        assert loops.started() == ["a"]
        loops.ask("b", 500)
        if is_steered:
            loops.schedule.was_steered("a")
        loops.schedule.end(steered, 900, (), loops.now)
        assert loops.started() == ([] if is_steered else ["b"])
    loops.now += 0.1
    following = loops.ask("c", 950, after="a")
    assert loops.started() == ["c"]
    loops.schedule.end(following, 950, (), loops.now)
    assert loops.started() == ["b"], "it counts for one turn"


def test_a_steered_loop_keeps_its_place_at_the_end_of_its_last_step_too() -> None:
    loops = Loops()
    loops.learn("", 1000.0)
    loops.learn("read", 1000.0)
    step = loops.ask("a", 900)
    assert loops.started() == ["a"]
    loops.schedule.was_steered("a")
    loops.schedule.end(step, 900, ["read"], loops.now)
    last = loops.ask("a", 920)
    assert loops.started() == ["a"]
    loops.ask("b", 500)
    loops.schedule.end(last, 920, (), loops.now)
    loops.now += 1.9
    assert loops.started() == []
    loops.ask("c", 950, after="a")
    assert loops.started() == ["c"]


def test_a_steered_loop_that_waits_for_its_client_is_not_kept_for_that() -> None:
    loops = Loops()
    loops.learn("build", 1000.0)
    turn = loops.ask("a", 900)
    assert loops.started() == ["a"]
    loops.schedule.was_steered("a")
    loops.ask("b", 500)
    loops.schedule.end(turn, 900, ["build"], loops.now)
    assert loops.started() == ["b"]


def test_a_loop_keeps_its_place_while_its_next_request_is_rendered() -> None:
    loops = Loops()
    loops.learn("build", 100.0)
    loops.run("a", 900, "build")
    for turn in range(3):
        loops.schedule.expect(Need("a", 0), loops.now)
        other = loops.ask(f"b {turn}", 500)
        assert loops.started() == []
        loops.now += 1.9
        assert loops.started() == []
        following = loops.ask("a", 950)
        assert loops.started() == ["a"]
        loops.schedule.withdraw(other, loops.now)
        loops.schedule.end(following, 950, ["build"], loops.now)


def test_a_request_that_never_asks_for_its_turn_keeps_a_place_for_a_moment_only() -> None:
    loops = Loops()
    loops.learn("build", 100.0)
    loops.run("a", 900, "build")
    loops.schedule.expect(Need("a", 0), loops.now)
    loops.schedule.expect(Need("unknown", 0), loops.now)
    loops.ask("b", 500)
    for _ in range(7):
        assert loops.started() == []
        loops.now += REVIEW_S
    loops.schedule.expect(Need("a", 0), loops.now)  # the next request, which fails as well
    loops.now += REVIEW_S
    assert loops.started() == ["b"]
    assert loops.demoted == ["a"]


def test_only_some_pauses_are_weighed_at_once_and_all_in_turn() -> None:
    loops = Loops()
    loops.learn("read", 1.0)
    loops.schedule._prefill_rate = 0.01
    for number in range(3 * _MOST_REVIEWED):
        loops.run(f"{number}", 5, "read")
    loops.ask("b", 900)
    at: list[list[float]] = []
    for _ in range(6):
        loops.now += REVIEW_S
        assert loops.started() == []
        at.append([each.reviewed_at for each in loops.schedule._paused])
        assert at[-1].count(loops.now) == _MOST_REVIEWED
    assert min(at[1]) == -math.inf < min(at[2])
    assert sorted(at[5]) == sorted(each + 3 * REVIEW_S for each in at[2])
    assert not loops.demoted


def test_what_is_decided_for_a_pause_is_decided_again_later() -> None:
    loops = Loops()
    loops.learn("read", 1.0)
    loops.schedule._prefill_rate = 200.0
    loops.run("a", 900, "read")
    loops.ask("b", 500)
    assert loops.started() == []
    loops.now += 30.0  # the tool usually takes a second
    assert loops.started() == ["b"]


def test_a_turn_that_has_waited_long_gets_a_place_from_loops_that_had_their_time() -> None:
    loops = Loops()
    loops.learn("read", 1.0)
    loops.schedule._prefill_rate = 100.0
    keys = ["a", "b", "c"]
    for key in keys:
        loops.run(key, 300, "read")
    loops.ask("late", 950)
    started: list[str] = []
    while "late" not in started:
        assert loops.now < 1000
        for key in keys:  # one pauses while the others run
            turn = loops.ask(key, 300)
            started += loops.started()
            if turn in loops.schedule._running:
                loops.schedule.end(turn, 300, ["read"], loops.now)
            else:
                loops.schedule.withdraw(turn, loops.now)
            loops.now += 1.0
            started += loops.started()
    assert sorted(loops.demoted) == keys


def test_a_tenant_with_many_loops_does_not_keep_another_out() -> None:
    loops = Loops(Rules(capacity=1000, most_running=100))
    loops.learn("hang", 0.5, "greedy")
    loops.schedule._prefill_rate = 1.0
    for number in range(10):
        loops.run(f"g{number}", 100, "hang", tenant="greedy")
    loops.ask("more", 100, "greedy")
    assert loops.started() == []
    loops.ask("mine", 400, "modest")
    assert loops.started() == ["mine"]
    assert len(loops.demoted) == 4


def test_turns_that_never_end_do_not_keep_another_tenant_out_for_ever() -> None:
    loops = Loops(Rules(capacity=1000, most_running=100))
    for number in range(10):
        loops.ask(f"g{number}", 100, "greedy")
    assert len(loops.started()) == 10
    loops.ask("more", 100, "greedy")
    loops.ask("mine", 400, "modest")
    loops.now += RULES.patience_s
    assert loops.started() == []
    loops.now += RULES.patience_s
    assert loops.started() == ["mine"]


def test_the_tenant_that_holds_least_goes_first() -> None:
    loops = Loops()
    first = loops.ask("a", 700, "rich")
    loops.ask("keeps", 50, "rich")
    loops.started()
    loops.ask("b", 900, "rich")
    loops.now += 1
    loops.ask("c", 900, "poor")
    loops.schedule.end(first, 700, (), loops.now)
    loops.schedule.drop("a")
    assert loops.started() == ["c"]


def test_small_turns_pass_one_that_waits_for_much_room_until_it_is_late() -> None:
    loops = Loops()
    loops.ask("running", 500)
    assert loops.started() == ["running"]
    loops.ask("large", 900)
    loops.ask("small", 100)
    assert loops.started() == ["small"]
    loops.now += RULES.patience_s
    loops.ask("small too", 100)
    assert loops.started() == []


def test_contexts_that_grow_beyond_the_cache_push_out_the_latest_loop() -> None:
    loops = Loops()
    for key in "abc":
        loops.run(key, 300, "read")
        loops.now += 0.1
    loops.run("a", 450, "read")
    assert loops.demoted == ["c"]


def test_a_second_turn_of_a_running_loop_is_a_loop_that_ends_with_it() -> None:
    loops = Loops()
    first, second = loops.ask("a", 300), loops.ask("a", 300)
    assert loops.started() == ["a", "a"]
    loops.schedule.end(second, 310, (), loops.now)
    assert loops.schedule.resident_tokens == 300
    loops.schedule.end(first, 320, (), loops.now)
    assert loops.schedule.resident_tokens == 320


def test_forks_share_what_they_begin_with() -> None:
    loops = Loops()
    loops.run("a", 800, "read")
    for number in range(4):
        loops.ask(f"fork {number}", 840, source="a", shared=800)
    assert len(loops.started()) == 4
    assert loops.schedule.resident_tokens == 960


def test_a_fork_of_what_is_not_in_the_cache_shares_nothing() -> None:
    loops = Loops()
    loops.ask("fork", 840, source="a", shared=800)
    assert loops.started() == ["fork"]
    assert loops.schedule.resident_tokens == 840


def test_a_loop_is_known_by_its_latest_turn() -> None:
    loops = Loops()
    loops.run("1", 300, "read")
    turn = loops.ask("2", 320, after="1")
    assert loops.started() == ["2"]
    loops.schedule.end(turn, 330, ["read"], loops.now)
    assert (loops.schedule.resident_tokens, len(loops.schedule._loops)) == (330, 1)
    (loop,) = loops.schedule.status(loops.now).listed
    assert loop.turns == 2


def test_a_loop_that_pauses_for_longer_than_its_tools_take_is_silent() -> None:
    loops = Loops()
    loops.learn("read", 0.2)
    loops.run("quick", 10, "read")
    loops.run("slow", 10, "build")
    loops.run("ended", 10, "build")
    known = dict(loops.schedule._loops)
    loops.schedule.drop("ended")
    runs = loops.ask("runs", 10)
    loops.started()

    def silent() -> list[str]:
        each = {**known, "runs": runs.loop}
        return [name for name, loop in each.items() if loops.schedule.is_silent(loop, loops.now)]

    assert silent() == ["ended"]
    loops.now += 10.0
    assert silent() == ["quick", "ended"]
    loops.now += 600.0
    assert silent() == ["quick", "slow", "ended"]
    loops.schedule.end(runs, 10, [], loops.now)
    assert "runs" not in silent()


def test_a_loop_is_not_silent_while_its_next_turn_waits_whatever_it_is_called_then() -> None:
    loops = Loops(Rules(capacity=1000, most_running=1))
    loops.run("a", 10, "read")
    (loop,) = loops.schedule._loops.values()
    loops.ask("busy", 10)
    loops.started()
    loops.now += 10_000.0
    assert loops.schedule.is_silent(loop, loops.now)
    waiting = loops.ask("b", 20, after="a")
    assert waiting.loop is loop
    assert not loops.schedule.is_silent(loop, loops.now)
    loops.schedule.drop("b")  # its client has left
    assert not loops.schedule.is_silent(loop, loops.now)
    loops.schedule.withdraw(waiting, loops.now)
    assert loops.schedule.is_silent(loop, loops.now)


def test_a_loop_that_loses_its_place_is_not_another_with_the_same_key() -> None:
    demoted: list[Loop] = []
    schedule = LoopSchedule(RULES, demoted.append)
    first, second = (schedule.ask("one", Need("a", 100), 0.0) for _ in range(2))
    while schedule.next(0.0) is not None:
        pass
    schedule.end(first, 100, (), 0.0)
    schedule.end(second, 100, (), 0.0)
    assert [each is second.loop for each in demoted] == [True]


def test_a_turn_that_two_continue_is_continued_by_two_loops() -> None:
    loops = Loops()
    loops.run("1", 300, "read")
    first = loops.ask("2a", 320, after="1", branch="1", source="1", shared=300)
    second = loops.ask("2b", 340, after="1", branch="1", source="1", shared=300)
    assert loops.started() == ["2a", "2b"]
    loops.schedule.end(first, 320, ["read"], loops.now)
    loops.schedule.end(second, 340, ["read"], loops.now)
    assert loops.schedule.resident_tokens == 320 + 40
    third = loops.ask("3b", 400, after="2b", branch="1", source="1", shared=340)
    assert loops.started() == ["3b"]
    loops.schedule.end(third, 400, ["read"], loops.now)
    assert loops.schedule.resident_tokens == 320 + 100
    loops.schedule.drop("2a")
    loops.schedule.drop("3b")
    assert (loops.schedule.resident_tokens, loops.schedule._branches) == (0, {})


def test_a_turn_that_fails_can_be_asked_for_again() -> None:
    loops = Loops()
    loops.run("1", 300, "read")
    failed = loops.ask("2", 320, after="1")
    loops.started()
    loops.schedule.withdraw(failed, loops.now)
    loops.ask("3", 320, after="1")
    assert loops.started() == ["3"]
    assert (loops.schedule.resident_tokens, len(loops.schedule._loops)) == (320, 1)


def test_a_history_that_was_changed_replaces_the_one_before() -> None:
    loops = Loops()
    loops.run("1", 300, "read")
    second = loops.ask("2", 500, after="1", branch="1")
    loops.started()
    loops.schedule.end(second, 500, (), loops.now)
    loops.ask("3", 320, after="1", branch="1", replaces=True)
    assert loops.started() == ["3"]
    assert len(loops.schedule._loops) == 1


def test_a_loop_that_ends_while_its_turn_runs_is_forgotten_with_it() -> None:
    loops = Loops()
    turn = loops.ask("a", 300)
    loops.started()
    loops.schedule.drop("a")
    loops.schedule.end(turn, 300, (), loops.now)
    assert loops.demoted == ["a"]
    assert not loops.schedule._loops


@pytest.mark.parametrize("runs", [True, False])
def test_a_loop_whose_latest_turn_is_gone_while_the_next_one_is_there_ends_if_that_fails(
    *, runs: bool
) -> None:
    loops = Loops(Rules(capacity=1000, most_running=1))
    loops.run("a", 300)
    other = None if runs else loops.ask("b", 100)
    loops.started()
    turn = loops.ask("c", 500, after="a")
    assert loops.started() == ["c"] * runs
    loops.schedule.drop("a")
    loops.schedule.withdraw(turn, loops.now)
    if other is not None:
        loops.schedule.withdraw(other, loops.now)
    assert loops.schedule.is_empty
    assert loops.schedule.resident_tokens == 0


def test_a_turn_that_fails_leaves_its_loop_as_it_was() -> None:
    loops = Loops()
    loops.run("a", 300)
    turn = loops.ask("b", 900, after="a")
    assert loops.started() == ["b"]
    loops.schedule.withdraw(turn, loops.now)
    assert loops.schedule.resident_tokens == 300
    loops.schedule.drop("a")
    assert loops.schedule.is_empty


def test_a_context_larger_than_the_cache_runs_alone() -> None:
    loops = Loops()
    loops.run("a", 500, "read")
    loops.now += 100.0
    loops.run("huge", 5000)
    assert loops.schedule.resident_tokens == 1000


def test_loops_are_forgotten_past_a_bound() -> None:
    loops = Loops(Rules(capacity=10**9, most_running=8))
    for number in range(17_000):
        loops.run(str(number), 10)
    assert len(loops.schedule._loops) == 16_384
    assert loops.schedule.resident_tokens == 10 * _MOST_RESIDENT


def test_operators_see_who_has_what_and_who_waits() -> None:
    loops = Loops()
    loops.learn("read", 1.0)
    loops.schedule._prefill_rate = 100.0
    loops.run("a", 300, "read")
    loops.ask("b", 400, "two")
    loops.started()
    loops.now += 0.2
    loops.ask("c", 900)
    assert loops.started() == []
    loops.now += 0.1
    status = loops.schedule.status(loops.now)
    assert (status.capacity_tokens, status.held_tokens) == (1000, 700)
    assert (status.running, status.paused, status.waiting) == (1, 1, 1)
    seen = [(each.state, each.tenant, each.tokens, each.tools) for each in status.listed]
    assert seen == [("waiting", "one", 900, ""), ("running", "two", 400, ""), ("paused", "one", 300, "read")]
    assert 0.9 < status.listed[2].usually_s < 1.1
    assert 0.05 < status.listed[0].seconds < 0.15
    assert status.listed[0].why == (
        "300 tokens are free (running: 1, paused: 1), two holds most (400), one would exceed its share"
    )


def test_operators_see_why_a_turn_waits() -> None:
    loops = Loops(Rules(capacity=1000, most_running=2))

    def why() -> list[str]:
        return [each.why for each in loops.schedule.status(loops.now).listed if each.state == "waiting"]

    for key in "ab":
        loops.ask(key, 300)
    assert loops.started() == ["a", "b"]
    loops.ask("c", 100)
    assert why() == ["as many turns run as may"]
    alone = Loops()
    alone.ask("a", 900)
    alone.started()
    alone.ask("b", 500)
    assert alone.schedule.status(0.0).listed[0].why == "100 tokens are free (running: 1, paused: 0)"
    alone.now = 61.0
    alone.ask("small", 50)
    assert alone.started() == []
    assert alone.schedule.status(61.0).listed[1].why == "another turn goes first"


KEYS = "abcdefghij"


class AnyOrder(RuleBasedStateMachine):
    """Loops of three tenants ask, end, leave and come back in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.loops = Loops(Rules(capacity=1000, most_running=4, patience_s=10.0, slice_s=5.0))
        self.turns: list[Turn] = []
        self.held: set[str] = set()

    @rule(
        key=st.sampled_from(KEYS),
        after=st.sampled_from(("", *KEYS)),
        tokens=st.integers(1, 1500),
        shared=st.integers(0, 200),
        replaces=st.booleans(),
    )
    def ask(self, key: str, after: str, tokens: int, shared: int, replaces: bool) -> None:
        branch = str(ord(key) % 3)
        fields = {"after": after, "branch": branch, "source": branch, "shared": shared, "replaces": replaces}
        self.turns.append(self.loops.ask(key, tokens, tenant=branch, **fields))

    @rule()
    def start(self) -> None:
        self.loops.started()

    @precondition(lambda self: self.turns)
    @rule(data=st.data(), tokens=st.integers(0, 1500), tool=st.sampled_from(["", "read", "build"]))
    def end(self, data: st.DataObject, tokens: int, tool: str) -> None:
        turn = data.draw(st.sampled_from(self.turns))
        if turn in self.loops.schedule._running and tokens:
            self.loops.schedule.end(turn, tokens, [tool] if tool else [], self.loops.now)
        else:
            self.loops.schedule.withdraw(turn, self.loops.now)
        self.turns.remove(turn)

    @rule(key=st.sampled_from(KEYS), what=st.sampled_from(["expect", "output_grew", "was_steered"]))
    def tell(self, key: str, what: str) -> None:
        schedule = self.loops.schedule
        if what == "was_steered":
            schedule.was_steered(key)
        elif what == "expect":
            schedule.expect(Need(key, 0), self.loops.now)
        else:
            schedule.output_grew(key, self.loops.now)

    @rule(key=st.sampled_from(KEYS))
    def drop(self, key: str) -> None:
        self.loops.schedule.drop(key)

    @rule(seconds=st.sampled_from([0.1, REVIEW_S, 3.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.loops.now += seconds

    @rule(tokens=st.integers(0, 5000), seconds=st.floats(0.0, 10.0))
    def measure(self, tokens: int, seconds: float) -> None:
        self.loops.schedule.measured(tokens, seconds)

    @invariant()
    def what_is_held_adds_up(self) -> None:
        schedule = self.loops.schedule
        residents = {turn.loop for turn in schedule._running} | set(schedule._paused)
        residents |= {turn.loop for turn in schedule._waiting if turn.loop.is_resident}
        assert sum(loop.charged for loop in residents) == schedule.resident_tokens
        assert sum(schedule._held.values()) == schedule.resident_tokens
        assert sum(turn.tokens for turn in schedule._waiting) == schedule._waiting_tokens
        assert all(tokens > 0 for tokens in schedule._held.values())
        assert all(loop.is_resident and loop.paused_at is not None for loop in schedule._paused)

    @invariant()
    def every_loop_has_a_name_and_a_branch(self) -> None:
        schedule = self.loops.schedule
        assert all(loop.key == key for key, loop in schedule._loops.items())
        in_branches = [loop for loops in schedule._branches.values() for loop in loops]
        assert sorted(map(id, in_branches)) == sorted(map(id, schedule._loops.values()))

    @invariant()
    def no_more_is_held_than_fits_unless_it_runs(self) -> None:
        schedule = self.loops.schedule
        assert not schedule._paused or schedule.resident_tokens <= 1000 or schedule._waiting
        assert schedule.running <= 4

    def teardown(self) -> None:
        """Whoever waits runs in the end, if the others end or pause."""
        schedule = self.loops.schedule
        for _ in range(200):
            if not schedule.waiting:
                break
            for turn in list(schedule._running):
                schedule.end(turn, turn.tokens, ["read"], self.loops.now)
            self.loops.now += 30.0
            self.loops.started()
        assert not schedule.waiting


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_no_more_loops_are_weighed_however_small_their_contexts_are() -> None:
    loops = Loops(Rules(capacity=10**6, most_running=8))
    loops.run("other", 1000, tenant="two")
    for number in range(2000):
        loops.run(str(number), 10)
    schedule = loops.schedule
    assert len(schedule._paused) == _MOST_RESIDENT
    # The loops of the tenant that has most are demoted, the one that has paused longest first.
    assert loops.demoted == [str(number) for number in range(len(loops.demoted))]
    assert schedule.resident_tokens == 1000 + 10 * (_MOST_RESIDENT - 1)


def test_a_loop_that_grows_takes_the_place_of_all_others() -> None:
    loops = Loops()
    for number in range(100):
        loops.run(str(number), 5, tenant="one" if number % 4 else "two")
    turn = loops.ask("0", 1000, "two")
    assert loops.started() == ["0"]
    assert loops.schedule.resident_tokens == 1000
    # The tenant that holds most loses its latest first: the one that grows, and then both in turn.
    assert loops.demoted[:2] == ["96", "92"]
    assert set(loops.demoted) == {str(number) for number in range(1, 100)}
    loops.schedule.end(turn, 1000, (), loops.now)
