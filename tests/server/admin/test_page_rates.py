"""The rates and levels of the live page, in a JavaScript engine without a browser."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

import slipring.server.admin
from slipring.commands.bench.report import charts

pytest.importorskip("quickjs")
_ENTRY = """
import { History } from "./rates.js";
globalThis.draw = ({ calls }) => {
  const history = new History();
  for (const [name, ...values] of calls) history[name](...values);
  return JSON.stringify({
    turns: history.perSecond("turns"), rates: history.rates("turns"),
    levels: history.levels("inFlight"), length: history.length,
  });
};
"""
NOW = 1_800_000_000_250
"""Milliseconds: in the middle of a step."""


class Seen(msgspec.Struct):
    """What the page shows after some calls."""

    turns: float | None
    rates: list[float]
    levels: list[float]
    length: int


def seen(tmp_path: Path, calls: list[list[Any]]) -> Seen:
    shutil.copy(Path(slipring.server.admin.__file__).parent / "page" / "rates.js", tmp_path)
    entry = tmp_path / "entry.js"
    entry.write_text(_ENTRY)
    return msgspec.json.decode(charts.still(entry, {"calls": calls}), type=Seen)


def count(process: int, seconds: float, turns: float, pid: int = 1) -> list[Any]:
    return ["count", process, pid, NOW + seconds * 1000, {"turns": turns}]


def steady(process: int, first: float, last: float, *, per_second: float, had: float = 0) -> list[list[Any]]:
    """Reports of a process twice a second."""
    halves = range(round(first * 2), round(last * 2) + 1)
    return [count(process, half / 2, had + (half / 2 - first) * per_second) for half in halves]


def in_time(calls: list[list[Any]]) -> list[list[Any]]:
    return sorted(calls, key=lambda call: call[3])


def test_nothing_is_known_at_first(tmp_path: Path) -> None:
    assert seen(tmp_path, []) == Seen(None, [], [], 0)
    first = seen(tmp_path, [count(worker, worker / 1000, 5000) for worker in range(3)])
    assert first == Seen(None, [], [], 0)


def test_what_workers_had_counted_before_is_in_no_rate(tmp_path: Path) -> None:
    """The page adds up 11 turns per second right after it was opened, whatever was counted before."""
    workers = [
        each
        for worker, rate in ((0, 4), (1, 5), (2, 2))
        for each in steady(worker, 0.01 * worker, 3 + 0.01 * worker, per_second=rate, had=4000 * worker)
    ]
    shown = seen(tmp_path, in_time(workers))
    assert shown.turns == pytest.approx(11)
    assert shown.rates == pytest.approx([11] * len(shown.rates))
    assert shown.length >= 3


def test_a_worker_that_takes_the_place_of_another_makes_no_spike(tmp_path: Path) -> None:
    before = [*steady(0, 0, 20, per_second=10, had=300), *steady(1, 0, 10, per_second=10, had=900)]
    after = [count(1, 11 + half / 2, 5 * half, pid=2) for half in range(19)]
    shown = seen(tmp_path, in_time(before + after))
    assert max(shown.rates) == pytest.approx(20)
    assert min(shown.rates) >= 10 - 1e-9
    assert shown.turns is not None
    assert 15 < shown.turns <= 20
    restarted = seen(tmp_path, in_time([*before, count(1, 11, 7000, pid=2), count(1, 11.5, 7005, pid=2)]))
    assert max(restarted.rates) == pytest.approx(20)


def test_what_a_worker_counted_that_left_stays(tmp_path: Path) -> None:
    left = [*steady(0, 0, 8, per_second=10), *steady(1, 0, 4, per_second=30)]
    shown = seen(tmp_path, in_time(left))
    assert max(shown.rates) == pytest.approx(40)
    assert shown.rates[-1] == pytest.approx(10)


def test_a_stream_that_was_away_makes_no_spike(tmp_path: Path) -> None:
    """As when the tab was hidden for an hour."""
    calls = [*steady(0, 0, 5, per_second=10), *steady(0, 3600, 3605, per_second=10, had=36_000)]
    shown = seen(tmp_path, calls)
    assert shown.rates == pytest.approx([10] * len(shown.rates))
    assert shown.turns == pytest.approx(10)
    assert shown.length == 120


def test_counters_that_fall_and_clocks_that_are_set_back_give_no_negative_rate(tmp_path: Path) -> None:
    assert min(seen(tmp_path, [*steady(0, 0, 4, per_second=9), *steady(0, 4.5, 9, per_second=9)]).rates) >= 0
    earlier = [*steady(0, 1000, 1005, per_second=10), *steady(0, 0, 5, per_second=3)]
    assert seen(tmp_path, earlier).turns == pytest.approx(3)


def test_levels_are_those_of_all_processes_and_hold_until_the_next(tmp_path: Path) -> None:
    calls: list[list[Any]] = []
    for half in range(13):
        calls += [count(0, half / 2, 0), ["gauge", {"inFlight": half}]]
    assert seen(tmp_path, calls).levels == list(range(1, 10))
