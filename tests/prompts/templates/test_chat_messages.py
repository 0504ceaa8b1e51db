"""Items as the messages that chat templates read."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from slipring.core.chain.head import Head
from slipring.errors import InvalidRequest
from slipring.prompts.templates.chat_messages import (
    ChatMessage,
    Folder,
    head_messages,
    short_id,
    tool_definitions,
)
from slipring.prompts.templates.template_probes import ALL_WORDS, answer, stand_in
from slipring.protocol.items import Item
from slipring.protocol.requests import TEXT, TextFormat
from slipring.protocol.tools import Toolset
from tests.prompts.dialects.test_dialects import FILES, PATCH, PATCH_LINE, READ_LINE, WEATHER
from tests.prompts.vocabulary import call, custom_call, item, message, output

JSON_ANSWER = TextFormat(kind="json_object", echo=Raw(b"{}"))


def thought(text: str) -> Item:
    return item("reasoning", summary=[], content=[{"type": "reasoning_text", "text": text}])


def read(*items: Item) -> list[dict[str, Any]]:
    return [each.as_dict(str, lambda value: value) for each in Folder({}).read(items).messages]


def called(name: str, arguments: object, call_id: str = "c") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": short_id(call_id), "type": "function", "function": function}


def test_what_an_assistant_thinks_says_and_calls_is_one_message() -> None:
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
    folder = Folder({}).read((*calls, second))
    assert folder.names == {"1": "f"}
    assert Folder(folder.names).read((first,)).messages[0].name == "f"


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
def test_arguments_are_an_object_where_they_can_be(text: str, arguments: object) -> None:
    assert read(call("f", text))[0]["tool_calls"] == [called("f", arguments)]


def test_ids_have_nine_letters_and_digits() -> None:
    assert len(short_id("<|im_end|>")) == 9
    assert short_id("call_1").isalnum()
    assert short_id("call_1") != short_id("call_2")


def test_added_tools_are_told_by_the_system() -> None:
    (told,) = read(item("additional_tools", tools=[FILES, PATCH]))
    assert told["role"] == "system"
    assert told["content"].splitlines()[1:] == [READ_LINE, PATCH_LINE]


def test_developers_speak_as_the_system_and_silent_items_are_not_told() -> None:
    assert read(
        message("developer", "x"), item("reasoning", summary=[]), item("web_search_call", id="w")
    ) == [{"role": "system", "content": "x"}]


def test_instructions_and_format_are_the_first_message() -> None:
    assert head_messages(Head(), TEXT) == []
    assert head_messages(Head("", Toolset.read(Raw(b"[]"))), TEXT) == []
    assert head_messages(Head("Help."), TEXT) == [ChatMessage(role="system", content="Help.")]
    (both,) = head_messages(Head("Help."), JSON_ANSWER)
    assert both.content == "Help.\n\nAnswer with one JSON object and nothing else."


def test_tools_are_told_as_objects() -> None:
    tools = Toolset.read(Raw(json.dumps([WEATHER, FILES]).encode())).callables
    weather, files = tool_definitions(tools)
    assert weather["function"]["parameters"]["properties"] == {"city": {"type": "string"}}
    assert files["function"]["name"] == "files__read"
    deep = {"type": "function", "name": "f", "parameters": {"a": json.loads("[" * 120 + "]" * 120)}}
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        tool_definitions(Toolset.read(Raw(json.dumps([deep]).encode())).callables)


ROLES = st.sampled_from(["user", "assistant", "system"])
TURNS: st.SearchStrategy[list[Item]] = st.lists(
    st.one_of(
        st.builds(message, ROLES, st.sampled_from(["", "a"])),
        st.just(thought("t")),
        st.just(call("f")),
        st.just(output("o")),
    ),
    max_size=8,
)


@given(TURNS, TURNS)
def test_a_stand_in_that_is_gone_on_with_stands_for_the_whole(before: list[Item], after: list[Item]) -> None:
    folder = Folder({}).read(before)
    first = folder.messages
    more = Folder(folder.names).read(after).messages
    if first and more and first[-1].role == more[0].role == "assistant":
        return  # one message within the whole
    assert stand_in([*stand_in(first), *more]) == stand_in([*first, *more])


@given(TURNS)
def test_a_stand_in_ends_as_the_conversation_and_says_none_of_its_words(items: list[Item]) -> None:
    real = Folder({}).read(items).messages
    stands = stand_in(real)
    assert [each.role for each in stands[-1:]] == [each.role for each in real[-1:]]
    assert {each.content for each in stands} <= {*ALL_WORDS, ""}


def test_a_stand_in_does_not_grow() -> None:
    turn = [message("user", "u"), thought("t"), call("f"), output("o"), message("assistant", "a")]
    assert len(stand_in(Folder({}).read(turn * 50).messages)) == 4
    loop = [message("user", "u"), *[thought("t"), call("f"), output("o")] * 50]
    asked, called, returned = stand_in(Folder({}).read(loop).messages)
    assert (asked.role, called.calls[0].name, bool(called.thoughts), returned.name) == (
        "user",
        "f",
        True,
        "f",
    )


def test_an_answer_is_one_message_of_the_assistant_or_unknown() -> None:
    spoken = answer(Folder({}).read([call("f"), call("g")]).messages)
    assert spoken is not None
    assert [each.name for each in spoken.calls] == ["f", "g"]
    assert spoken.calls[0].arguments != spoken.calls[1].arguments
    assert answer([]) is not None
    assert answer(Folder({}).read([message("assistant", "a"), message("user", "b")]).messages) is None


def test_a_search_for_tools_is_told_as_a_call_and_what_it_found() -> None:
    called, answered = read(
        item("tool_search_call", call_id="c", execution="client", arguments={"query": "files"}),
        item("tool_search_output", call_id="c", tools=[{**FILES["tools"][0], "defer_loading": True}, FILES]),
    )
    (call,) = called["tool_calls"]
    assert call["function"] == {"name": "tool_search", "arguments": {"query": "files"}}
    assert (answered["role"], answered["name"]) == ("tool", "tool_search")
    assert answered["content"].splitlines()[1] == READ_LINE


def test_a_search_that_found_nothing_says_so() -> None:
    _, answered = read(
        item("tool_search_call", call_id="c", arguments={}), item("tool_search_output", call_id="c", tools=[])
    )
    assert answered["content"] == "No tools were found."


@pytest.mark.parametrize("values", [99_999, 100_000])
def test_arguments_with_very_many_values_are_given_as_text(values: int) -> None:
    arguments = '{"a":[' + ",".join(["1"] * values) + "]}"
    (said,) = read(call("f", arguments))
    given = said["tool_calls"][0]["function"]["arguments"]
    assert given == (json.loads(arguments) if values == 99_999 else arguments)


def test_a_tool_with_a_very_large_schema_is_refused() -> None:
    large = {"type": "function", "name": "f", "parameters": {"enum": [1] * 100_000}}
    with pytest.raises(InvalidRequest, match="too large"):
        tool_definitions(Toolset.read(Raw(json.dumps([large]).encode())).callables)


def test_what_an_assistant_says_over_very_many_items_is_joined_in_one_go() -> None:
    """To join it item by item would copy all of it each time, and take minutes here."""
    items = [message("assistant", "x" * 1000), call("f")] * 10_000
    (said,) = read(*items)
    assert said["content"] == "\n".join(["x" * 1000] * 10_000)
    assert len(said["tool_calls"]) == 10_000
