"""Drawings of terminals, as the documentation shows them."""

import xml.etree.ElementTree as ET
from pathlib import Path

from rich.text import Text

from tests.screenshots.__main__ import chat, top
from tests.screenshots.terminal import PALETTES, Cells, drawing


def words(path: Path) -> list[str]:
    return [each.text or "" for each in ET.parse(path).iter("{http://www.w3.org/2000/svg}text")]


def test_what_a_program_draws_again_replaces_what_was_there() -> None:
    cells = Cells()
    cells.write("one\ntwo\x1b[1A\r\x1b[J\x1b[1mbold\x1b[0m plain")
    (line,) = cells.lines()
    assert line.plain == "bold plain"
    assert [(span.start, span.end) for span in line.spans if "bold" in str(span.style)] == [(0, 4)]


def test_words_stand_at_their_columns_and_nothing_is_loaded(tmp_path: Path) -> None:
    drawn = drawing("a & b", [Text("x  <y>", style="green")], 20, "dark")
    assert "http" not in drawn.replace("http://www.w3.org/2000/svg", "")
    (tmp_path / "a.svg").write_text(drawn)
    assert words(tmp_path / "a.svg") == ["x", "<y>"]
    first, second = (float(each.split('"')[1]) for each in drawn.split("<text")[1:])
    assert second - first == 3 * 8.4


async def test_terminals_are_drawn_in_both_palettes(tmp_path: Path) -> None:
    top(tmp_path)
    await chat(tmp_path)
    for palette in PALETTES:
        assert {"slipring", "engine", "client"} <= set(words(tmp_path / f"top.{palette}.svg"))
        shown = words(tmp_path / f"chat.{palette}.svg")
        assert shown[:3] == ["$", "slipring", "chat"]
        assert {"slip", "brushes", "radar", "first"} <= set(shown)
