"""What a request offers of its MCP servers."""

import json

from msgspec import Raw

from slipring.core.hosted_tools import ResolvedServer, compose_offer
from slipring.protocol.tools.mcp_tools import ListedTool, read_list, read_servers
from tests.core.connection import listed, mcp

SENT = Raw(
    json.dumps(
        [mcp(authorization="secret", headers={"X": "secret"}), {"type": "custom", "name": "c"}]
    ).encode()
)


def test_tools_are_put_into_the_request_and_secrets_are_not() -> None:
    (server,) = read_servers(SENT)
    offered = compose_offer(SENT, (server,), {"s": ResolvedServer(None)}, {"s": [listed("f")]}, {})
    kept, custom = json.loads(bytes(offered.definitions))
    assert ([tool["name"] for tool in kept["listed"]], custom) == (["f"], {"type": "custom", "name": "c"})
    assert b"secret" not in bytes(offered.definitions)
    tool = offered.tools.find("s", "f")
    assert tool is not None
    assert (offered.tools.named("s", "f"), offered.tools.find(None, "f")) == (tool, None)


def test_a_list_that_clients_spell_in_their_own_way_offers_the_same() -> None:
    (server,) = read_servers(SENT)
    schema = {"type": "object", "title": "größer"}
    tool = ListedTool("f", Raw(json.dumps(schema, ensure_ascii=False, separators=(",", ":")).encode()))
    fetched = compose_offer(SENT, (server,), {"s": ResolvedServer(None)}, {"s": [tool]}, {})
    resent = read_list(json.dumps([{"name": "f", "input_schema": schema}]).encode())
    known = compose_offer(SENT, (server,), {"s": ResolvedServer(None)}, {"s": resent}, {})
    assert bytes(known.definitions) == bytes(fetched.definitions)


def test_a_schema_that_cannot_be_read_stays_as_it_is() -> None:
    (server,) = read_servers(SENT)
    deep = b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}"
    lists = {"s": [ListedTool("f", Raw(deep))]}
    offered = compose_offer(SENT, (server,), {"s": ResolvedServer(None)}, lists, {})
    assert deep in bytes(offered.definitions)
