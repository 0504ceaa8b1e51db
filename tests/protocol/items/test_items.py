"""Items are validated once, on arrival, and kept as received."""

import json
from typing import Any

import pytest
from msgspec import UNSET, Raw

from slipring.base.errors import InvalidRequest
from slipring.protocol.items import items
from slipring.protocol.items.items import (
    CARRIED_TYPES,
    MOST_ITEMS,
    SUPPORTED_TYPES,
    AdditionalTools,
    Carried,
    ConfigurationUpdate,
    FunctionCall,
    Item,
    LoadedTools,
    Message,
    Reasoning,
    in_context,
    kept_tools,
    last_compaction,
    plain_text,
    read_input,
    read_item,
    shown,
    user_message,
    with_id,
)
from slipring.protocol.wire import LONG_BYTES

Json = dict[str, Any]


def read(item: object) -> Item:
    return read_item(json.dumps(item).encode(), "input[0]")


def refusal(item: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        read(item)
    return caught.value


# The input of a request.


@pytest.mark.parametrize("value", [UNSET, Raw(b"null"), Raw(b"[]")])
def test_no_input_is_no_items(value):
    assert read_input(value) == ()


def test_a_string_input_is_a_user_message():
    (item,) = read_input(Raw('"Grüße \\"you\\"\\n"'.encode()))
    assert item == user_message('Grüße "you"\n')
    assert json.loads(item.raw) == {"type": "message", "role": "user", "content": 'Grüße "you"\n'}


def test_an_empty_string_is_a_message_too():
    assert len(read_input(Raw(b'""'))) == 1


@pytest.mark.parametrize(("value", "param"), [(b"5", "input"), (b"{}", "input"), (b"[1]", "input[0]")])
def test_input_of_another_shape_is_refused(value, param):
    with pytest.raises(InvalidRequest) as caught:
        read_input(Raw(value))
    assert caught.value.param == param


def test_an_error_names_the_index_of_its_item():
    good = json.dumps({"role": "user", "content": "x"})
    with pytest.raises(InvalidRequest) as caught:
        read_input(Raw(f'[{good}, {good}, {{"role": "nobody", "content": "x"}}]'.encode()))
    assert caught.value.param == "input[2].role"


# One item.


def test_an_item_keeps_the_bytes_that_arrived():
    raw = b'{ "type":"message",  "role":"user", "content":"\\u00e9", "extra": [1.0, 1e2] }'
    assert read_item(raw, "x").raw == raw


def test_an_item_knows_its_ids():
    item = read({"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"})
    assert (item.type, item.id, item.call_id) == ("function_call", "fc_1", "c")


@pytest.mark.parametrize("untyped", [{}, {"type": None}])
def test_a_message_may_omit_its_type(untyped):
    item = read({**untyped, "role": "user", "content": "hi"})
    assert item.type == "message"
    assert json.loads(item.raw) == {"type": "message", "role": "user", "content": "hi"}


@pytest.mark.parametrize("untyped", [{}, {"type": None}])
def test_a_reference_may_omit_its_type(untyped):
    item = read({**untyped, "id": "msg_1"})
    assert (item.type, item.id) == ("item_reference", "msg_1")
    assert json.loads(item.raw) == {"type": "item_reference", "id": "msg_1"}


def test_an_inferred_type_replaces_a_null_one():
    """JSON parsers differ in which of two equal keys they use."""
    raw = read_item(b' {"role": "user", "type": null, "content": "{\\u007b"} ', "x").raw
    pairs = json.loads(raw, object_pairs_hook=list)
    assert sorted(key for key, _ in pairs) == ["content", "role", "type"]
    assert dict(pairs)["content"] == "{{"


def long(**fields: object) -> Json:
    """An item that is long because of an unknown field."""
    return {**fields, "unknown": "x" * LONG_BYTES}


def test_a_long_item_may_omit_type_and_id_and_is_not_decoded_for_that(monkeypatch):
    monkeypatch.setattr(items, "_fields", None)
    sent = long(role="user", content="hi")
    item = with_id(read_item(b" " + json.dumps(sent).encode(), "x"), "msg_1")
    assert (item.type, item.id) == ("message", "msg_1")
    assert json.loads(item.raw) == {"id": "msg_1", "type": "message", **sent}


@pytest.mark.parametrize("name", ["type", "id"])
def test_a_long_item_may_not_have_a_null_type_or_id(name):
    assert refusal(long(role="user", content="hi", **{name: None})).param == f"input[0].{name}"


def test_with_id_replaces_the_id_of_a_long_item():
    item = with_id(read(long(id="msg_1", type="message", role="user", content="hi")), "msg_2")
    pairs = json.loads(item.raw, object_pairs_hook=list)
    assert [value for key, value in pairs if key == "id"] == ["msg_2"]


def test_an_item_whose_type_cannot_be_inferred_is_refused():
    error = refusal({"content": "hi"})
    assert (error.param, error.code) == ("input[0].type", "missing_required_parameter")


@pytest.mark.parametrize("kind", ["nonsense", "", "Message"])
def test_an_unknown_type_is_refused_with_the_known_ones(kind):
    error = refusal({"type": kind})
    assert error.param == "input[0].type"
    assert "'function_call_output'" in error.message


@pytest.mark.parametrize("kind", sorted(CARRIED_TYPES))
def test_items_of_hosted_tools_are_carried(kind):
    item = read({"type": kind, "id": "x_1", "anything": {"goes": 1}})
    assert isinstance(item.body(), Carried)


def test_every_type_is_either_supported_or_carried():
    assert not SUPPORTED_TYPES & CARRIED_TYPES


SCREENSHOT = {"type": "computer_screenshot", "image_url": "data:image/png;base64,"}
TIMED_OUT = {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}}
GOOD: list[Json] = [
    {
        "type": "mcp_list_tools",
        "id": "mcpl_1",
        "server_label": "s",
        "tools": [{"name": "t", "input_schema": {"type": "object"}, "annotations": {"read_only": True}}],
    },
    {"type": "mcp_call", "id": "mcp_1", "server_label": "s", "name": "t", "arguments": "{}", "output": "3"},
    {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "s", "name": "t", "arguments": "{}"},
    {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": False, "reason": "no"},
    {"type": "message", "role": "developer", "content": "x", "phase": "commentary", "id": "msg_1"},
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "x", "annotations": []}],
    },
    {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "x", "prompt_cache_breakpoint": {}}],
    },
    {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_image", "detail": "auto", "image_url": "u"}],
    },
    {"type": "message", "role": "user", "content": [{"type": "input_file", "file_id": "file_1"}]},
    {"type": "message", "role": "user", "content": []},
    {
        "type": "function_call",
        "call_id": "c",
        "name": "f",
        "arguments": "{}",
        "status": "completed",
        "namespace": None,
    },
    {"type": "function_call_output", "call_id": "c", "output": "x"},
    {
        "type": "function_call_output",
        "call_id": "c",
        "output": [{"type": "input_text", "text": "x"}],
        "name": "f",
    },
    {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"},
    {"type": "custom_tool_call_output", "call_id": "c", "output": "x"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "blob"},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}], "content": None},
    {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "x"}]},
    {"type": "item_reference", "id": "msg_1"},
    {"type": "additional_tools", "role": "developer", "tools": []},
    {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {"query": "x"}},
    {"type": "tool_search_call", "execution": "server", "arguments": {}},
    {"type": "tool_search_output", "call_id": "c", "execution": "client", "tools": []},
    {"type": "tool_search_output", "call_id": None, "execution": "server", "tools": []},
    {"type": "configuration_update", "reasoning": {"effort": "low"}},
    {"type": "compaction", "encrypted_content": "blob"},
    {"type": "compaction_summary", "encrypted_content": "blob"},
    {"type": "compaction_trigger"},
    {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"], "timeout_ms": None}},
    {"type": "shell_call_output", "call_id": "c", "output": [TIMED_OUT]},
    {"type": "local_shell_call", "call_id": "c", "action": {"type": "exec", "command": ["ls"], "env": {}}},
    {"type": "local_shell_call_output", "call_id": "c", "output": "x"},
    {"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file", "path": "a"}},
    {"type": "apply_patch_call_output", "call_id": "c", "status": "completed", "output": None},
    {"type": "computer_call", "call_id": "c", "actions": [{"type": "wait"}], "pending_safety_checks": []},
    {
        "type": "computer_call_output",
        "call_id": "c",
        "output": SCREENSHOT,
        "acknowledged_safety_checks": None,
    },
    {"type": "web_search_call", "id": "ws_1", "status": "completed"},
    {"type": "web_search_call", "id": "ws_1", "action": {"type": "open_page", "url": "https://a.example"}},
    {"type": "file_search_call", "id": "fs_1", "queries": ["x"], "results": None},
    {"type": "code_interpreter_call", "id": "ci_1", "code": None, "container_id": "c", "outputs": []},
]


@pytest.mark.parametrize("item", GOOD, ids=lambda item: item["type"])
def test_every_valid_item_is_read_and_can_be_read_again(item):
    read(item).body()


def test_the_examples_cover_every_supported_type():
    assert {item["type"] for item in GOOD} == SUPPORTED_TYPES


BAD = [
    ({"type": "message", "role": "robot", "content": "x"}, "role"),
    ({"type": "message", "content": "x"}, "role"),
    ({"type": "message", "role": "user"}, "content"),
    ({"type": "message", "role": "user", "content": None}, "content"),
    ({"type": "message", "role": "user", "content": [{"type": "input_text"}]}, "content[0].text"),
    ({"type": "message", "role": "user", "content": [{"type": "input_audio"}]}, "content[0].type"),
    ({"type": "message", "role": "user", "content": ["x"]}, "content[0]"),
    ({"type": "function_call", "name": "f", "arguments": "{}"}, "call_id"),
    ({"type": "function_call", "call_id": "", "name": "f", "arguments": "{}"}, "call_id"),
    ({"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}, "arguments"),
    ({"type": "function_call", "call_id": "c", "name": "", "arguments": "{}"}, "name"),
    ({"type": "function_call_output", "call_id": "c"}, "output"),
    ({"type": "function_call_output", "output": "x"}, "call_id"),
    ({"type": "function_call_output", "call_id": 5, "output": "x"}, "call_id"),
    ({"type": "custom_tool_call", "call_id": "c", "name": "f"}, "input"),
    ({"type": "reasoning", "summary": "x"}, "summary"),
    ({"type": "item_reference"}, "id"),
    ({"type": "item_reference", "id": ""}, "id"),
    ({"type": "additional_tools"}, "tools"),
    ({"type": "configuration_update", "reasoning": {"effort": "huge"}}, "reasoning.effort"),
    ({"type": "compaction"}, "encrypted_content"),
    ({"type": 5}, "type"),
]


@pytest.mark.parametrize(("item", "field"), BAD)
def test_an_error_names_the_invalid_field(item, field):
    assert refusal(item).param == f"input[0].{field}"


# Bodies.


def test_bodies_are_typed():
    assert isinstance(user_message("x").body(), Message)
    call = read(
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "async": True}
    ).body()
    assert isinstance(call, FunctionCall)
    assert call.asynchronous is True
    update = read({"type": "configuration_update", "text": {"format": {"type": "text"}}}).body()
    assert isinstance(update, ConfigurationUpdate)


def test_an_items_size_is_its_text_and_a_constant():
    assert user_message("x" * 101).size_bytes - user_message("x").size_bytes == 100


def test_plain_text_concatenates_text_parts():
    content = [
        items.InputText("a"),
        items.InputImage(image_url="u"),
        items.OutputText("b"),
        items.InputFile(file_id="f"),
        items.Refusal("c"),
    ]
    assert plain_text(content) == "abc"  # type: ignore[arg-type]
    assert plain_text("abc") == "abc"


@pytest.mark.parametrize("arguments", [{"query": "é"}, '{"query":"é"}'])
def test_a_tool_search_call_is_read_as_a_function_call(arguments):
    call = {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": arguments}
    body = read(call).body()
    assert isinstance(body, FunctionCall)
    assert (body.call_id, body.name, json.loads(body.arguments)) == ("c", "tool_search", {"query": "é"})


def test_a_tool_search_output_is_read_as_a_call_output():
    tools = [{"type": "function", "name": "f"}]
    body = read({"type": "tool_search_output", "call_id": "c", "tools": tools}).body()
    assert isinstance(body, LoadedTools)
    assert (body.call_id, json.loads(bytes(body.tools))) == ("c", tools)


def test_tool_searches_run_by_a_server_have_no_call_id():
    assert isinstance(read({"type": "tool_search_call", "arguments": {}}).body(), Carried)
    assert isinstance(read({"type": "tool_search_output", "tools": []}).body(), AdditionalTools)


@pytest.mark.parametrize("kind", ["call", "output"])
def test_a_tool_search_run_by_the_client_needs_a_call_id(kind):
    item = {"type": f"tool_search_{kind}", "execution": "client", "arguments": {}, "tools": []}
    error = refusal(item)
    assert (error.param, error.code) == ("input[0].call_id", "missing_required_parameter")


def test_kept_tools_returns_the_tools_of_an_item():
    tools = [{"type": "function", "name": "f", "defer_loading": True}]
    found = read({"type": "tool_search_output", "call_id": "c", "tools": tools})
    kept = kept_tools(found)
    assert kept is not None
    assert json.loads(kept.raw) == {"type": "additional_tools", "role": "developer", "tools": tools}
    assert kept_tools(kept) is kept
    assert kept_tools(user_message("x")) is None


@pytest.mark.parametrize("field", ["summary", "content"])
def test_parts_of_reasoning_need_their_type(field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_input(Raw(json.dumps([{"type": "reasoning", "summary": [], field: [{"text": "hm"}]}]).encode()))
    assert refused.value.param == f"input[0].{field}[0].type"


def test_a_thought_is_the_text_of_all_parts_of_reasoning() -> None:
    parts = [{"type": "reasoning_text", "text": "six "}, {"type": "reasoning_text", "text": "times"}]
    body = read({"type": "reasoning", "summary": [], "content": parts}).body()
    assert isinstance(body, Reasoning)
    assert (body.thought, Reasoning().thought) == ("six times", "")


def test_an_input_is_bounded_in_items() -> None:
    with pytest.raises(InvalidRequest, match=f"more than {MOST_ITEMS} items") as caught:
        read_input(Raw(b"[" + b"{}," * MOST_ITEMS + b"{}]"))
    assert caught.value.param == "input"


def test_an_item_that_has_the_id_already_is_not_changed() -> None:
    item = read({"type": "message", "role": "user", "content": "hi", "id": "msg_1"})
    assert with_id(item, "msg_1") is item


def test_a_context_has_the_content_of_sealed_items() -> None:
    one, two = user_message("one"), user_message("two")
    sealed = Item(type="compaction", raw=b"{}", opened=(one, two))
    assert list(in_context([sealed, two])) == [one, two, two]
    assert shown((sealed, two)) == (one, two, two)
    plain = one, two
    assert shown(plain) is plain


def test_the_last_compaction_is_the_newest_one() -> None:
    made = Item(type="compaction", raw=b"{}")
    assert last_compaction([made, made, user_message("hi")]) == 1
    assert last_compaction([user_message("hi")]) is None
