"""The settings of the server: their names, defaults, descriptions and checks, and how they are read from
flags, environment variables and the TOML file.

The fields of `Config` and `Limits` are the only definition: flags, variables, keys of the file and the table
in docs/settings.md are derived from them. `from_namespace` decides which source of a value wins. The module
does not use the settings: it creates no engine or store, and opens no socket.

The message of a `ConfigError` never contains a value, because any value may be a secret.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, get_origin, get_type_hints

from slipring.base.errors import StartupError, suggestion
from slipring.config.tables import (
    BuiltinMapping,
    CheckEntry,
    McpRegistration,
    ModelEntry,
    PolicyEntries,
    TableError,
    read_builtin_tools,
    read_checks,
    read_mcp_registrations,
    read_models,
    read_policies,
)
from slipring.core.limits import Limits

if TYPE_CHECKING:
    import argparse  # the workers of a server have no flags

ADMIN_AUTO, ADMIN_OFF = "auto", "off"
LOG_LEVELS = ("debug", "info", "warning", "error")
MCP_URLS = ("registered", "public", "any")
PREFIX = "SLIPRING_"
LIMITS = "limits"
_FILE_FLAG = "--config"
_FILE_VARIABLE = f"{PREFIX}CONFIG"
_MODELS, _MCP, _BUILTIN_TOOLS = "models", "mcp", "builtin_tools"
_CHECKS, _POLICIES = "checks", "policies"
_CHECK_KEY = "check"
"""The key of ``checks`` in the file."""
_TABLES = (LIMITS, _MODELS, _MCP, _BUILTIN_TOOLS, _CHECKS, _POLICIES)
"""Fields that are tables of the file only, or that have settings of their own."""
_LIMITS_THAT_MAY_BE_ZERO = (
    "idle_timeout_s",
    "ping_interval_s",
    "age_grace_s",
    "drain_timeout_s",
    "parked_s",
    "recognised_s",
)


class ConfigError(ValueError):
    """A setting is invalid. The message is one line that names the flag, variable or key."""


# --- Rules for values ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition for a value that already has the right type."""

    demand: str
    holds: Callable[[Any], bool]


def _is_api_key(entry: object) -> bool:
    return isinstance(entry, str) and all(part.strip() for part in entry.split(":", 1))


def is_address(text: str) -> bool:
    """Whether a text has the form HOST:PORT."""
    host, _, port = text.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and int(port) <= 65535


_ANY = Rule("", lambda value: True)
_NOT_EMPTY = Rule("must not be empty", bool)
_NO_EMPTY_ENTRY = Rule(
    "every entry must be a string and not empty",
    lambda entries: all(isinstance(entry, str) and entry for entry in entries),
)
_API_KEYS = Rule(
    "every entry must be [TENANT:]KEY with neither part empty",
    lambda entries: all(_is_api_key(entry) for entry in entries),
)
_PORT = Rule("must be from 0 to 65535", lambda number: 0 <= number <= 65535)
_LOG_LEVEL = Rule(f"must be one of {', '.join(LOG_LEVELS)}", lambda name: name in LOG_LEVELS)
_MCP_URL_POLICY = Rule(f"must be one of {', '.join(MCP_URLS)}", lambda name: name in MCP_URLS)
_AT_LEAST_ONE = Rule("must be 1 or more", lambda number: number >= 1)
_SHARE = Rule("must be from 0 to 1", lambda number: 0 <= number <= 1)
_HTTP_URL = Rule(
    "must be an http:// or https:// URL", lambda url: not url or url.startswith(("http://", "https://"))
)
_NODE_URL = Rule(
    # It is in the store, and requests between nodes are signed.
    "must be an http:// or https:// URL without a user or a password",
    lambda url: not url or (url.startswith(("http://", "https://")) and "@" not in url),
)
_POSITIVE = Rule("must be finite and above 0", lambda number: 0 < number < math.inf)
_NOT_NEGATIVE = Rule("must be finite and not below 0", lambda number: 0 <= number < math.inf)
_ADMIN = Rule(
    "must be auto, off or HOST:PORT", lambda text: text in (ADMIN_AUTO, ADMIN_OFF) or is_address(text)
)
_RULES = {str: _NOT_EMPTY, bool: _ANY, tuple: _NO_EMPTY_ENTRY}
"""The rule for each type, unless the field names another one."""


# --- The fields -----------------------------------------------------------------------------------


def split_api_key(entry: str) -> tuple[str, str]:
    """Return the tenant and the key of `[TENANT:]KEY`; the tenant is empty if it is left out."""
    tenant, colon, key = entry.partition(":")
    return (tenant.strip(), key.strip()) if colon else ("", entry.strip())


def _setting(
    default: Any,
    help: str,
    *,
    rule: Rule | None = None,
    metavar: str = "",
    plural: str = "",
    is_secret: bool = False,
) -> Any:
    """A field. ``rule`` of its values and ``metavar`` of its flag: if those of its type do not fit.
    ``plural``: the name of its variable and TOML key."""
    metadata = {"help": help, "rule": rule, "metavar": metavar, "plural": plural}
    return field(default=default, repr=not is_secret, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of one server. Immutable and hashable; the repr omits API keys."""

    host: str = _setting("127.0.0.1", "address to listen on")
    port: int = _setting(8000, "port to listen on; 0 chooses a free port", rule=_PORT)
    engine: str = _setting(
        "llama",
        "engine that generates the responses, KIND or KIND:OPTIONS, as in"
        " llama:/models/qwen3-8b.gguf,slots=4; kinds: llama, vllm, sglang, chat, responses, simulated",
    )
    store: str = _setting(
        "sqlite",
        "where to store responses: sqlite (a file in the user's data directory), sqlite:PATH,"
        " postgresql://…, or memory (lost when the server stops)",
        is_secret=True,
    )
    store_unsynced: bool = _setting(
        False,
        "SQLite: do not wait for the disk at each commit: what was stored survives the death of"
        " the server, but the last of it not always that of the machine",
    )
    retention_days: float = _setting(
        30.0,
        "delete stored responses after this time; 0 keeps them for ever",
        rule=_NOT_NEGATIVE,
        metavar="DAYS",
    )
    node_url: str = _setting(
        "",
        "URL at which other nodes on the same store reach this one; empty: they do not connect",
        rule=_NODE_URL,
        metavar="URL",
    )
    workers: int = _setting(
        1,
        "number of processes that serve the port; more than one need a store other than memory",
        rule=_AT_LEAST_ONE,
        metavar="N",
    )
    model: tuple[str, ...] = _setting(
        (),
        "name of the engine's first model in the API, in place of its own; several are names of"
        " the same model; ORG/REPO[:QUANTIZATION] is also the GGUF model that is fetched from the model hub,"
        " if the engine is llama and names none",
        metavar="NAME",
    )
    api_key: tuple[str, ...] = _setting(
        (),
        "API key that clients may use, as [TENANT:]KEY",
        rule=_API_KEYS,
        metavar="KEY",
        plural="api_keys",
        is_secret=True,
    )
    allow_origin: tuple[str, ...] = _setting(
        (), "origin of web pages that may connect", metavar="ORIGIN", plural="allow_origins"
    )
    seal_key_file: str = _setting(
        "",
        "file with the keys that encrypt content held by clients, 32 bytes in base64 per line,"
        " newest first; empty: a key kept in the store",
        rule=_ANY,
        metavar="FILE",
    )
    insecure_no_auth: bool = _setting(False, "allow addresses other than loopback without API keys")
    compression: bool = _setting(False, "accept permessage-deflate when a client offers it")
    echo: bool = _setting(
        False, "also serve /slipring/echo, a WebSocket that returns every message, for test suites"
    )
    record: str = _setting(
        "",
        "directory to record turns in, with everything that clients send and models answer, for"
        " 'slipring bench --replay'; empty: nothing is recorded",
        rule=_ANY,
        metavar="DIRECTORY",
    )
    record_tenant: tuple[str, ...] = _setting(
        (),
        "tenant whose turns are recorded; without one, those of all tenants",
        metavar="TENANT",
        plural="record_tenants",
    )
    admin: str = _setting(
        ADMIN_AUTO,
        "address of the live page, the live stream and metrics, HOST:PORT; auto:"
        " 127.0.0.1:9464, or a free port if that is in use; off: none",
        rule=_ADMIN,
        metavar="ADDRESS",
    )
    admin_key: str = _setting(
        "",
        "key that the admin address asks for; required if other machines can reach it",
        rule=_ANY,
        metavar="KEY",
        is_secret=True,
    )
    metrics_tenants: int = _setting(
        0,
        "number of tenants that metrics name; the turns of further ones are counted as `other`;"
        " 0: metrics name no tenants",
        rule=_NOT_NEGATIVE,
        metavar="N",
    )
    metrics_safety_ids: int = _setting(
        0,
        "number of users, by the digest of the `safety_identifier` of their requests, whose"
        " flagged turns metrics count; those of further ones are counted as `other`; 0: metrics name no"
        " users",
        rule=_NOT_NEGATIVE,
        metavar="N",
    )
    trace_endpoint: str = _setting(
        "",
        "OTLP/HTTP address of the collector that traces of turns are sent to; empty: that of"
        " OTEL_EXPORTER_OTLP_ENDPOINT, if trace_sample is above 0",
        rule=_HTTP_URL,
        metavar="URL",
    )
    trace_sample: float = _setting(
        0.0,
        "share of the turns that are traced, among those without a traceparent of their client",
        rule=_SHARE,
        metavar="SHARE",
    )
    trace_client_sampling: bool = _setting(
        True,
        "trace a request with a traceparent if and only if that says so; otherwise trace_sample"
        " decides for all",
    )
    trace_content: bool = _setting(False, "write what clients and models say into the traces, too")
    mcp_urls: str = _setting(
        MCP_URLS[0],
        "MCP servers that requests may name by URL: registered (those of the `[[mcp]]` tables),"
        " public (also others with https and a public address), any (all that this machine reaches)",
        rule=_MCP_URL_POLICY,
        metavar="POLICY",
    )
    ignored_tool: tuple[str, ...] = _setting(
        ("web_search",),
        "type of tools that requests may list although nothing answers them; other tools that"
        " nothing answers are refused",
        metavar="TYPE",
        plural="ignored_tools",
    )
    image_host: tuple[str, ...] = _setting(
        (),
        "host from which images are fetched that requests name by URL, with its port unless that is the"
        " usual one; others are refused",
        metavar="HOST",
        plural="image_hosts",
    )
    log_level: str = _setting(
        "info", f"lowest level of messages to log: {', '.join(LOG_LEVELS)}", rule=_LOG_LEVEL, metavar="LEVEL"
    )
    models: tuple[ModelEntry, ...] = ()
    mcp: tuple[McpRegistration, ...] = ()
    builtin_tools: tuple[BuiltinMapping, ...] = ()
    checks: tuple[CheckEntry, ...] = ()
    policies: PolicyEntries = field(default_factory=PolicyEntries)
    limits: Limits = field(default_factory=Limits)

    @property
    def traces(self) -> bool:
        """Whether turns are traced: a share of them, or those that clients have sampled."""
        return self.trace_sample > 0 or self.trace_endpoint != ""


# --- Rules across settings ---------------------------------------------------------------------------


def refuse_private_store(config: Config) -> None:
    """Raise ``StartupError`` if workers could not find each other's chains with these settings."""
    if config.workers > 1 and config.store.partition(":")[0] == "memory":
        raise StartupError(
            f"--workers {config.workers} with --store memory: each worker would know its own chains only;"
            " name a store that they can share, as in --store sqlite:PATH or --store postgresql://…"
        )
    if config.workers > 1 and config.node_url:
        raise StartupError(
            f"--workers {config.workers} with --node-url: one URL cannot lead to each worker; run one server"
            " per node, or workers without it"
        )


# --- Settings, derived from the fields --------------------------------------------------------


def _parse_bool(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("1", "true", "yes", "on", "0", "false", "no", "off"):
        raise ValueError
    return word in ("1", "true", "yes", "on")


_FROM_TEXT: dict[type, Callable[[str], object]] = {
    str: str,
    int: int,
    float: float,
    bool: _parse_bool,
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
    """Convert to the form in `Config`: strip text, lists to tuples, whole numbers to floats where needed."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list):
        return tuple(_normalised(str, entry) for entry in value)
    if kind is float and type(value) is int:
        return _as_float(value)
    return value


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its names, its default and the checks of its values."""

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
        if self.kind is tuple:
            return ",".join(self.default)
        return f"{self.default:g}" if self.kind is float else str(self.default)

    @property
    def is_limit(self) -> bool:
        return self.key[0] == LIMITS

    def from_text(self, text: str, origin: str) -> object:
        """Parse the text of a flag or variable, or raise a `ConfigError` that names `origin`."""
        try:
            value = _FROM_TEXT[self.kind](text)
        except ValueError:
            raise ConfigError(f"{origin}: must be {_NOUNS[self.kind]}") from None
        return self.checked(value, origin)

    def checked(self, given: object, origin: str) -> object:
        """Normalise and check a value, or raise a `ConfigError` that names `origin`."""
        value = _normalised(self.kind, given)
        if type(value) is not self.kind:
            raise ConfigError(f"{origin}: must be {_NOUNS[self.kind]}")
        if not self.rule.holds(value):
            raise ConfigError(f"{origin}: {self.rule.demand}")
        return value


def _plain_setting(declared: Field[Any], hint: Any) -> Setting:
    kind = get_origin(hint) or hint
    metadata = declared.metadata
    plural = metadata["plural"] or declared.name
    return Setting(
        name=declared.name,
        kind=kind,
        default=declared.default,
        help=metadata["help"],
        rule=metadata["rule"] or _RULES[kind],
        metavar=metadata["metavar"] or declared.name.upper(),
        variable=PREFIX + plural.upper(),
        key=(plural,),
    )


def _limit_setting(declared: Field[Any], hint: Any) -> Setting:
    may_be_zero = declared.name in _LIMITS_THAT_MAY_BE_ZERO
    return Setting(
        name=declared.name,
        kind=hint,
        default=declared.default,
        help=declared.metadata["help"],
        rule=_NOT_NEGATIVE if may_be_zero else _POSITIVE,
        metavar="N" if hint is int else "SECONDS" if declared.name.endswith("_s") else "SHARE",
        variable=PREFIX + declared.name.upper(),
        key=(LIMITS, declared.name),
    )


def _all_settings() -> Iterator[Setting]:
    hints = get_type_hints(Config)
    for declared in fields(Config):
        if declared.name not in _TABLES:
            yield _plain_setting(declared, hints[declared.name])
    hints = get_type_hints(Limits)
    for declared in fields(Limits):
        yield _limit_setting(declared, hints[declared.name])


SETTINGS = tuple(_all_settings())


# --- Flags, variables and the file ------------------------------------------------------------------


def add_flags(parser: "argparse.ArgumentParser", *, only: Collection[str] = ()) -> None:
    """Add `--config` and a flag for every setting, or `only` the named ones, for `from_namespace`."""
    plain = parser.add_argument_group("settings")
    limits = parser.add_argument_group(LIMITS)
    plain.add_argument(_FILE_FLAG, metavar="FILE.toml", help="TOML file to read settings from")
    for setting in (setting for setting in SETTINGS if not only or setting.name in only):
        group = limits if setting.is_limit else plain
        group.add_argument(setting.flag, help=_flag_help(setting), **_flag_options(setting))


def _flag_options(setting: Setting) -> dict[str, Any]:
    if setting.kind is bool:
        import argparse

        return {"action": argparse.BooleanOptionalAction}
    if setting.kind is tuple:
        return {"action": "append", "metavar": setting.metavar}
    return {"metavar": setting.metavar}


def _flag_help(setting: Setting) -> str:
    remark = "repeatable" if setting.kind is tuple else f"default: {setting.default_text or 'empty'}"
    return f"{setting.help} ({remark})".replace("%", "%%")


def from_namespace(namespace: "argparse.Namespace", environ: Mapping[str, str]) -> Config:
    """Read the configuration from parsed flags (see `add_flags`), environment variables and the file.

    A flag overrides the environment variable, which overrides the file. An invalid value is an error even if
    another source overrides it.
    """
    path = _file_path(namespace, environ)
    values = _from_file(path) if path is not None else {}
    values |= _from_environ(environ)
    values |= _from_flags(namespace)
    limits = {s.name: values.pop(s.name) for s in SETTINGS if s.is_limit and s.name in values}
    return Config(limits=Limits(**limits), **values)


def _from_flags(namespace: "argparse.Namespace") -> dict[str, Any]:
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


def _file_path(namespace: "argparse.Namespace", environ: Mapping[str, str]) -> str | None:
    path: str | None = getattr(namespace, "config", None)
    origin = f"flag {_FILE_FLAG}"
    if path is None:
        path, origin = environ.get(_FILE_VARIABLE), f"variable {_FILE_VARIABLE}"
    if path is not None and not path.strip():
        raise ConfigError(f"{origin}: must not be empty")
    return path


def _from_file(path: str) -> dict[str, Any]:
    settings = {setting.key: setting for setting in SETTINGS}
    document = _read_toml(path)
    try:
        values = _take_tables(document)
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


def _take_tables(document: dict[str, Any]) -> dict[str, Any]:
    """Remove the tables that only a file can have, and return their values. Raises ``TableError``."""
    values: dict[str, Any] = {}
    if _MODELS in document:
        values[_MODELS] = read_models(document.pop(_MODELS))
    if _MCP in document:
        values[_MCP] = read_mcp_registrations(document.pop(_MCP))
    if _BUILTIN_TOOLS in document:
        values[_BUILTIN_TOOLS] = read_builtin_tools(document.pop(_BUILTIN_TOOLS), values.get(_MCP, ()))
    if _CHECK_KEY in document:
        values[_CHECKS] = read_checks(document.pop(_CHECK_KEY))
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
