"""Messages become items whose bytes depend on the content alone."""

import json
from typing import Any

import pytest

from slipring.protocol.chat_completions.history import History
from slipring.protocol.requests import read_pieces
from slipring.protocol.wire import raw
from tests.protocol.chat_completions.sent import USER, Json, items, refusal, written

PIXEL = "data:image/png;base64,AAAA"


def call(call_id: str | None, name: str = "look", arguments: str = "{}") -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(call_id: str | None = None, content: Any = "done", **fields: Any) -> Json:
    sent = {"role": "tool", "content": content, **fields}
    return sent if call_id is None else {**sent, "tool_call_id": call_id}


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
def test_a_message_is_an_item_with_its_role(role: str) -> None:
    assert items({"role": role, "content": "hi"}) == [{"type": "message", "role": role, "content": "hi"}]


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_text_is_the_same_as_a_string_or_as_parts_in_any_order_of_fields(role: str) -> None:
    string = written({"role": role, "content": "one two"})
    parts = [{"type": "text", "text": "one "}, {"text": "two", "type": "text", "cache_control": {}}]
    assert written({"content": parts, "role": role, "name": "ann"}) == string


def test_images_and_files_keep_their_place_among_the_parts() -> None:
    content = [
        {"type": "text", "text": "what?"},
        {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
        {"type": "image_url", "image_url": {"url": PIXEL, "detail": "auto"}},
        {"type": "image_url", "image_url": PIXEL},
        {"type": "file", "file": {"file_data": "data:text/plain;base64,AA", "filename": "a.txt"}},
    ]
    assert items({"role": "user", "content": content})[0]["content"] == [
        {"type": "input_text", "text": "what?"},
        {"type": "input_image", "image_url": PIXEL, "detail": "low"},
        {"type": "input_image", "image_url": PIXEL},
        {"type": "input_image", "image_url": PIXEL},
        {"type": "input_file", "file_data": "data:text/plain;base64,AA", "filename": "a.txt"},
    ]


def test_an_answer_is_its_thought_its_text_and_its_calls() -> None:
    message = {
        "role": "assistant",
        "content": "let me look",
        "reasoning_content": "hm",
        "tool_calls": [call("a"), {"id": "b", "type": "custom", "custom": {"name": "run", "input": "ls"}}],
    }
    assert items(USER, message, result("b"), result("a"))[1:] == [
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}], "summary": []},
        {"type": "message", "role": "assistant", "content": "let me look"},
        {"type": "function_call", "call_id": "call_0", "name": "look", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "call_1", "name": "run", "input": "ls"},
        {"type": "custom_tool_call_output", "call_id": "call_1", "output": "done"},
        {"type": "function_call_output", "call_id": "call_0", "output": "done"},
    ]


def test_a_thought_is_read_from_either_field_once() -> None:
    both = {"role": "assistant", "content": "x", "reasoning": "other", "reasoning_content": "hm"}
    other = {"role": "assistant", "content": "x", "reasoning": "hm", "reasoning_content": ""}
    assert written(USER, both) == written(USER, other)


@pytest.mark.parametrize("content", [None, "", []])
def test_an_answer_without_text_is_its_calls_alone(content: Any) -> None:
    message = {"role": "assistant", "content": content, "tool_calls": [call("a")]}
    absent = {"role": "assistant", "tool_calls": [call("a")], "refusal": None, "function_call": None}
    assert written(USER, message, result("a")) == written(USER, absent, result("a"))


def test_refusals_are_read_from_their_field_and_from_parts() -> None:
    refused = [{"type": "refusal", "refusal": "no"}]
    for message in ({"refusal": "no", "content": None}, {"content": refused}):
        assert items(USER, {"role": "assistant", **message})[1]["content"] == refused
    mixed = [{"type": "text", "text": "well,"}, *refused]
    parts = items(USER, {"role": "assistant", "content": mixed})[1]["content"]
    assert [part["type"] for part in parts] == ["output_text", "refusal"]


def test_ids_that_a_client_renames_or_leaves_out_change_nothing() -> None:
    def history(ids: list[str | None]) -> list[bytes]:
        calls = [call(each) for each in ids]
        return written(USER, {"role": "assistant", "tool_calls": calls}, *map(result, ids))

    assert history(["a", "b"]) == history(["renamed", "too"]) == history([None, None])


def test_ids_may_be_used_again_in_a_later_message() -> None:
    turn = ({"role": "assistant", "tool_calls": [call("call_0")]}, result("call_0"))
    found = items(USER, *turn, *turn)
    assert [item["call_id"] for item in found[1:]] == ["call_0", "call_0", "call_1", "call_1"]


def test_results_of_calls_with_the_same_id_come_in_the_order_of_the_calls() -> None:
    asked = {"role": "assistant", "tool_calls": [call("x", arguments="1"), call("x", arguments="2")]}
    found = items(USER, asked, result("x", "one"), result("x", "two"))
    assert [(item["call_id"], item["output"]) for item in found[3:]] == [("call_0", "one"), ("call_1", "two")]


def test_results_without_an_id_answer_the_calls_in_order_or_by_name() -> None:
    calls = {"role": "assistant", "tool_calls": [call("a", "one"), call("b", "two"), call("c", "two")]}
    found = items(USER, calls, result(name="two"), result(), result())
    assert [item["call_id"] for item in found[4:]] == ["call_1", "call_0", "call_2"]


def test_the_older_function_calls_are_read() -> None:
    asked = {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}}
    answered = {"role": "function", "name": "look", "content": "done"}
    found = items(USER, asked, answered)
    assert [item["type"] for item in found] == ["message", "function_call", "function_call_output"]
    assert found[1]["call_id"] == found[2]["call_id"] == "call_0"


def test_results_may_have_parts() -> None:
    calls = {"role": "assistant", "tool_calls": [call("a"), call("b")]}
    text = result("a", [{"type": "text", "text": "do"}, {"type": "text", "text": "ne"}])
    image = result("b", [{"type": "image_url", "image_url": {"url": PIXEL}}])
    found = items(USER, calls, text, image)
    assert [item["output"] for item in found[3:]] == [
        "done",
        [{"type": "input_image", "image_url": PIXEL}],
    ]


def test_the_type_of_a_call_may_be_left_out() -> None:
    untyped = [
        {"id": "a", "function": {"name": "look", "arguments": ""}},
        {"id": "b", "custom": {"name": "run", "input": ""}},
    ]
    found = items(USER, {"role": "assistant", "tool_calls": untyped}, result("a"), result("b"))
    assert [item["type"] for item in found[1:3]] == ["function_call", "custom_tool_call"]


def test_the_client_s_ids_are_known_by_number() -> None:
    history = History(raw([USER, {"role": "assistant", "tool_calls": [call("mine")]}]))
    assert (history.call_count, history.sent_id(0), history.sent_id(1)) == (1, "mine", None)


AUDIO = [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]
BAD: dict[str, tuple[tuple[Json, ...], str]] = {
    "no role": (({"content": "x"},), "messages[0].role"),
    "an unknown role": (({"role": "critic", "content": "x"},), "messages[0].role"),
    "no content": ((USER, {"role": "user"}), "messages[1].content"),
    "a number": (({"role": "user", "content": 1},), "messages[0].content"),
    "an unknown part": (({"role": "user", "content": [{"type": "smell"}]},), "messages[0].content[0].type"),
    "audio": (({"role": "user", "content": AUDIO},), "messages[0].content[0]"),
    "a refusal of a user": (
        ({"role": "user", "content": [{"type": "refusal", "refusal": "no"}]},),
        "messages[0].content[0]",
    ),
    "an image of an assistant": (
        (USER, {"role": "assistant", "content": [{"type": "image_url", "image_url": PIXEL}]}),
        "messages[1].content[0]",
    ),
    "a call without a function": (
        (USER, {"role": "assistant", "tool_calls": [{"id": "a", "type": "function"}]}),
        "messages[1].tool_calls[0].function",
    ),
    "a custom call without its input": (
        (USER, {"role": "assistant", "tool_calls": [{"id": "a", "type": "custom"}]}),
        "messages[1].tool_calls[0].custom",
    ),
    "arguments that are no text": (
        (USER, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}),
        "messages[1].tool_calls[0].function.arguments",
    ),
    "a result of no call": ((USER, result("a")), "messages[1].tool_call_id"),
    "a result without an id of no call": ((USER, result()), "messages[1].tool_call_id"),
    "two results of one call": (
        (USER, {"role": "assistant", "tool_calls": [call("a")]}, result("a"), result("a")),
        "messages[3].tool_call_id",
    ),
    "a result of no function": ((USER, {"role": "function", "content": "x"}), "messages[1].name"),
    "a result of an unknown function": (
        (USER, {"role": "function", "name": "f", "content": "x"}),
        "messages[1].name",
    ),
    "nothing but an empty answer": (({"role": "assistant", "content": None},), "messages"),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_name_the_field_of_the_message(case: str) -> None:
    messages, param = BAD[case]
    error = refusal(*messages)
    assert (error.status, error.param) == (400, param)
    assert f"'{param}'" in error.message


def test_a_long_message_with_too_many_parts_is_refused_before_they_are_decoded() -> None:
    parts = [{"type": "text", "text": "x"}] * 20_001
    error = refusal({"role": "user", "content": parts})
    assert (error.param, error.message) == (
        "messages[0].content",
        "Invalid 'messages[0].content': more than 20000 parts.",
    )


def test_a_long_message_with_few_parts_is_read() -> None:
    text = "x" * 300_000
    assert items({"role": "user", "content": text})[0]["content"] == text
    assert items({"role": "user", "content": [{"type": "text", "text": text}]})[0]["content"] == text


def test_too_many_messages_are_refused() -> None:
    error = refusal(*[USER] * 20_001)
    assert (error.param, error.message) == ("messages", "Invalid 'messages': more than 20000 messages.")


def test_many_open_calls_are_answered_in_linear_time() -> None:
    calls = {"role": "assistant", "tool_calls": [call(str(number)) for number in range(9_000)]}
    results = [result(str(number)) for number in range(9_000)]
    found = read_pieces(History(raw([USER, calls, *results])).pieces)
    assert [item.call_id for item in found[1:3]] == ["call_0", "call_1"]
    assert json.loads(found[-1].raw)["call_id"] == "call_8999"
