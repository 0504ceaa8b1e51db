"""The columns of a table on the screen. Those that do not fit are left out."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

_GAP = 2

Row = Sequence[Text]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    rank: int
    """The highest is left out first."""
    is_right: bool = False
    least: int = 0
    """Cells to which it may be shortened before another column is left out. 0: it is not shortened."""


def table(columns: Sequence[Column], rows: Sequence[Row], width: int) -> list[Text]:
    """The heading and the rows as lines. Columns without any text in a row are left out."""
    wanted = {
        place: max(len(column.title), *(row[place].cell_len for row in rows))
        for place, column in enumerate(columns)
        if any(row[place].plain for row in rows)
    }
    chosen = _chosen(columns, wanted, width)
    heading = [Text(column.title, style="bold dim") for column in columns]
    return [_line(row, columns, chosen, width) for row in (heading, *rows)]


def _chosen(columns: Sequence[Column], wanted: dict[int, int], width: int) -> dict[int, int]:
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


def _line(row: Row, columns: Sequence[Column], chosen: dict[int, int], width: int) -> Text:
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
