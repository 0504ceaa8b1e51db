"""Reads the configuration: from flags of a command, environment variables and the settings file."""

import argparse
from collections.abc import Collection, Mapping
from typing import Any

from slipring.config.settings import LIMITS, PREFIX, SETTINGS, Config, ConfigError, Setting
from slipring.config.settings_file import read_file
from slipring.core.limits import Limits

_FILE_FLAG = "--config"
_FILE_VARIABLE = f"{PREFIX}CONFIG"


def _flag_options(setting: Setting) -> dict[str, Any]:
    if setting.kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    if setting.kind is tuple:
        return {"action": "append", "metavar": setting.metavar}
    return {"metavar": setting.metavar}


def _flag_help(setting: Setting) -> str:
    remark = "repeatable" if setting.kind is tuple else f"default: {setting.default_text or 'empty'}"
    return f"{setting.help} ({remark})".replace("%", "%%")


def add_flags(parser: argparse.ArgumentParser, *, only: Collection[str] = ()) -> None:
    """Add `--config` and a flag for every setting, or `only` the named ones, for `from_namespace`."""
    plain = parser.add_argument_group("settings")
    limits = parser.add_argument_group(LIMITS)
    plain.add_argument(_FILE_FLAG, metavar="FILE.toml", help="TOML file to read settings from")
    for setting in (setting for setting in SETTINGS if not only or setting.name in only):
        group = limits if setting.is_limit else plain
        group.add_argument(setting.flag, help=_flag_help(setting), **_flag_options(setting))


def from_namespace(namespace: argparse.Namespace, environ: Mapping[str, str]) -> Config:
    """Read the configuration from parsed flags (see `add_flags`), environment variables and the file.

    A flag overrides the environment variable, which overrides the file. An invalid value is an error even if
    another source overrides it.
    """
    path = _file_path(namespace, environ)
    values = read_file(path) if path is not None else {}
    values |= _from_environ(environ)
    values |= _from_flags(namespace)
    limits = {s.name: values.pop(s.name) for s in SETTINGS if s.is_limit and s.name in values}
    return Config(limits=Limits(**limits), **values)


def _from_flags(namespace: argparse.Namespace) -> dict[str, Any]:
    values = {}
    for setting in SETTINGS:
        given = getattr(namespace, setting.name, None)
        if given is None:
            continue
        read = setting.from_text if isinstance(given, str) else setting.checked
        values[setting.name] = read(given, f"flag {setting.flag}")
    return values


def _from_environ(environ: Mapping[str, str]) -> dict[str, Any]:
    return {
        setting.name: setting.from_text(environ[setting.variable], f"variable {setting.variable}")
        for setting in SETTINGS
        if setting.variable in environ
    }


def _file_path(namespace: argparse.Namespace, environ: Mapping[str, str]) -> str | None:
    path: str | None = getattr(namespace, "config", None)
    origin = f"flag {_FILE_FLAG}"
    if path is None:
        path, origin = environ.get(_FILE_VARIABLE), f"variable {_FILE_VARIABLE}"
    if path is not None and not path.strip():
        raise ConfigError(f"{origin}: must not be empty")
    return path
