"""The tools of a job as an upstream gets them."""

import json
from typing import Any

from msgspec import Raw

from slipring.engines.responses.request_body import client_tools
from slipring.protocol.tools.toolset import Toolset

ADD = {"name": "add", "input_schema": {"type": "object"}, "description": "Adds."}
SPACED = {"name": "two words", "input_schema": {"type": "object"}}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}, "x-extra": 1}
SPACE = {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "add"}], "description": ""}


def server(label: str, *tools: Any, **fields: Any) -> dict[str, Any]:
    """A server as a head keeps it."""
    return {"type": "mcp", "server_label": label, "server_url": "https://x", "listed": list(tools), **fields}


def sent(*tools: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(client_tools(Toolset.read(Raw(json.dumps(tools).encode()))))
    return found


def test_tools_of_the_client_are_sent_as_they_are() -> None:
    raw = json.dumps([FUNCTION, SPACE, {"type": "custom", "name": "c"}, {"type": "shell"}]).encode()
    tools = Toolset.read(Raw(raw))
    assert client_tools(tools) is tools.raw


def test_tools_of_servers_are_functions_in_the_namespace_of_their_server() -> None:
    function, space, first, second = sent(
        server("a", ADD, SPACED, server_description="Sums."), FUNCTION, server("b", ADD), SPACE
    )
    assert (function, space) == (FUNCTION, SPACE)
    assert (first["name"], first["description"]) == ("a", "Sums.")
    assert first["tools"][0]["name"] == "add"
    assert "two words" not in json.dumps(first)
    assert first["tools"][0]["parameters"] == {"type": "object"}
    assert (second["name"], second["description"]) == ("b", "Tools of the server b.")
    assert "https://x" not in json.dumps([first, second])


def test_a_server_without_tools_leaves_nothing() -> None:
    assert sent(server("a")) == []
