"""Every setting of the server, and how a flag, a variable or a TOML key becomes its value.

This module owns the names, defaults, meanings and checks of the settings. `Config` is their only
statement: the flags, the environment variables, the TOML keys and the table in
docs/configuration.md are all derived from its fields. It must not know what a setting is used for:
it builds no engine or store, opens no socket, and reads nothing but the one TOML file.

No message of a `ConfigError` repeats a value, because any value may be a secret.
"""

import argparse
import math
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, NoReturn, get_origin, get_type_hints

from slipring.core.limits import Limits
from slipring.models import ModelEntry, ModelsError, read_models
from slipring.rules import (
    ANY,
    API_KEYS,
    AT_LEAST_ONE,
    LOG_LEVEL,
    LOG_LEVELS,
    NO_EMPTY_ENTRY,
    NOT_EMPTY,
    NOT_NEGATIVE,
    PORT,
    POSITIVE,
    Rule,
)

__all__ = [
    "LOG_LEVELS",
    "SETTINGS",
    "Config",
    "ConfigError",
    "Setting",
    "add_flags",
    "from_namespace",
    "load",
    "split_api_key",
]

_PREFIX = "SLIPRING_"
_FILE_FLAG = "--config"
_FILE_VARIABLE = f"{_PREFIX}CONFIG"
_LIMITS = "limits"
_MODELS = "models"
_RULES = {str: NOT_EMPTY, bool: ANY, tuple: NO_EMPTY_ENTRY}
_LIMITS_THAT_MAY_BE_ZERO = (
    "idle_timeout_s",
    "ping_interval_s",
    "age_grace_s",
    "drain_timeout_s",
    "parked_s",
)


class ConfigError(ValueError):
    """A setting cannot be used; the message is one line and names where the setting came from."""


def split_api_key(entry: str) -> tuple[str, str]:
    """The tenant and the key of `[TENANT:]KEY`; the tenant is empty when none is named."""
    tenant, colon, key = entry.partition(":")
    return (tenant.strip(), key.strip()) if colon else ("", entry.strip())


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of one server. Immutable and hashable; its repr shows no API key.

    A field's metadata holds its `help` sentence and, where the type does not say enough, the `rule`
    for its value, the `metavar` of its flag, and the `plural` that names the list elsewhere.
    """

    host: str = field(default="127.0.0.1", metadata={"help": "address to listen on"})
    port: int = field(
        default=8000,
        metadata={"help": "port to listen on; 0: any free port", "rule": PORT},
    )
    engine: str = field(
        default="simulated",
        metadata={
            "help": "engine that makes the responses, with its options after a colon, "
            "such as simulated:tokens_per_s=1000,ttft_ms=0"
        },
    )
    store: str = field(
        default="sqlite",
        metadata={
            "help": "where responses are stored: sqlite, in a file of the user; sqlite:PATH; postgresql://…; "
            "or memory, until the server stops"
        },
    )
    retention_days: float = field(
        default=30.0,
        metadata={"help": "how long they are kept; 0: for ever", "rule": NOT_NEGATIVE, "metavar": "DAYS"},
    )
    node_url: str = field(
        default="",
        metadata={
            "help": "URL at which other nodes on the same store reach this one; empty: they do not ask it",
            "rule": ANY,
            "metavar": "URL",
        },
    )
    workers: int = field(
        default=1,
        metadata={
            "help": "processes that serve the port together; more than one need a store that they can share",
            "rule": AT_LEAST_ONE,
            "metavar": "N",
        },
    )
    model: tuple[str, ...] = field(
        default=(),
        metadata={"help": "name under which the engine's model is served", "metavar": "NAME"},
    )
    api_key: tuple[str, ...] = field(
        default=(),
        repr=False,
        metadata={
            "help": "key that a client may present, as [TENANT:]KEY",
            "rule": API_KEYS,
            "metavar": "KEY",
            "plural": "api_keys",
        },
    )
    allow_origin: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "origin that browsers may connect from",
            "metavar": "ORIGIN",
            "plural": "allow_origins",
        },
    )
    seal_key_file: str = field(
        default="",
        metadata={
            "help": "file of keys that seal what clients keep, 32 bytes in base64 a line, the newest first;"
            " empty: one that the store shares",
            "rule": ANY,
            "metavar": "FILE",
        },
    )
    insecure_no_auth: bool = field(
        default=False,
        metadata={"help": "serve other addresses than loopback although no API key is configured"},
    )
    compression: bool = field(
        default=False, metadata={"help": "accept permessage-deflate when a client offers it"}
    )
    echo: bool = field(
        default=False,
        metadata={
            "help": "also serve /slipring/echo, a WebSocket that repeats what it hears, for test suites"
        },
    )
    log_level: str = field(
        default="info",
        metadata={
            "help": f"least severe message that is logged: {', '.join(LOG_LEVELS)}",
            "rule": LOG_LEVEL,
            "metavar": "LEVEL",
        },
    )
    models: tuple[ModelEntry, ...] = ()
    limits: Limits = field(default_factory=Limits)


# --- What is derived from the fields ---------------------------------------------------------


def _truth(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("1", "true", "yes", "on", "0", "false", "no", "off"):
        raise ValueError
    return word in ("1", "true", "yes", "on")


_FROM_TEXT: dict[type, Callable[[str], object]] = {
    str: str,
    int: int,
    float: float,
    bool: _truth,
    tuple: lambda text: text.split(","),
}
_NOUNS = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "a list of strings",
}


def _as_float(number: int) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


def _normalised(kind: type, value: object) -> object:
    """`value` as `Config` holds it: stripped text, lists as tuples, seconds as floats."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list):
        return tuple(_normalised(str, entry) for entry in value)
    if kind is float and type(value) is int:
        return _as_float(value)
    return value


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting under all of its names, with the checks that its values go through."""

    name: str
    kind: type
    default: Any
    help: str
    rule: Rule
    metavar: str
    variable: str
    key: tuple[str, ...]

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def default_text(self) -> str:
        if self.kind is bool:
            return str(self.default).lower()
        return f"{self.default:g}" if self.kind is float else str(self.default)

    @property
    def is_limit(self) -> bool:
        return self.key[0] == _LIMITS

    def from_text(self, text: str, origin: str) -> object:
        """The value that a flag or variable spells, or a `ConfigError` that names `origin`."""
        try:
            value = _FROM_TEXT[self.kind](text)
        except ValueError:
            raise ConfigError(f"{origin}: must be {_NOUNS[self.kind]}") from None
        return self.checked(value, origin)

    def checked(self, given: object, origin: str) -> object:
        """`given` in its normal form, or a `ConfigError` that names `origin`."""
        value = _normalised(self.kind, given)
        if type(value) is not self.kind:
            raise ConfigError(f"{origin}: must be {_NOUNS[self.kind]}")
        if not self.rule.holds(value):
            raise ConfigError(f"{origin}: {self.rule.demand}")
        return value


def _plain_setting(declared: Field[Any], hint: Any) -> Setting:
    kind = get_origin(hint) or hint
    metadata = declared.metadata
    plural = metadata.get("plural", declared.name)
    return Setting(
        name=declared.name,
        kind=kind,
        default=declared.default,
        help=metadata["help"],
        rule=metadata["rule"] if "rule" in metadata else _RULES[kind],
        metavar=metadata.get("metavar", declared.name.upper()),
        variable=_PREFIX + plural.upper(),
        key=(plural,),
    )


def _limit_setting(declared: Field[Any], hint: Any) -> Setting:
    may_be_zero = declared.name in _LIMITS_THAT_MAY_BE_ZERO
    return Setting(
        name=declared.name,
        kind=hint,
        default=declared.default,
        help=declared.metadata["help"],
        rule=NOT_NEGATIVE if may_be_zero else POSITIVE,
        metavar="N" if hint is int else "SECONDS" if declared.name.endswith("_s") else "SHARE",
        variable=_PREFIX + declared.name.upper(),
        key=(_LIMITS, declared.name),
    )


def _all_settings() -> Iterator[Setting]:
    hints = get_type_hints(Config)
    for declared in fields(Config):
        if declared.name not in (_LIMITS, _MODELS):
            yield _plain_setting(declared, hints[declared.name])
    hints = get_type_hints(Limits)
    for declared in fields(Limits):
        yield _limit_setting(declared, hints[declared.name])


SETTINGS = tuple(_all_settings())


# --- Flags -----------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """A parser that raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def _flag_options(setting: Setting) -> dict[str, Any]:
    if setting.kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    if setting.kind is tuple:
        return {"action": "append", "metavar": setting.metavar}
    return {"metavar": setting.metavar}


def _flag_help(setting: Setting) -> str:
    remark = "repeatable" if setting.kind is tuple else f"default: {setting.default_text}"
    return f"{setting.help} ({remark})".replace("%", "%%")


def add_flags(parser: argparse.ArgumentParser, *, only: Collection[str] = ()) -> None:
    """Add `--config` and a flag for every setting, or for `only` these; `from_namespace` reads them."""
    plain = parser.add_argument_group("settings")
    limits = parser.add_argument_group(_LIMITS)
    plain.add_argument(_FILE_FLAG, metavar="FILE.toml", help="TOML file to read settings from")
    for setting in (setting for setting in SETTINGS if not only or setting.name in only):
        group = limits if setting.is_limit else plain
        group.add_argument(setting.flag, help=_flag_help(setting), **_flag_options(setting))


def load(argv: Sequence[str], environ: Mapping[str, str]) -> Config:
    """The configuration that flags alone, without a subcommand, and `environ` describe."""
    parser = _Parser(prog="slipring", allow_abbrev=False)
    add_flags(parser)
    namespace, unknown = parser.parse_known_args(argv)
    if unknown:
        raise ConfigError(_unknown_flag(unknown))
    return from_namespace(namespace, environ)


def _unknown_flag(arguments: Sequence[str]) -> str:
    """Name the unknown flag, and never an argument that may be a mistyped flag's secret."""
    for argument in arguments:
        if argument.startswith("--"):
            return f"flag {argument.partition('=')[0]}: unknown"
    return "an argument does not belong to any flag"


# --- The three sources, each as checked values by setting name -------------------------------


def from_namespace(namespace: argparse.Namespace, environ: Mapping[str, str]) -> Config:
    """The configuration that parsed flags (see `add_flags`) and `environ` describe.

    Flags win over the environment, which wins over the file. A bad value is an error even where
    another source overrides it.
    """
    path = _file_path(namespace, environ)
    values = _from_file(path) if path is not None else {}
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


def _from_file(path: str) -> dict[str, Any]:
    settings = {setting.key: setting for setting in SETTINGS}
    document = _document(path)
    values: dict[str, Any] = {}
    if _MODELS in document:
        try:
            values[_MODELS] = read_models(document.pop(_MODELS))
        except ModelsError as error:
            raise ConfigError(f"{error} in {path}") from None
    for key, given in _entries(document, path):
        dotted = ".".join(key)
        if key not in settings:
            raise ConfigError(f"{dotted!r} in {path}: unknown key")
        setting = settings[key]
        values[setting.name] = setting.checked(given, f"{dotted} in {path}")
    return values


def _file_path(namespace: argparse.Namespace, environ: Mapping[str, str]) -> str | None:
    path: str | None = getattr(namespace, "config", None)
    origin = f"flag {_FILE_FLAG}"
    if path is None:
        path, origin = environ.get(_FILE_VARIABLE), f"variable {_FILE_VARIABLE}"
    if path is not None and not path.strip():
        raise ConfigError(f"{origin}: must not be empty")
    return path


def _document(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from None


def _entries(document: dict[str, Any], path: str) -> Iterator[tuple[tuple[str, ...], object]]:
    """Every key of the file with its value; a key of the limits table as (table, key)."""
    for key, value in document.items():
        if key != _LIMITS:
            yield (key,), value
        elif isinstance(value, dict):
            yield from (((key, inner), inner_value) for inner, inner_value in value.items())
        else:
            raise ConfigError(f"{key} in {path}: must be a table")
