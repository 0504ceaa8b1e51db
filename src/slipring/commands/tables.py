"""Tables of plain text, for people and for ``cut``."""
