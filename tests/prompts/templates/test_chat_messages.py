"""Items are converted to the messages that chat templates read."""

import json
from typing import Any

import pytest
from msgspec import Raw

from slipring.base.errors import InvalidRequest
from slipring.core.chain.instructions_and_tools import Head
from slipring.prompts.templates.chat_messages import (
    ChatMessage,
    MessageBuilder,
    MessageFields,
    PendingCall,
    head_messages,
)
from slipring.prompts.tool_definitions import template_tools
from slipring.protocol.items.items import Item, short_id
from slipring.protocol.requests import TEXT, TextFormat
from slipring.protocol.tools.toolset import Toolset
from tests.prompts.parsing.family_formats import HERMES
from tests.prompts.templates.test_builtin_formats import FILES, PATCH, PATCH_LINE, READ_LINE, WEATHER
from tests.prompts.vocabulary import call, custom_call, item, message

JSON_ANSWER = TextFormat(kind="json_object", echo=Raw(b"{}"))


def thought(text: str) -> Item:
    return item("reasoning", summary=[], content=[{"type": "reasoning_text", "text": text}])


AS_OBJECT, AS_TEXT = MessageFields(), MessageFields(broken_arguments=True)
"""Of templates that take broken arguments only as an object, or as text."""


def read(*items: Item, fields: MessageFields = AS_OBJECT) -> list[dict[str, Any]]:
    return as_dicts(fields, *items)


def called(name: str, arguments: object, call_id: str = "c") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": short_id(call_id), "type": "function", "function": function}


def test_reasoning_text_and_calls_in_a_row_become_one_assistant_message() -> None:
    assert read(
        message("user", "?"),
        thought("hm"),
        message("assistant", "a"),
        call("f", '{"x": 1}'),
        item("configuration_update", reasoning={"effort": "low"}),
        message("assistant", "b"),
        custom_call("patch", "text", namespace="files"),
        message("user", "!"),
        message("assistant", "c"),
    ) == [
        {"role": "user", "content": "?"},
        {
            "role": "assistant",
            "content": "a\nb",
            "reasoning_content": "hm",
            "reasoning": "hm",
            "thinking": "hm",
            "tool_calls": [called("f", {"x": 1}), called("files__patch", {"input": "text"})],
        },
        {"role": "user", "content": "!"},
        {"role": "assistant", "content": "c"},
    ]


def test_outputs_name_the_calls_that_they_answer() -> None:
    first, second, unknown = (
        item("function_call_output", call_id=id, output=text)
        for id, text in [("1", "a"), ("2", "b"), ("3", "c")]
    )
    calls = (
        item("function_call", call_id="1", name="f", arguments="{}"),
        item("function_call", call_id="2", name="g", arguments="{}"),
    )
    written = read(*calls, second, first, unknown)
    assert written[1:] == [
        {"role": "tool", "content": "b", "tool_call_id": short_id("2"), "name": "g"},
        {"role": "tool", "content": "a", "tool_call_id": short_id("1"), "name": "f"},
        {"role": "tool", "content": "c", "tool_call_id": short_id("3")},
    ]
    builder = MessageBuilder({}).add((*calls, second))
    assert builder.pending == {"1": PendingCall("f", short_id("1"))}
    assert MessageBuilder(builder.pending).add((first,)).messages[0].name == "f"


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}),
        ("{}", {}),
        (" ", {}),
        ("[1]", "[1]"),
        ("{oops", "{oops"),
        ('{"a":' * 120 + "1" + "}" * 120, '{"a":' * 120 + "1" + "}" * 120),
    ],
)
def test_arguments_are_an_object_if_they_are_valid_json(text: str, arguments: object) -> None:
    (as_written,) = read(call("f", text), fields=AS_TEXT)
    assert as_written["tool_calls"] == [called("f", arguments)]
    (as_object,) = read(call("f", text), fields=AS_OBJECT)
    expected = arguments if isinstance(arguments, dict) else {"input": text}
    assert as_object["tool_calls"] == [called("f", expected)]


def test_ids_have_nine_letters_and_digits() -> None:
    assert len(short_id("<|im_end|>")) == 9
    assert short_id("call_1").isalnum()
    assert short_id("call_1") != short_id("call_2")


def test_added_tools_become_a_system_message() -> None:
    (system,) = read(item("additional_tools", tools=[FILES, PATCH]))
    assert system["role"] == "system"
    assert system["content"].splitlines()[1:] == [READ_LINE, PATCH_LINE]


def test_developer_messages_become_system_messages_and_other_items_are_skipped() -> None:
    assert read(
        message("developer", "x"), item("reasoning", summary=[]), item("web_search_call", id="w")
    ) == [{"role": "system", "content": "x"}]


def test_instructions_and_format_are_the_first_message() -> None:
    assert head_messages(Head(), TEXT) == []
    assert head_messages(Head("", Toolset.read(Raw(b"[]"))), TEXT) == []
    assert head_messages(Head("Help."), TEXT) == [ChatMessage(role="system", content="Help.")]
    (both,) = head_messages(Head("Help."), JSON_ANSWER)
    assert both.content == "Help.\n\nAnswer with one JSON object and nothing else."


def test_tools_are_passed_as_objects() -> None:
    tools = Toolset.read(Raw(json.dumps([WEATHER, FILES]).encode())).callables
    weather, files = template_tools(tools)
    assert weather["function"]["parameters"]["properties"] == {"city": {"type": "string"}}
    assert files["function"]["name"] == "files__read"
    deep = {"type": "function", "name": "f", "parameters": {"a": json.loads("[" * 120 + "]" * 120)}}
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        template_tools(Toolset.read(Raw(json.dumps([deep]).encode())).callables)


def test_a_tool_search_becomes_a_call_and_an_output() -> None:
    called, answered = read(
        item("tool_search_call", call_id="c", execution="client", arguments={"query": "files"}),
        item("tool_search_output", call_id="c", tools=[{**FILES["tools"][0], "defer_loading": True}, FILES]),
    )
    (call,) = called["tool_calls"]
    assert call["function"] == {"name": "tool_search", "arguments": {"query": "files"}}
    assert (answered["role"], answered["name"]) == ("tool", "tool_search")
    assert answered["content"].splitlines()[1] == READ_LINE


def test_an_empty_tool_search_has_an_output_that_says_so() -> None:
    _, answered = read(
        item("tool_search_call", call_id="c", arguments={}), item("tool_search_output", call_id="c", tools=[])
    )
    assert answered["content"] == "No tools were found."


@pytest.mark.parametrize("values", [99_999, 100_000])
def test_arguments_with_too_many_values_are_passed_as_text(values: int) -> None:
    arguments = '{"a":[' + ",".join(["1"] * values) + "]}"
    for fields, text in ((AS_TEXT, arguments), (AS_OBJECT, {"input": arguments})):
        (assistant,) = read(call("f", arguments), fields=fields)
        given = assistant["tool_calls"][0]["function"]["arguments"]
        assert given == (json.loads(arguments) if values == 99_999 else text)


def test_a_tool_with_a_very_large_schema_is_refused() -> None:
    large = {"type": "function", "name": "f", "parameters": {"enum": [1] * 100_000}}
    with pytest.raises(InvalidRequest, match="too large"):
        template_tools(Toolset.read(Raw(json.dumps([large]).encode())).callables)


def test_very_many_assistant_items_are_merged_in_linear_time() -> None:
    """Merging pairwise would copy the text each time and take minutes here."""
    items = [message("assistant", "x" * 1000), call("f")] * 10_000
    (assistant,) = read(*items)
    assert assistant["content"] == "\n".join(["x" * 1000] * 10_000)
    assert len(assistant["tool_calls"]) == 10_000


def as_dicts(fields: MessageFields, *items: Item) -> list[dict[str, Any]]:
    return [each.as_dict(str, lambda value: value, fields) for each in MessageBuilder({}).add(items).messages]


def test_thoughts_may_be_blocks_of_the_content() -> None:
    blocks = MessageFields(thought_blocks=True)
    (both,) = as_dicts(blocks, thought("hm"), message("assistant", "yes"))
    assert both["content"] == [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "yes"}]
    (alone,) = as_dicts(blocks, thought("hm"), call("f"))
    assert alone["content"] == [{"type": "thinking", "thinking": "hm"}]
    assert "reasoning_content" not in alone


def test_arguments_may_be_text_and_the_content_of_calls_null() -> None:
    (called,) = as_dicts(MessageFields(text_arguments=True, null_content=True), call("f", '{"a":"é"}'))
    assert called["content"] is None
    assert called["tool_calls"][0]["function"]["arguments"] == '{"a": "é"}'
    for takes_broken, expected in ((True, "{oops"), (False, '{"input": "{oops"}')):
        fields = MessageFields(text_arguments=True, broken_arguments=takes_broken)
        (broken,) = as_dicts(fields, call("f", "{oops"))
        assert broken["tool_calls"][0]["function"]["arguments"] == expected
        assert broken["content"] == ""


def test_calls_may_be_part_of_the_content() -> None:
    fields = MessageFields(calls_as_text=HERMES)
    (called,) = as_dicts(fields, message("assistant", "So:"), call("f", '{"a": 1}'), call("g", "oops"))
    assert "tool_calls" not in called
    assert called["content"] == (
        'So:\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {"input": "oops"}}\n</tool_call>'
    )


def test_ids_of_calls_may_count_them() -> None:
    builder = MessageBuilder({}, 3).add((call("f"),))
    assert (builder.messages[0].calls[0].id, builder.calls) == ("functions.f:3", 4)


def test_parameters_get_what_templates_rely_on() -> None:
    def parameters(schema: bytes) -> object:
        tools = Toolset.read(Raw(b'[{"type":"function","name":"f","parameters":' + schema + b"}]"))
        return template_tools(tools.callables)[0]["function"]["parameters"]

    assert parameters(b"{}") == {"type": "object", "properties": {}}
    assert parameters(b"true") is True
