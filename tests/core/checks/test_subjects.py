"""Subjects: what is inspected of each type of item."""

import json
from typing import Any

import pytest

from slipring.core.checks.subjects import called_names, is_models, subject_of
from slipring.core.checks.verdicts import Subject
from slipring.protocol.items import CARRIED_TYPES, SUPPORTED_TYPES, Item, read_item

CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"x":1}'}


def item(**fields: Any) -> Item:
    return read_item(json.dumps(fields).encode(), "input[0]")


def name_of(call_id: str) -> str | None:
    return {"c": "f"}.get(call_id)


TEXT = {"type": "input_text", "text": "hi"}
IMAGE = {"type": "input_image", "image_url": "data:,"}
TOOLS = [{"type": "function", "name": "g", "parameters": {}}]


@pytest.mark.parametrize(
    ("sent", "subject"),
    [
        ({"type": "message", "role": "user", "content": "hi"}, Subject("input", "message", "hi", "user")),
        (
            {"type": "message", "role": "developer", "content": [TEXT, IMAGE, TEXT]},
            Subject("input", "message", "hihi", "developer"),
        ),
        ({"type": "message", "role": "user", "content": [IMAGE]}, None),
        (
            {"type": "message", "role": "assistant", "content": "hi"},
            Subject("input", "answer", "hi", "assistant"),
        ),
        (CALL, Subject("input", "call", '{"x":1}', name="f")),
        (
            {"type": "custom_tool_call", "call_id": "c", "name": "sh", "input": "ls"},
            Subject("input", "call", "ls", name="sh"),
        ),
        (
            {"type": "function_call_output", "call_id": "c", "output": "found"},
            Subject("input", "tool_output", "found", name="f"),
        ),
        (
            {"type": "custom_tool_call_output", "call_id": "d", "output": [TEXT]},
            Subject("input", "tool_output", "hi"),
        ),
        (
            {
                "type": "reasoning",
                "summary": [{"type": "summary_text", "text": "s"}],
                "content": [{"type": "reasoning_text", "text": "t"}],
            },
            Subject("input", "reasoning", "s\nt"),
        ),
        ({"type": "reasoning", "summary": []}, None),
        (
            {"type": "additional_tools", "role": "developer", "tools": TOOLS},
            Subject("input", "instructions", json.dumps(TOOLS)),
        ),
        ({"type": "configuration_update", "reasoning": {"effort": "low"}}, None),
        (
            {"type": "mcp_list_tools", "server_label": "s", "tools": [{"name": "t", "input_schema": {}}]},
            Subject(
                "input",
                "instructions",
                '[{"name":"t","input_schema":{},"description":null,"annotations":null}]',
            ),
        ),
    ],
)
def test_the_text_of_an_item_is_inspected(sent: dict[str, Any], subject: Subject | None):
    assert subject_of(item(**sent), "input", name_of) == subject


@pytest.mark.parametrize(
    ("item_type", "kind"),
    [
        ("program_output", "tool_output"),
        ("image_generation_call", "tool_output"),
        ("multi_agent_call", "call"),
        ("agent_message", "message"),
    ],
)
def test_items_that_are_not_interpreted_are_inspected_as_they_are(item_type: str, kind: str):
    subject = subject_of(item(type=item_type, text="hi"), "input", name_of)
    assert subject is not None
    assert (subject.kind, json.loads(subject.text)) == (kind, {"type": item_type, "text": "hi"})


def test_items_of_every_type_that_models_read_are_inspected():
    silent = {
        "item_reference",
        "configuration_update",
        "compaction",
        "compaction_summary",
        "compaction_trigger",
    }
    covered = {
        *("message", "reasoning", "additional_tools", "tool_search_call", "tool_search_output"),
        *("function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"),
        *("mcp_call", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"),
        *("shell_call", "shell_call_output", "local_shell_call", "local_shell_call_output"),
        *("apply_patch_call", "apply_patch_call_output", "computer_call", "computer_call_output"),
        *("web_search_call", "file_search_call", "code_interpreter_call"),
    }
    assert covered | silent == SUPPORTED_TYPES
    for item_type in CARRIED_TYPES:
        assert subject_of(item(type=item_type), "input", name_of) is not None


def test_messages_of_the_assistant_calls_and_reasoning_are_the_models():
    assert is_models(item(**CALL))
    assert is_models(item(type="message", role="assistant", content="hi"))
    assert is_models(item(type="reasoning", summary=[]))
    assert not is_models(item(type="message", role="user", content='"assistant"'))
    assert not is_models(item(type="function_call_output", call_id="c", output=""))


def test_the_names_of_called_tools_are_found_by_call_id():
    items = [
        item(**CALL),
        item(type="multi_agent_call", call_id="s"),
        item(type="message", role="user", content="hi"),
    ]
    assert dict(called_names(items)) == {"c": "f"}
