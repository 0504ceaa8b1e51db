"""The screen, in terminals of several sizes."""

import io
import unicodedata

import pytest
from hypothesis import given, settings
from rich.cells import cell_len
from rich.console import Console

from slipring.commands.top.figures import count, duration, rate, share, size, visible
from slipring.commands.top.screen import Screen, lines
from slipring.commands.top.state import State, View
from slipring.observation.live_messages import Message
from slipring.protocol.turn_report import Departure
from tests.commands.top.messages import any_messages
from tests.commands.top.sample import (
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

SIZES = [(80, 24), (200, 60), (40, 10), (10, 3), (1, 1)]
ADDRESS = "127.0.0.1:9464"


def folded(*messages: Message) -> View | None:
    watched = State()
    for message in messages:
        watched.fold(message)
    return watched.view()


def drawn(
    view: View | None, width: int = 200, height: int | None = 60, trouble: str | None = None
) -> list[str]:
    """The lines, as a terminal of this width shows them."""
    found = lines(view, ADDRESS, width, height, trouble=trouble)
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    for line in found:
        console.print(line)
    shown = out.getvalue().split("\n")[:-1]
    assert len(shown) == len(found), "a line was wrapped"
    assert all(cell_len(line) <= width for line in shown)
    assert height is None or len(shown) <= height
    assert not [char for line in shown for char in line if unicodedata.category(char).startswith("C")]
    return shown


def busy() -> View | None:
    return folded(greeting(), busy_update(now=NOW - 5, totals=totals(1200), cpu_s=11.5), busy_update())


def row(shown: list[str], start: str) -> list[str]:
    """The words of the only line that starts so."""
    (line,) = [line for line in shown if line.startswith(start)]
    return line.split()


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("workers", [1, 3])
def test_it_fits_any_size(width: int, height: int, workers: int) -> None:
    updates = [busy_update(process) for process in range(workers)]
    assert drawn(folded(greeting(workers), *updates), width, height)


@settings(max_examples=15, deadline=None)
@given(any_messages)
def test_any_view_can_be_drawn(messages: list[Message]) -> None:
    view = folded(greeting(), *messages)
    drawn(view, 80, 24)
    drawn(view, 40, None)


def test_a_wide_terminal_shows_everything() -> None:
    shown = drawn(busy())
    header = " ".join(shown[:2])
    for part in (
        *("slipring 0.1.0", ADDRESS, "up 3h 12m", "1 worker", "turns 1,242 (8.0/s)", "in flight 4"),
        *("waiting 1", "connections 4", "tokens in 11.2 M (72,000/s)", "out 74,400 (480/s)", "cached 97 %"),
        *("saved 48.5 MiB", "loop lag 1 ms", "memory 88.0 MiB", "states 6.0 MiB of 512 MiB", "CPU 10 %"),
    ):
        assert part in header
    assert row(shown, "llama  ")[1:7] == ["ok", "2", "0", "1", "of", "2"]
    assert row(shown, "llama 0")[2:] == ["busy", "18,312", "team-a", "#1", "resp_68f2a91c07"]
    assert row(shown, "#1")[1:10] == ["generate", "+1", "1.9", "s", "team-a", "2", "main", "12", "850"]
    assert row(shown, "#1")[11:14] == ["214", "18,036", "62"]
    assert row(shown, "#2")[1:6] == ["waits", "for", "tool", "13", "s"]
    assert row(shown, "#3")[1:6] == ["waits", "for", "client", "3.2", "s"]
    assert "context_length_exceeded" in row(shown, "#3")
    assert row(shown, "#4")[1:6] == ["no", "turn", "yet", "2.0", "s"]
    assert row(shown, "sse")[1:] == ["preparing", "200", "ms", "team-c"]
    assert row(shown, " 12 s ago")[-6:] == ["fork,", "compaction", "the", "template", "drops", "thoughts"]
    assert row(shown, "team-a") == ["team-a", "42", "s", "9", "391", "KiB"]


def test_a_small_terminal_shows_the_most_important_things() -> None:
    shown = drawn(busy(), 40, 10)
    assert len(shown) == 10
    assert row(shown, "#2")[1:6] == ["waits", "for", "tool", "13", "s"]
    assert "… 4 more" in shown
    assert row(shown, "llama")[:2] == ["llama", "ok"]
    assert row(shown, "3.2 s ago")[3:5] == ["#3", "team-a"]


def test_rows_that_do_not_fit_are_counted() -> None:
    many = update(connections=[connection(number) for number in range(1, 301)], engines=[])
    shown = drawn(folded(greeting(), many), 80, 24)
    assert len(shown) == 24
    rows = sum(line.startswith("#") for line in shown)
    assert shown[-1] == f"… {300 - rows} more"
    assert sum(line.startswith("#") for line in drawn(folded(greeting(), many), 80, None)) == 300


def test_names_cannot_control_the_terminal() -> None:
    name = "\x1b[2Jevil\r\n\u202e[bold]"
    view = folded(greeting(), update(connections=[connection(1, tenant=name)], engines=[engine(name=name)]))
    assert sum("\\x1b[2Jevil\\r\\n\\u202e[bold]" in line for line in drawn(view)) == 4  # two slots


def test_trouble_is_named() -> None:
    broken = engine(trouble="it does not answer", breaker="open", slots=[])
    shown = drawn(folded(greeting(2), busy_update(engines=[broken], is_draining=True)))
    assert "1 not reporting · draining" in shown[0]
    assert row(shown, "w0 llama")[2:9] == ["it", "does", "not", "answer", "2", "0", "open"]
    shown = drawn(busy(), 80, 24, trouble="reconnecting in 4 s: Connection refused")
    assert shown[0] == "reconnecting in 4 s: Connection refused"
    assert shown[1].startswith("slipring 0.1.0")


def test_an_empty_server_says_where_clients_connect() -> None:
    shown = drawn(folded(greeting(), update()), 80, 24)
    assert "no client is connected: clients use http://127.0.0.1:8000/v1" in shown


def test_the_screen_takes_the_size_of_its_terminal() -> None:
    screen = Screen(ADDRESS)
    console = Console(file=io.StringIO(), width=60, height=12, force_terminal=True)
    assert len(console.render_lines(screen)) == 1
    screen.view = busy()
    shown = console.render_lines(screen)
    assert len(shown) == 12
    assert all(sum(segment.cell_length for segment in line) <= 60 for line in shown)


def test_figures_are_short() -> None:
    assert [count(n) for n in (0, 940, 12_400, 1.25e6, 3e9, 10**40)] == [
        *("0", "940", "12,400", "1.2 M", "3.0 G", "1000.0 T")
    ]
    assert [rate(n) for n in (0, 0.25, 9.5, 12, 1240)] == ["0/s", "0.2/s", "9.5/s", "12/s", "1,240/s"]
    assert [size(n) for n in (512, 1229, 340 * 2**20, 2000 * 2**20, 5 * 2**40)] == [
        *("512 B", "1.2 KiB", "340 MiB", "2.0 GiB", "5.0 TiB")
    ]
    assert [duration(s) for s in (0.034, 0.9996, 2.44, 9.96, 42, 192, 7500, 277_200)] == [
        *("34 ms", "1.0 s", "2.4 s", "10 s", "42 s", "3m 12s", "2h 05m", "3d 5h")
    ]
    assert [share(1, 3), share(1, 0), share(5, 3)] == ["33 %", "–", "100 %"]
    assert duration(float("nan")) == "0 ms"
    assert visible("a\x1b\n\u200eé") == "a\\x1b\\n\\u200eé"


def test_hosted_tools_are_shown_while_they_run_and_afterwards() -> None:
    turns = [running(3.0, phase, ("render", 5.0)) for phase in ("listing", "calling")]
    connections = [connection(number, running=[turn]) for number, turn in enumerate(turns, start=1)]
    shown = drawn(
        folded(greeting(), update(connections=connections, turns=[ended(1, 1, hosted_calls=17)])), width=250
    )
    assert any("lists tools" in line for line in shown)
    assert any("hosted tools" in line for line in shown)
    (heading,) = [line for line in shown if "slowest stage" in line]
    (ended_turn,) = [line for line in shown if " ago " in line]
    assert ended_turn[: heading.index("calls") + len("calls")].endswith(" 17")


def test_a_history_that_was_not_recognised_says_where_it_departs() -> None:
    turns = [ended(3.0, transport="http", departed=Departure("content", 0, "message"))]
    shown = drawn(folded(greeting(), busy_update(turns=turns)))
    assert any("other input[0].content" in line for line in shown)
