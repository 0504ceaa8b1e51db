"""The columns of a table on the screen. Those that do not fit are left out."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

_GAP = 2


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a row, with the column that it is in."""

    title: str
    rank: int
    """Of the column: the highest is left out first."""
    text: Text
    is_right: bool = False
    least: int = 0
    """Cells of the terminal to which the column may be shortened before another one is left out. 0: it is not
    shortened."""


Row = Sequence[Cell]
"""All rows of a table have the same columns; the last ones may be missing."""


def right(title: str, rank: int, text: str, style: str = "") -> Cell:
    """A cell of a column of figures."""
    return Cell(title, rank, Text(text, style=style), is_right=True)


def table(rows: Sequence[Row], width: int) -> list[Text]:
    """The heading and the rows as lines. Columns without any text in a row are left out."""
    columns = max(rows, key=len)
    texts = [[cell.text for cell in row] + [Text()] * (len(columns) - len(row)) for row in rows]
    wanted = {
        place: max(len(column.title), *(row[place].cell_len for row in texts))
        for place, column in enumerate(columns)
        if any(row[place].plain for row in texts)
    }
    chosen = _chosen(columns, wanted, width)
    heading = [Text(column.title, style="bold dim") for column in columns]
    return [_line(row, columns, chosen, width) for row in (heading, *texts)]


def _chosen(columns: Row, wanted: dict[int, int], width: int) -> dict[int, int]:
    """The places of the columns that fit, in order, with their widths."""

    def least(place: int) -> int:
        return min(wanted[place], columns[place].least or wanted[place])

    places = list(wanted)
    while len(places) > 1 and sum(map(least, places)) + _GAP * (len(places) - 1) > width:
        places.remove(max(places, key=lambda place: columns[place].rank))
    room = width - sum(map(least, places)) - _GAP * (len(places) - 1)
    widths = {}
    for place in sorted(places, key=lambda place: columns[place].rank):
        more = max(min(wanted[place] - least(place), room), 0)
        widths[place] = least(place) + more
        room -= more
    return {place: widths[place] for place in places}


def _line(row: Sequence[Text], columns: Row, chosen: dict[int, int], width: int) -> Text:
    line = Text()
    for place, cells in chosen.items():
        if line.plain:
            line.append(" " * _GAP)
        cell = shortened(row[place], cells)
        space = " " * (cells - cell.cell_len)
        line.append_text(Text(space) + cell if columns[place].is_right else cell + Text(space))
    line.rstrip()
    return shortened(line, width)


def shortened(text: Text, cells: int) -> Text:
    """A copy of a text that takes at most this many cells."""
    copy = text.copy()
    copy.truncate(max(cells, 0), overflow="ellipsis")
    return copy
