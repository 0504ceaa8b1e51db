"""Subjects: what is inspected of each type of item."""

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from slipring.core.checks.inspected_texts import called_names, is_models, subject_of, verdict_key
from slipring.core.checks.verdicts import Subject
from slipring.protocol.items.item_digests import content_digest
from slipring.protocol.items.items import CARRIED_TYPES, SUPPORTED_TYPES, Item, read_item
from tests.pictures import PIXEL

CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"x":1}'}


def item(**fields: Any) -> Item:
    return read_item(json.dumps(fields).encode(), "input[0]")


def name_of(call_id: str) -> str | None:
    return {"c": "f"}.get(call_id)


TEXT = {"type": "input_text", "text": "hi"}
IMAGE = {"type": "input_image", "image_url": "data:,"}
ELSEWHERE = {"type": "input_image", "file_id": "f"}
SHOT = {"type": "input_image", "image_url": PIXEL}
TOOLS = [{"type": "function", "name": "g", "parameters": {}}]
NOTHING = "left out"
"""Stands for a field that an item does not have."""


def parts(kind: str) -> list[Any]:
    """Lists of parts: those of some are the same text, divided differently."""
    lists: list[list[str]] = [[], [""], ["a"], ["a", "b"], ["ab"], ["a\nb"], ["", "a"]]
    return [[{"type": kind, "text": text} for text in texts] for texts in lists]


TEXTS = ["a", "b", ""]
IDS = ["c", "d"]
NAMES = ["f", "g"]
CONTENTS = [*TEXTS, "ab", *parts("input_text"), [IMAGE], [TEXT, IMAGE], [{"type": "refusal", "refusal": "a"}]]
TOOL_LISTS = [[], TOOLS, [{**TOOLS[0], "description": "a"}]]
CALLED: dict[str, list[Any]] = {"server_label": ["s"], "name": NAMES, "arguments": TEXTS}
PRINTED = {"stdout": "a", "stderr": "", "outcome": {"type": "timeout"}}
FIELDS: dict[str, dict[str, list[Any]]] = {
    "message": {
        "role": ["user", "assistant", "system", "developer"],
        "phase": [NOTHING, "commentary"],
        "content": CONTENTS,
    },
    "reasoning": {
        "summary": [NOTHING, *parts("summary_text")],
        "content": [NOTHING, None, *parts("reasoning_text")],
        "encrypted_content": [NOTHING, "x"],
    },
    "function_call": {"call_id": IDS, "name": NAMES, "namespace": [NOTHING, "n"], "arguments": TEXTS},
    "function_call_output": {"call_id": IDS, "output": CONTENTS},
    "custom_tool_call": {"call_id": IDS, "name": NAMES, "namespace": [NOTHING, "n"], "input": TEXTS},
    "custom_tool_call_output": {"call_id": IDS, "output": CONTENTS},
    "shell_call": {"call_id": IDS, "action": [{"commands": texts} for texts in ([], ["a"], ["a", "b"])]},
    "shell_call_output": {
        "call_id": IDS,
        "output": [[], [PRINTED], [{**PRINTED, "stderr": "a"}], [PRINTED, PRINTED]],
    },
    "local_shell_call": {
        "call_id": IDS,
        "action": [{"type": "exec", "command": ["a"], "env": env} for env in ({}, {"a": "b"})],
    },
    "local_shell_call_output": {"call_id": IDS, "output": TEXTS},
    "apply_patch_call": {
        "call_id": IDS,
        "operation": [
            {"type": "delete_file", "path": "a"},
            *({"type": "update_file", "path": "a", "diff": text} for text in TEXTS),
        ],
    },
    "apply_patch_call_output": {
        "call_id": IDS,
        "status": ["completed", "failed"],
        "output": [NOTHING, *TEXTS],
    },
    "computer_call": {
        "call_id": IDS,
        "actions": [[], [{"type": "wait"}], *([{"type": "type", "text": text}] for text in TEXTS)],
    },
    "computer_call_output": {
        "call_id": IDS,
        "output": [{"type": "computer_screenshot", "image_url": f"data:,{text}"} for text in TEXTS],
    },
    "tool_search_call": {"call_id": [NOTHING, *IDS], "arguments": [{}, {"query": "a"}, *TEXTS]},
    "tool_search_output": {"call_id": [NOTHING, *IDS], "tools": TOOL_LISTS},
    "additional_tools": {"role": ["developer", NOTHING], "tools": TOOL_LISTS},
    "mcp_list_tools": {
        "server_label": ["s"],
        "tools": [[], *([{"name": name, "input_schema": {}}] for name in NAMES)],
    },
    "mcp_call": {**CALLED, "output": [NOTHING, *TEXTS], "error": [NOTHING, *TEXTS]},
    "mcp_approval_request": {"id": IDS, **CALLED},
    "mcp_approval_response": {
        "approval_request_id": IDS,
        "approve": [True, False],
        "reason": [NOTHING, *TEXTS],
    },
    "web_search_call": {"id": IDS, "action": [NOTHING, *({"query": text} for text in TEXTS)]},
    "file_search_call": {"id": IDS, "queries": [[], ["a"]], "results": [NOTHING, [], [{"text": "a"}]]},
    "code_interpreter_call": {"id": IDS, "code": TEXTS, "outputs": [NOTHING, [], [{"logs": "a"}]]},
    "item_reference": {"id": IDS},
    "configuration_update": {"reasoning": [NOTHING, {"effort": "low"}]},
    "compaction": {"encrypted_content": TEXTS},
    "compaction_summary": {"encrypted_content": TEXTS},
    "compaction_trigger": {},
    **{carried: {"id": IDS, "call_id": [NOTHING, *IDS], "text": TEXTS} for carried in CARRIED_TYPES},
}
"""Values of the fields of every type of item."""


def items_of_all_types() -> Iterator[Item]:
    for item_type, fields in FIELDS.items():
        for values in product(*fields.values()):
            sent = zip(fields, values, strict=True)
            yield item(type=item_type, **{name: value for name, value in sent if value is not NOTHING})


@pytest.mark.parametrize(
    ("sent", "subject"),
    [
        ({"type": "message", "role": "user", "content": "hi"}, Subject("input", "message", "hi", "user")),
        (
            {"type": "message", "role": "developer", "content": [TEXT, IMAGE, TEXT]},
            Subject("input", "message", "hihi\n[image: not inspected]", "developer"),
        ),
        (
            {"type": "message", "role": "user", "content": [IMAGE, ELSEWHERE]},
            Subject("input", "message", "[image: not inspected]\n[image: not inspected]", role="user"),
        ),
        (
            {"type": "function_call_output", "call_id": "c", "output": [TEXT, SHOT, ELSEWHERE]},
            Subject(
                "input",
                "tool_output",
                "hi\n[PNG picture, 1 × 1: not inspected]\n[image: not inspected]",
                name="f",
            ),
        ),
        (
            {"type": "message", "role": "assistant", "content": "hi"},
            Subject("input", "answer", "hi", "assistant"),
        ),
        (CALL, Subject("input", "call", 'f\n{"x":1}', name="f")),
        (
            {**CALL, "namespace": "n", "arguments": r'{"\u007a":"\"\u00e9\ud83d\ude00\n"}'},
            Subject("input", "call", 'n\nf\n{"z":""é😀\n"}', name="f"),
        ),
        (
            {**CALL, "arguments": r"no \u004aSON"},
            Subject("input", "call", "f\nno \\u004aSON\nno JSON", name="f"),
        ),
        (
            {"type": "custom_tool_call", "call_id": "c", "name": "sh", "input": "ls"},
            Subject("input", "call", "sh\nls", name="sh"),
        ),
        (
            {"type": "custom_tool_call", "call_id": "c", "name": "sh", "input": r"\u0061"},
            Subject("input", "call", "sh\n\\u0061", name="sh"),
        ),
        (
            {"type": "function_call_output", "call_id": "c", "output": "found"},
            Subject("input", "tool_output", "found", name="f"),
        ),
        (
            {"type": "function_call_output", "call_id": "c", "output": r'["\u0061"]'},
            Subject("input", "tool_output", '["a"]', name="f"),
        ),
        (
            {"type": "function_call_output", "call_id": "c", "output": r"C:\u0061"},
            Subject("input", "tool_output", r"C:\u0061", name="f"),
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
            {
                "type": "configuration_update",
                "text": {"format": {"type": "json_schema", "name": "n", "schema": {"properties": {"k": {}}}}},
            },
            Subject("input", "instructions", "schema\njson_schema\nn\nproperties\nk"),
        ),
        (
            {"type": "mcp_list_tools", "server_label": "s", "tools": [{"name": "t", "input_schema": {}}]},
            Subject("input", "instructions", "s\nt"),
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
    subject = subject_of(item(type=item_type, text="hi", more={"a": ["b"]}), "input", name_of)
    assert subject is not None
    assert (subject.kind, subject.text) == (kind, "more\nhi\na\nb")


def test_what_is_inspected_differently_is_remembered_under_different_keys():
    assert set(FIELDS) == SUPPORTED_TYPES | CARRIED_TYPES
    known: dict[bytes, Subject | None] = {}
    for each in items_of_all_types():
        subject = subject_of(each, "input", name_of)
        assert known.setdefault(verdict_key(each), subject) == subject, each.raw


@pytest.mark.parametrize(
    "spelled", ['{"a":"zebra","a":"x"}', '{"a": "x"}', '{"\\u0061":"x"}', '{"a":"x"}\n'], ids=repr
)
def test_a_call_that_is_spelled_differently_is_inspected_again(spelled: str):
    inspected = item(**{**CALL, "arguments": '{"a":"x"}'})
    sent = item(**{**CALL, "arguments": spelled})
    assert content_digest(sent) == content_digest(inspected)
    assert verdict_key(sent) != verdict_key(inspected)


def test_a_thought_that_is_sent_again_keeps_its_key():
    emitted = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "content": None}
    assert verdict_key(item(**emitted, id="rs_1", status="completed")) == verdict_key(item(**emitted))


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
