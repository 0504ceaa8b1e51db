"""The tables of the TOML file: ``[models]``, ``[[check]]`` and ``[policies]``, ``[[mcp]]`` and
``[builtin_tools]``, and the rules for their keys.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast, get_args

import msgspec

from slipring.base.errors import suggestion
from slipring.core.checks.policies import (
    KINDS,
    KINDS_OF,
    Action,
    Ending,
    Mode,
    OnError,
    OnImages,
    Scope,
    default_mode,
    default_on_error,
)
from slipring.core.checks.verdicts import Kind

Schema = dict[str, Any]
"""The JSON schema of a value."""
TEXT: Schema = {"type": "string"}
TEXTS: Schema = {"type": "array", "items": TEXT}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}


def map_of(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


class Rule(NamedTuple):
    """Which values of a key are valid."""

    holds: Callable[[Any], bool]
    demand: str
    """What an error says that a value must be."""
    schema: Schema
    """The same for editors, as far as a schema can say it."""


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
        if not rules[key].holds(value):
            raise TableError(f"{where}: {key!r} {rules[key].demand}")
    for key in required:
        if key not in table:
            raise TableError(f"{where}: {key!r} is missing")


def schema_of(rules: Mapping[str, Rule], required: Collection[str] = ()) -> Schema:
    """The schema of a table with these keys."""
    return {
        "type": "object",
        "properties": {key: rule.schema for key, rule in rules.items()},
        "required": list(required),
        "additionalProperties": False,
    }


def one_of(words: Collection[str]) -> Rule:
    """The value is one of these words."""
    demand = f"must be one of {', '.join(words)}"
    return Rule(lambda value: isinstance(value, str) and value in words, demand, {"enum": list(words)})


def whole_number(least: int) -> Rule:
    """The value is a whole number, ``least`` or more."""
    demand = f"must be a whole number, {least} or more"
    return Rule(lambda value: type(value) is int and value >= least, demand, {"type": "integer"})


def is_number(value: object, least: float, most: float) -> bool:
    """Whether the value is a number within these bounds, and no truth value."""
    return type(value) in (int, float) and least <= cast(float, value) <= most


def is_text(value: object) -> bool:
    """Whether the value is a string that is more than spaces."""
    return isinstance(value, str) and value.strip() != "" and "\0" not in value


TRUTH = Rule(lambda value: type(value) is bool, "must be true or false", FLAG)
NOT_EMPTY = Rule(is_text, "must be a string and not empty", TEXT)


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
_DEFAULTS = {
    "temperature": Rule(lambda value: is_number(value, 0, 2), "must be a number from 0 to 2", NUMBER),
    "top_p": Rule(lambda value: is_number(value, 0, 1), "must be a number from 0 to 1", NUMBER),
    "max_output_tokens": whole_number(1)._replace(demand="must be a whole number above 0"),
    "effort": NOT_EMPTY,
}
MODEL_RULES = {
    "engine": NOT_EMPTY,
    "model": Rule(lambda value: isinstance(value, str), "must be a string", TEXT),
    "aliases": Rule(
        lambda value: isinstance(value, list) and all(isinstance(alias, str) and alias for alias in value),
        "must be a list of strings, none of them empty",
        TEXTS,
    ),
    "defaults": Rule(lambda value: isinstance(value, dict), "must be a table", schema_of(_DEFAULTS)),
    "hosted_tools": one_of(HOSTING),
}
MODEL_NEEDS = ("engine",)


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
    require_form(given, where, MODEL_RULES, MODEL_NEEDS)
    defaults = _read_defaults(given.get("defaults", {}), f"{where}.defaults")
    engine, model = given["engine"].strip(), given.get("model", "").strip()
    aliases, hosting = tuple(given.get("aliases", ())), given.get("hosted_tools", "")
    return ModelEntry(name, engine, model, aliases, defaults, hosting)


def _read_defaults(given: dict[str, Any], where: str) -> tuple[tuple[str, Any], ...]:
    require_form(given, where, _DEFAULTS)
    return tuple(given.items())


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
CHECK_RULES = {
    "name": Rule(
        lambda value: isinstance(value, str) and _NAME.fullmatch(value) is not None,
        "must be a name of letters, digits, '_', '-' and '.'",
        TEXT,
    ),
    "source": NOT_EMPTY,
    "settings": Rule(lambda value: isinstance(value, dict), "must be a table", {"type": "object"}),
    "thresholds": Rule(
        lambda value: isinstance(value, dict) and all(is_number(each, 0, 1) for each in value.values()),
        "must be a table of numbers from 0 to 1",
        map_of(NUMBER),
    ),
    "subjects": Rule(
        lambda value: isinstance(value, list) and value != [] and all(each in _SUBJECTS for each in value),
        f"must be a list of some of {', '.join(_SUBJECTS)}",
        {"type": "array", "items": {"enum": list(_SUBJECTS)}},
    ),
    "action": one_of(get_args(Action)),
    "mode": one_of(get_args(Mode)),
    "on_error": one_of(get_args(OnError)),
    "on_images": one_of(get_args(OnImages)),
    "before": TRUTH,
    "context": whole_number(0),
    "ending": one_of(get_args(Ending)),
    "timeout_s": Rule(
        lambda value: is_number(value, 0, math.inf) and 0 < value < math.inf,
        "must be a number above 0",
        NUMBER,
    ),
    "max_chars": whole_number(0),
    "at_once": whole_number(1),
}
CHECK_NEEDS = ("name", "source")
SCOPE = one_of(get_args(Scope))


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
    if not SCOPE.holds(scope):
        raise TableError(f"policies: 'scope' {SCOPE.demand}")
    default = _read_names(given["default"], "policies.default", known) if "default" in given else None
    models, tenants, keys = (
        _read_named(given.get(key, {}), key, known) for key in ("models", "tenants", "keys")
    )
    return PolicyEntries(default, models, tenants, keys, scope)


def _place(table: Mapping[str, object], index: int) -> str:
    """How an error names a table: by the check's name if that is valid, else by its position."""
    name = table.get("name")
    return f"check {name!r}" if CHECK_RULES["name"].holds(name) else f"check[{index}]"


def _read_check(table: dict[str, Any], where: str) -> CheckEntry:
    require_form(table, where, CHECK_RULES, CHECK_NEEDS)
    values = dict(table)
    action = values.setdefault("action", "flag")
    values.setdefault("mode", default_mode(action))
    values.setdefault("on_error", default_on_error(action))
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


Approval = Literal["client", "always"]
OnListError = Literal["fail", "continue"]
Transport = Literal["auto", "streamable", "sse"]


@dataclass(frozen=True, slots=True)
class HeaderVariable:
    """A header whose value is a variable of the environment, after a scheme such as `Bearer` if there is
    one."""

    header: str
    variable: str
    scheme: str = ""


@dataclass(frozen=True, slots=True)
class McpRegistration:
    """A registered server: at a URL, or a command that slipring runs as a process."""

    name: str
    url: str = field(default="", repr=False)
    """Not shown, because its query may contain a secret."""
    command: tuple[str, ...] = field(default=(), repr=False)
    """The program and its arguments; empty: the server is at a URL."""
    env: tuple[str, ...] = ()
    """Variables of the environment that the process gets."""
    cwd: str = ""
    per_tenant: bool = True
    """Whether each tenant gets a process of its own."""
    headers: tuple[HeaderVariable, ...] = ()
    transport: Transport = "auto"
    allowed_tools: tuple[str, ...] = ()
    """Empty: all tools."""
    approval: Approval = "client"
    """``always``: every call needs approval, whatever the client says."""
    parallel: int = 16
    """Calls at once per session."""
    timeout_s: float = 120.0
    """For a call without news of it."""
    on_list_error: OnListError = "fail"
    """``continue``: a request goes on without the tools of this server if they cannot be listed."""

    @property
    def has_rules(self) -> bool:
        """Whether it bounds what its callers may do, which they could avoid at another URL of the server."""
        free = McpRegistration(self.name)
        return any(getattr(self, rule) != getattr(free, rule) for rule in _RULES_OF_CALLS)


_RULES_OF_CALLS = ("allowed_tools", "approval", "parallel", "timeout_s")
BuiltinType = Literal["web_search", "file_search", "code_interpreter"]


@dataclass(frozen=True, slots=True)
class BuiltinMapping:
    """The tool of a registered server that answers a built-in type."""

    type: BuiltinType
    server: str
    tool: str
    argument: str
    """Of the tool: gets the query, or the code."""
    fields: tuple[tuple[str, str], ...] = ()
    """Fields of the type, as clients send them, and the arguments of the tool that get their values."""


_SERVER_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER_VALUE = re.compile(r"(?:([A-Za-z][A-Za-z0-9-]*) )?\$([A-Za-z_][A-Za-z0-9_]*)")
_OF_URLS = ("headers", "transport")
_OF_COMMANDS = ("args", "env", "cwd", "per_tenant")


def _is_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) and "\0" not in each for each in value)


MCP_RULES = {
    "name": Rule(
        lambda value: isinstance(value, str) and _SERVER_NAME.fullmatch(value) is not None,
        "must have 1 to 64 letters, digits, '_' and '-'",
        TEXT,
    ),
    "url": Rule(
        lambda value: isinstance(value, str) and value.startswith(("http://", "https://")),
        "must be an http:// or https:// URL",
        TEXT,
    ),
    "command": NOT_EMPTY,
    "args": Rule(_is_list, "must be a list of strings", TEXTS),
    "env": Rule(
        lambda value: _is_list(value) and all(_VARIABLE.fullmatch(each) for each in value),
        "must be a list of names of environment variables",
        TEXTS,
    ),
    "cwd": NOT_EMPTY,
    "per_tenant": TRUTH,
    "headers": Rule(
        lambda value: isinstance(value, dict) and all(map(_is_variable, value.values())),
        "must be a table whose values name environment variables, as '$NAME' or 'Bearer $NAME'",
        map_of(TEXT),
    ),
    "transport": one_of(get_args(Transport)),
    "allowed_tools": Rule(
        lambda value: _is_list(value) and value != [] and all(value),
        "must be a list of names, none of them empty",
        TEXTS,
    ),
    "approval": one_of(get_args(Approval)),
    "parallel": Rule(
        lambda value: type(value) is int and 1 <= value <= 1000, "must be from 1 to 1000", {"type": "integer"}
    ),
    "timeout_s": Rule(
        lambda value: is_number(value, 0, 86_400) and value > 0, "must be above 0 and at most 86400", NUMBER
    ),
    "on_list_error": one_of(get_args(OnListError)),
}
MCP_NEEDS = ("name",)


def _is_variable(value: object) -> bool:
    return isinstance(value, str) and _HEADER_VALUE.fullmatch(value) is not None


def read_mcp_registrations(tables: object) -> tuple[McpRegistration, ...]:
    """Return the registered servers, in their order. Raises ``TableError``."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise TableError("mcp: must be an array of tables, each beginning with [[mcp]]")
    found = tuple(_read(table, f"mcp[{index}]") for index, table in enumerate(tables))
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise TableError(f"mcp: the name {name!r} is given twice")
    return found


def read_builtin_tools(tables: object, servers: Collection[McpRegistration]) -> tuple[BuiltinMapping, ...]:
    """Return the tools that answer built-in types. Raises ``TableError``."""
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise TableError("builtin_tools: must have tables, such as [builtin_tools.web_search]")
    registered = {server.name: server for server in servers}
    return tuple(_read_builtin(kind, table, registered) for kind, table in tables.items())


def _read_builtin(
    kind: str, table: Mapping[str, Any], servers: Mapping[str, McpRegistration]
) -> BuiltinMapping:
    where = f"builtin_tools.{kind}"
    known = next((each for each in get_args(BuiltinType) if each == kind), None)
    if known is None:
        raise TableError(f"{where}: unknown type (known: {', '.join(get_args(BuiltinType))})")
    require_form(table, where, BUILTIN_RULES, BUILTIN_NEEDS)
    server = servers.get(table["server"])
    if server is None:
        raise TableError(f"{where}: 'server' must be the name of a [[mcp]] table")
    if server.allowed_tools and table["tool"] not in server.allowed_tools:
        raise TableError(f"{where}: 'tool' is not among the allowed_tools of the server")
    if server.approval == "always":
        raise TableError(f"{where}: built-in tools have no approvals, which the server needs")
    fields = tuple(table.get("fields", {}).items())
    argument = table.get("argument", "code" if known == "code_interpreter" else "query")
    return BuiltinMapping(known, table["server"], table["tool"], argument, fields)


BUILTIN_RULES = {
    "server": NOT_EMPTY._replace(demand="must be the name of a registered server"),
    "tool": NOT_EMPTY,
    "argument": NOT_EMPTY,
    "fields": Rule(
        lambda value: isinstance(value, dict) and all(map(is_text, value.values())),
        "must be a table whose values are names of arguments",
        map_of(TEXT),
    ),
}
BUILTIN_NEEDS = ("server", "tool")


def _read(table: Mapping[str, Any], where: str) -> McpRegistration:
    require_form(table, where, MCP_RULES, MCP_NEEDS)
    if ("url" in table) == ("command" in table):
        raise TableError(f"{where}: either 'url' or 'command' must be given")
    other, needed = (_OF_COMMANDS, "command") if "url" in table else (_OF_URLS, "url")
    for key in other:
        if key in table:
            raise TableError(f"{where}: {key!r} needs {needed!r}")
    given = dict(table)
    command = (given.pop("command"), *given.pop("args", ())) if "command" in given else ()
    headers = tuple(_header(name, value) for name, value in given.pop("headers", {}).items())
    lists = {key: tuple(value) for key, value in given.items() if isinstance(value, list)}
    if "timeout_s" in given:
        given["timeout_s"] = float(given["timeout_s"])
    return McpRegistration(**(given | lists), command=command, headers=headers)


def _header(name: str, value: str) -> HeaderVariable:
    match = _HEADER_VALUE.fullmatch(value)
    assert match is not None
    scheme, variable = match.groups()
    return HeaderVariable(name, variable, scheme or "")
