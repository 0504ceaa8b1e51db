"""The ``mcp`` tools of a request: which are refused, and how their names and filters are read."""

from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw

from slipring.base.errors import ApiError
from slipring.core.chain.approvals import needs_approval
from slipring.protocol import wire
from slipring.protocol.tools.mcp_tools import (
    MOST_SERVERS,
    ListedTool,
    McpTool,
    model_name,
    place_of,
    read_servers,
)
from slipring.protocol.tools.tool_choice import ToolChoice
from slipring.protocol.tools.tool_types import passes_on


def server(**fields: Any) -> dict[str, Any]:
    return {"type": "mcp", "server_label": "a", "server_url": "https://h/", **fields}


def read(*tools: dict[str, Any]) -> tuple[McpTool, ...]:
    return read_servers(wire.raw(list(tools)))


@pytest.mark.parametrize(
    ("tools", "param", "message"),
    [
        ([server(connector_id="c")], "tools[0].connector_id", "'server_url' is given too"),
        ([server(server_url=None, tunnel_id="t")], "tools[0].tunnel_id", "tunnels belong to"),
        ([server(allowed_callers=["programmatic"])], "tools[0].allowed_callers", "runs no programs"),
        ([server(), server()], "tools", "two MCP servers have the label 'a'"),
        ([server(server_label=f"s{n}") for n in range(MOST_SERVERS + 1)], "tools", "MCP servers"),
    ],
)
def test_servers_that_cannot_be_called_are_refused(
    tools: list[dict[str, Any]], param: str, message: str
) -> None:
    with pytest.raises(ApiError, match=message) as refusal:
        read(*tools)
    assert refusal.value.param == param


def test_another_server_judges_what_slipring_does_not_support() -> None:
    (found,) = read_servers(wire.raw([server(server_url=None, tunnel_id="t")]), elsewhere=True)
    assert found.tunnel_id == "t"


def test_names_that_functions_cannot_have_are_changed_and_stay_distinct() -> None:
    assert model_name("a", "look_up-2") == "look_up-2"
    dotted, slashed, long = (model_name("a", name) for name in ("look.up", "look/up", "x" * 200))
    assert dotted.startswith("look_up_")
    assert slashed.startswith("look_up_")
    assert dotted != slashed
    assert len(long) <= 64


def test_a_tool_that_both_filters_select_needs_approval() -> None:
    names = {"tool_names": ["write"]}
    (found,) = read(server(require_approval={"always": names, "never": {"tool_names": ["write", "read"]}}))
    needs = {
        name: needs_approval(found, ListedTool(name=name, input_schema=Raw(b"{}")), always=False)
        for name in ("write", "read", "other")
    }
    assert needs == {"write": True, "read": False, "other": True}


def test_the_place_of_a_server_in_a_request() -> None:
    tools = wire.raw([{"type": "function", "name": "mcp"}, server(server_label="b")])
    assert place_of(tools, "b") == "tools[1]"
    assert place_of(tools, "c") == "tools"


def test_tools_whose_output_cannot_be_passed_on_are_refused() -> None:
    assert not passes_on(UNSET)
    assert passes_on(wire.raw([server()]))
    with pytest.raises(ApiError, match="cannot pass on") as refusal:
        passes_on(wire.raw([{"type": "programmatic_tool_calling"}]))
    assert refusal.value.param == "tools[0].type"


def test_a_choice_of_a_server_names_it() -> None:
    with pytest.raises(ApiError, match="server_label") as refusal:
        ToolChoice.read(wire.raw({"type": "mcp"}))
    assert refusal.value.param == "tool_choice.server_label"


@pytest.mark.parametrize(
    "sent", ["", ',"description":null,"annotations":null', ',"annotations":{"read_only":null}']
)
def test_a_tool_is_listed_without_nulls(sent: str) -> None:
    tool = msgspec.json.decode('{"name":"f","input_schema":{}' + sent + "}", type=ListedTool)
    assert wire.encode(tool) == b'{"name":"f","input_schema":{},"annotations":{"read_only":false}}'
