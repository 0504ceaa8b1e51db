"""Tables of the TOML file whose keys have rules: what the readers of such tables share."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

from slipring.base.spelling import suggestion

Rule = tuple[Callable[[Any], bool], str]
"""Whether a value is valid, and what an error says that it must be."""


class TableError(ValueError):
    """A table is invalid. The message names the key and the problem, and no value but names of tables."""


def require_form(
    table: Mapping[str, Any], where: str, rules: Mapping[str, Rule], required: Collection[str] = ()
) -> None:
    """Refuse unknown keys, values that break their rule, and missing keys. ``where`` names the table.

    Raises ``TableError``.
    """
    for key, value in table.items():
        if key not in rules:
            hint = suggestion(key, rules) or f" (known: {', '.join(rules)})"
            raise TableError(f"{where}: unknown key {key!r}{hint}")
        holds, demand = rules[key]
        if not holds(value):
            raise TableError(f"{where}: {key!r} {demand}")
    for key in required:
        if key not in table:
            raise TableError(f"{where}: {key!r} is missing")


def one_of(words: Collection[str]) -> Rule:
    """The value is one of these words."""
    return (lambda value: isinstance(value, str) and value in words), f"must be one of {', '.join(words)}"


def whole_number(least: int) -> Rule:
    """The value is a whole number, ``least`` or more."""
    return (lambda value: type(value) is int and value >= least), f"must be a whole number, {least} or more"


def is_number(value: object, least: float, most: float) -> bool:
    """Whether the value is a number within these bounds, and no truth value."""
    return type(value) in (int, float) and least <= cast(float, value) <= most


def is_text(value: object) -> bool:
    """Whether the value is a string that is more than spaces."""
    return isinstance(value, str) and value.strip() != "" and "\0" not in value


NOT_EMPTY: Rule = (is_text, "must be a string and not empty")
