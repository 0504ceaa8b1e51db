"""The Claude Agent SDK, driven: python agent_sdk.py SCENARIO. Prints one line of JSON."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

from claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ResultMessage,
    StreamEvent,
    TextBlock,
    ThinkingBlock,
    create_sdk_mcp_server,
    query,
    tool,
)

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}
called: list[Any] = []


@tool("add", "Add two numbers", {"a": int, "b": int})  # type: ignore[untyped-decorator]
async def add(given: dict[str, Any]) -> dict[str, Any]:
    called.append([given["a"], given["b"]])
    return {"content": [{"type": "text", "text": f"the sum is {given['a'] + given['b']}"}]}


def options(**settings: Any) -> ClaudeAgentOptions:
    """A session with one tool, which runs in this process."""
    return ClaudeAgentOptions(
        model=os.environ["ANTHROPIC_MODEL"],
        mcp_servers={"numbers": create_sdk_mcp_server("numbers", tools=[add])},
        allowed_tools=["mcp__numbers__add"],
        **settings,
    )


async def read(messages: AsyncIterator[Any]) -> dict[str, Any]:
    """What a session says until a turn ends."""
    thoughts, texts, streamed = [], [], ""
    async for message in messages:
        if isinstance(message, StreamEvent) and message.event["type"] == "content_block_delta":
            streamed += message.event["delta"].get("text", "")
        if isinstance(message, AssistantMessage):
            thoughts += [block.thinking for block in message.content if isinstance(block, ThinkingBlock)]
            texts += [block.text for block in message.content if isinstance(block, TextBlock)]
        if isinstance(message, ResultMessage):
            return {
                "thoughts": thoughts,
                "texts": texts,
                "streamed": streamed,
                "is_error": message.is_error,
                "result": message.result,
                "structured": message.structured_output,
                "usage": message.usage,
            }
    return {}


async def session() -> dict[str, Any]:
    """Two questions of one session."""
    async with ClaudeSDKClient(options(include_partial_messages=True)) as client:
        await client.query("1 + 2?")
        first = await read(client.receive_response())
        await client.query("And once more?")
        second = await read(client.receive_response())
    return {"turns": [first, second], "called": called}


async def once() -> dict[str, Any]:
    return {"turns": [await read(query(prompt="1 + 2?", options=options()))], "called": called}


async def structured() -> dict[str, Any]:
    wanted = options(output_format={"type": "json_schema", "schema": SCHEMA})
    return {"turns": [await read(query(prompt="the weather", options=wanted))]}


SCENARIOS = {"session": session, "once": once, "structured": structured}
print(json.dumps(asyncio.run(SCENARIOS[sys.argv[1]]())))
