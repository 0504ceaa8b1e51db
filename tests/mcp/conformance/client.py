"""The program that the conformance suite starts for each of its client scenarios.

It does with slipring's client what the scenario asks for. The suite names the scenario in the environment,
and the server's URL as the last argument. Exit code 1: the client failed.
"""

import asyncio
import json
import os
import sys
from typing import Any

import msgspec

from slipring.mcp.failures import McpFailure
from slipring.mcp.pool import Pool
from slipring.mcp.protocol.tools import ToolList
from slipring.mcp.servers import HttpServer
from slipring.mcp.transports.addresses import Reach
from slipring.mcp.url_policy import parse_url


async def list_only(pool: Pool, server: HttpServer, tools: ToolList) -> None:
    """The list was fetched already."""


async def call_all(pool: Pool, server: HttpServer, tools: ToolList) -> None:
    for tool in tools.tools:
        await pool.call(server, tool.name, _arguments(msgspec.json.decode(tool.input_schema)))


async def call_as_told(pool: Pool, server: HttpServer, tools: ToolList) -> None:
    for call in json.loads(os.environ["MCP_CONFORMANCE_CONTEXT"])["toolCalls"]:
        await pool.call(server, call["name"], call["arguments"])


async def echo_schema(pool: Pool, server: HttpServer, tools: ToolList) -> None:
    tool = tools.get("json_schema_2020_12_tool")
    assert tool is not None
    await pool.call(server, "json_schema_echo", {"schema": tool.input_schema})


def _arguments(schema: dict[str, Any]) -> dict[str, Any]:
    """Something for each required parameter."""
    examples = {"number": 2, "integer": 2, "string": "text", "boolean": True, "object": {}, "array": []}
    required = schema.get("required", [])
    return {name: examples.get(schema["properties"][name].get("type"), "text") for name in required}


SCENARIOS = {
    "http-custom-headers": call_as_told,
    "json-schema-2020-12-preservation": echo_schema,
    "json-schema-ref-no-deref": list_only,
}


async def main() -> None:
    server = HttpServer("conformance", parse_url(sys.argv[-1]), reach=Reach.ALL)
    async with Pool() as pool:
        tools = await pool.tools(server)
        await SCENARIOS.get(os.environ["MCP_CONFORMANCE_SCENARIO"], call_all)(pool, server, tools)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except McpFailure as failure:
        sys.exit(f"{type(failure).__name__}: {failure}")
