"""Grammars of a request are compiled before its response is created."""

from typing import Any

import pytest

from slipring.base.errors import InvalidRequest, RateLimited, Unavailable
from slipring.core.betas import Betas
from slipring.core.generation import CallArguments, CallStarted, Text
from slipring.core.session.actions import Loaded
from slipring.core.turn.stages import Stages
from slipring.core.turn.turn import Joined
from slipring.protocol.items.items import read_item
from slipring.protocol.requests import CreateRequest
from slipring.protocol.wire import encode, raw
from tests.core.connection import Connection, Json, Server, function, message, only_error, types

PARAM = "tools[0].format.definition"
SEARCH = {"type": "tool_search", "execution": "client"}


def tool(definition: str = "a+", name: str = "t") -> Json:
    format = {"type": "grammar", "syntax": "regex", "definition": definition}
    return {"type": "custom", "name": name, "format": format}


def invalid_grammar(param: str = PARAM) -> InvalidRequest:
    return InvalidRequest(f"Invalid '{param}': no.", param=param)


def params(connection: Connection, lane: str | None = None) -> list[str]:
    (check,) = (check for turn, check in connection.checks.items() if turn.asked.lane == lane)
    return [each.param for each in check.grammars]


def test_grammars_are_compiled_before_the_engine_starts():
    connection = Connection()
    assert connection.create(tools=[function("f"), tool(), tool("b", "u")]) == []
    assert params(connection) == [PARAM.replace("0", "1"), PARAM.replace("0", "2")]
    assert not connection.starts
    assert types(connection.check()) == ["created", "in_progress"]
    connection.complete()


def test_a_request_without_grammars_starts_at_once():
    connection = Connection()
    connection.create(tools=[function("f"), {"type": "custom", "name": "t"}])
    assert connection.starts


def test_a_grammar_that_cannot_be_compiled_refuses_the_request_and_frees_its_lane():
    connection = Connection()
    connection.create(tools=[tool()])
    connection.create()
    sent = connection.fail(error=invalid_grammar())
    assert types(sent) == ["error", "created", "in_progress"]
    assert (sent[0]["status"], sent[0]["error"]["param"]) == (400, PARAM)
    connection.complete()


def test_turns_of_a_lane_keep_their_order_and_others_do_not_wait():
    connection = Connection()
    connection.create("a", tools=[tool()])
    connection.create("a", metadata={"n": "2"})
    assert types(connection.create("b")) == ["created", "in_progress"]
    assert connection.check("a")
    connection.complete("a")
    connection.complete("b")
    assert connection.complete("a")["metadata"] == {"n": "2"}


def test_tools_of_the_parent_are_not_compiled_again():
    connection = Connection()
    connection.create(tools=[tool()])
    connection.check()
    first = connection.complete()
    connection.create(previous=first["id"], tools=[tool()])
    assert connection.starts
    second = connection.complete()
    connection.create(previous=second["id"], tools=[tool("b")])
    assert params(connection) == [PARAM]
    connection.check()
    connection.complete()


def test_a_grammar_failure_on_the_parents_lane_evicts_the_parent():
    connection = Connection()
    first = connection.respond()
    connection.create(previous=first["id"], tools=[tool()])
    connection.fail(error=invalid_grammar())
    assert first["id"] not in connection.cache


def test_grammars_in_items_are_compiled_too():
    connection = Connection()
    connection.create(
        input=[message("hi"), {"type": "additional_tools", "role": "developer", "tools": [tool()]}]
    )
    assert params(connection) == ["input[1].tools[0].format.definition"]
    connection.check()
    connection.complete()


def test_a_warmup_is_checked():
    connection = Connection()
    connection.create(generate=False, tools=[tool()])
    assert only_error(connection.fail(error=invalid_grammar()))["error"]["param"] == PARAM


def test_a_background_response_is_refused_like_any_other():
    connection = Connection()
    request = CreateRequest(model="m", input=raw("hi"), tools=raw([tool()]))
    stages = Stages(lambda: 0.0)
    actions = connection.session.create(
        request, stages, size_bytes=1, now=connection.server.now, detached=True
    )
    connection._run(actions)
    sent = connection.fail(error=invalid_grammar())
    assert only_error(sent)["error"]["param"] == PARAM


def test_errors_about_items_of_a_conversation_name_the_conversation():
    connection = Connection()
    brings = {"type": "additional_tools", "role": "developer", "tools": [tool()]}
    connection.create(conversation="conv_1", input=[message("hi"), brings])
    _, load = connection.loads.popitem()
    joined = Joined("conv_1", 0, (read_item(encode(brings), "items[0]"),))
    connection.done(load, Loaded(None, {}, joined))
    assert params(connection) == [
        "input[0].tools[0].format.definition",
        "input[2].tools[0].format.definition",
    ]
    (check,) = connection.checks.values()
    error = only_error(connection.fail(error=invalid_grammar(check.grammars[1].param)))["error"]
    assert error["param"] == "input[1].tools[0].format.definition"


def test_a_client_that_leaves_cancels_the_check():
    connection = Connection()
    connection.create(tools=[tool()])
    (turn,) = connection.checks
    (check,) = connection.checks.values()
    connection.hang_up()
    assert connection.cancelled == [turn]
    assert connection.done(check) == []


def test_a_check_that_outlasts_the_grace_period_is_cancelled():
    connection = Connection()
    connection.create(tools=[tool()])
    connection.end(Unavailable("bye"), grace_s=5.0)
    sent = connection.tick(6.0)
    assert types(sent) == ["error", "error"]
    assert connection.close is not None


def test_a_check_that_ends_within_the_grace_period_leads_to_a_response():
    connection = Connection()
    connection.create(tools=[tool()])
    connection.end(Unavailable("bye"), grace_s=5.0)
    assert types(connection.check()) == ["created", "in_progress"]
    connection.complete()
    assert connection.close is not None


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
def test_oversized_definitions_are_refused_before_compilation(
    limits: dict[str, int], fields: Json, param: str
):
    connection = Connection(Server(**limits))
    assert only_error(connection.create(**fields))["error"]["param"] == param
    assert not connection.checks


# Appends.


def searching() -> tuple[Connection, str, str]:
    """Start a rollout that waits for a tool search; returns its id and the call's id."""
    connection = Connection(betas=Betas(rollout=True))
    connection.create(rollout=True, tools=[SEARCH])
    sent = connection.finish(CallStarted(kind="tool_search", name="tool_search"), CallArguments("{}"))
    return connection, sent[-1]["response_id"], sent[-1]["required_input"][0]["call_id"]


def found(call_id: str, *tools: Json) -> Json:
    return {"type": "tool_search_output", "call_id": call_id, "execution": "client", "tools": tools}


def test_grammars_of_found_tools_are_compiled_before_they_are_appended():
    connection, target, call_id = searching()
    assert connection.append(target, found(call_id, tool())) == []
    (check,) = connection.checks_appended
    assert [each.param for each in check.grammars] == ["input[0].tools[0].format.definition"]
    assert types(connection.check_appended()) == ["output_item.added", "output_item.done"]
    connection.complete(text="done")


@pytest.mark.parametrize(
    "error", [invalid_grammar("input[0].tools[0].format.definition"), RateLimited("later")]
)
def test_an_append_with_an_invalid_grammar_is_returned_and_may_be_retried(error: Any):
    connection, target, call_id = searching()
    connection.append(target, found(call_id, tool()))
    (sent,) = connection.check_appended(error)
    assert sent["type"] == "response.append.failed"
    assert (sent["error"]["code"], sent["error"]["param"]) == ("invalid_input", error.param)
    assert types(connection.append(target, found(call_id))) == ["output_item.added", "output_item.done"]
    connection.finish(Text("done"))


def test_definitions_in_appends_are_bounded_too():
    connection, target, call_id = searching()
    (sent,) = connection.append(target, found(call_id, tool("a" * 70_000)))
    assert sent["error"]["param"] == "input[0].tools[0].format.definition"
    connection.append(target, found(call_id))
    connection.finish(Text("done"))


def test_an_append_compiled_after_its_response_ended_is_returned():
    connection, target, call_id = searching()
    connection.append(target, found(call_id, tool()))
    connection.append(target, found(call_id))
    connection.finish(Text("done"))
    (sent,) = connection.check_appended()
    assert sent["error"]["code"] == "response_already_completed"


def test_nothing_is_compiled_for_a_response_that_is_not_a_rollout():
    connection = Connection(betas=Betas(rollout=True))
    connection.create()
    (sent,) = connection.append("resp_1", found("call_1", tool()))
    assert sent["error"]["code"] == "append_not_supported"
    assert not connection.checks_appended
    connection.complete()


def test_nothing_is_appended_to_a_connection_that_is_closed():
    connection, target, call_id = searching()
    connection.append(target, found(call_id, tool()))
    (check,) = connection.checks_appended
    connection.hang_up()
    assert connection.session.appended(check.asked, connection.server.now) == []
