"""How long a context is held for a loop that pauses."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipring.engines.scheduling.pause_lengths import PauseLength, PauseLengths, kind_of


def learnt(*seconds: float) -> PauseLength:
    pause = PauseLength()
    for each in seconds:
        pause.observe(each)
    return pause


def test_a_tool_that_returns_at_once_is_waited_for_and_one_that_builds_for_minutes_is_not() -> None:
    draw = random.Random(1)
    quick = learnt(*(draw.lognormvariate(-1.0, 0.5) for _ in range(60)))
    slow = learnt(*(draw.lognormvariate(5.0, 0.5) for _ in range(60)))
    assert quick.median_s == pytest.approx(0.37, rel=0.2)
    assert quick.hold_s(0.0, 2.0, 1.0) > quick.median_s
    assert slow.hold_s(0.0, 2.0, 1.0) == 0.0


def test_the_longer_a_pause_lasts_beyond_what_is_usual_the_less_it_pays_to_hold() -> None:
    draw = random.Random(2)
    pause = learnt(*(draw.lognormvariate(0.0, 0.4) for _ in range(60)))
    assert pause.hold_s(0.0, 3.0, 1.0) > 0.0
    assert pause.hold_s(30.0, 3.0, 1.0) == 0.0


def test_loops_that_never_come_back_are_not_held_for() -> None:
    pause = learnt(*[0.5] * 20)
    assert pause.hold_s(0.0, 1.0, 1.0) > 0.0
    for number in range(200):
        pause.begin(number, 0.0)
        pause.observe_end(number)
    assert pause.hold_s(0.0, 1.0, 1.0) == 0.0


def test_loops_that_never_say_that_they_have_ended_are_noticed_by_their_silence() -> None:
    draw = random.Random(3)
    lengths = [draw.lognormvariate(0.0, 0.4) for _ in range(60)]
    pause, informed, unaware = learnt(*lengths), learnt(*lengths), learnt(*lengths)
    for number in range(10):
        pause.begin(number, 0.0)
        informed.begin(number, 0.0)
        informed.observe_end(number)
    pause.review(1.0)
    assert pause.hold_s(2.0, 3.0, 1.0) == unaware.hold_s(2.0, 3.0, 1.0)
    pause.review(100.0)
    assert pause.hold_s(2.0, 3.0, 1.0) == informed.hold_s(2.0, 3.0, 1.0) < unaware.hold_s(2.0, 3.0, 1.0)


def test_a_loop_that_comes_back_after_a_long_silence_has_not_ended() -> None:
    pause, other = learnt(*[1.0] * 60), learnt(*[1.0] * 60)
    for number in range(5):
        pause.begin(number, 0.0)
    pause.review(100.0)
    for number in range(5):
        pause.end(number, 1.0)
        other.begin(number, 0.0)
        other.end(number, 1.0)
    assert pause.hold_s(0.5, 1.0, 1.0) == pytest.approx(other.hold_s(0.5, 1.0, 1.0), rel=0.2)


def test_a_pause_whose_tool_still_runs_has_not_ended_however_long_it_lasts() -> None:
    lengths = [1.0, 2.0] * 30
    pause, unaware = learnt(*lengths), learnt(*lengths)
    for loop in "ab":
        pause.begin(loop, 0.0)
    pause.hear("a", 90.0)
    pause.review(91.0)
    unaware.begin("b", 0.0)
    unaware.review(91.0)
    assert pause.hold_s(0.5, 1.0, 1.0) == unaware.hold_s(0.5, 1.0, 1.0)
    pause.hear("b", 92.0)
    assert pause.hold_s(0.5, 1.0, 1.0) == pytest.approx(learnt(*lengths).hold_s(0.5, 1.0, 1.0), rel=0.05)


def test_one_loop_that_is_heard_of_again_and_again_teaches_nothing_about_others() -> None:
    pause, unaware = PauseLength(), PauseLength()
    for each in (pause, unaware):
        for number in range(60):
            each.observe(1.0 + number % 3)
        for number in range(200):
            each.begin(number, 0.0)
            each.observe_end(number)
    now = 0.0
    pause.begin("prints", now)
    for _ in range(100):
        now += 10 * pause.silence_s
        pause.review(now)
        pause.hear("prints", now)
    for age_s in (0.0, 0.5, 1.0, 2.0):
        assert pause.hold_s(age_s, 40.0, 1.0) == pytest.approx(unaware.hold_s(age_s, 40.0, 1.0))


def test_a_loop_that_is_known_to_come_back_is_held_for_longer() -> None:
    pause = learnt(*[2.0, 3.0, 4.0] * 20)
    for number in range(200):
        pause.begin(number, 0.0)
        pause.observe_end(number)
    assert pause.hold_s(1.0, 5.0, 1.0) == 0.0
    assert pause.hold_s(1.0, 5.0, 1.0, returns=True) > 1.0


def test_a_loop_that_is_forgotten_counts_neither_way() -> None:
    pause, other = learnt(*[1.0] * 20), learnt(*[1.0] * 20)
    pause.begin("a", 0.0)
    pause.forget("a")
    pause.review(1e6)
    assert pause.hold_s(0.5, 1.0, 1.0) == other.hold_s(0.5, 1.0, 1.0)


def test_a_changed_tool_is_learnt_anew() -> None:
    pause = learnt(*[0.1] * 500)
    for _ in range(150):
        pause.observe(20.0)
    assert pause.median_s > 10.0


@given(
    st.lists(st.floats(0.0, 1e6), max_size=30),
    st.floats(0.0, 1e6),
    st.floats(0.0, 1e4),
    st.floats(0.0, 1e4),
)
def test_any_pauses_give_a_finite_time(seen: list[float], age: float, gain: float, cost: float) -> None:
    hold = learnt(*seen).hold_s(age, gain, cost)
    assert 0.0 <= hold < float("inf")
    assert gain or not hold


def _size(pauses: PauseLengths) -> int:
    return sum(map(len, pauses._tenants.values()))


def test_kinds_are_bounded_per_tenant_and_tenants_too() -> None:
    pauses = PauseLengths()
    quick = pauses.of(kind_of("mine", ["read"]))
    quick.observe(0.1)
    for number in range(10_000):
        pauses.of(kind_of("other", [f"tool {number}"]))
    assert pauses.of(kind_of("mine", ["read"])) is quick
    assert _size(pauses) <= 66
    for number in range(3_000):
        pauses.of(kind_of(f"tenant {number}", []))
    assert _size(pauses) <= 1024 + 64


def test_a_kind_is_a_set_of_names_of_bounded_length() -> None:
    assert kind_of("a", ["x", "b", "x"]) == kind_of("a", ["b", "x"]) == ("a", "b+x")
    assert len(kind_of("a", [character * 1000 for character in "abcdefgh"])[1]) < 300
