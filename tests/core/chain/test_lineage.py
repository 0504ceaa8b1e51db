"""How new items join a chain: calls and outputs, references, tools and settings that items bring."""

import json

import pytest

from slipring.core.chain import lineage
from slipring.core.chain.state import Carry
from slipring.core.generation import CallArguments, CallStarted, Text
from slipring.errors import InvalidRequest
from slipring.protocol.items import Item, read_item
from tests.core.stage import Json, Stage, call_output, function, message, only_error


def read(*items: Json) -> tuple[Item, ...]:
    return tuple(read_item(json.dumps(item).encode(), f"input[{n}]") for n, item in enumerate(items))


def join(*items: Json, complete: bool = True) -> Carry:
    return lineage.join(lineage.NOTHING, read(*items), complete=complete)


def call(call_id: str, kind: str = "function_call", **fields: object) -> Json:
    body = {"custom_tool_call": {"input": "x"}, "function_call": {"arguments": "{}"}}.get(kind, {})
    return {"type": kind, "call_id": call_id, "name": "f", **body, **fields}


# Calls and their outputs.

KINDS = {
    "function_call": "function call",
    "custom_tool_call": "custom tool call",
    "computer_call": "computer call",
    "shell_call": "shell call",
    "apply_patch_call": "apply patch call",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_and_its_output_leave_nothing_open(kind):
    assert join(call("c1", kind), call_output("c1", kind=f"{kind}_output")).open_calls == {}


@pytest.mark.parametrize(("kind", "noun"), KINDS.items())
def test_an_unanswered_call_is_named(kind, noun):
    with pytest.raises(InvalidRequest) as caught:
        join(call("c1", kind))
    assert caught.value.message == f"No tool output found for {noun} c1."
    assert caught.value.param == "input"


@pytest.mark.parametrize(("kind", "noun"), KINDS.items())
def test_an_orphaned_output_is_named(kind, noun):
    with pytest.raises(InvalidRequest) as caught:
        join(message("hi"), call_output("c1", kind=f"{kind}_output"))
    assert caught.value.message == f"No tool call found for {noun} output with call_id c1."
    assert caught.value.param == "input[1].call_id"


def test_an_output_must_be_of_its_calls_kind():
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


def test_every_call_must_be_answered_before_a_response_is_made():
    with pytest.raises(InvalidRequest, match="function call c2"):
        join(call("c1"), call("c2"), call_output("c1"))


def test_a_warmup_may_leave_calls_open():
    assert set(join(call("c1"), complete=False).open_calls) == {"c1"}


@pytest.mark.parametrize("kind", ["function_call", "custom_tool_call"])
@pytest.mark.parametrize("excuse", [{"async": True}, {"status": "incomplete"}])
def test_asynchronous_and_cut_off_calls_do_not_insist(kind, excuse):
    carry = join(call("c1", kind, **excuse))
    assert carry.open_calls["c1"].required is False


def test_an_asynchronous_call_can_be_answered_later():
    stage = Stage()
    first = stage.respond(input=[call("c1", **{"async": True}), message("go")])  # type: ignore[arg-type]
    second = stage.respond(previous=first["id"])
    assert stage.respond(previous=second["id"], input=[call_output("c1")])["status"] == "completed"


@pytest.mark.parametrize(("kind", "noun"), [("function", "function call"), ("custom", "custom tool call")])
def test_calls_of_a_response_bind_its_continuations(kind, noun):
    stage = Stage()
    stage.create("a")
    stage.finish(
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
    told = only_error(stage.create("fork", previous="resp_1", input="so?"))
    assert told["error"]["message"] == f"No tool output found for {noun} call_1."
    told = only_error(stage.create("fork", previous="resp_1", input=outputs[:1]))
    assert told["error"]["message"] == f"No tool output found for {noun} call_2."
    assert stage.respond("fork", previous="resp_1", input=outputs)["status"] == "completed"


def test_answering_a_call_on_one_branch_leaves_it_open_on_the_others():
    stage = Stage()
    stage.create("a")
    stage.finish(CallStarted(kind="function", name="f"), lane="a")
    stage.respond("b", previous="resp_1", input=[call_output("call_1", "one")])
    told = only_error(stage.create("c", previous="resp_1"))
    assert told["error"]["message"] == "No tool output found for function call call_1."
    stage.respond("c", previous="resp_1", input=[call_output("call_1", "two")])


def test_calls_add_up_down_the_chain():
    stage = Stage()
    first = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "async": True}
    stage.create(input=[first, message("go")])
    stage.finish(CallStarted(kind="function", name="g"))
    outputs = [call_output("c1"), call_output("call_1")]
    assert stage.respond(previous="resp_1", input=outputs)["status"] == "completed"


def test_an_answered_call_stays_answered_down_the_chain():
    stage = Stage()
    stage.create()
    stage.finish(CallStarted(kind="function", name="f"))
    second = stage.respond(previous="resp_1", input=[call_output("call_1")])
    assert stage.respond(previous=second["id"])["status"] == "completed"


@pytest.mark.parametrize("kind", ["function", "custom"])
def test_a_call_that_was_cut_off_need_not_be_answered(kind):
    """Nobody can run half a call; on the wire, a custom one does not even say that it is half."""
    stage = Stage()
    stage.create()
    stage.finish(CallStarted(kind=kind, name="f"), CallArguments('{"a'), reason="max_output_tokens")
    assert stage.respond(previous="resp_1", input="go on")["status"] == "completed"


def test_calls_before_the_cut_must_be_answered():
    stage = Stage()
    stage.create("a")
    stage.finish(CallStarted(kind="custom", name="f"), Text("and th"), lane="a", reason="max_output_tokens")
    told = only_error(stage.create("fork", previous="resp_1", input="go on"))
    assert told["error"]["message"] == "No tool output found for custom tool call call_1."


# References.


def test_references_are_replaced_in_their_places():
    target = read(message("the target"))[0]
    items = read(message("a"), {"type": "item_reference", "id": "msg_1"}, message("b"))
    assert lineage.references(items) == {"msg_1"}
    assert lineage.resolve(items, {"msg_1": target}) == (items[0], target, items[2])


def test_an_unknown_reference_is_named_by_its_place():
    items = read(message("a"), {"id": "msg_1"})
    with pytest.raises(InvalidRequest, match="Item with id 'msg_1' not found") as caught:
        lineage.resolve(items, {})
    assert caught.value.param == "input[1].id"


def test_a_referenced_call_can_be_answered():
    stage = Stage()
    stage.create(store=True)
    stage.finish(CallStarted(kind="function", name="f"))
    stage.save()
    stage.create(input=[{"type": "item_reference", "id": "fc_10000"}, call_output("call_1")])
    stage.load()
    assert [item.type for item in stage.job().context()] == ["function_call", "function_call_output"]


# Tools that items bring.


def additional(*tools: Json) -> Json:
    return {"type": "additional_tools", "role": "developer", "tools": list(tools)}


def offered(stage: Stage) -> list[str]:
    return [tool.name for tool in stage.job().offer.tools]


def test_additional_tools_are_offered_from_then_on():
    stage = Stage()
    stage.create(input=[additional(function("extra")), message("hi")], tools=[function("own")])
    assert offered(stage) == ["own", "extra"]
    stage.complete()
    stage.create(previous="resp_1")
    assert offered(stage) == ["extra"]


def test_additional_tools_add_up_and_a_newer_one_replaces_its_namesake():
    carry = join(
        additional(function("f", description="old"), function("g")),
        additional(function("f", description="new")),
    )
    assert [(tool.name, tool.definition.description) for tool in carry.tools] == [("g", None), ("f", "new")]


def test_an_additional_tool_takes_the_place_of_its_namesake_in_the_request():
    stage = Stage()
    stage.create(
        input=[additional(function("f", description="new")), message("hi")],
        tools=[function("f", description="old"), function("g")],
    )
    tools = stage.job().offer.tools
    assert [(tool.name, tool.definition.description) for tool in tools] == [("g", None), ("f", "new")]


def test_additional_tools_are_not_echoed_as_tools():
    stage = Stage()
    assert stage.respond(input=[additional(function("extra")), message("hi")])["tools"] == []


def test_bad_additional_tools_are_named_by_their_place():
    told = only_error(Stage().create(input=[message("hi"), additional({"type": "function"})]))
    assert told["error"]["param"] == "input[1].tools[0].name"


def test_a_tool_choice_may_name_an_additional_tool():
    stage = Stage()
    stage.create(
        input=[additional(function("extra")), message("hi")],
        tool_choice={"type": "function", "name": "extra"},
    )
    assert stage.job().offer.required
    assert offered(stage) == ["extra"]


# Settings that items bring.

SCHEMA = {"type": "json_schema", "name": "answer", "schema": {"type": "object"}}


def configuration(**update: object) -> Json:
    return {"type": "configuration_update", **update}


def test_a_configuration_update_holds_for_later_turns():
    stage = Stage()
    stage.respond(input=[configuration(reasoning={"effort": "high"}, text={"format": SCHEMA}), message("hi")])
    stage.create(previous="resp_1")
    settings = stage.job().settings
    assert (settings.effort, settings.format.kind) == ("high", "json_schema")


def test_a_configuration_update_holds_for_its_own_turn():
    stage = Stage()
    stage.create(input=[configuration(reasoning={"effort": "low"}), message("hi")])
    assert stage.job().settings.effort == "low"


def test_a_response_echoes_what_it_was_made_with():
    stage = Stage()
    stage.respond(input=[configuration(reasoning={"effort": "low"}, text={"format": SCHEMA}), message("hi")])
    response = stage.respond(previous="resp_1")
    assert response["reasoning"]["effort"] == "low"
    assert response["text"]["format"] == SCHEMA


def test_the_last_configuration_update_wins():
    carry = join(configuration(reasoning={"effort": "low"}), configuration(reasoning={"effort": "high"}))
    assert carry.effort == "high"


def test_a_request_wins_over_what_the_chain_carries():
    stage = Stage()
    stage.respond(input=[configuration(reasoning={"effort": "low"}, text={"format": SCHEMA}), message("hi")])
    stage.create(previous="resp_1", reasoning={"effort": "high"}, text={"format": {"type": "json_object"}})
    settings = stage.job().settings
    assert (settings.effort, settings.format.kind) == ("high", "json_object")


@pytest.mark.parametrize(
    "update",
    [{}, {"reasoning": None, "text": None}, {"reasoning": {}, "text": {}}, {"reasoning": {"effort": "low"}}],
)
def test_what_an_update_does_not_mention_stays(update):
    carry = join(configuration(reasoning={"effort": "low"}, text={"format": SCHEMA}), configuration(**update))
    assert carry.effort == "low"
    assert carry.format is not None
    assert carry.format.kind == "json_schema"


def test_a_bad_format_in_an_update_is_named_by_its_place():
    told = only_error(Stage().create(input=[configuration(text={"format": {"type": "xml"}})]))
    assert told["error"]["param"] == "input[0].text.format.type"


def test_items_that_change_nothing_carry_on_what_was_there():
    stage = Stage()
    stage.respond(input=[additional(function("f")), message("hi")])
    stage.respond(previous="resp_1")
    before, after = stage.cache.find("resp_1"), stage.cache.find("resp_2")
    assert before is not None
    assert after is not None
    assert after.carry.tools is before.carry.tools


# Searches for tools.

SEARCH = {"type": "tool_search_call", "call_id": "c1", "execution": "client", "arguments": {"query": "x"}}


def found(*tools: Json, call_id: str | None = "c1") -> Json:
    return {"type": "tool_search_output", "call_id": call_id, "tools": list(tools)}


def test_a_search_waits_for_what_it_finds():
    with pytest.raises(InvalidRequest, match="No tool output found for tool search call c1"):
        join(SEARCH)
    with pytest.raises(InvalidRequest, match="No tool call found for tool search call output"):
        join(found())


def test_tools_that_were_found_can_be_called_from_then_on():
    carry = join(SEARCH, found({**function("f"), "defer_loading": True}))
    assert carry.open_calls == {}
    assert [tool.name for tool in carry.tools] == ["f"]


def test_a_search_that_a_server_made_waits_for_nobody():
    server = {"type": "tool_search_call", "execution": "server", "arguments": {}}
    carry = join(server, found(function("f"), call_id=None))
    assert [tool.name for tool in carry.tools] == ["f"]


def test_a_tool_that_was_found_is_checked_in_its_place():
    with pytest.raises(InvalidRequest) as caught:
        join(SEARCH, found({"type": "function"}))
    assert caught.value.param == "input[1].tools[0].name"


def test_a_chain_searches_loads_and_calls():
    search = {"type": "tool_search", "execution": "client"}
    tools = [search, {**function("later"), "defer_loading": True}]
    stage = Stage()
    stage.create(tools=tools)
    assert [tool.name for tool in stage.job().offer.tools] == ["tool_search"]
    stage.say(CallStarted("tool_search", "tool_search"), CallArguments('{"query":'), CallArguments('"x"}'))
    stage.finish()
    (item,) = stage.events[-1]["response"]["output"]
    assert item == {
        "type": "tool_search_call",
        "id": item["id"],
        "call_id": item["call_id"],
        "arguments": {"query": "x"},
        "status": "completed",
        "execution": "client",
    }
    parent = stage.events[-1]["response"]["id"]
    answer = found({**function("later"), "defer_loading": True}, call_id=item["call_id"])
    stage.create(input=[answer], tools=tools, previous=parent)
    assert [tool.name for tool in stage.job().offer.tools] == ["tool_search", "later"]
