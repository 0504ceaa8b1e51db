"""What a request defines is handed out to be compiled, before its response exists."""

from typing import Any

import pytest

from slipring.core.betas import Betas
from slipring.core.generation import CallArguments, CallStarted, Text
from slipring.core.session.loaded import Joined, Loaded
from slipring.core.turn.stages import Stages
from slipring.errors import InvalidRequest, RateLimited, Unavailable
from slipring.protocol.items import read_item
from slipring.protocol.requests import CreateRequest
from slipring.protocol.wire import encode, raw
from tests.core.stage import Json, Stage, World, function, message, only_error, types

PARAM = "tools[0].format.definition"
SEARCH = {"type": "tool_search", "execution": "client"}


def tool(definition: str = "a+", name: str = "t") -> Json:
    format = {"type": "grammar", "syntax": "regex", "definition": definition}
    return {"type": "custom", "name": name, "format": format}


def meaningless(param: str = PARAM) -> InvalidRequest:
    return InvalidRequest(f"Invalid '{param}': no.", param=param)


def params(stage: Stage, lane: str | None = None) -> list[str]:
    (check,) = (check for turn, check in stage.checks.items() if turn.lane == lane)
    return [each.param for each in check.grammars]


def test_grammars_are_compiled_before_the_engine_is_asked():
    stage = Stage()
    assert stage.create(tools=[function("f"), tool(), tool("b", "u")]) == []
    assert params(stage) == [PARAM.replace("0", "1"), PARAM.replace("0", "2")]
    assert not stage.starts
    assert types(stage.check()) == ["created", "in_progress"]
    stage.complete()


def test_a_request_without_grammars_is_not_held_up():
    stage = Stage()
    stage.create(tools=[function("f"), {"type": "custom", "name": "t"}])
    assert stage.starts


def test_a_grammar_that_cannot_be_compiled_refuses_the_request_and_frees_its_lane():
    stage = Stage()
    stage.create(tools=[tool()])
    stage.create()
    told = stage.fail(error=meaningless())
    assert types(told) == ["error", "created", "in_progress"]
    assert (told[0]["status"], told[0]["error"]["param"]) == (400, PARAM)
    stage.complete()


def test_turns_of_a_lane_keep_their_order_and_others_do_not_wait():
    stage = Stage()
    stage.create("a", tools=[tool()])
    stage.create("a", metadata={"n": "2"})
    assert types(stage.create("b")) == ["created", "in_progress"]
    assert stage.check("a")
    stage.complete("a")
    stage.complete("b")
    assert stage.complete("a")["metadata"] == {"n": "2"}


def test_tools_that_are_the_parents_are_not_compiled_again():
    stage = Stage()
    stage.create(tools=[tool()])
    stage.check()
    first = stage.complete()
    stage.create(previous=first["id"], tools=[tool()])
    assert stage.starts
    second = stage.complete()
    stage.create(previous=second["id"], tools=[tool("b")])
    assert params(stage) == [PARAM]
    stage.check()
    stage.complete()


def test_a_failure_on_the_parents_lane_forgets_the_parent_as_any_other():
    stage = Stage()
    first = stage.respond()
    stage.create(previous=first["id"], tools=[tool()])
    stage.fail(error=meaningless())
    assert first["id"] not in stage.cache


def test_items_bring_grammars_too():
    stage = Stage()
    stage.create(input=[message("hi"), {"type": "additional_tools", "role": "developer", "tools": [tool()]}])
    assert params(stage) == ["input[1].tools[0].format.definition"]
    stage.check()
    stage.complete()


def test_a_warmup_is_checked():
    stage = Stage()
    stage.create(generate=False, tools=[tool()])
    assert only_error(stage.fail(error=meaningless()))["error"]["param"] == PARAM


def test_a_response_in_the_background_is_refused_as_any_other():
    stage = Stage()
    request = CreateRequest(model="m", input=raw("hi"), tools=raw([tool()]))
    stages = Stages(lambda: 0.0)
    actions = stage.session.create(request, stages, size_bytes=1, now=stage.world.now, detached=True)
    stage._run(actions)
    told = stage.fail(error=meaningless())
    assert only_error(told)["error"]["param"] == PARAM


def test_errors_about_items_of_a_conversation_name_the_conversation():
    stage = Stage()
    brings = {"type": "additional_tools", "role": "developer", "tools": [tool()]}
    stage.create(conversation="conv_1", input=[message("hi"), brings])
    (turn,) = stage.loads
    stage.loads.clear()
    joined = Joined("conv_1", 0, (read_item(encode(brings), "items[0]"),))
    stage._run(stage.session.loaded(turn, Loaded(None, {}, joined), stage.world.now))
    assert params(stage) == ["input[0].tools[0].format.definition", "input[2].tools[0].format.definition"]
    (check,) = stage.checks.values()
    error = only_error(stage.fail(error=meaningless(check.grammars[1].param)))["error"]
    assert error["param"] == "input[1].tools[0].format.definition"


def test_a_client_that_leaves_cancels_the_check():
    stage = Stage()
    stage.create(tools=[tool()])
    (turn,) = stage.checks
    (check,) = stage.checks.values()
    stage.hang_up()
    assert stage.cancelled == [turn]
    assert stage.session.checked(check) == []


def test_a_check_that_outlives_the_grace_of_its_connection_is_given_up():
    stage = Stage()
    stage.create(tools=[tool()])
    stage.end(Unavailable("bye"), grace_s=5.0)
    told = stage.tick(6.0)
    assert types(told) == ["error", "error"]
    assert stage.close is not None


def test_a_check_that_ends_within_the_grace_becomes_a_response():
    stage = Stage()
    stage.create(tools=[tool()])
    stage.end(Unavailable("bye"), grace_s=5.0)
    assert types(stage.check()) == ["created", "in_progress"]
    stage.complete()
    assert stage.close is not None


@pytest.mark.parametrize(
    ("limits", "fields", "param"),
    [
        ({"max_grammars": 1}, {"tools": [tool(), tool(name="u")]}, "tools[1].format.definition"),
        ({"max_grammar_bytes": 4}, {"tools": [tool("abcde")]}, PARAM),
        ({"max_schema_bytes": 15}, {"tools": [function("f")]}, "tools[0].parameters"),
        (
            {"max_schema_bytes": 15},
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "string"}}}},
            "text.format.schema",
        ),
    ],
)
def test_what_is_too_large_is_refused_before_anything_is_done_with_it(
    limits: dict[str, int], fields: Json, param: str
):
    stage = Stage(World(**limits))
    assert only_error(stage.create(**fields))["error"]["param"] == param
    assert not stage.checks


# What is appended to a rollout.


def searching() -> tuple[Stage, str, str]:
    """A rollout that waits for what its client finds; its id, and that of the call."""
    stage = Stage(betas=Betas(rollout=True))
    stage.create(rollout=True, tools=[SEARCH])
    told = stage.finish(CallStarted(kind="tool_search", name="tool_search"), CallArguments("{}"))
    return stage, told[-1]["response_id"], told[-1]["required_input"][0]["call_id"]


def found(call_id: str, *tools: Json) -> Json:
    return {"type": "tool_search_output", "call_id": call_id, "execution": "client", "tools": tools}


def test_tools_that_were_searched_for_are_compiled_before_they_are_appended():
    stage, target, call_id = searching()
    assert stage.append(target, found(call_id, tool())) == []
    (check,) = stage.checks_appended
    assert [each.param for each in check.grammars] == ["input[0].tools[0].format.definition"]
    assert types(stage.check_appended()) == ["output_item.added", "output_item.done"]
    stage.complete(text="done")


@pytest.mark.parametrize("error", [meaningless("input[0].tools[0].format.definition"), RateLimited("later")])
def test_what_cannot_be_compiled_is_given_back_and_may_be_sent_again(error: Any):
    stage, target, call_id = searching()
    stage.append(target, found(call_id, tool()))
    (told,) = stage.check_appended(error)
    assert told["type"] == "response.append.failed"
    assert (told["error"]["code"], told["error"]["param"]) == ("invalid_input", error.param)
    assert types(stage.append(target, found(call_id))) == ["output_item.added", "output_item.done"]
    stage.finish(Text("done"))


def test_what_is_appended_is_bounded_too():
    stage, target, call_id = searching()
    (told,) = stage.append(target, found(call_id, tool("a" * 70_000)))
    assert told["error"]["param"] == "input[0].tools[0].format.definition"
    stage.append(target, found(call_id))
    stage.finish(Text("done"))


def test_what_was_compiled_for_a_response_that_is_over_is_given_back():
    stage, target, call_id = searching()
    stage.append(target, found(call_id, tool()))
    stage.append(target, found(call_id))
    stage.finish(Text("done"))
    (told,) = stage.check_appended()
    assert told["error"]["code"] == "response_already_completed"


def test_nothing_is_compiled_for_a_response_that_is_no_rollout():
    stage = Stage(betas=Betas(rollout=True))
    stage.create()
    (told,) = stage.append("resp_1", found("call_1", tool()))
    assert told["error"]["code"] == "append_not_supported"
    assert not stage.checks_appended
    stage.complete()


def test_nothing_is_appended_to_a_connection_that_is_closed():
    stage, target, call_id = searching()
    stage.append(target, found(call_id, tool()))
    (check,) = stage.checks_appended
    stage.hang_up()
    assert stage.session.appended(check.asked, stage.world.now) == []
