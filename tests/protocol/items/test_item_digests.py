"""Digests of items: what a model reads counts, and nothing else does."""

import json
from typing import Any

import pytest

from slipring.protocol.items.item_digests import content_digest
from slipring.protocol.items.items import read_item

CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
CUSTOM = {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "sunny"}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
TOOLS: list[dict[str, Any]] = [{"type": "function", "name": "g", "parameters": {"type": "object"}}]
ADDED = {"type": "additional_tools", "role": "developer", "tools": TOOLS}
FOUND = {"type": "tool_search_output", "call_id": "c", "execution": "client", "tools": TOOLS}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "low"}


def said(*parts: Any, role: str = "user", **fields: Any) -> dict[str, Any]:
    content = parts[0] if len(parts) == 1 and isinstance(parts[0], str) else list(parts)
    return {"type": "message", "role": role, "content": content, **fields}


def text(words: str, kind: str = "input_text", **fields: Any) -> dict[str, Any]:
    return {"type": kind, "text": words, **fields}


def digest(item: dict[str, Any], **spelling: Any) -> bytes:
    return content_digest(read_item(json.dumps(item, **spelling).encode(), "input[0]"))


@pytest.mark.parametrize(
    ("emitted", "sent"),
    [
        (
            said(text("hi", "output_text", annotations=[], logprobs=[]), role="assistant", id="msg_1"),
            said("hi", role="assistant"),
        ),
        (said(text("hi", "output_text"), role="assistant"), said(text("hi"), role="assistant")),
        (said(text("a"), text("b")), said("ab")),
        (said({"type": "refusal", "refusal": "no"}, role="assistant"), said("no", role="assistant")),
        ({**CALL, "id": "fc_1", "status": "completed"}, CALL),
        (CALL, {**CALL, "arguments": ""}),
        (
            {**CALL, "arguments": '{"a": 1.0, "b": ["\\u00e9", 1e3, 0.5]}'},
            {**CALL, "arguments": '{"b":["é",1000,0.5],"a":1}'},
        ),
        ({**CUSTOM, "id": "ctc_1", "status": "completed"}, CUSTOM),
        ({**OUTPUT, "id": "fco_1"}, {**OUTPUT, "output": [text("sun"), text("ny")]}),
        ({**THOUGHT, "id": "rs_1", "status": "completed"}, {**THOUGHT, "encrypted_content": None}),
    ],
)
def test_an_item_that_a_client_spells_differently_has_the_same_digest(
    emitted: dict[str, Any], sent: dict[str, Any]
) -> None:
    assert digest(emitted) == digest(sent)
    assert digest(emitted) == digest(dict(reversed(emitted.items())), indent=1)


@pytest.mark.parametrize("arguments", ['{"a": ', "1e400", '{"a": 1e400}', "[" * 5000])
def test_arguments_that_are_not_json_are_compared_as_they_are(arguments: str) -> None:
    assert digest({**CALL, "arguments": arguments}) != digest({**CALL, "arguments": f"{arguments} "})


def test_tools_are_compared_as_they_were_sent() -> None:
    assert digest(ADDED) == digest({"type": "additional_tools", "tools": TOOLS})
    assert digest(ADDED) != digest(ADDED, indent=1)


def test_items_that_a_model_reads_differently_have_different_digests() -> None:
    items = [
        *(said("hi"), said("hi", role="assistant"), said("hi", role="system"), said("hi", role="developer")),
        *(said("ho"), said("hi", role="assistant", phase="commentary")),
        *(said(IMAGE), said(text("hi"), IMAGE), said({**IMAGE, "detail": "high"})),
        said({"type": "input_file", "file_id": "f"}),
        *(CALL, {**CALL, "call_id": "d"}, {**CALL, "name": "g"}, {**CALL, "arguments": '{"a": 1}'}),
        *({**CALL, "namespace": "n"}, CUSTOM, {**CUSTOM, "input": "y"}, {**CUSTOM, "namespace": "n"}),
        *(OUTPUT, {**OUTPUT, "call_id": "d"}, {**OUTPUT, "output": "rainy"}),
        *(THOUGHT, {**THOUGHT, "content": None}),
        *(ADDED, {**ADDED, "tools": []}, FOUND, {**FOUND, "tools": []}),
        {"type": "configuration_update", "reasoning": {"effort": "low"}},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "web_search_call", "id": "ws_2", "status": "completed"},
    ]
    assert len({digest(item) for item in items}) == len(items)
