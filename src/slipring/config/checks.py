"""The `[[check]]` and `[policies]` tables of the TOML file: safety checks, and which turns they inspect.

Checks the form of the tables only. Whether the sources of checks exist and accept their settings is checked
at startup. The message of a ``TableError`` contains no value except the names of checks.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast, get_args

import msgspec

from slipring.base.spelling import suggestion
from slipring.config.tables import NOT_EMPTY, Rule, TableError, is_number, one_of, require_form, whole_number
from slipring.core.checks.policies import KINDS, KINDS_OF, Action, Ending, Mode, OnError, OnImages, Scope
from slipring.core.checks.verdicts import Kind

ANY_CATEGORY = "*"
"""The key of the threshold for categories that have none of their own."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class CheckEntry:
    """A configured check: where its verdicts come from, and what they lead to."""

    name: str
    source: str
    """``KIND``, ``python:MODULE:FACTORY``, or the name of an entry point."""
    settings: str = field(default="{}", repr=False)
    """The settings of the source, as JSON."""
    thresholds: tuple[tuple[str, float], ...] = ()
    """Scores from which categories are flagged, instead of what the source says about them."""
    subjects: tuple[Kind, ...] = KINDS
    action: Action = "flag"
    mode: Mode = "follow"
    on_error: OnError = "open"
    on_images: OnImages = "open"
    before: bool = False
    context: int = 0
    ending: Ending = "incomplete"
    timeout_s: float = 2.0
    max_chars: int = 0
    """Longer texts are inspected in pieces of this length; 0: all texts as a whole."""
    at_once: int = 4
    """Calls of the source that may run at the same time."""


@dataclass(frozen=True, slots=True)
class PolicyEntries:
    """The names of the checks of each turn. The first list that exists counts: of the key, of its tenant, of
    the model, the default one."""

    default: tuple[str, ...] | None = None
    """None: all checks."""
    models: tuple[tuple[str, tuple[str, ...]], ...] = ()
    tenants: tuple[tuple[str, tuple[str, ...]], ...] = ()
    keys: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """By the id of a key in the store."""
    scope: Scope = "new"
    """Of all policies."""


_SUBJECTS = (*KINDS_OF, *KINDS)
_KEYS: dict[str, Rule] = {
    "name": (
        lambda value: isinstance(value, str) and _NAME.fullmatch(value) is not None,
        "must be a name of letters, digits, '_', '-' and '.'",
    ),
    "source": NOT_EMPTY,
    "settings": (lambda value: isinstance(value, dict), "must be a table"),
    "thresholds": (
        lambda value: isinstance(value, dict) and all(is_number(each, 0, 1) for each in value.values()),
        "must be a table of numbers from 0 to 1",
    ),
    "subjects": (
        lambda value: isinstance(value, list) and value != [] and all(each in _SUBJECTS for each in value),
        f"must be a list of some of {', '.join(_SUBJECTS)}",
    ),
    "action": one_of(get_args(Action)),
    "mode": one_of(get_args(Mode)),
    "on_error": one_of(get_args(OnError)),
    "on_images": one_of(get_args(OnImages)),
    "before": (lambda value: type(value) is bool, "must be true or false"),
    "context": whole_number(0),
    "ending": one_of(get_args(Ending)),
    "timeout_s": (
        lambda value: is_number(value, 0, math.inf) and 0 < value < math.inf,
        "must be a number above 0",
    ),
    "max_chars": whole_number(0),
    "at_once": whole_number(1),
}


def read_checks(given: object) -> tuple[CheckEntry, ...]:
    """The entries of the ``check`` tables, in their order. Raises ``TableError``."""
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise TableError("check: must be tables, each under a line [[check]]")
    entries = tuple(_read_check(each, _place(each, index)) for index, each in enumerate(given))
    names = [entry.name for entry in entries]
    for name in names:
        if names.count(name) > 1:
            raise TableError(f"check: the name {name!r} is given twice")
    return entries


def read_policies(given: object, checks: tuple[CheckEntry, ...]) -> PolicyEntries:
    """The entries of the ``policies`` table, which name ``checks``. Raises ``TableError``."""
    if not isinstance(given, dict):
        raise TableError("policies: must be a table")
    known = [check.name for check in checks]
    for key in given:
        if key not in ("default", "models", "tenants", "keys", "scope"):
            raise TableError(f"policies: unknown key {key!r} (known: default, models, tenants, keys, scope)")
    scope = given.get("scope", "new")
    holds, demand = one_of(get_args(Scope))
    if not holds(scope):
        raise TableError(f"policies: 'scope' {demand}")
    default = _read_names(given["default"], "policies.default", known) if "default" in given else None
    models, tenants, keys = (
        _read_named(given.get(key, {}), key, known) for key in ("models", "tenants", "keys")
    )
    return PolicyEntries(default, models, tenants, keys, scope)


def _place(table: Mapping[str, object], index: int) -> str:
    """How an error names a table: by the check's name if that is valid, else by its position."""
    name = table.get("name")
    return f"check {name!r}" if _KEYS["name"][0](name) else f"check[{index}]"


def _read_check(table: dict[str, Any], where: str) -> CheckEntry:
    require_form(table, where, _KEYS, required=("name", "source"))
    values = dict(table)
    action = values.setdefault("action", "flag")
    values.setdefault("mode", "hold" if action == "block" else "follow")
    values.setdefault("on_error", "open" if action == "flag" else "closed")
    if "subjects" in values:
        values["subjects"] = _kinds(values["subjects"])
    values["settings"] = _as_json(values.get("settings", {}), where)
    thresholds = values.get("thresholds", {})
    values["thresholds"] = tuple((category, float(score)) for category, score in thresholds.items())
    if "timeout_s" in values:
        values["timeout_s"] = float(values["timeout_s"])
    return CheckEntry(**values)


def _kinds(subjects: list[str]) -> tuple[Kind, ...]:
    """The kinds that a list of kinds and sides stands for."""
    chosen = {kind for each in subjects for kind in KINDS_OF.get(cast(Any, each), (each,))}
    return tuple(kind for kind in KINDS if kind in chosen)


def _as_json(settings: dict[str, Any], where: str) -> str:
    try:
        return msgspec.json.encode(settings).decode()
    except (TypeError, ValueError):
        raise TableError(f"{where}: 'settings' holds a value that JSON cannot express") from None


def _read_named(given: object, key: str, known: list[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if not isinstance(given, dict):
        raise TableError(f"policies.{key}: must be a table of lists of checks")
    return tuple((name, _read_names(names, f"policies.{key}.{name}", known)) for name, names in given.items())


def _read_names(given: object, where: str, known: list[str]) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise TableError(f"{where}: must be a list of names of checks")
    for name in given:
        if name not in known:
            raise TableError(f"{where}: there is no check {name!r}{suggestion(name, known)}")
    return tuple(dict.fromkeys(given))
