"""Placeholders: as valid as the items for which they stand, and without anything of what these contain."""

import json
from typing import Any

import pytest

from slipring.core.turn.withheld_items import placeholder
from slipring.protocol.items.items import (
    CallOutput,
    FunctionCall,
    Item,
    Message,
    Reasoning,
    plain_text,
    read_item,
)

TEXT = "[Withheld: the safety check 'words' has refused this content.]"
PARTS = [{"type": "input_text", "text": "secret"}]
EXITED = {"type": "exit", "exit_code": 1}
SENT: list[dict[str, Any]] = [
    {"type": "message", "id": "msg_secret", "role": "user", "content": PARTS},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "secret"}]},
    {"type": "message", "role": "developer", "content": "secret"},
    {
        "type": "function_call",
        "call_id": "c",
        "name": "secret",
        "arguments": "secret",
        "status": "incomplete",
    },
    {"type": "function_call_output", "call_id": "c", "output": PARTS},
    {"type": "custom_tool_call", "call_id": "c", "name": "secret", "input": "secret", "async": True},
    {"type": "custom_tool_call_output", "call_id": "c", "output": "secret"},
    {"type": "shell_call", "call_id": "c", "action": {"commands": ["secret"]}, "status": "completed"},
    {
        "type": "shell_call_output",
        "call_id": "c",
        "output": [{"stdout": "secret", "stderr": "", "outcome": EXITED}],
    },
    {"type": "local_shell_call", "call_id": "c", "action": {"type": "exec", "command": ["secret"]}},
    {"type": "local_shell_call_output", "call_id": "c", "output": "secret"},
    {
        "type": "apply_patch_call",
        "call_id": "c",
        "operation": {"type": "create_file", "path": "secret", "diff": "secret"},
    },
    {"type": "apply_patch_call_output", "call_id": "c", "status": "completed", "output": "secret"},
    {"type": "computer_call", "call_id": "c", "action": {"type": "type", "text": "secret"}},
    {"type": "tool_search_call", "call_id": "c", "arguments": {"query": "secret"}, "execution": "client"},
    {
        "type": "tool_search_output",
        "call_id": "c",
        "tools": [{"type": "function", "name": "secret"}],
        "execution": "client",
    },
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "secret"}]},
    {
        "type": "mcp_call",
        "id": "mcp_1",
        "server_label": "s",
        "name": "find",
        "arguments": "secret",
        "output": None,
        "error": "secret",
        "approval_request_id": "mcpr_1",
        "status": "failed",
    },
]


def item(fields: dict[str, Any]) -> Item:
    return read_item(json.dumps(fields).encode(), "input[0]")


@pytest.mark.parametrize("sent", SENT, ids=lambda sent: sent["type"])
def test_a_placeholder_has_the_type_and_the_call_and_nothing_of_the_content(sent: dict[str, Any]):
    stands_in = placeholder(item(sent), "words")
    assert stands_in is not None
    fields = json.loads(stands_in.raw)
    assert b"secret" not in stands_in.raw
    kept = ("type", "role", "call_id", "status", "async", "server_label", "approval_request_id")
    expected = {name: sent.get(name) for name in kept}
    if sent["type"] == "apply_patch_call_output":
        expected["status"] = "failed"
    assert {name: fields.get(name) for name in kept} == expected
    assert sent["type"] == "tool_search_output" or "safety check 'words'" in stands_in.raw.decode()
    assert placeholder(stands_in, "words") == stands_in


def test_a_model_reads_which_check_has_refused_it():
    message, output, thought = (placeholder(item(SENT[place]), "words") for place in (0, 4, 16))
    assert message is not None
    assert output is not None
    assert thought is not None
    body, result, thoughts = message.body(), output.body(), thought.body()
    assert isinstance(body, Message)
    assert isinstance(result, CallOutput)
    assert isinstance(thoughts, Reasoning)
    assert plain_text(body.content) == plain_text(result.output) == thoughts.thought == TEXT
    call = placeholder(item(SENT[3]), "words")
    assert call is not None
    arguments = call.body()
    assert isinstance(arguments, FunctionCall)
    assert json.loads(arguments.arguments) == {"withheld": TEXT}


@pytest.mark.parametrize(
    "sent",
    [
        {"type": "compaction", "encrypted_content": "x"},
        {"type": "image_generation_call", "id": "ig_1", "result": "secret"},
        {"type": "tool_search_output", "tools": []},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
    ],
)
def test_what_nothing_can_stand_for(sent: dict[str, Any]):
    assert placeholder(item(sent), "words") is None
