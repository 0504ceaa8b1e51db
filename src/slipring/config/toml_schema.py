"""The JSON schema of the TOML file, which editors read to complete keys and to mark mistakes.

It knows the keys and the types of their values. ``settings`` checks more, and has the last word.
"""

from typing import get_args

from slipring.config import tables
from slipring.config.settings import SETTINGS, Setting
from slipring.config.tables import FLAG, NUMBER, TEXT, TEXTS, BuiltinType, Schema, map_of, schema_of

_TYPES: dict[type, Schema] = {str: TEXT, int: {"type": "integer"}, float: NUMBER, bool: FLAG, tuple: TEXTS}
_LISTS = map_of(TEXTS)


def schema() -> Schema:
    """The schema of the whole file."""
    builtin_tool = schema_of(tables.BUILTIN_RULES, tables.BUILTIN_NEEDS)
    named = {
        "limits": _table({setting.key[1]: _property(setting) for setting in SETTINGS if setting.is_limit}),
        "models": map_of(schema_of(tables.MODEL_RULES, tables.MODEL_NEEDS)),
        "mcp": {"type": "array", "items": schema_of(tables.MCP_RULES, tables.MCP_NEEDS)},
        "builtin_tools": _table(dict.fromkeys(get_args(BuiltinType), builtin_tool)),
        "check": {"type": "array", "items": schema_of(tables.CHECK_RULES, tables.CHECK_NEEDS)},
        "policies": _table(
            {
                "default": TEXTS,
                "models": _LISTS,
                "tenants": _LISTS,
                "keys": _LISTS,
                "scope": tables.SCOPE.schema,
            }
        ),
    }
    plain = {setting.key[0]: _property(setting) for setting in SETTINGS if not setting.is_limit}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of slipring",
        **_table(plain | named),
    }


def _table(properties: Schema) -> Schema:
    return {**schema_of({}), "properties": properties}


def _property(setting: Setting) -> Schema:
    default = list(setting.default) if setting.kind is tuple else setting.default
    return {**_TYPES[setting.kind], "description": setting.help, "default": default}
