"""The `[models]` table of the TOML file: which models are served by which engines.

Checks the form of the table only. Whether the engines exist and have these models is checked at startup.
"""

from dataclasses import dataclass
from typing import Any

from slipring.config.tables import NOT_EMPTY, Rule, TableError, is_number, one_of, require_form


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model: its name in the API, its engine, and its defaults."""

    name: str
    engine: str
    model: str = ""
    """The engine's name for the model; empty: the engine's first model."""
    aliases: tuple[str, ...] = ()
    defaults: tuple[tuple[str, Any], ...] = ()
    """Names and values that apply to requests which leave them out."""
    hosted_tools: str = ""
    """Who runs hosted tools: ``here``, ``upstream`` or ``refuse``; empty: as the engine's option says."""


HOSTING = ("here", "upstream", "refuse")
_DEFAULTS: dict[str, Rule] = {
    "temperature": (lambda value: is_number(value, 0, 2), "must be a number from 0 to 2"),
    "top_p": (lambda value: is_number(value, 0, 1), "must be a number from 0 to 1"),
    "max_output_tokens": (lambda value: type(value) is int and value > 0, "must be a whole number above 0"),
    "effort": NOT_EMPTY,
}


_RULES: dict[str, Rule] = {
    "engine": NOT_EMPTY,
    "model": (lambda value: isinstance(value, str), "must be a string"),
    "aliases": (
        lambda value: isinstance(value, list) and all(isinstance(alias, str) and alias for alias in value),
        "must be a list of strings, none of them empty",
    ),
    "defaults": (lambda value: isinstance(value, dict), "must be a table"),
    "hosted_tools": one_of(HOSTING),
}


def read_models(table: object) -> tuple[ModelEntry, ...]:
    """Return the entries of the table, in its order. Raises ``TableError``."""
    if not isinstance(table, dict) or not table:
        raise TableError("models: must be a table of tables")
    entries = tuple(_read_entry(name, given) for name, given in table.items())
    names = [name for entry in entries for name in (entry.name, *entry.aliases)]
    for name in names:
        if names.count(name) > 1:
            raise TableError(f"models: the name {name!r} is given twice")
    return entries


def _read_entry(name: str, given: object) -> ModelEntry:
    where = f"models.{name}"
    if not isinstance(given, dict):
        raise TableError(f"{where}: must be a table")
    require_form(given, where, _RULES, required=("engine",))
    defaults = _read_defaults(given.get("defaults", {}), f"{where}.defaults")
    engine, model = given["engine"].strip(), given.get("model", "").strip()
    aliases, hosting = tuple(given.get("aliases", ())), given.get("hosted_tools", "")
    return ModelEntry(name, engine, model, aliases, defaults, hosting)


def _read_defaults(given: dict[str, Any], where: str) -> tuple[tuple[str, Any], ...]:
    require_form(given, where, _DEFAULTS)
    return tuple(given.items())
