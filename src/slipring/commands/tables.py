"""Tables of plain text, for people and for ``cut``."""

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]]) -> str:
    """The rows as lines, with columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
