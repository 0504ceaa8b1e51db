"""New items of a chain: calls and outputs, references, tools and settings in items."""

import json
from typing import Any

import pytest

from slipring.base.errors import InvalidRequest
from slipring.core.chain import input_items
from slipring.core.chain.input_items import OpenCarry
from slipring.core.chain.state import Carry
from slipring.core.generation import CallArguments, CallStarted, Text
from slipring.protocol.items.items import Item, read_item
from tests.core.connection import Connection, Json, call_output, function, message, only_error


def read(*items: Json) -> tuple[Item, ...]:
    return tuple(read_item(json.dumps(item).encode(), f"input[{n}]") for n, item in enumerate(items))


def join(*items: Json, complete: bool = True) -> Carry:
    return input_items.join(input_items.NOTHING, read(*items), complete=complete)


def call(call_id: str, kind: str = "function_call", **fields: object) -> Json:
    body = {"custom_tool_call": {"input": "x"}, "function_call": {"arguments": "{}"}}.get(kind, {})
    return {"type": kind, "call_id": call_id, "name": "f", **body, **fields}


# Calls and their outputs.

KINDS = {
    "function_call": "function call",
    "custom_tool_call": "custom tool call",
    "computer_call": "computer call",
    "shell_call": "shell call",
    "local_shell_call": "local shell call",
    "apply_patch_call": "apply patch call",
}
FORMS: dict[str, Any] = {
    "shell_call": {"action": {"commands": ["ls"]}},
    "local_shell_call": {"action": {"type": "exec", "command": ["ls"], "env": {}}},
    "apply_patch_call": {"operation": {"type": "delete_file", "path": "a"}},
    "shell_call_output": {"output": []},
    "computer_call_output": {"output": {"type": "computer_screenshot", "file_id": "file_1"}},
    "apply_patch_call_output": {"status": "completed"},
}
"""What calls and outputs of these types have beside what all have."""


def called(kind: str) -> Any:
    return call("c1", kind, **FORMS.get(kind, {}))


def answered(kind: str) -> Any:
    return {**call_output("c1", kind=f"{kind}_output"), **FORMS.get(f"{kind}_output", {})}


@pytest.mark.parametrize("kind", KINDS)
def test_an_output_closes_its_call(kind):
    assert join(called(kind), answered(kind)).open_calls == {}


@pytest.mark.parametrize(("kind", "noun"), KINDS.items())
def test_an_error_names_the_call_without_output(kind, noun):
    with pytest.raises(InvalidRequest) as caught:
        join(called(kind))
    assert caught.value.message == f"No tool output found for {noun} c1."
    assert caught.value.param == "input"


@pytest.mark.parametrize(("kind", "noun"), KINDS.items())
def test_an_error_names_the_output_without_call(kind, noun):
    with pytest.raises(InvalidRequest) as caught:
        join(message("hi"), answered(kind))
    assert caught.value.message == f"No tool call found for {noun} output with call_id c1."
    assert caught.value.param == "input[1].call_id"


@pytest.mark.parametrize("kind", ["computer_call", "computer_call_output"])
def test_calls_and_outputs_need_a_call_id(kind):
    with pytest.raises(InvalidRequest) as caught:
        join(message("hi"), {"type": kind})
    assert (caught.value.param, caught.value.code) == ("input[1].call_id", "missing_required_parameter")


def test_an_output_must_have_the_type_of_its_call():
    with pytest.raises(InvalidRequest, match="No tool call found for custom tool call output"):
        join(call("c1"), call_output("c1", kind="custom_tool_call_output"))


def test_an_output_cannot_come_before_its_call():
    with pytest.raises(InvalidRequest, match="No tool call found"):
        join(call_output("c1"), call("c1"))


def test_a_call_is_answered_once():
    with pytest.raises(InvalidRequest, match="No tool call found"):
        join(call("c1"), call_output("c1"), call_output("c1"))


def test_calls_may_be_answered_in_any_order():
    answered = join(call("c1"), call("c2"), call_output("c2"), message("so"), call_output("c1"))
    assert answered.open_calls == {}


def test_every_call_needs_its_output_before_generation():
    with pytest.raises(InvalidRequest, match="function call c2"):
        join(call("c1"), call("c2"), call_output("c1"))


def test_a_warmup_may_leave_calls_open():
    assert set(join(call("c1"), complete=False).open_calls) == {"c1"}


@pytest.mark.parametrize("kind", ["function_call", "custom_tool_call"])
@pytest.mark.parametrize("excuse", [{"async": True}, {"status": "incomplete"}])
def test_asynchronous_and_incomplete_calls_need_no_output(kind, excuse):
    carry = join(call("c1", kind, **excuse))
    assert carry.open_calls["c1"].required is False


def test_an_asynchronous_call_can_be_answered_later():
    connection = Connection()
    first = connection.respond(input=[call("c1", **{"async": True}), message("go")])  # type: ignore[arg-type]
    second = connection.respond(previous=first["id"])
    assert connection.respond(previous=second["id"], input=[call_output("c1")])["status"] == "completed"


@pytest.mark.parametrize(("kind", "noun"), [("function", "function call"), ("custom", "custom tool call")])
def test_a_continuation_must_answer_the_calls_of_its_parent(kind, noun):
    connection = Connection()
    connection.create("a")
    connection.finish(
        CallStarted(kind=kind, name="f"),
        CallArguments("{}"),
        CallStarted(kind=kind, name="g"),
        CallArguments("{}"),
        lane="a",
    )
    outputs = [
        call_output(
            f"call_{n}", kind=f"{'function_call' if kind == 'function' else 'custom_tool_call'}_output"
        )
        for n in (1, 2)
    ]
    sent = only_error(connection.create("fork", previous="resp_1", input="so?"))
    assert sent["error"]["message"] == f"No tool output found for {noun} call_1."
    sent = only_error(connection.create("fork", previous="resp_1", input=outputs[:1]))
    assert sent["error"]["message"] == f"No tool output found for {noun} call_2."
    assert connection.respond("fork", previous="resp_1", input=outputs)["status"] == "completed"


def test_answering_a_call_on_one_branch_leaves_it_open_on_the_others():
    connection = Connection()
    connection.create("a")
    connection.finish(CallStarted(kind="function", name="f"), lane="a")
    connection.respond("b", previous="resp_1", input=[call_output("call_1", "one")])
    sent = only_error(connection.create("c", previous="resp_1"))
    assert sent["error"]["message"] == "No tool output found for function call call_1."
    connection.respond("c", previous="resp_1", input=[call_output("call_1", "two")])


def test_open_calls_accumulate_along_the_chain():
    connection = Connection()
    first = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "async": True}
    connection.create(input=[first, message("go")])
    connection.finish(CallStarted(kind="function", name="g"))
    outputs = [call_output("c1"), call_output("call_1")]
    assert connection.respond(previous="resp_1", input=outputs)["status"] == "completed"


def test_an_answered_call_stays_answered_along_the_chain():
    connection = Connection()
    connection.create()
    connection.finish(CallStarted(kind="function", name="f"))
    second = connection.respond(previous="resp_1", input=[call_output("call_1")])
    assert connection.respond(previous=second["id"])["status"] == "completed"


@pytest.mark.parametrize("kind", ["function", "custom"])
def test_a_truncated_call_needs_no_output(kind):
    """A client cannot run half a call. Custom calls do not even have a status that marks them incomplete."""
    connection = Connection()
    connection.create()
    connection.finish(CallStarted(kind=kind, name="f"), CallArguments('{"a'), reason="max_output_tokens")
    assert connection.respond(previous="resp_1", input="go on")["status"] == "completed"


def test_calls_before_a_truncated_one_need_their_output():
    connection = Connection()
    connection.create("a")
    connection.finish(
        CallStarted(kind="custom", name="f"), Text("and th"), lane="a", reason="max_output_tokens"
    )
    sent = only_error(connection.create("fork", previous="resp_1", input="go on"))
    assert sent["error"]["message"] == "No tool output found for custom tool call call_1."


# References.


def test_references_are_replaced_by_their_items():
    target = read(message("the target"))[0]
    items = read(message("a"), {"type": "item_reference", "id": "msg_1"}, message("b"))
    assert input_items.references(items) == {"msg_1"}
    assert input_items.resolve(items, {"msg_1": target}) == (items[0], target, items[2])


def test_an_error_names_the_index_of_an_unknown_reference():
    items = read(message("a"), {"id": "msg_1"})
    with pytest.raises(InvalidRequest, match="Item with id 'msg_1' not found") as caught:
        input_items.resolve(items, {})
    assert caught.value.param == "input[1].id"


def test_a_referenced_call_can_be_answered():
    connection = Connection()
    connection.create(store=True)
    connection.finish(CallStarted(kind="function", name="f"))
    connection.save()
    connection.create(input=[{"type": "item_reference", "id": "fc_10000"}, call_output("call_1")])
    connection.load()
    assert [item.type for item in connection.job().context()] == ["function_call", "function_call_output"]


# Tools in items.


def additional(*tools: Json) -> Json:
    return {"type": "additional_tools", "role": "developer", "tools": list(tools)}


def offered(connection: Connection) -> list[str]:
    return [tool.name for tool in connection.job().offer.tools]


def test_additional_tools_are_offered_from_then_on():
    connection = Connection()
    connection.create(input=[additional(function("extra")), message("hi")], tools=[function("own")])
    assert offered(connection) == ["own", "extra"]
    connection.complete()
    connection.create(previous="resp_1")
    assert offered(connection) == ["extra"]


def test_additional_tools_accumulate_and_a_newer_one_replaces_an_older_of_the_same_name():
    carry = join(
        additional(function("f", description="old"), function("g")),
        additional(function("f", description="new")),
    )
    assert [(tool.name, tool.definition.description) for tool in carry.tools] == [("g", None), ("f", "new")]


def test_an_additional_tool_replaces_a_tool_of_the_request_with_the_same_name():
    connection = Connection()
    connection.create(
        input=[additional(function("f", description="new")), message("hi")],
        tools=[function("f", description="old"), function("g")],
    )
    tools = connection.job().offer.tools
    assert [(tool.name, tool.definition.description) for tool in tools] == [("g", None), ("f", "new")]


def test_additional_tools_are_not_echoed_as_tools():
    connection = Connection()
    assert connection.respond(input=[additional(function("extra")), message("hi")])["tools"] == []


def test_an_error_names_the_index_of_an_invalid_additional_tool():
    sent = only_error(Connection().create(input=[message("hi"), additional({"type": "function"})]))
    assert sent["error"]["param"] == "input[1].tools[0].name"


def test_a_tool_choice_may_name_an_additional_tool():
    connection = Connection()
    connection.create(
        input=[additional(function("extra")), message("hi")],
        tool_choice={"type": "function", "name": "extra"},
    )
    assert connection.job().offer.required
    assert offered(connection) == ["extra"]


# Settings in items.

SCHEMA = {"type": "json_schema", "name": "answer", "schema": {"type": "object"}}


def configuration(**update: object) -> Json:
    return {"type": "configuration_update", **update}


def test_a_configuration_update_applies_to_later_turns():
    connection = Connection()
    connection.respond(
        input=[configuration(reasoning={"effort": "high"}, text={"format": SCHEMA}), message("hi")]
    )
    connection.create(previous="resp_1")
    settings = connection.job().settings
    assert (settings.effort, settings.format.kind) == ("high", "json_schema")


def test_a_configuration_update_applies_to_its_own_turn():
    connection = Connection()
    connection.create(input=[configuration(reasoning={"effort": "low"}), message("hi")])
    assert connection.job().settings.effort == "low"


def test_a_response_repeats_the_settings_in_effect():
    connection = Connection()
    connection.respond(
        input=[configuration(reasoning={"effort": "low"}, text={"format": SCHEMA}), message("hi")]
    )
    response = connection.respond(previous="resp_1")
    assert response["reasoning"]["effort"] == "low"
    assert response["text"]["format"] == SCHEMA


def test_the_last_configuration_update_wins():
    carry = join(configuration(reasoning={"effort": "low"}), configuration(reasoning={"effort": "high"}))
    assert carry.effort == "high"


def test_a_request_overrides_the_carry():
    connection = Connection()
    connection.respond(
        input=[configuration(reasoning={"effort": "low"}, text={"format": SCHEMA}), message("hi")]
    )
    connection.create(
        previous="resp_1", reasoning={"effort": "high"}, text={"format": {"type": "json_object"}}
    )
    settings = connection.job().settings
    assert (settings.effort, settings.format.kind) == ("high", "json_object")


@pytest.mark.parametrize(
    "update",
    [{}, {"reasoning": None, "text": None}, {"reasoning": {}, "text": {}}, {"reasoning": {"effort": "low"}}],
)
def test_an_update_keeps_settings_that_it_does_not_mention(update):
    carry = join(configuration(reasoning={"effort": "low"}, text={"format": SCHEMA}), configuration(**update))
    assert carry.effort == "low"
    assert carry.format is not None
    assert carry.format.kind == "json_schema"


def test_an_error_names_the_index_of_an_update_with_an_invalid_format():
    sent = only_error(Connection().create(input=[configuration(text={"format": {"type": "xml"}})]))
    assert sent["error"]["param"] == "input[0].text.format.type"


def test_the_carry_is_shared_if_items_change_nothing():
    connection = Connection()
    connection.respond(input=[additional(function("f")), message("hi")])
    connection.respond(previous="resp_1")
    before, after = connection.cache.find("resp_1"), connection.cache.find("resp_2")
    assert before is not None
    assert after is not None
    assert after.carry.tools is before.carry.tools


# Tool searches.

SEARCH = {"type": "tool_search_call", "call_id": "c1", "execution": "client", "arguments": {"query": "x"}}


def found(*tools: Json, call_id: str | None = "c1") -> Json:
    return {"type": "tool_search_output", "call_id": call_id, "tools": list(tools)}


def test_a_tool_search_needs_its_output():
    with pytest.raises(InvalidRequest, match="No tool output found for tool search call c1"):
        join(SEARCH)
    with pytest.raises(InvalidRequest, match="No tool call found for tool search call output"):
        join(found())


def test_found_tools_can_be_called_from_then_on():
    carry = join(SEARCH, found({**function("f"), "defer_loading": True}))
    assert carry.open_calls == {}
    assert [tool.name for tool in carry.tools] == ["f"]


def test_a_tool_search_run_by_a_server_needs_no_output():
    server = {"type": "tool_search_call", "execution": "server", "arguments": {}}
    carry = join(server, found(function("f"), call_id=None))
    assert [tool.name for tool in carry.tools] == ["f"]


def test_an_error_names_the_index_of_an_invalid_found_tool():
    with pytest.raises(InvalidRequest) as caught:
        join(SEARCH, found({"type": "function"}))
    assert caught.value.param == "input[1].tools[0].name"


def test_a_chain_searches_loads_and_calls():
    search = {"type": "tool_search", "execution": "client"}
    tools = [search, {**function("later"), "defer_loading": True}]
    connection = Connection()
    connection.create(tools=tools)
    assert [tool.name for tool in connection.job().offer.tools] == ["tool_search"]
    connection.generate(
        CallStarted("tool_search", "tool_search"), CallArguments('{"query":'), CallArguments('"x"}')
    )
    connection.finish()
    (item,) = connection.events[-1]["response"]["output"]
    assert item == {
        "type": "tool_search_call",
        "id": item["id"],
        "call_id": item["call_id"],
        "arguments": {"query": "x"},
        "status": "completed",
        "execution": "client",
    }
    parent = connection.events[-1]["response"]["id"]
    answer = found({**function("later"), "defer_loading": True}, call_id=item["call_id"])
    connection.create(input=[answer], tools=tools, previous=parent)
    assert [tool.name for tool in connection.job().offer.tools] == ["tool_search", "later"]


# The carry of a response in progress.


def test_an_open_carry_observes_each_output_item_once():
    carry = OpenCarry(input_items.NOTHING)
    first, second = read(call("c1"), call("c2"))
    assert carry.observe([first]) == (first,)
    assert carry.observe([first]) == ()
    assert carry.observe([first, second]) == (second,)
    assert set(carry.current.open_calls) == {"c1", "c2"}
    assert carry.settled is input_items.NOTHING, "nothing was appended"


def test_an_open_carry_settles_what_was_appended():
    carry = OpenCarry(input_items.NOTHING)
    output = list(read(call("c1"), call_output("c1")))
    carry.observe(output[:1])
    carry.current = input_items.join(carry.current, tuple(output[1:]), complete=False)
    carry.settle(output)
    assert carry.settled is carry.current
    assert carry.settled.open_calls == {}
    assert carry.observe(output) == ()
