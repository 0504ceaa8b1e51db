"""Tools that messages add and withdraw: from where on the model may call them."""

import json
from typing import Any

import pytest

from slipring.base.errors import ApiError
from slipring.protocol.messages.requests import MessagesTranslation
from slipring.protocol.requests import CreateRequest, Known
from slipring.protocol.tools.tool_choice import ToolChoice
from slipring.protocol.wire import encode

Json = dict[str, Any]
SCHEMA: Json = {"type": "object", "properties": {}}
SEARCH: Json = {"name": "search", "input_schema": SCHEMA}
LATER: Json = {"name": "later", "description": "Comes later", "input_schema": SCHEMA, "defer_loading": True}
OTHER: Json = {"name": "other", "input_schema": SCHEMA, "defer_loading": True}
LOADED: Json = {
    "type": "function",
    "name": "later",
    "description": "Comes later",
    "parameters": SCHEMA,
    "strict": False,
}
TOOLS = [SEARCH, LATER, OTHER]
USE: Json = {"type": "tool_use", "id": "t", "name": "search", "input": {}}
ASKED: Json = {"role": "assistant", "content": [USE]}
WEB: Json = {"type": "web_search_20250305", "name": "web_search"}
SERVER: Json = {"type": "url", "name": "s", "url": "https://a.example"}


def reference(name: str = "later") -> Json:
    return {"type": "tool_reference", "tool_name": name}


def found(*content: Json, **fields: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": "t", "content": list(content), **fields}


def addition(name: str = "later") -> Json:
    return {"type": "tool_addition", "tool": {"type": "tool_reference", "name": name}}


def definition(tool: Json) -> Json:
    return {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": tool}}


def removal(name: str) -> Json:
    return {"type": "tool_removal", "tool": {"type": "tool_reference", "name": name}}


def user(*content: Json) -> Json:
    return {"role": "user", "content": list(content)}


def system(*content: Json) -> Json:
    return {"role": "system", "content": list(content)}


def read(*messages: Json, tools: list[Json] = TOOLS, **fields: Any) -> CreateRequest:
    begin = {"role": "user", "content": "begin"}
    body = {"model": "m", "max_tokens": 10, "messages": [begin, *messages], "tools": tools, **fields}
    create = MessagesTranslation("req").read(encode(body))
    assert create.items  # valid
    return create


def items(*messages: Json, **fields: Any) -> list[Json]:
    """The items after the first message."""
    return [json.loads(item.raw) for item in read(*messages, **fields).items[1:]]


def refusal(*messages: Json, **fields: Any) -> str:
    with pytest.raises(ApiError) as refused:
        read(*messages, **fields)
    return str(refused.value.message).split(": ")[0]


def choice(*messages: Json, **fields: Any) -> ToolChoice:
    return ToolChoice.read(read(*messages, **fields).tool_choice)


def names(chosen: ToolChoice) -> list[Any]:
    return [(tool.type, tool.name or tool.server_label) for tool in chosen.only or ()]


def added(*tools: Json) -> Json:
    return {"type": "additional_tools", "role": "developer", "tools": list(tools)}


def test_a_deferred_tool_is_not_offered() -> None:
    create = read()
    assert [tool["name"] for tool in json.loads(bytes(create.tools))] == ["search"]  # type: ignore[arg-type]
    assert read(tools=[SEARCH]) == create
    assert read(tools=[SEARCH, LATER]) == create


def test_a_reference_in_a_result_loads_a_tool_where_it_stands() -> None:
    call, output, tools = items(ASKED, user(found(reference())))
    assert (call["type"], output["output"]) == ("function_call", "Tools found: later")
    assert tools == added(LOADED)


def test_tools_are_loaded_after_all_results_of_a_step_and_before_what_follows() -> None:
    both = {"role": "assistant", "content": [USE, {**USE, "id": "u"}]}
    results = user(
        found(reference()), found(reference("other"), tool_use_id="u"), {"type": "text", "text": "x"}
    )
    kinds = [item["type"] for item in items(both, results)]
    assert kinds == [
        *("function_call", "function_call"),
        *("function_call_output", "function_call_output", "additional_tools", "message"),
    ]


def test_a_result_may_have_text_beside_references() -> None:
    _, output, tools = items(ASKED, user(found({"type": "text", "text": "one"}, reference())))
    assert (output["output"], tools) == ("one", added(LOADED))


def test_a_tool_is_loaded_once() -> None:
    again = (ASKED, user(found(reference())))
    assert [item["type"] for item in items(*again, *again)].count("additional_tools") == 1
    assert [item["type"] for item in items(ASKED, user(found(reference("search"))))][-1] != "additional_tools"


def test_what_was_said_before_is_the_same_with_more_deferred_tools() -> None:
    before = items(ASKED, user(found(reference())), tools=[SEARCH, LATER])
    assert items(ASKED, user(found(reference())), ASKED, user(found(reference("other"))))[:3] == before


def test_a_message_that_was_sent_before_loads_the_tools_of_this_request() -> None:
    messages = [{"role": "user", "content": "begin"}, ASKED, user(found(reference()))]

    def read_again(tools: list[Json], known: Known) -> CreateRequest:
        body = {"model": "m", "max_tokens": 10, "messages": messages, "tools": tools}
        return MessagesTranslation("req").read(encode(body), known)

    first = read_again(TOOLS, {})
    known = first.pieces
    assert read_again(TOOLS, known).items == first.items
    changed = read_again([SEARCH, {**LATER, "description": "Changed"}], known)
    assert b"Changed" in changed.items[-1].raw


def test_a_system_message_adds_tools() -> None:
    said, tools = items(system({"type": "text", "text": "New tools."}, addition()))
    assert (said["role"], said["content"], tools) == ("developer", "New tools.", added(LOADED))
    assert items(system(addition(), addition())) == [added(LOADED)]


def test_a_system_message_defines_tools() -> None:
    own = {"name": "own", "input_schema": SCHEMA}
    (tools,) = items(system(definition(own)))
    assert [tool["name"] for tool in tools["tools"]] == ["own"]
    changed = {**LATER, "description": "Changed"}
    *_, tools = items(system(addition()), system(definition(changed)))
    assert tools == added({**LOADED, "description": "Changed"})
    assert [item["type"] for item in items(system(definition(own)), system(addition("own")))] == [
        "additional_tools"
    ]


def test_a_withdrawn_tool_cannot_be_called() -> None:
    loaded = system(addition())
    assert choice(loaded).only is None
    gone = (loaded, system(removal("later")))
    assert items(*gone)[-1]["content"] == "The tool later is no longer available."
    assert (choice(*gone).mode, names(choice(*gone))) == ("auto", [("function", "search")])
    assert choice(*gone, tool_choice={"type": "any"}).mode == "required"
    assert choice(*gone, tool_choice={"type": "none"}).mode == "none"
    assert names(choice(*gone, tool_choice={"type": "tool", "name": "search"})) == [("function", "search")]
    assert refusal(*gone, tool_choice={"type": "tool", "name": "later"}) == "tool_choice.name"
    assert choice(system(removal("search"))).mode == "none"
    rest = choice(system(removal("search")), tools=[SEARCH, WEB], mcp_servers=[SERVER])
    assert names(rest) == [("web_search", None), ("mcp", "s")]


def test_a_tool_that_is_not_loaded_cannot_be_chosen() -> None:
    chosen = {"type": "tool", "name": "later"}
    assert refusal(tool_choice=chosen) == "tool_choice.name"
    assert names(choice(system(addition()), tool_choice=chosen)) == [("function", "later")]


def test_a_tool_that_was_withdrawn_can_be_added_again() -> None:
    *_, tools = items(system(addition()), system(removal("later")), system(addition()))
    assert tools == added(LOADED)
    assert choice(system(removal("search")), system(addition("search"))).only is None


def test_a_tool_that_is_not_loaded_is_withdrawn_without_effect() -> None:
    assert choice(system(removal("later"))).only is None
    assert [item["type"] for item in items(system(addition(), removal("later")))] == ["message"]


def test_what_is_refused() -> None:
    assert refusal(ASKED, user(found(reference("none")))) == "messages.2.content.0.content.0.tool_name"
    assert refusal(system(addition("none"))) == "messages.1.content.0.tool.name"
    assert refusal(system(removal("none"))) == "messages.1.content.0.tool.name"
    assert refusal(system(definition(WEB))) == "messages.1.content.0.tool.definition.type"
    assert refusal(system(definition({"name": "f"}))) == "messages.1.content.0.tool.definition.input_schema"
    toolset = {"type": "tool_removal", "tool": {"type": "mcp_toolset_reference", "server_name": "s"}}
    assert refusal(system(toolset)) == "messages.1.content.0.tool.type"
    assert refusal(tools=[SEARCH, {**SEARCH, "defer_loading": True}]) == "tools.1.name"
