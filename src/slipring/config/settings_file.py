"""The TOML file with settings: its keys, and the tables that only a file can have."""

from collections.abc import Iterator
from typing import Any

from slipring.base.errors import suggestion
from slipring.config.settings import LIMITS, SETTINGS, ConfigError
from slipring.config.tables import (
    TableError,
    read_builtin_tools,
    read_checks,
    read_mcp_registrations,
    read_models,
    read_policies,
)

_MODELS, _MCP, _BUILTIN_TOOLS = "models", "mcp", "builtin_tools"
_CHECK, _CHECKS, _POLICIES = "check", "checks", "policies"


def read_file(path: str) -> dict[str, Any]:
    settings = {setting.key: setting for setting in SETTINGS}
    document = _read_toml(path)
    try:
        values = _tables(document)
    except TableError as error:
        raise ConfigError(f"{error} in {path}") from None
    for key, given in _entries(document, path):
        dotted = ".".join(key)
        if key not in settings:
            hint = suggestion(dotted, (".".join(known) for known in settings))
            raise ConfigError(f"{dotted!r} in {path}: unknown key{hint}")
        setting = settings[key]
        values[setting.name] = setting.checked(given, f"{dotted} in {path}")
    return values


def _tables(document: dict[str, Any]) -> dict[str, Any]:
    """Remove the tables that only a file can have, and return their values. Raises ``TableError``."""
    values: dict[str, Any] = {}
    if _MODELS in document:
        values[_MODELS] = read_models(document.pop(_MODELS))
    if _MCP in document:
        values[_MCP] = read_mcp_registrations(document.pop(_MCP))
    if _BUILTIN_TOOLS in document:
        values[_BUILTIN_TOOLS] = read_builtin_tools(document.pop(_BUILTIN_TOOLS), values.get(_MCP, ()))
    if _CHECK in document:
        values[_CHECKS] = read_checks(document.pop(_CHECK))
    if _POLICIES in document:
        values[_POLICIES] = read_policies(document.pop(_POLICIES), values.get(_CHECKS, ()))
    return values


def _read_toml(path: str) -> dict[str, Any]:
    import tomllib  # most servers have no such file

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from None


def _entries(document: dict[str, Any], path: str) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield every key of the file with its value; a key of the limits table as (table, key)."""
    for key, value in document.items():
        if key != LIMITS:
            yield (key,), value
        elif isinstance(value, dict):
            yield from (((key, inner), inner_value) for inner, inner_value in value.items())
        else:
            raise ConfigError(f"{key} in {path}: must be a table")
