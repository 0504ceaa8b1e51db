"""The `[[mcp]]` and `[builtin_tools]` tables of the TOML file: which MCP servers are registered, and which of
their tools answer built-in types of the API.

Checks the form of the tables only. Secrets are not in them: headers and processes get theirs from variables
of the environment, which the tables name. Whether these are set, and whether a URL is one, is checked at
startup.
"""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from slipring.config.tables import NOT_EMPTY, Rule, TableError, is_text, one_of, require_form

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


_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER_VALUE = re.compile(r"(?:([A-Za-z][A-Za-z0-9-]*) )?\$([A-Za-z_][A-Za-z0-9_]*)")
_OF_URLS = ("headers", "transport")
_OF_COMMANDS = ("args", "env", "cwd", "per_tenant")


def _is_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) and "\0" not in each for each in value)


_RULES: dict[str, Rule] = {
    "name": (
        lambda value: isinstance(value, str) and _NAME.fullmatch(value) is not None,
        "must have 1 to 64 letters, digits, '_' and '-'",
    ),
    "url": (
        lambda value: isinstance(value, str) and value.startswith(("http://", "https://")),
        "must be an http:// or https:// URL",
    ),
    "command": NOT_EMPTY,
    "args": (_is_list, "must be a list of strings"),
    "env": (
        lambda value: _is_list(value) and all(_VARIABLE.fullmatch(each) for each in value),
        "must be a list of names of environment variables",
    ),
    "cwd": NOT_EMPTY,
    "per_tenant": (lambda value: isinstance(value, bool), "must be true or false"),
    "headers": (
        lambda value: isinstance(value, dict) and all(map(_is_variable, value.values())),
        "must be a table whose values name environment variables, as '$NAME' or 'Bearer $NAME'",
    ),
    "transport": one_of(get_args(Transport)),
    "allowed_tools": (
        lambda value: _is_list(value) and value != [] and all(value),
        "must be a list of names, none of them empty",
    ),
    "approval": one_of(get_args(Approval)),
    "parallel": (lambda value: type(value) is int and 1 <= value <= 1000, "must be from 1 to 1000"),
    "timeout_s": (
        lambda value: type(value) in (int, float) and 0 < value <= 86_400 and math.isfinite(value),
        "must be above 0 and at most 86400",
    ),
    "on_list_error": one_of(get_args(OnListError)),
}


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
    require_form(table, where, _BUILTIN_RULES, required=("server", "tool"))
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


_BUILTIN_RULES: dict[str, Rule] = {
    "server": (is_text, "must be the name of a registered server"),
    "tool": NOT_EMPTY,
    "argument": NOT_EMPTY,
    "fields": (
        lambda value: isinstance(value, dict) and all(map(is_text, value.values())),
        "must be a table whose values are names of arguments",
    ),
}


def _read(table: Mapping[str, Any], where: str) -> McpRegistration:
    require_form(table, where, _RULES, required=("name",))
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
