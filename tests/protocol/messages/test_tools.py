"""Tools, MCP servers and ``tool_choice`` of the Messages API, as the Responses API has them."""

import json
from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw

from slipring.base.errors import InvalidRequest
from slipring.protocol.messages.tools import AnyChoice, AutoChoice, NamedChoice, NoChoice, Tools
from slipring.protocol.tools.tool_choice import ToolChoice
from slipring.protocol.tools.tool_types import MOST_TOOLS
from slipring.protocol.tools.toolset import Toolset

Json = dict[str, Any]
SCHEMA: Json = {"type": "object", "properties": {}}
TOOL: Json = {"name": "f", "description": "Does it", "input_schema": SCHEMA}
SERVER: Json = {"type": "url", "name": "s", "url": "https://a.example"}
HOSTED: Json = {
    "type": "mcp",
    "server_label": "s",
    "server_url": "https://a.example",
    "require_approval": "never",
}
CODE: Json = {"type": "code_execution_20250825", "name": "code_execution"}
SET: Json = {"type": "mcp_toolset", "mcp_server_name": "s"}


def read(*tools: Json, servers: list[Json] | None = None) -> Tools:
    read = Tools()
    read.read(
        Raw(json.dumps(tools).encode()), UNSET if servers is None else Raw(json.dumps(servers).encode())
    )
    return read


def taken(*tools: Json, servers: list[Json] | None = None) -> Any:
    raw = read(*tools, servers=servers).raw
    return [] if isinstance(raw, msgspec.UnsetType) else json.loads(bytes(raw))


def test_functions() -> None:
    function = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": False}
    described = {**function, "description": "Does it"}
    assert taken(TOOL) == [described]
    assert taken({**TOOL, "type": "custom", "cache_control": {"type": "ephemeral"}}) == [described]
    assert taken({**TOOL, "strict": True, "allowed_callers": ["direct"]}) == [{**described, "strict": True}]
    bare = {"name": "f", "input_schema": SCHEMA}
    assert taken(bare) == [function]
    shown = taken({**TOOL, "input_examples": [{"a": 1}]})[0]
    assert shown["description"] == 'Does it\n\nExamples of its input: [{"a":1}]'
    assert taken({**bare, "input_examples": [{}]})[0]["description"] == "Examples of its input: [{}]"
    Toolset.read(read(TOOL).raw)


def test_examples_of_inputs_have_one_spelling() -> None:
    spelled = Raw(rb'[{"name":"f","input_schema":{},"input_examples":[ {"a": "\u007aebra"} ]}]')
    tools = Tools()
    tools.read(spelled, UNSET)
    assert json.loads(bytes(tools.raw))[0]["description"] == 'Examples of its input: [{"a":"zebra"}]'  # type: ignore[arg-type]


def test_tools_that_the_server_runs() -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
    tools = read(search, CODE)
    assert json.loads(bytes(tools.raw)) == [  # type: ignore[arg-type]
        {"type": "web_search"},
        {"type": "code_interpreter", "container": {"type": "auto"}},
    ]
    assert tools.hosted == {"web_search", "code_interpreter"}
    assert json.loads(bytes(tools.choice(NamedChoice("web_search")))) == {"type": "web_search"}  # type: ignore[arg-type]
    assert json.loads(bytes(tools.choice(NamedChoice("code_execution")))) == {"type": "code_interpreter"}  # type: ignore[arg-type]


def test_mcp_servers() -> None:
    assert taken(servers=[SERVER]) == [HOSTED]
    secret = {**SERVER, "authorization_token": "t"}
    assert taken(servers=[secret]) == [{**HOSTED, "authorization": "t"}]
    some = {**SERVER, "tool_configuration": {"enabled": True, "allowed_tools": ["a"]}}
    assert taken(servers=[some]) == [{**HOSTED, "allowed_tools": ["a"]}]
    assert taken(servers=[{**SERVER, "tool_configuration": {"enabled": False}}]) == []
    assert taken(servers=[{**SERVER, "tool_configuration": {}}]) == [HOSTED]


def test_toolsets_select_the_tools_of_a_server() -> None:
    assert taken(SET, servers=[SERVER]) == [HOSTED]
    off = {**SET, "default_config": {"enabled": False}}
    assert taken(off, servers=[SERVER]) == []
    one = {**off, "configs": {"a": {"enabled": True}, "b": {"enabled": False}}}
    assert taken(one, servers=[SERVER]) == [{**HOSTED, "allowed_tools": ["a"]}]
    assert taken({**SET, "configs": {"a": {"enabled": True}}}, servers=[SERVER]) == [HOSTED]


def test_choices() -> None:
    tools = read(TOOL)
    assert tools.choice(None) is UNSET
    assert tools.choice(AutoChoice()) is UNSET
    for choice, mode in ((AnyChoice(), "required"), (NoChoice(), "none"), (NamedChoice("f"), "required")):
        assert ToolChoice.read(tools.choice(choice)).mode == mode
    assert read().raw is UNSET


@pytest.mark.parametrize(
    ("tools", "servers", "param"),
    [
        ([{"input_schema": {}}], [], "tools[0].name"),
        ([{"name": "f"}], [], "tools[0].input_schema"),
        ([{**TOOL, "input_schema": []}], [], "tools[0].input_schema"),
        ([{**TOOL, "input_examples": 1}], [], "tools[0].input_examples"),
        ([{**TOOL, "input_examples": ["x" * 300_000]}], [], "tools[0].input_examples"),
        ([TOOL, {**TOOL, "defer_loading": True}], [], "tools[1].name"),
        ([{**TOOL, "defer_loading": True}, TOOL], [], "tools[1].name"),
        ([], [SERVER, SERVER], "mcp_servers[1].name"),
        ([{**TOOL, "allowed_callers": ["code_execution_20250825"]}], [], "tools[0].allowed_callers"),
        ([{**CODE, "allowed_callers": []}], [], "tools[0].allowed_callers"),
        ([{"type": "bash_20250124", "name": "bash"}], [], "tools[0].type"),
        ([{"type": "mcp_toolset"}], [SERVER], "tools[0].mcp_server_name"),
        ([{**SET, "configs": {"a": {"enabled": False}}}], [SERVER], "tools[0].configs"),
        (
            [{**SET, "default_config": {"defer_loading": True}}],
            [SERVER],
            "tools[0].default_config.defer_loading",
        ),
        ([{**SET, "configs": {"x": {"defer_loading": True}}}], [SERVER], "tools[0].configs.x.defer_loading"),
        ([{**SET, "tools": [{"name": "x"}]}], [SERVER], "tools[0].tools"),
        (
            [{"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}],
            None,
            "tools[0].type",
        ),
        ([], [{"type": "stdio"}], "mcp_servers[0].type"),
        ([TOOL] * (MOST_TOOLS + 1), [], "tools"),
    ],
)
def test_what_is_refused(tools: list[Json], servers: list[Json], param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        read(*tools, servers=servers)
    assert refusal.value.param == param


def test_a_toolset_that_lists_its_tools_is_told_why_it_cannot() -> None:
    with pytest.raises(InvalidRequest, match="this server asks MCP servers for their tools itself"):
        read({**SET, "tools": [{"name": "x"}]}, servers=[SERVER])
    assert taken({**SET, "tools": None}, servers=[SERVER]) == taken(SET, servers=[SERVER])


def test_a_toolset_of_a_registered_server_that_enables_nothing_adds_nothing() -> None:
    assert taken({**SET, "default_config": {"enabled": False}}) == []
    (tool,) = taken(SET)
    assert (tool["type"], tool["server_label"]) == ("mcp", "s")
