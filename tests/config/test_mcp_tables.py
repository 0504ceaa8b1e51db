"""The `[[mcp]]` tables of the TOML file, and their way to a worker."""

import dataclasses
import re
import tomllib

import pytest

from slipring.config.settings import Config
from slipring.config.tables import (
    BuiltinMapping,
    HeaderVariable,
    McpRegistration,
    TableError,
    read_builtin_tools,
    read_mcp_registrations,
)
from slipring.server.hosted_tools.permitted_servers import Registry
from slipring.server.process.worker_messages import Assignment, decode_command, encode
from tests.config.test_settings import WriteToml, load, refusal, toml
from tests.test_docs import ROOT

__all__ = ["toml"]
SECRET = "hush-hush"
VARIABLES = dict.fromkeys(("WEATHER_TOKEN", "WEATHER_TEAM", "FILES_TOKEN"), "a-value")
FULL = """
[[mcp]]
name = "weather"
url = "https://mcp.example.com/mcp?key=hush-hush"
headers = { Authorization = "Bearer $WEATHER_TOKEN", X-Key = "$WEATHER_KEY" }
transport = "sse"
allowed_tools = ["now", "forecast"]
approval = "always"
parallel = 1
timeout_s = 5
on_list_error = "continue"

[[mcp]]
name = "files"
command = "mcp-files"
args = ["--root", "/srv"]
env = ["FILES_TOKEN"]
cwd = "/srv"
per_tenant = false
"""
WEATHER = McpRegistration(
    name="weather",
    url="https://mcp.example.com/mcp?key=hush-hush",
    headers=(
        HeaderVariable("Authorization", "WEATHER_TOKEN", "Bearer"),
        HeaderVariable("X-Key", "WEATHER_KEY"),
    ),
    transport="sse",
    allowed_tools=("now", "forecast"),
    approval="always",
    parallel=1,
    timeout_s=5.0,
    on_list_error="continue",
)
FILES = McpRegistration(
    name="files",
    command=("mcp-files", "--root", "/srv"),
    env=("FILES_TOKEN",),
    cwd="/srv",
    per_tenant=False,
)


def test_servers_are_registered_in_the_file(toml: WriteToml) -> None:
    made = load(["--config", toml(FULL)], {})
    assert made.mcp == (WEATHER, FILES)
    assert hash(made) == hash(load(["--config", toml(FULL)], {}))
    assert SECRET not in repr(made)


def test_workers_get_the_same_servers() -> None:
    config = Config(mcp=(WEATHER, FILES))
    command = decode_command(encode(Assignment(config, {})))
    assert isinstance(command, Assignment)
    assert command.config == config


@pytest.mark.parametrize("page", ["configuration.md", "hosted-tools.md"])
def test_the_tables_on_the_pages_are_valid_ones(toml: WriteToml, page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    examples = [each for each in re.findall(r"```toml\n(.*?)```", text, re.DOTALL) if "[[mcp]]" in each]
    assert examples
    for example in examples:
        registry = Registry(load(["--config", toml(example)], {}), VARIABLES)
        assert registry.names


def test_the_page_describes_every_key() -> None:
    text = (ROOT / "docs" / "hosted-tools.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    described = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    fields = {each.name for each in dataclasses.fields(McpRegistration)} | {"args"}
    assert fields <= described


def table(**fields: object) -> str:
    given = {"name": '"a"', "url": '"http://h/"', **fields}
    return "[[mcp]]\n" + "\n".join(f"{key} = {value}" for key, value in given.items() if value is not None)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("mcp = 1", "mcp: must be an array of tables"),
        ('[mcp]\nname = "a"', "mcp: must be an array of tables"),
        ("mcp = [1]", "mcp: must be an array of tables"),
        (table() + "\n" + table(), "mcp: the name 'a' is given twice"),
        (table(name=None), "mcp[0]: 'name' is missing"),
        (table(name='"a b"'), "mcp[0]: 'name' must have 1 to 64 letters"),
        (table(name=f'"{"a" * 65}"'), "mcp[0]: 'name' must have 1 to 64 letters"),
        (table(url=None), "mcp[0]: either 'url' or 'command' must be given"),
        (table(command='"x"'), "mcp[0]: either 'url' or 'command' must be given"),
        (table(url='"ftp://h/"'), "mcp[0]: 'url' must be an http:// or https:// URL"),
        (table(uri='"http://h/"'), "mcp[0]: unknown key 'uri': did you mean url?"),
        (table(server='"http://h/"'), "mcp[0]: unknown key 'server' (known: name, url, command"),
        (table(args='["x"]'), "mcp[0]: 'args' needs 'command'"),
        (table(env='["X"]'), "mcp[0]: 'env' needs 'command'"),
        (table(url=None, command='"x"', headers='{ X = "$Y" }'), "mcp[0]: 'headers' needs 'url'"),
        (table(url=None, command='"x"', transport='"sse"'), "mcp[0]: 'transport' needs 'url'"),
        (table(url=None, command='" "'), "mcp[0]: 'command' must be a string and not empty"),
        (table(url=None, command='"x"', args="[1]"), "mcp[0]: 'args' must be a list of strings"),
        (table(url=None, command='"x"', env='["A=hush-hush"]'), "mcp[0]: 'env' must be a list of names"),
        (table(headers='{ X = "hush-hush" }'), "mcp[0]: 'headers' must be a table whose values name"),
        (table(headers='{ X = "$A hush-hush" }'), "mcp[0]: 'headers' must be a table whose values name"),
        (table(headers='["X"]'), "mcp[0]: 'headers' must be a table whose values name"),
        (table(allowed_tools="[]"), "mcp[0]: 'allowed_tools' must be a list of names"),
        (table(allowed_tools='[""]'), "mcp[0]: 'allowed_tools' must be a list of names"),
        (table(approval='"never"'), "mcp[0]: 'approval' must be one of client, always"),
        (table(transport='"stdio"'), "mcp[0]: 'transport' must be one of auto, streamable, sse"),
        (table(on_list_error="[1]"), "mcp[0]: 'on_list_error' must be one of fail, continue"),
        (table(per_tenant='"yes"'), "mcp[0]: 'per_tenant' must be true or false"),
        (table(parallel="0"), "mcp[0]: 'parallel' must be from 1 to 1000"),
        (table(parallel="true"), "mcp[0]: 'parallel' must be from 1 to 1000"),
        (table(timeout_s="nan"), "mcp[0]: 'timeout_s' must be above 0 and at most 86400"),
        (table(timeout_s='"5"'), "mcp[0]: 'timeout_s' must be above 0 and at most 86400"),
    ],
)
def test_a_bad_table_is_refused_by_its_key_and_without_its_values(text: str, complaint: str) -> None:
    with pytest.raises(TableError) as caught:
        read_mcp_registrations(tomllib.loads(text)["mcp"])
    assert complaint in str(caught.value)
    assert SECRET not in str(caught.value)


def test_the_message_names_the_file(toml: WriteToml) -> None:
    path = toml(table(parallel="0"))
    assert refusal(["--config", path]) == f"mcp[0]: 'parallel' must be from 1 to 1000 in {path}"


# Built-in tools.

BUILTIN = """
[[mcp]]
name = "search"
url = "https://search.example/mcp"

[builtin_tools.web_search]
server = "search"
tool = "find"
argument = "q"
fields = { filters = "only" }

[builtin_tools.code_interpreter]
server = "search"
tool = "run"
"""


def test_built_in_tools_name_the_tools_that_answer_them(toml: WriteToml) -> None:
    config = load(["--config", toml(BUILTIN)], {})
    assert config.builtin_tools == (
        BuiltinMapping("web_search", "search", "find", "q", (("filters", "only"),)),
        BuiltinMapping("code_interpreter", "search", "run", "code"),
    )
    told = decode_command(encode(Assignment(config, {})))
    assert isinstance(told, Assignment)
    assert hash(told.config) == hash(config)
    assert told.config.builtin_tools == config.builtin_tools


SERVERS = (
    McpRegistration("search", url="https://search.example", allowed_tools=("find",)),
    McpRegistration("strict", url="https://strict.example", approval="always"),
)


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        ([], "must have tables"),
        ({"image_generation": {}}, "unknown type"),
        ({"web_search": {"server": "search"}}, "'tool' is missing"),
        ({"web_search": {"server": "search", "tool": "find", "key": 1}}, "unknown key 'key'"),
        ({"web_search": {"server": "search", "tool": 1}}, "'tool' must be"),
        ({"web_search": {"server": "search", "tool": "find", "fields": {"a": 1}}}, "'fields' must be"),
        ({"web_search": {"server": "other", "tool": "find"}}, "name of a [[mcp]] table"),
        ({"web_search": {"server": "search", "tool": "run"}}, "allowed_tools"),
        ({"web_search": {"server": "strict", "tool": "find"}}, "no approvals"),
    ],
)
def test_built_in_tools_that_cannot_work_are_refused(tables: object, problem: str) -> None:
    with pytest.raises(TableError, match=re.escape(problem)):
        read_builtin_tools(tables, SERVERS)
