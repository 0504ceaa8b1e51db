"""Items as messages of the GenAI conventions, and what of them fits."""

import json
from typing import Any

import msgspec
import pytest

from slipring.protocol.items.items import Item, read_item
from slipring.protocol.requests import CreateRequest
from slipring.server.observation.ended_turns import TurnContent
from slipring.server.tracing.turn_spans import MOST_BYTES, excerpt, input_json, output_json


def item(**fields: Any) -> Item:
    return read_item(msgspec.json.encode(fields), "input[0]")


def message(text: str) -> Item:
    return item(type="message", role="user", content=text)


@pytest.mark.parametrize(
    ("given", "role", "parts"),
    [
        (
            item(type="message", role="developer", content="Hello"),
            "developer",
            [{"type": "text", "content": "Hello"}],
        ),
        (
            item(
                type="message",
                role="user",
                content=[
                    {"type": "input_text", "text": "See"},
                    {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
                    {"type": "input_image", "image_url": "https://a.example/b.png"},
                    {"type": "input_image", "file_id": "file_1"},
                    {"type": "input_file", "file_data": "data:application/pdf;base64,BBBB"},
                ],
            ),
            "user",
            [
                {"type": "text", "content": "See"},
                {"type": "blob", "modality": "image", "mime_type": "image/png", "content": "AAAA"},
                {"type": "uri", "modality": "image", "uri": "https://a.example/b.png"},
                {"type": "file", "modality": "image", "file_id": "file_1"},
                {"type": "blob", "modality": "document", "mime_type": "application/pdf", "content": "BBBB"},
            ],
        ),
        (
            item(type="message", role="assistant", content=[{"type": "refusal", "refusal": "No."}]),
            "assistant",
            [{"type": "refusal", "content": "No."}],
        ),
        (
            item(type="function_call", call_id="c", name="f", arguments='{"a": 1}'),
            "assistant",
            [{"type": "tool_call", "id": "c", "name": "f", "arguments": {"a": 1}}],
        ),
        (
            item(type="function_call", call_id="c", name="f", arguments="{broken"),
            "assistant",
            [{"type": "tool_call", "id": "c", "name": "f", "arguments": "{broken"}],
        ),
        (
            item(type="custom_tool_call", call_id="c", name="f", input="ls"),
            "assistant",
            [{"type": "tool_call", "id": "c", "name": "f", "arguments": "ls"}],
        ),
        (
            item(type="function_call_output", call_id="c", output="Sunny."),
            "tool",
            [{"type": "tool_call_response", "id": "c", "response": "Sunny."}],
        ),
        (
            item(type="function_call_output", call_id="c", output=[{"type": "input_text", "text": "Sunny."}]),
            "tool",
            [{"type": "tool_call_response", "id": "c", "response": [{"type": "text", "content": "Sunny."}]}],
        ),
        (
            item(type="reasoning", summary=[{"type": "summary_text", "text": "Short"}]),
            "assistant",
            [{"type": "reasoning", "content": "Short"}],
        ),
        (item(type="web_search_call", id="ws_1"), "user", [{"type": "web_search_call"}]),
    ],
)
def test_an_item_is_a_message(given: Item, role: str, parts: list[dict[str, Any]]) -> None:
    assert json.loads(input_json([given])) == [{"role": role, "parts": parts}]


def test_an_output_is_one_message() -> None:
    thought = item(type="reasoning", summary=[], content=[{"type": "reasoning_text", "text": "Hm"}])
    call = item(type="function_call", call_id="c", name="f", arguments="{}")
    (made,) = json.loads(output_json([thought, call]))
    assert made["role"] == "assistant"
    assert [part["type"] for part in made["parts"]] == ["reasoning", "tool_call"]


def test_the_latest_items_that_fit_are_kept_in_their_order() -> None:
    large, small = message("x" * (MOST_BYTES // 2)), message("small")
    content = TurnContent(
        CreateRequest(), input=(message("first"), large, large, message("y" * MOST_BYTES), small)
    )
    kept = excerpt(content)
    assert kept.input == [content.input[0], large, small]
    assert kept.omitted == 2
    assert kept.size_bytes == sum(len(each.raw) for each in kept.input)


def test_long_instructions_and_many_items_are_left_out() -> None:
    content = TurnContent(CreateRequest(instructions="x" * (MOST_BYTES + 1)), output=(message("m"),) * 1000)
    kept = excerpt(content)
    assert kept.instructions is None
    assert len(kept.output) == 256
    assert kept.omitted == 1 + 744
