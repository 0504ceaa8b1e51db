"""Two nodes on one PostgreSQL store: the lists of MCP servers belong to their servers, on every node, along
chains and in conversations."""

from pathlib import Path
from typing import Any

import pytest

from tests.api import Api
from tests.mcp.fakes import ADD, FakeServer, serving
from tests.nodes.pairs import pair
from tests.server.hosted_tools.turns import kinds, respond, scripted, server


def names(response: dict[str, Any]) -> list[str]:
    """The tools in the list that a response begins with."""
    return [tool["name"] for tool in response["output"][0]["tools"]]


@pytest.mark.parametrize("transport", ["websocket", "post"])
@pytest.mark.parametrize("continued_by", ["previous_response_id", "conversation"])
async def test_a_list_is_used_for_its_own_server_on_every_node(
    tmp_path: Path, postgres_url: str, transport: str, continued_by: str
) -> None:
    old, new = FakeServer(modern=True), FakeServer(modern=True)
    old.tools = [ADD, {**ADD, "name": "second"}]
    new.tools = [{**ADD, "name": "other"}]
    engine = scripted(tmp_path, *[[{"text": "ok"}]] * 5)
    async with (
        serving(old),
        serving(new),
        pair(postgres_url, engine, engine, mcp_urls="any") as nodes,
    ):
        chain: dict[str, Any] = {}
        if continued_by == "conversation":
            status, conversation = await Api(nodes[0]).call("POST", "/conversations", json={})
            assert status == 200
            chain = {"conversation": conversation["id"]}
        turns = [
            (0, server("s", server_url=old.url, allowed_tools=["add"]), ["add"]),
            (1, server("s", server_url=old.url, allowed_tools=["add"]), None),
            (1, server("s", server_url=old.url), ["add", "second"]),
            (0, server("s", server_url=new.url), ["other"]),
            (1, server("s", server_url=new.url), None),
        ]
        for node, tool, listed in turns:
            response = await respond(nodes[node], transport, input="hi", tools=[tool], **chain)
            if listed is None:
                assert kinds(response) == ["message"]
            else:
                assert (kinds(response), names(response)) == (["mcp_list_tools", "message"], listed)
            if continued_by == "previous_response_id":
                chain = {"previous_response_id": response["id"]}
