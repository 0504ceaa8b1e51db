"""Listed items match the types of the SDK."""

import json
from typing import Any

import pytest
from openai.types.conversations import ConversationItemList
from openai.types.responses import ResponseItemList

from slipring.protocol.items.item_listing import ListKind, present
from slipring.protocol.items.items import read_item
from tests import wire
from tests.harness import WEATHER
from tests.test_compatibility import ITEM_SAMPLES

Json = dict[str, Any]
LISTS: dict[ListKind, type[ResponseItemList] | type[ConversationItemList]] = {
    "response": ResponseItemList,
    "conversation": ConversationItemList,
}
WITHOUT_A_FORM = {"agent_message", "multi_agent_call", "multi_agent_call_output"}
"""Items of a beta, which the lists of the stable API do not have."""
NEVER_LISTED = {"item_reference", "compaction_trigger"}
LISTED_WITH_MORE = {"local_shell_call", "local_shell_call_output"}
"""The SDK's type of the output does not name the call, which clients need."""
NOT_HERE = NEVER_LISTED | LISTED_WITH_MORE
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
FILE = {"type": "input_file", "file_data": "data:text/plain;base64,AAAA", "filename": "a.txt"}
SCHEMA = {"type": "json_schema", "name": "answer", "schema": {"type": "object"}}


def shown(item: Json, within: ListKind) -> Json:
    read = read_item(json.dumps(item).encode(), "items[0]")
    document: Json = json.loads(bytes(present(read, "item_1", within)))
    page = {"object": "list", "data": [document], "first_id": "item_1", "last_id": "item_1"}
    wire.validate(LISTS[within], {**page, "has_more": False})
    assert document["id"] == "item_1"
    return document


def message(*content: Json | str, role: str = "user", **fields: Any) -> Json:
    parts: Any = content[0] if isinstance(content[0], str) else list(content)
    return {"type": "message", "role": role, "content": parts, **fields}


@pytest.mark.parametrize("within", LISTS)
@pytest.mark.parametrize("kind", sorted(ITEM_SAMPLES.keys() - WITHOUT_A_FORM - NOT_HERE))
def test_every_item_that_may_be_sent_can_be_listed(kind: str, within: ListKind) -> None:
    for item in ITEM_SAMPLES[kind]:
        if item.get("text") != {"format": {"type": "json_object"}}:  # which the SDK does not have there
            shown(item, within)


@pytest.mark.parametrize("within", LISTS)
@pytest.mark.parametrize(
    "item",
    [
        message("hello", name="somebody", status=None, id=None),
        message({"type": "input_text", "text": "hello", "cache_control": {"type": "ephemeral"}}),
        message("hello", role="assistant", status="nonsense"),
        message("hello", phase="commentary"),
        message("hello", role="assistant", phase="final_answer"),
        message({"type": "output_text", "text": "hello"}, role="assistant", id=""),
        message({"type": "output_text", "text": "hi", "annotations": None, "logprobs": []}, role="assistant"),
        message({"type": "refusal", "refusal": "no"}, role="assistant"),
        message({"type": "refusal", "refusal": "no"}),
        message({"type": "input_text", "text": "a"}, IMAGE, {**IMAGE, "detail": None}, FILE),
        message({**IMAGE, "detail": "low"}, role="developer"),
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "status": None, "x": 1},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "namespace": "n"},
        {"type": "function_call_output", "call_id": "c", "output": [IMAGE, FILE]},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "output_text", "text": "a"}]},
        {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "a"}]},
        {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x", "status": "incomplete"},
        {"type": "reasoning", "encrypted_content": None, "content": None, "status": None},
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "a", "x": 1}],
            "content": [{"type": "reasoning_text", "text": "b"}],
            "status": "completed",
        },
        {"type": "compaction", "encrypted_content": "a", "id": "cmp_1", "opened": True},
        {"type": "compaction_summary", "encrypted_content": "a"},
        {"type": "additional_tools", "tools": [{"type": "function", "name": "f"}, WEATHER]},
        {"type": "configuration_update", "text": {}, "reasoning": {"effort": None, "x": 1}},
        {"type": "configuration_update", "text": {"format": SCHEMA, "verbosity": "low"}},
        {"type": "tool_search_call", "call_id": "c", "arguments": {}},
    ],
)
def test_short_forms_are_expanded_and_unknown_fields_dropped(item: Json, within: ListKind) -> None:
    assert shown(item, within)["type"] == item["type"].removesuffix("_summary")


def test_a_listed_item_has_a_status() -> None:
    call = {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"}
    assert shown(call, "response")["status"] == "completed"
    assert shown({**call, "status": "incomplete"}, "response")["status"] == "incomplete"
    assert "status" not in shown({**call, "status": "incomplete"}, "conversation")


def test_text_parts_have_the_type_that_the_role_requires() -> None:
    asked = shown(message({"type": "output_text", "text": "a"}), "response")
    assert asked["content"] == [{"type": "input_text", "text": "a"}]
    listed = shown(message({"type": "input_text", "text": "a"}, role="assistant"), "response")
    assert listed["content"] == [{"type": "output_text", "text": "a", "annotations": []}]


@pytest.mark.parametrize(("call_id", "execution"), [("call_1", "client"), (None, "server")])
def test_a_listed_search_says_who_ran_it(call_id: str | None, execution: str) -> None:
    item = {"type": "tool_search_output", "call_id": call_id, "tools": [WEATHER]}
    assert shown(item, "response")["execution"] == execution
