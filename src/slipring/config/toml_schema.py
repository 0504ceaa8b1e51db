"""The JSON schema of the TOML file, which editors read to complete keys and to mark mistakes.

It knows the keys and the types of their values. ``settings`` checks more, and has the last word.
"""

from typing import Any, get_args

from slipring.config.settings import SETTINGS, Setting
from slipring.config.tables import HOSTING, Approval, BuiltinType, OnListError, Transport
from slipring.core.checks.policies import KINDS, KINDS_OF, Action, Ending, Mode, OnError, OnImages, Scope

Schema = dict[str, Any]

_TYPES: dict[type, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    tuple: {"type": "array", "items": {"type": "string"}},
}
_TEXT, _WHOLE, _NUMBER, _FLAG, _TEXTS = _TYPES.values()


def _table(properties: Schema, *required: str) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _map_of(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def _one_of(words: Any) -> Schema:
    return {"enum": list(words)}


MODEL = _table(
    {
        "engine": _TEXT,
        "model": _TEXT,
        "aliases": _TEXTS,
        "defaults": _table(
            {"temperature": _NUMBER, "top_p": _NUMBER, "max_output_tokens": _WHOLE, "effort": _TEXT}
        ),
        "hosted_tools": _one_of(HOSTING),
    },
    "engine",
)
MCP = _table(
    {
        "name": _TEXT,
        "url": _TEXT,
        "command": _TEXT,
        "args": _TEXTS,
        "env": _TEXTS,
        "cwd": _TEXT,
        "per_tenant": _FLAG,
        "headers": _map_of(_TEXT),
        "transport": _one_of(get_args(Transport)),
        "allowed_tools": _TEXTS,
        "approval": _one_of(get_args(Approval)),
        "parallel": _WHOLE,
        "timeout_s": _NUMBER,
        "on_list_error": _one_of(get_args(OnListError)),
    },
    "name",
)
BUILTIN_TOOL = _table(
    {"server": _TEXT, "tool": _TEXT, "argument": _TEXT, "fields": _map_of(_TEXT)}, "server", "tool"
)
CHECK = _table(
    {
        "name": _TEXT,
        "source": _TEXT,
        "settings": {"type": "object"},
        "thresholds": _map_of(_NUMBER),
        "subjects": {"type": "array", "items": _one_of((*KINDS_OF, *KINDS))},
        "action": _one_of(get_args(Action)),
        "mode": _one_of(get_args(Mode)),
        "on_error": _one_of(get_args(OnError)),
        "on_images": _one_of(get_args(OnImages)),
        "before": _FLAG,
        "context": _WHOLE,
        "ending": _one_of(get_args(Ending)),
        "timeout_s": _NUMBER,
        "max_chars": _WHOLE,
        "at_once": _WHOLE,
    },
    "name",
    "source",
)
POLICIES = _table(
    {
        "default": _TEXTS,
        "models": _map_of(_TEXTS),
        "tenants": _map_of(_TEXTS),
        "keys": _map_of(_TEXTS),
        "scope": _one_of(get_args(Scope)),
    }
)


def schema() -> Schema:
    """The schema of the whole file."""
    plain = {setting.key[0]: _property(setting) for setting in SETTINGS if not setting.is_limit}
    limits = {setting.key[1]: _property(setting) for setting in SETTINGS if setting.is_limit}
    tables = {
        "limits": _table(limits),
        "models": _map_of(MODEL),
        "mcp": {"type": "array", "items": MCP},
        "builtin_tools": _table(dict.fromkeys(get_args(BuiltinType), BUILTIN_TOOL)),
        "check": {"type": "array", "items": CHECK},
        "policies": POLICIES,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of slipring",
        **_table(plain | tables),
    }


def _property(setting: Setting) -> Schema:
    default = list(setting.default) if setting.kind is tuple else setting.default
    return {**_TYPES[setting.kind], "description": setting.help, "default": default}
