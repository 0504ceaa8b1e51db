"""`Config` from flags, environment variables and a TOML file, and the errors for invalid values."""

import argparse
import contextlib
import dataclasses
import io
import re
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipring.commands.cli import build_parser
from slipring.config import settings as config
from slipring.config.settings import SETTINGS, Config, ConfigError, add_flags, from_namespace
from slipring.core.limits import Limits
from tests.config.reference import reference

DOCS = Path(__file__).parents[2] / "docs"
PAGE, TABLE = DOCS / "configuration.md", DOCS / "settings.md"
BEGIN, END = "<!-- settings: begin -->\n", "\n<!-- settings: end -->"
SECRET = "sk-hush"
MAY_BE_ZERO = {
    "idle_timeout_s",
    "ping_interval_s",
    "age_grace_s",
    "drain_timeout_s",
    "parked_s",
    "recognised_s",
}
TABLES = {"limits", "models", "mcp", "builtin_tools", "checks", "policies"}
"""The fields of the configuration that are tables of the file."""
LIMIT_NAMES = [limit.name for limit in dataclasses.fields(Limits)]

WriteToml = Callable[[str], str]


@pytest.fixture
def toml(tmp_path: Path) -> WriteToml:
    def write(text: str) -> str:
        path = tmp_path / "slipring.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


@cache
def parser() -> argparse.ArgumentParser:
    """The parser of the command line. Parsing does not change it, and making it takes ten milliseconds."""
    return build_parser()


def load(argv: list[str], environ: dict[str, str]) -> Config:
    """The configuration of `slipring serve` with these flags and environment variables."""
    return from_namespace(parser().parse_args(["serve", *argv]), environ)


def refusal(argv: list[str], environ: dict[str, str] | None = None) -> str:
    """The error message for these flags and environment variables."""
    errors = io.StringIO()
    with pytest.raises((ConfigError, SystemExit)) as caught, contextlib.redirect_stderr(errors):
        load(argv, environ or {})
    message = errors.getvalue() or str(caught.value)
    assert message
    assert len(message.splitlines()) == 1
    return message


# --- Defaults and precedence -----------------------------------------------------------------


def test_nothing_given_is_the_default_configuration() -> None:
    assert load([], {}) == Config()
    assert Config().limits == Limits()


def test_the_defaults_are_the_documented_ones() -> None:
    made = Config()
    assert (made.host, made.port, made.engine, made.store) == (
        "127.0.0.1",
        8000,
        "llama",
        "sqlite",
    )
    assert (made.model, made.api_key, made.allow_origin) == ((), (), ())
    assert (made.insecure_no_auth, made.compression, made.log_level) == (False, False, "info")


def test_a_flag_wins_over_the_environment() -> None:
    assert load(["--port", "1"], {"SLIPRING_PORT": "2"}).port == 1


def test_the_environment_wins_over_the_file(toml: WriteToml) -> None:
    path = toml("port = 3")
    assert load(["--config", path], {"SLIPRING_PORT": "2"}).port == 2


def test_the_file_wins_over_the_default(toml: WriteToml) -> None:
    assert load(["--config", toml("port = 3")], {}).port == 3


@pytest.mark.parametrize(
    ("argv", "environ", "lanes"),
    [
        (["--max-lanes", "1"], {"SLIPRING_MAX_LANES": "2"}, 1),
        ([], {"SLIPRING_MAX_LANES": "2"}, 2),
        ([], {}, 3),
    ],
)
def test_a_limit_follows_the_same_order(
    toml: WriteToml, argv: list[str], environ: dict[str, str], lanes: int
) -> None:
    path = toml("[limits]\nmax_lanes = 3")
    assert load([*argv, "--config", path], environ).limits.max_lanes == lanes


def test_a_list_is_taken_whole_from_the_source_that_wins(toml: WriteToml) -> None:
    path = toml('model = ["file"]')
    environ = {"SLIPRING_MODEL": "variable"}
    assert load(["--config", path, "--model", "flag"], environ).model == ("flag",)
    assert load(["--config", path], environ).model == ("variable",)


def test_a_no_flag_switches_off_what_the_environment_switched_on() -> None:
    environ = {"SLIPRING_COMPRESSION": "true"}
    assert load([], environ).compression is True
    assert load(["--no-compression"], environ).compression is False


def test_a_flag_names_another_file_than_the_variable(toml: WriteToml, tmp_path: Path) -> None:
    named = {"SLIPRING_CONFIG": toml("port = 3")}
    other = tmp_path / "other.toml"
    other.write_text("port = 4")
    assert load([], named).port == 3
    assert load(["--config", str(other)], named).port == 4


def test_an_unknown_variable_is_ignored() -> None:
    assert load([], {"SLIPRING_COLOUR": "blue", "PORT": "1"}) == Config()


# --- Every setting from every source --------------------------------------------------------------

WAYS = [
    ("host", ["--host", "::1"], {"SLIPRING_HOST": "::1"}, 'host = "::1"', "::1"),
    ("port", ["--port", "0"], {"SLIPRING_PORT": "0"}, "port = 0", 0),
    (
        "engine",
        ["--engine", "simulated:tokens_per_s=1000,ttft_ms=0"],
        {"SLIPRING_ENGINE": "simulated:tokens_per_s=1000,ttft_ms=0"},
        'engine = "simulated:tokens_per_s=1000,ttft_ms=0"',
        "simulated:tokens_per_s=1000,ttft_ms=0",
    ),
    ("store", ["--store", "other"], {"SLIPRING_STORE": "other"}, 'store = "other"', "other"),
    (
        "node_url",
        ["--node-url", "http://10.0.0.1:8000"],
        {"SLIPRING_NODE_URL": "http://10.0.0.1:8000"},
        'node_url = "http://10.0.0.1:8000"',
        "http://10.0.0.1:8000",
    ),
    ("workers", ["--workers", "2"], {"SLIPRING_WORKERS": "2"}, "workers = 2", 2),
    (
        "retention_days",
        ["--retention-days", "0.5"],
        {"SLIPRING_RETENTION_DAYS": "0.5"},
        "retention_days = 0.5",
        0.5,
    ),
    (
        "model",
        ["--model", "a", "--model", "b"],
        {"SLIPRING_MODEL": "a, b"},
        'model = ["a", "b"]',
        ("a", "b"),
    ),
    (
        "api_key",
        ["--api-key", "t:k", "--api-key", "l"],
        {"SLIPRING_API_KEYS": "t:k,l"},
        'api_keys = ["t:k", "l"]',
        ("t:k", "l"),
    ),
    (
        "allow_origin",
        ["--allow-origin", "https://a.example"],
        {"SLIPRING_ALLOW_ORIGINS": "https://a.example"},
        'allow_origins = ["https://a.example"]',
        ("https://a.example",),
    ),
    (
        "seal_key_file",
        ["--seal-key-file", "seal.keys"],
        {"SLIPRING_SEAL_KEY_FILE": "seal.keys"},
        'seal_key_file = "seal.keys"',
        "seal.keys",
    ),
    (
        "insecure_no_auth",
        ["--insecure-no-auth"],
        {"SLIPRING_INSECURE_NO_AUTH": "1"},
        "insecure_no_auth = true",
        True,
    ),
    (
        "compression",
        ["--compression"],
        {"SLIPRING_COMPRESSION": "ON"},
        "compression = true",
        True,
    ),
    ("echo", ["--echo"], {"SLIPRING_ECHO": "1"}, "echo = true", True),
    (
        "store_unsynced",
        ["--store-unsynced"],
        {"SLIPRING_STORE_UNSYNCED": "yes"},
        "store_unsynced = true",
        True,
    ),
    (
        "admin",
        ["--admin", "[::1]:9000"],
        {"SLIPRING_ADMIN": "[::1]:9000"},
        'admin = "[::1]:9000"',
        "[::1]:9000",
    ),
    (
        "admin_key",
        ["--admin-key", "k"],
        {"SLIPRING_ADMIN_KEY": "k"},
        'admin_key = "k"',
        "k",
    ),
    (
        "metrics_tenants",
        ["--metrics-tenants", "20"],
        {"SLIPRING_METRICS_TENANTS": "20"},
        "metrics_tenants = 20",
        20,
    ),
    (
        "metrics_safety_ids",
        ["--metrics-safety-ids", "50"],
        {"SLIPRING_METRICS_SAFETY_IDS": "50"},
        "metrics_safety_ids = 50",
        50,
    ),
    (
        "record",
        ["--record", "recordings"],
        {"SLIPRING_RECORD": "recordings"},
        'record = "recordings"',
        "recordings",
    ),
    (
        "record_tenant",
        ["--record-tenant", "a", "--record-tenant", "b"],
        {"SLIPRING_RECORD_TENANTS": "a,b"},
        'record_tenants = ["a", "b"]',
        ("a", "b"),
    ),
    (
        "trace_endpoint",
        ["--trace-endpoint", "http://127.0.0.1:4318"],
        {"SLIPRING_TRACE_ENDPOINT": "http://127.0.0.1:4318"},
        'trace_endpoint = "http://127.0.0.1:4318"',
        "http://127.0.0.1:4318",
    ),
    ("trace_sample", ["--trace-sample", "0.1"], {"SLIPRING_TRACE_SAMPLE": "0.1"}, "trace_sample = 0.1", 0.1),
    (
        "trace_client_sampling",
        ["--no-trace-client-sampling"],
        {"SLIPRING_TRACE_CLIENT_SAMPLING": "off"},
        "trace_client_sampling = false",
        False,
    ),
    (
        "trace_content",
        ["--trace-content"],
        {"SLIPRING_TRACE_CONTENT": "on"},
        "trace_content = true",
        True,
    ),
    (
        "ignored_tool",
        ["--ignored-tool", "web_search", "--ignored-tool", "image_generation"],
        {"SLIPRING_IGNORED_TOOLS": "web_search,image_generation"},
        'ignored_tools = ["web_search", "image_generation"]',
        ("web_search", "image_generation"),
    ),
    (
        "image_host",
        ["--image-host", "a.example", "--image-host", "b.example:8443"],
        {"SLIPRING_IMAGE_HOSTS": "a.example,b.example:8443"},
        'image_hosts = ["a.example", "b.example:8443"]',
        ("a.example", "b.example:8443"),
    ),
    ("mcp_urls", ["--mcp-urls", "public"], {"SLIPRING_MCP_URLS": "public"}, 'mcp_urls = "public"', "public"),
    (
        "log_level",
        ["--log-level", "debug"],
        {"SLIPRING_LOG_LEVEL": "debug"},
        'log_level = "debug"',
        "debug",
    ),
]


@pytest.mark.parametrize(("name", "argv", "environ", "text", "value"), WAYS)
def test_a_setting_can_be_given_by_flag_variable_and_file(
    toml: WriteToml,
    name: str,
    argv: list[str],
    environ: dict[str, str],
    text: str,
    value: Any,
) -> None:
    expected = dataclasses.replace(Config(), **{name: value})
    assert load(argv, {}) == expected
    assert load([], environ) == expected
    assert load(["--config", toml(text)], {}) == expected


def test_the_cases_above_cover_every_plain_setting() -> None:
    plain = {setting.name for setting in dataclasses.fields(Config)} - TABLES
    assert {name for name, *_ in WAYS} == plain


@pytest.mark.parametrize("name", LIMIT_NAMES)
def test_every_limit_can_be_given_by_flag_variable_and_file(toml: WriteToml, name: str) -> None:
    expected = Config(limits=dataclasses.replace(Limits(), **{name: 7}))
    assert load(["--" + name.replace("_", "-"), "7"], {}) == expected
    assert load([], {"SLIPRING_" + name.upper(): "7"}) == expected
    assert load(["--config", toml(f"[limits]\n{name} = 7")], {}) == expected


def test_a_whole_number_of_seconds_becomes_a_float(toml: WriteToml) -> None:
    made = load(["--config", toml("[limits]\nmax_age_s = 60")], {})
    assert type(made.limits.max_age_s) is float


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("1", True),
        ("true", True),
        ("Yes", True),
        ("on", True),
        ("0", False),
        ("FALSE", False),
        ("no", False),
        ("off", False),
    ],
)
def test_a_switch_in_the_environment_is_a_word(word: str, value: bool) -> None:
    assert load([], {"SLIPRING_COMPRESSION": word}).compression is value


def test_a_comma_in_a_flag_belongs_to_its_entry() -> None:
    assert load(["--model", "a,b"], {}).model == ("a,b",)


def test_space_around_text_is_dropped(toml: WriteToml) -> None:
    assert load([], {"SLIPRING_HOST": " ::1\n"}).host == "::1"
    assert load(["--config", toml('api_keys = [" k "]')], {}).api_key == ("k",)


# --- Refusals --------------------------------------------------------------------------------

BAD_TEXT = [
    ("port", "http", "must be a whole number"),
    ("port", "80.5", "must be a whole number"),
    ("port", "", "must be a whole number"),
    ("port", "-1", "must be from 0 to 65535"),
    ("port", "65536", "must be from 0 to 65535"),
    ("workers", "0", "must be 1 or more"),
    ("host", "", "must not be empty"),
    ("host", "  ", "must not be empty"),
    ("engine", "", "must not be empty"),
    ("store", "", "must not be empty"),
    ("admin", "9464", "must be auto, off or HOST:PORT"),
    ("admin", "localhost:http", "must be auto, off or HOST:PORT"),
    ("admin", "localhost:65536", "must be auto, off or HOST:PORT"),
    ("metrics_tenants", "-1", "must be finite and not below 0"),
    ("metrics_safety_ids", "-1", "must be finite and not below 0"),
    ("log_level", "loud", "must be one of debug, info, warning, error"),
    ("log_level", "", "must be one of debug, info, warning, error"),
    ("model", "", "every entry must be a string and not empty"),
    ("allow_origin", " ", "every entry must be a string and not empty"),
    ("api_key", "", "every entry must be [TENANT:]KEY with neither part empty"),
    ("api_key", "tenant:", "every entry must be [TENANT:]KEY with neither part empty"),
    ("api_key", "tenant: ", "every entry must be [TENANT:]KEY with neither part empty"),
    ("api_key", ":key", "every entry must be [TENANT:]KEY with neither part empty"),
    ("max_lanes", "many", "must be a whole number"),
    ("max_lanes", "1.5", "must be a whole number"),
    ("max_age_s", "soon", "must be a number"),
    ("max_age_s", "nan", "must be finite and above 0"),
    ("max_age_s", "inf", "must be finite and above 0"),
    ("idle_timeout_s", "inf", "must be finite and not below 0"),
    ("idle_timeout_s", "nan", "must be finite and not below 0"),
    pytest.param("max_lanes", "9" * 5000, "must be a whole number", id="max_lanes-endless"),
]
VARIABLES = {"api_key": "SLIPRING_API_KEYS", "allow_origin": "SLIPRING_ALLOW_ORIGINS"}


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


@pytest.mark.parametrize(("name", "text", "demand"), BAD_TEXT)
def test_a_bad_flag_is_refused_by_its_name(name: str, text: str, demand: str) -> None:
    assert refusal([f"{flag_of(name)}={text}"]) == f"flag {flag_of(name)}: {demand}"


@pytest.mark.parametrize(("name", "text", "demand"), BAD_TEXT)
def test_a_bad_variable_is_refused_by_its_name(name: str, text: str, demand: str) -> None:
    variable = VARIABLES.get(name, "SLIPRING_" + name.upper())
    assert refusal([], {variable: text}) == f"variable {variable}: {demand}"


@pytest.mark.parametrize("text", ["", "maybe", "2", "truee"])
def test_a_switch_that_is_no_known_word_is_refused(text: str) -> None:
    message = refusal([], {"SLIPRING_COMPRESSION": text})
    assert message == "variable SLIPRING_COMPRESSION: must be true or false"


@pytest.mark.parametrize("text", ["a,", ",a", "a,,b"])
def test_a_list_with_a_gap_is_refused(text: str) -> None:
    assert "variable SLIPRING_MODEL" in refusal([], {"SLIPRING_MODEL": text})
    assert "variable SLIPRING_API_KEYS" in refusal([], {"SLIPRING_API_KEYS": text})


@pytest.mark.parametrize(
    ("text", "key", "complaint"),
    [
        ('port = "8000"', "port", "must be a whole number"),
        ("port = 8000.0", "port", "must be a whole number"),
        ("port = true", "port", "must be a whole number"),
        ("port = -1", "port", "must be from 0 to 65535"),
        ("port = 65536", "port", "must be from 0 to 65535"),
        ("port = [8000]", "port", "must be a whole number"),
        ("host = 1", "host", "must be a string"),
        ('host = ""', "host", "must not be empty"),
        ("host = 2020-01-01", "host", "must be a string"),
        ('compression = "true"', "compression", "must be true or false"),
        ("compression = 1", "compression", "must be true or false"),
        ('model = "a"', "model", "must be a list of strings"),
        ("model = [1]", "model", "every entry must be a string and not empty"),
        ('model = ["a", ""]', "model", "every entry must be a string and not empty"),
        ('api_keys = "k"', "api_keys", "must be a list of strings"),
        ("api_keys = [1]", "api_keys", "every entry must be [TENANT:]KEY with neither part empty"),
        ("[host]\na = 1", "host", "must be a string"),
        ('log_level = "INFO"', "log_level", "must be one of debug, info, warning, error"),
        ('mcp_urls = "all"', "mcp_urls", "must be one of registered, public, any"),
        ("limits = 1", "limits", "must be a table"),
        ("[[limits]]\nmax_lanes = 1", "limits", "must be a table"),
        ("[limits]\nmax_lanes = 1.0", "limits.max_lanes", "must be a whole number"),
        ("[limits]\nmax_lanes = false", "limits.max_lanes", "must be a whole number"),
        ("[limits]\nmax_age_s = true", "limits.max_age_s", "must be a number"),
        ('[limits]\nmax_age_s = "1"', "limits.max_age_s", "must be a number"),
        ("[limits]\nmax_age_s = nan", "limits.max_age_s", "must be finite and above 0"),
        ("[limits]\nmax_age_s = inf", "limits.max_age_s", "must be finite and above 0"),
        (
            f"[limits]\nmax_age_s = 1{'0' * 400}",
            "limits.max_age_s",
            "must be finite and above 0",
        ),
    ],
)
def test_a_bad_value_in_the_file_is_refused_by_key_and_file(
    toml: WriteToml, text: str, key: str, complaint: str
) -> None:
    path = toml(text)
    assert refusal(["--config", path]) == f"{key} in {path}: {complaint}"


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("prot = 1", "'prot'", ": did you mean port?"),
        ("api_key = ['k']", "'api_key'", ": did you mean api_keys?"),
        ("config = 'other.toml'", "'config'", ""),
        ("max_lanes = 1", "'max_lanes'", ": did you mean limits.max_lanes?"),
        ("[limits]\nlanes_max = 1", "'limits.lanes_max'", ": did you mean limits.max_lanes?"),
        ('"limits.max_lanes" = 1', "'limits.max_lanes'", ""),
        ('"a\\nb" = 1', "'a\\nb'", ""),
    ],
)
def test_an_unknown_key_is_refused_with_a_suggestion(toml: WriteToml, text: str, key: str, hint: str) -> None:
    path = toml(text)
    assert refusal(["--config", path]) == f"{key} in {path}: unknown key{hint}"


@pytest.mark.parametrize("name", LIMIT_NAMES)
def test_a_limit_may_be_zero_only_where_zero_makes_sense(name: str) -> None:
    argv = [flag_of(name), "0"]
    if name in MAY_BE_ZERO:
        assert getattr(load(argv, {}).limits, name) == 0
    else:
        assert refusal(argv) == f"flag {flag_of(name)}: must be finite and above 0"


@pytest.mark.parametrize("name", LIMIT_NAMES)
def test_no_limit_may_be_negative(toml: WriteToml, name: str) -> None:
    assert f"flag {flag_of(name)}:" in refusal([flag_of(name), "-1"])
    path = toml(f"[limits]\n{name} = -1")
    assert f"limits.{name} in {path}:" in refusal(["--config", path])


def test_the_limits_that_may_be_zero_exist() -> None:
    assert set(LIMIT_NAMES) >= MAY_BE_ZERO


def test_a_bad_value_is_refused_even_where_another_source_overrides_it(toml: WriteToml) -> None:
    path = toml("port = -1")
    assert "port in " in refusal(["--port", "1", "--config", path])
    assert "variable SLIPRING_PORT" in refusal(["--port", "1"], {"SLIPRING_PORT": "x"})


def test_a_missing_file_is_refused_by_its_path(tmp_path: Path) -> None:
    path = str(tmp_path / "absent.toml")
    assert refusal(["--config", path]) == f"{path}: cannot be read: No such file or directory"
    assert path in refusal([], {"SLIPRING_CONFIG": path})


def test_a_directory_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    assert f"{tmp_path}: cannot be read" in refusal(["--config", str(tmp_path)])


def test_an_empty_file_name_is_refused_by_where_it_came_from() -> None:
    assert refusal(["--config", ""]) == "flag --config: must not be empty"
    assert refusal([], {"SLIPRING_CONFIG": ""}) == "variable SLIPRING_CONFIG: must not be empty"


@pytest.mark.parametrize(
    "text",
    [
        "port = ",
        "port 1",
        "port = 1\nport = 2",
        f'api_keys = ["{SECRET}"',
        f"api_keys = {SECRET}",
        f'api_keys = ["{SECRET}]',
        "a = " + "[" * 100_000,
        "port = " + "9" * 5000,
    ],
    ids=range(8),
)
def test_a_file_that_is_not_toml_is_refused(toml: WriteToml, text: str) -> None:
    path = toml(text)
    message = refusal(["--config", path])
    assert message.startswith(f"{path}: is not valid TOML: ")
    assert SECRET not in message


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe")
    assert f"{path}: is not valid TOML" in refusal(["--config", str(path)])


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--prot", "1"], "unknown flag --prot: did you mean --port?"),
        (["--prot=1"], "unknown flag --prot: did you mean --port?"),
        (["--por", "1"], "unknown flag --por: did you mean --port?"),
        (["--port"], "--port"),
        (["--compression=yes"], "--compression"),
        (["stray"], "unexpected argument"),
    ],
)
def test_a_command_line_that_does_not_parse_is_refused(argv: list[str], named: str) -> None:
    assert named in refusal(argv)


# --- Secrets and immutability ----------------------------------------------------------------


def test_the_repr_shows_no_api_key() -> None:
    made = load(["--api-key", f"tenant:{SECRET}"], {})
    assert made.api_key == (f"tenant:{SECRET}",)
    assert SECRET not in repr(made)


@pytest.mark.parametrize(
    ("argv", "environ"),
    [
        (["--api-key", SECRET, "--api-key", "tenant:"], {}),
        (["--api-key", SECRET, SECRET], {}),
        (["--api-kye", SECRET], {}),
        ([f"--api-kye={SECRET}"], {}),
        ([f"--port={SECRET}"], {}),
        (["--api-key"], {"SLIPRING_API_KEYS": SECRET}),
        ([], {"SLIPRING_API_KEYS": f"{SECRET},"}),
        ([], {"SLIPRING_PORT": SECRET}),
        ([], {"SLIPRING_LOG_LEVEL": SECRET}),
    ],
)
def test_a_message_never_contains_a_value(argv: list[str], environ: dict[str, str]) -> None:
    assert SECRET not in refusal(argv, environ)


@pytest.mark.parametrize("text", [f'api_keys = "{SECRET}"', f'api_keys = ["{SECRET}", ""]'])
def test_a_message_about_the_file_never_contains_a_value(toml: WriteToml, text: str) -> None:
    assert SECRET not in refusal(["--config", toml(text)])


def test_a_configuration_is_immutable_and_hashable(toml: WriteToml) -> None:
    text = 'model = ["a"]\napi_keys = ["k"]\n[limits]\nmax_lanes = 1'
    made = load(["--config", toml(text)], {})
    assert hash(made) == hash(load(["--config", toml(text)], {}))
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.port = 1  # type: ignore[misc]
    assert not hasattr(made, "__dict__")


@pytest.mark.parametrize(
    ("entry", "parts"),
    [("k", ("", "k")), ("t:k", ("t", "k")), ("t:k:k", ("t", "k:k")), ("t: k", ("t", "k"))],
)
def test_the_first_colon_ends_the_tenant_of_an_api_key(entry: str, parts: tuple[str, str]) -> None:
    assert config.split_api_key(entry) == parts


# --- Use from a subcommand, and the page -----------------------------------------------------


def test_the_flags_attach_to_a_subcommand_beside_its_own() -> None:
    parser = argparse.ArgumentParser()
    serve = parser.add_subparsers(dest="command").add_parser("serve")
    serve.add_argument("--dry-run", action="store_true")
    add_flags(serve)
    namespace = parser.parse_args(["serve", "--dry-run", "--port", "1", "--model", "m"])
    made = from_namespace(namespace, {"SLIPRING_HOST": "::1"})
    assert made == Config(host="::1", port=1, model=("m",))


def test_a_file_can_have_checks_and_policies(toml: WriteToml) -> None:
    text = """
        [[check]]
        name = "secrets"
        source = "patterns"
        settings = { secrets = true }
        action = "block"

        [policies]
        models = { m = ["secrets"] }
    """
    config = load(["--config", toml(text)], {})
    [check] = config.checks
    assert (check.name, check.source, check.settings) == ("secrets", "patterns", '{"secrets":true}')
    assert config.policies.models == (("m", ("secrets",)),)
    assert msgspec.json.decode(msgspec.json.encode(config), type=Config) == config
    assert hash(config)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[check]]\nname = "a"', "check 'a': 'source' is missing in "),
        ('[check]\nname = "a"', "check: must be tables, each under a line [[check]] in "),
        ('[policies]\ndefault = ["a"]', "policies.default: there is no check 'a' in "),
    ],
)
def test_a_mistake_in_checks_names_the_file(toml: WriteToml, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(["--config", path := toml(text)], {})
    assert str(raised.value) == message + path


def test_a_namespace_without_the_flags_leaves_the_other_sources() -> None:
    assert from_namespace(argparse.Namespace(), {"SLIPRING_PORT": "2"}).port == 2


def test_the_help_lists_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        load(["--help"], {})
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    plain = {setting.name for setting in dataclasses.fields(Config)} - TABLES
    for name in {*plain, *LIMIT_NAMES, "config"}:
        assert re.search(rf"^  {flag_of(name)}\b", shown, re.MULTILINE)


def test_the_table_has_one_row_for_each_setting() -> None:
    names = re.findall(r"^\| `(\w+)` \|", reference(), re.MULTILINE)
    settings = [setting.name for setting in dataclasses.fields(Config)]
    plain = [name for name in settings if name not in TABLES]
    assert names == plain
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "row",
    [
        "| `port` | `--port PORT` | `SLIPRING_PORT` | `port` | `8000` "
        "| port to listen on; 0 chooses a free port |",
        "| `api_key` | `--api-key KEY`, repeatable | `SLIPRING_API_KEYS` | `api_keys` | none "
        "| API key that clients may use, as [TENANT:]KEY |",
        "| `compression` | `--compression`, `--no-compression` | `SLIPRING_COMPRESSION` "
        "| `compression` | `false` | accept permessage-deflate when a client offers it |",
    ],
)
def test_a_row_shows_every_name_of_its_setting(row: str) -> None:
    assert row in reference().splitlines()


def test_the_names_of_a_limit_follow_from_its_own() -> None:
    limits = [setting for setting in SETTINGS if setting.is_limit]
    assert [setting.name for setting in limits] == LIMIT_NAMES
    for setting in limits:
        names = (setting.flag, setting.variable, setting.key)
        assert names == (
            f"--{setting.name.replace('_', '-')}",
            f"SLIPRING_{setting.name.upper()}",
            ("limits", setting.name),
        )


def test_the_page_shows_the_table_that_the_code_generates() -> None:
    page = TABLE.read_text(encoding="utf-8")
    assert page.count(BEGIN) == page.count(END) == 1
    shown = page.partition(BEGIN)[2].partition(END)[0]
    assert shown == reference(), (
        "docs/settings.md is out of date: "
        "paste the output of `python -m tests.config.reference` between its two settings markers"
    )


def test_the_file_on_the_page_is_a_valid_one(toml: WriteToml) -> None:
    example, *_ = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    made = load(["--config", toml(example)], {})
    assert made.port == tomllib.loads(example)["port"]
    assert made.limits.max_lanes == 8


def test_the_variables_on_the_page_are_valid_ones() -> None:
    environ = dict(re.findall(r"^export (\w+)=(.*)$", PAGE.read_text("utf-8"), re.MULTILINE))
    made = load([], environ)
    assert (made.port, made.model, made.compression) == (9000, ("small", "large"), True)
    assert made.api_key == ("team-a:first-key", "team-b:second-key")


def test_the_flags_on_the_page_are_valid_ones() -> None:
    page = PAGE.read_text(encoding="utf-8").replace("\\\n", " ")
    many, workers = (load(line.split(), {}) for line in re.findall(r"^slipring serve (--.*)$", page, re.M))
    assert (many.port, many.model, many.compression) == (9000, ("small", "large"), True)
    assert many.limits.max_lanes == 8
    assert workers.workers == 4


def test_the_page_names_the_limits_that_may_be_zero() -> None:
    sentence = (
        (DOCS / "compatibility" / "limits.md").read_text(encoding="utf-8").partition("must be above 0")[2]
    )
    named = set(re.findall(r"`(\w+)`", sentence.partition("\n\n")[0]))
    assert named == MAY_BE_ZERO
