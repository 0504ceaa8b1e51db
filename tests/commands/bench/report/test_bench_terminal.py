"""The tables in the terminal."""

from io import StringIO

import pytest
from rich.console import Console

from slipring.commands.bench.report import terminal, units
from slipring.commands.bench.report.verdict import compare
from slipring.commands.bench.results import ModeDescription
from slipring.commands.bench.statistics import summarise
from tests.commands.bench.records import CODING, MODES, RECORDS, record
from tests.commands.bench.report.pages import printed


def test_a_wide_terminal_shows_more_columns_and_the_stages() -> None:
    wide = StringIO()
    Console(file=wide, width=140).print(terminal.render(record([CODING]), is_wide=True))
    shown = wide.getvalue()
    assert max(map(len, shown.splitlines())) <= 140
    assert "created" in shown
    for mode in MODES:
        (line,) = (line for line in shown.splitlines() if line.startswith(f"{mode.name}, a turn: "))
        assert "prefill" in line


def test_terminal_escapes_are_removed() -> None:
    made = RECORDS["wrong"]()
    made.skipped["rollout"] = "\x1b]0;owned\x07\x1b[2Jboo\x9b1m"
    made.loops[0].error = "\x1b[2Jbad"
    out = StringIO()
    Console(file=out, width=120, force_terminal=True).print(terminal.render(made))
    assert "boo" in out.getvalue()
    assert "bad" in out.getvalue()
    for escape in ("\x1b]0;", "\x1b[2J", "\x07", "\x9b"):
        assert escape not in out.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_shows_every_mode(width: int) -> None:
    made = RECORDS["wrong"]()
    shown = printed(made, width)
    for mode in made.modes:
        assert shown.count(f"\n{mode.name} ") >= 2
    assert shown.count("WRONG") == 1
    assert "websocket failed in 1 of 3 repeats: the socket was closed" in " ".join(shown.split())
    against = next(each for each in summarise(made) if (each.workload, each.mode) == ("coding", "http-full"))
    socket = next(each for each in summarise(made) if (each.workload, each.mode) == ("coding", "websocket"))
    assert against.wall_ms is not None
    assert socket.wall_ms is not None
    held = compare(made.of("coding", "http-full"), made.of("coding", "websocket"))
    assert held is not None
    row = next(line for line in shown.splitlines() if line.startswith("websocket "))
    assert f"≈{units.ratio(1 - held.saved)}" in row
    assert units.ratio(socket.sent_bytes / against.sent_bytes) in row
    assert max(map(len, shown.splitlines())) <= width


def test_rich_markup_is_not_interpreted() -> None:
    made = RECORDS["one_mode"]()
    made.modes = [ModeDescription(name="websocket", title="[red]x[/red]", about="")]
    assert "[red]x[/red]" in printed(made)
