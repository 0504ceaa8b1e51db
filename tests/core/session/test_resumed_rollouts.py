"""A rollout whose caller is asked before each step: what arrives while the driver asks."""

import json
from typing import Any

from slipring.base.errors import ServerError
from slipring.core.betas import Betas
from slipring.core.checks.policies import Check, Policy
from slipring.core.generation import CallArguments, CallEnded, CallStarted, Text
from tests.core.connection import Connection, Json, Server, call_output, function, message, types

CALL = (CallStarted("function", "f"), CallArguments('{"x":1}'), CallEnded())
LATER = {"type": "function_call", "call_id": "later", "name": "f", "arguments": "{}", "async": True}


def resuming(**check: Any) -> Connection:
    """A rollout that has the output of its call, and whose caller is being asked. Its client can still append
    the output of a call that needs none."""
    server = Server()
    check = {"action": "block", "mode": "hold", "on_error": "closed", "subjects": ("tool_output",), **check}
    server.policy = Policy((Check("guard", **check),))
    connection = Connection(server, betas=Betas(rollout=True))
    connection.session.shared.asks_each_turn = True
    connection.create(rollout=True, tools=[function("f")], input=[LATER, message("hi")])
    connection.load()
    connection.finish(*CALL)
    connection.append("resp_1", call_output("call_1", "fine"))
    if check["action"] == "block":
        connection.inspect()
    assert connection.loads
    return connection


def last(connection: Connection) -> Json:
    return connection.events[-1]


def test_an_output_that_is_refused_meanwhile_fails_the_rollout() -> None:
    connection = resuming()
    connection.append("resp_1", call_output("later", "bad"))
    connection.inspect()
    assert last(connection)["type"] == "response.failed"
    assert last(connection)["response"]["error"]["code"] == "invalid_prompt"
    assert "bad" not in json.dumps(connection.events)
    assert len(connection.cache) == 0
    assert connection.reports[-1].turn is None


def test_a_check_that_gives_no_answer_meanwhile_fails_the_rollout_if_one_is_required() -> None:
    connection = resuming(action="flag")
    connection.inspect(guard=None)
    assert last(connection)["type"] == "response.failed"
    assert not connection.loads


def test_an_output_that_waits_for_its_verdict_is_read_by_the_next_step() -> None:
    connection = resuming()
    assert connection.append("resp_1", call_output("later", "cloudy")) == []
    assert connection.load() == []
    assert not connection.starts
    assert types(connection.inspect()) == ["output_item.added", "output_item.done"]
    assert not connection.loads  # its caller was asked once
    assert [json.loads(item.raw)["output"] for item in connection.job().input] == ["fine", "cloudy"]
    assert connection.finish(Text("so"))[-1]["type"] == "response.completed"


def test_an_output_that_passes_meanwhile_is_read_by_the_next_step() -> None:
    connection = resuming()
    connection.append("resp_1", call_output("later", "cloudy"))
    connection.inspect()
    assert types(connection.load()) == ["output_item.added", "output_item.done"]
    assert [json.loads(item.raw)["output"] for item in connection.job().input] == ["fine", "cloudy"]


def test_nothing_is_asked_any_more_for_a_rollout_that_has_ended() -> None:
    connection = resuming()
    (turn,) = connection.session.running_and_queued()
    connection.end(ServerError("stop"))
    assert connection.cancelled == [turn]
    assert not connection.loads


def test_a_rollout_keeps_its_finished_steps_when_its_client_leaves_before_the_next_may_begin() -> None:
    """The check gives no answer about an appended output, and is asked again before a step reads it."""
    server = Server()
    check = Check("guard", action="block", mode="hold", on_error="open", subjects=("tool_output",))
    server.policy = Policy((check,))
    connection = Connection(server, betas=Betas(rollout=True))
    connection.create(rollout=True, tools=[function("f")], store=True)
    connection.finish(*CALL)
    connection.append("resp_1", call_output("call_1", "unsure"))
    connection.inspect(guard=None)
    (turn,) = connection.session.running_and_queued()
    assert turn.place == "inspecting"
    connection.hang_up()
    (save,) = connection.saves.values()
    assert [item.type for item in save.state.output] == ["function_call"]  # not what has not passed
    assert [*save.state.carry.open_calls] == ["call_1"]
    assert save.state.response.status == "completed"
    assert save.state.response.usage is not None
    connection.save()
    other = server.connect()
    other.create(previous="resp_1", input=[call_output("call_1", "fine")])
    other.load()
    other.inspect_all()
    assert [json.loads(item.raw)["output"] for item in other.job().input] == ["fine"]
