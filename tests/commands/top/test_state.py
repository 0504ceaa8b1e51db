"""Folding the messages of a live stream into a view."""

import msgspec
import pytest
from hypothesis import given, settings

from slipring.commands.top import state
from slipring.commands.top.run import as_json
from slipring.commands.top.state import MOST_TURNS, State, View
from slipring.observation.live_messages import (
    Greeting,
    Memory,
    Message,
    Parked,
    ProcessGone,
    TenantMemory,
    sum_of,
)
from tests.commands.top.messages import any_messages
from tests.commands.top.sample import (
    MIB,
    NOW,
    busy_update,
    connection,
    ended,
    engine,
    greeting,
    running,
    totals,
    update,
)


def folded(*messages: Message) -> View:
    watched = State()
    for message in messages:
        watched.fold(message)
    view = watched.view()
    assert view is not None
    return view


def numbers(view: View) -> list[int]:
    return [each.connection.number for each in view.connections]


def test_there_is_no_view_before_the_greeting() -> None:
    watched = State()
    assert watched.view() is None
    watched.fold(update())
    assert watched.view() is None
    assert not watched.is_complete


def test_a_view_is_complete_when_every_worker_has_reported() -> None:
    assert not folded(greeting(2), update(0)).is_complete
    assert not folded(greeting(2), update(0), update(1, is_complete=False)).is_complete
    assert folded(greeting(2), update(0), update(1)).is_complete
    assert not folded(greeting(2), update(0), update(1), ProcessGone(1, totals())).is_complete


def test_an_update_replaces_removes_and_appends() -> None:
    first = update(connections=[connection(1), connection(2, recent=[ended(9, 2)])])
    change = update(
        is_complete=False,
        connections=[connection(1, turns_ended=13), connection(3)],
        closed=[2],
        turns=[ended(1, 1)],
    )
    view = folded(greeting(), first, change)
    assert sorted(numbers(view)) == [1, 3]
    (changed,) = [each for each in view.connections if each.connection.number == 1]
    assert changed.connection.turns_ended == 13
    assert changed.last_turn == ended(1, 1)
    assert changed.idle_s == pytest.approx(1)
    assert [each.turn for each in view.turns] == [ended(1, 1), ended(9, 2)]


def test_a_complete_update_replaces_everything() -> None:
    view = folded(greeting(), busy_update(), update(connections=[connection(7)]))
    assert numbers(view) == [7]
    assert view.turns == []
    assert view.connections[0].last_turn is None


def test_a_process_that_is_gone_is_removed() -> None:
    gone = [ProcessGone(process, totals(1250)) for process in (0, 5)]
    view = folded(greeting(2), busy_update(0), busy_update(1), *gone)
    assert [process.process for process in view.processes] == [1]
    assert {each.process for each in view.connections} == {1}
    assert view.totals == sum_of((totals(), totals(1250)))


def test_totals_contain_what_ended_processes_had_counted() -> None:
    view = folded(greeting(departed=totals(10)), busy_update())
    assert view.totals == sum_of((totals(), totals(10)))
    assert view.totals.turns == {"completed": 1250, "failed": 4}


def test_a_process_that_takes_the_number_of_another_starts_anew() -> None:
    view = folded(greeting(), busy_update(), update(pid=5000, is_complete=False, now=NOW + 1))
    assert view.connections == []
    assert view.rates is not None
    assert view.rates.turns_per_s == 0
    assert view.processes[0].cpu_percent is None


def test_a_greeting_begins_anew() -> None:
    view = folded(greeting(), busy_update(), greeting(version="0.2.0"))
    assert (view.version, view.processes, view.connections) == ("0.2.0", [], [])


def test_connections_are_sorted_by_activity() -> None:
    view = folded(
        greeting(),
        update(
            connections=[
                connection(1, opened_at=NOW - 9),
                connection(2, recent=[ended(50, 2)]),
                connection(3, running=[running(1, "running")]),
                connection(4, recent=[ended(5, 4)]),
                connection(5, running=[running(8, "waiting"), running(0, "waiting")]),
                connection(6, opened_at=NOW - 2),
            ]
        ),
    )
    assert numbers(view) == [5, 3, 4, 2, 6, 1]


def test_processes_are_added_up() -> None:
    view = folded(
        greeting(2),
        busy_update(0, engines=[engine()], parked=[Parked("b", 1, 1, 60.0)], loop_lag_ms=3),
        busy_update(1, engines=[engine(trouble="it does not answer")], parked=[Parked("a", 1, 1, 4.0)]),
    )
    assert (view.sockets, view.in_flight, view.waiting, view.parked_sessions) == (8, 8, 2, 2)
    assert view.resident_bytes == 2 * 88 * MIB
    assert view.loop_lag_ms == 3
    assert view.memory["states"] == Memory(12 * MIB, 1024 * MIB)
    assert view.tenants == [TenantMemory("team-a", 10 * MIB, 512 * MIB)]
    assert view.totals.turns == {"completed": 2480, "failed": 4}
    assert [each.process for each in view.engines] == [1, 0]  # the one in trouble first
    assert [each.parked.tenant for each in view.parked] == ["a", "b"]


def test_rates_are_those_of_the_last_seconds() -> None:
    counted = [
        update(now=NOW + second, totals=totals(turns), cpu_s=12 + second / 2, loop_lag_ms=lag)
        for second, turns, lag in ((0, 100, 900), (10, 100, 5), (15, 140, 7), (20, 150, 2))
    ]
    view = folded(greeting(), *counted)
    assert view.rates is not None
    assert view.rates.turns_per_s == 5
    assert view.rates.output_tokens_per_s == 5 * 60
    assert view.rates.cpu_percent == 50
    assert view.loop_lag_ms == 7
    assert folded(greeting(), counted[0]).rates is None


def turns_per_s(*messages: Message) -> float:
    view = folded(*messages)
    assert view.rates is not None
    return view.rates.turns_per_s


def test_what_a_worker_had_counted_before_is_in_no_rate() -> None:
    first: list[Message] = [greeting(2)]
    first += [update(0, totals=totals(1000)), update(0, now=NOW + 1, totals=totals(1010))]
    assert turns_per_s(*first, update(1, now=NOW + 1, totals=totals(5000))) == 10
    later = update(0, now=NOW + 2, totals=totals(1020)), update(1, now=NOW + 2, totals=totals(5004))
    assert turns_per_s(*first, update(1, now=NOW + 1, totals=totals(5000)), *later) == 12


def test_a_worker_that_joins_is_counted_over_the_window_of_the_others() -> None:
    """Its own time, which is short, would make many turns per second of a few."""
    seconds = [update(0, now=NOW + second, totals=totals(10 * second)) for second in range(9)]
    joined = [update(1, now=NOW + 8 + 0.5 * half, totals=totals(6 * half)) for half in range(2)]
    last = update(0, now=NOW + 8.5, totals=totals(85))
    assert turns_per_s(greeting(2), *seconds, *joined, last) == pytest.approx((85 + 6) / 8.5)


def test_turns_of_a_worker_that_left_stay_in_the_rate_while_they_are_recent() -> None:
    def both(second: int, first: int, second_worker: int) -> list[Message]:
        return [
            update(0, now=NOW + second, totals=totals(first)),
            update(1, now=NOW + second, totals=totals(second_worker)),
        ]

    running = [greeting(2), *both(0, 0, 0), *both(5, 50, 50)]
    assert turns_per_s(*running) == 20
    assert turns_per_s(*running, ProcessGone(1, totals(50))) == 20
    again = update(1, pid=5001, now=NOW + 5, totals=totals(0))
    assert turns_per_s(*running, again) == 20
    later = update(0, now=NOW + 10, totals=totals(100))
    assert turns_per_s(*running, ProcessGone(1, totals(50)), again, later) == 15
    much_later = update(0, now=NOW + 15, totals=totals(150))
    assert turns_per_s(*running, ProcessGone(1, totals(50)), again, later, much_later) == 10


def test_a_worker_that_was_silent_gives_no_spike() -> None:
    silent = [update(now=NOW + second, totals=totals(10 * second)) for second in (0, 20, 21)]
    assert turns_per_s(greeting(), *silent) == pytest.approx(10)


def test_two_updates_at_almost_the_same_time_make_no_rate() -> None:
    close = [update(totals=totals(100)), update(now=NOW + 0.01, totals=totals(101))]
    assert folded(greeting(), *close).rates is None


def test_rates_start_again_when_the_clock_was_set_back() -> None:
    view = folded(greeting(), update(now=NOW), update(now=NOW - 60))
    assert view.rates is None


def test_counters_that_fall_give_no_negative_rate() -> None:
    view = folded(greeting(), update(totals=totals(100)), update(now=NOW + 1, totals=totals(50)))
    assert view.rates is not None
    assert view.rates.turns_per_s == 0


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MOST_CONNECTIONS", 3)
    monkeypatch.setattr(state, "MOST_PROCESSES", 2)
    many = update(connections=[connection(number, recent=[ended(1, number)]) for number in range(1, 6)])
    later = update(is_complete=False, connections=[connection(3)])
    watched = State()
    watched.fold(greeting(4))
    for report in (many, later, *(update(process) for process in range(1, 6))):
        watched.fold(report)
    for place in range(200):
        turns = [ended(place / 100 + turn / 1000) for turn in range(3)]
        watched.fold(update(1, is_complete=False, now=NOW + place / 100, turns=turns))
    view = watched.view()
    assert view is not None
    assert sorted(numbers(view)) == [3, 4, 5]
    assert [process.process for process in view.processes] == [0, 1]
    assert len(view.turns) == MOST_TURNS
    assert len(watched._processes[1].samples) <= 64
    assert len(watched._processes[0].last_turns) == 3


@settings(max_examples=20, deadline=None)
@given(any_messages)
def test_any_messages_can_be_folded(messages: list[Message]) -> None:
    watched = State()
    for message in messages:
        watched.fold(message)
        view = watched.view()
        if view is None:
            continue
        assert as_json(view).isascii()
        present = {each.process for each in view.processes}
        assert {each.process for each in view.connections} <= present
        assert {each.process for each in view.turns} <= present
        if isinstance(message, Greeting):
            assert not present
        elif isinstance(message, ProcessGone):
            assert message.process not in present
        elif message.is_complete:
            mine = {each.connection.number for each in view.connections if each.process == message.process}
            assert mine == {each.number for each in message.connections} - set(message.closed)


def test_json_shows_names_without_control_characters() -> None:
    view = folded(greeting(), update(connections=[connection(1, tenant="\x9b31mé\x7f\n")]))
    text = as_json(view)
    assert text.isascii()
    assert text.isprintable()
    assert msgspec.json.decode(text, type=View) == view
