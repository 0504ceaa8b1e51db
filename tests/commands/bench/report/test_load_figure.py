"""Loops at once against time, drawn for a user's own server."""

import re
from xml.etree import ElementTree

import pytest

from slipring.commands.bench.load.command import Load
from slipring.commands.bench.load.options import LoadOptions
from slipring.commands.bench.load.results import LoadRecord
from slipring.commands.bench.load.service_level import Level, Percentiles
from slipring.commands.bench.report import figure
from slipring.commands.bench.subject.endpoint import Target
from slipring.commands.cli import main
from tests.commands.bench.load.loads import Silent


def level(connections: int, turn_ms: float, **fields: object) -> Level:
    def ranks(ms: float) -> Percentiles:
        return Percentiles(p50=ms, p95=2 * ms, p99=3 * ms, high=4 * ms, count=9)

    made = Level(connections=connections, seconds=1, turns=9, turns_per_s=9.0, **fields)  # type: ignore[arg-type]
    made.turn_ms, made.first_token_ms = ranks(turn_ms), ranks(turn_ms / 10)
    return made


def record(*levels: Level) -> LoadRecord:
    made = Load(LoadOptions(target=Target(url="http://127.0.0.1:9/v1")), Silent()).record
    made.endpoint.model = "mine"
    made.levels = list(levels)
    return made


def test_every_level_is_a_point_of_two_lines() -> None:
    drawn = figure.render_load(record(level(1, 100.0), level(16, 300.0), level(64, 900.0)))
    ElementTree.fromstring(drawn)
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", drawn.replace("\xa0", " "))
    assert {"1", "16", "64", "loops at once", "a whole turn", "its first token"} <= set(texts)
    assert "64 loops: a turn takes 900 ms, 1.80 s at p95, 9.0 turns a second." in texts
    assert drawn.count('class="band ') == 2


def test_a_level_that_was_too_much_says_so() -> None:
    drawn = figure.render_load(record(level(8, 100.0, broken="3.0% of turns failed (allowed: 1.0%)")))
    assert "the service level was violated: 3.0% of turns failed" in drawn


def test_without_any_turn_there_is_nothing_to_draw() -> None:
    empty = Level(connections=4, seconds=1, turns=0, turns_per_s=0.0)
    drawn = figure.render_load(record(empty))
    ElementTree.fromstring(drawn)
    assert "No turn has ended" in drawn


def test_a_figure_that_cannot_be_written_is_refused_before_the_load(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "load", "--svg", "/nowhere/load.svg"]) == 2
    assert "cannot write /nowhere/load.svg" in capsys.readouterr().err
