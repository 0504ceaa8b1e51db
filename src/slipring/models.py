"""The `[models]` table of the TOML file: which models are served by which engines.

Checks the form of the table only. Whether the engines exist and have these models is checked at startup.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class ModelsError(ValueError):
    """The table is invalid. The message names the key and the problem."""


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
_Check = tuple[Callable[[object], bool], str]
_DEFAULTS: dict[str, _Check] = {
    "temperature": (lambda value: _is_number(value, 0, 2), "must be a number from 0 to 2"),
    "top_p": (lambda value: _is_number(value, 0, 1), "must be a number from 0 to 1"),
    "max_output_tokens": (lambda value: type(value) is int and value > 0, "must be a whole number above 0"),
    "effort": (lambda value: isinstance(value, str) and value != "", "must be a string and not empty"),
}


def read_models(table: object) -> tuple[ModelEntry, ...]:
    """Return the entries of the table, in its order. Raises ``ModelsError``."""
    if not isinstance(table, dict) or not table:
        raise ModelsError("models: must be a table of tables")
    entries = tuple(_read_entry(name, given) for name, given in table.items())
    names = [name for entry in entries for name in (entry.name, *entry.aliases)]
    for name in names:
        if names.count(name) > 1:
            raise ModelsError(f"models: the name {name!r} is given twice")
    return entries


def _read_entry(name: str, given: object) -> ModelEntry:
    where = f"models.{name}"
    if not isinstance(given, dict):
        raise ModelsError(f"{where}: must be a table")
    unknown = given.keys() - {"engine", "model", "aliases", "defaults", "hosted_tools"}
    if unknown:
        raise ModelsError(f"{where}: unknown key {min(unknown)!r}")
    engine, model, aliases = given.get("engine", ""), given.get("model", ""), given.get("aliases", [])
    if not isinstance(engine, str) or not engine.strip():
        raise ModelsError(f"{where}: 'engine' must be a string and not empty")
    if not isinstance(model, str):
        raise ModelsError(f"{where}: 'model' must be a string")
    if not isinstance(aliases, list) or not all(isinstance(alias, str) and alias for alias in aliases):
        raise ModelsError(f"{where}: 'aliases' must be a list of strings, none of them empty")
    defaults = _read_defaults(given.get("defaults", {}), f"{where}.defaults")
    hosting = given.get("hosted_tools", "")
    if "hosted_tools" in given and hosting not in HOSTING:
        raise ModelsError(f"{where}: 'hosted_tools' must be one of {', '.join(HOSTING)}")
    return ModelEntry(name, engine.strip(), model.strip(), tuple(aliases), defaults, hosting)


def _read_defaults(given: object, where: str) -> tuple[tuple[str, Any], ...]:
    if not isinstance(given, dict):
        raise ModelsError(f"{where}: must be a table")
    for key, value in given.items():
        if key not in _DEFAULTS:
            raise ModelsError(f"{where}: unknown key {key!r} (known: {', '.join(_DEFAULTS)})")
        holds, demand = _DEFAULTS[key]
        if not holds(value):
            raise ModelsError(f"{where}: {key!r} {demand}")
    return tuple(given.items())


def _is_number(value: object, least: float, most: float) -> bool:
    return type(value) in (int, float) and least <= value <= most  # type: ignore[operator]
