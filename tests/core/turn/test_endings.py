"""Responses that fail in a later step: what is kept of them, and how they are continued."""

import json
from typing import Any

import pytest

from slipring.base.errors import ContextLengthExceeded, ServerError, Unavailable
from slipring.core.betas import Betas
from slipring.core.checks.policies import Check, Policy
from slipring.core.generation import Delta, Text, Thought
from tests.core.connection import Connection, Server, call_output, message, types
from tests.core.hosted_turns import HOSTED, end_only, hosted, kinds, running, told
from tests.core.hosted_turns import begin as begin_hosted
from tests.core.turn.steps.test_rollout import TOOLS, begin, call, open_connection

ASKING = {"type": "mcp", "server_label": "s"}
"""Its calls need approval."""


def failed_rollout(connection: Connection, *deltas: Delta, **fields: Any) -> dict[str, Any]:
    """A rollout of two steps that fails in the second, after these deltas; returns its response object."""
    response_id, (one,) = begin(connection, Thought("hm"), *call(), **fields)
    connection.append(response_id, call_output(one, "42"))
    connection.generate(*deltas)
    connection.fail()
    if connection.saves:
        connection.save()
    response: dict[str, Any] = connection.order.responses[-1]
    assert (response["id"], response["status"]) == (response_id, "failed")
    return response


def test_the_finished_steps_and_their_outputs_are_kept():
    connection = open_connection()
    response = failed_rollout(connection, Thought("so"), Text("hal"))
    assert kinds(response) == ["reasoning", "function_call", "function_call_output"]
    assert response["error"]["code"] == "server_error"
    assert response["usage"]["output_tokens"] == 3
    assert connection.cache.find(response["id"]) is not None


@pytest.mark.parametrize("more", ["", "and now?"])
def test_a_retry_reads_the_outputs_and_nothing_else_again(more):
    connection = open_connection()
    connection.leaves_positions = True
    response = failed_rollout(connection, Text("hal"))
    kept = connection.cache.find(response["id"])
    connection.create(previous=response["id"], input=[message(more)] if more else [], tools=TOOLS)
    job = connection.job()
    assert [item.type for item in job.input] == ["function_call_output", *(["message"] if more else [])]
    assert job.parent is kept
    assert kept.position.content == [
        {"type": "message", "role": "user", "content": "hi"},
        {"type": "reasoning", "content": "hm"},
        {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"},
    ]
    done = connection.complete()
    assert (done["status"], done["previous_response_id"]) == ("completed", response["id"])


def test_a_failure_in_the_first_step_keeps_nothing():
    connection = open_connection()
    first = connection.respond()
    connection.create(previous=first["id"], rollout=True, tools=TOOLS)
    connection.generate(*call())
    connection.fail()
    response = connection.order.responses[-1]
    assert (kinds(response), response["usage"]) == (["function_call"], None)
    assert not len(connection.cache)


def test_the_parent_of_a_kept_response_is_not_evicted():
    connection = open_connection()
    first = connection.respond()
    response = failed_rollout(connection, previous=first["id"])
    assert {first["id"], response["id"]} <= {state.id for state in connection.cache.states()}
    assert connection.cache.is_latest(response["id"])


def test_a_kept_response_is_stored_before_it_is_called_failed():
    connection = open_connection()
    response_id, (one,) = begin(connection, store=True)
    connection.append(response_id, call_output(one))
    assert types(connection.fail()) == []
    assert types(connection.save()) == ["failed"]
    again = open_connection(connection.server)
    again.create(previous=response_id, input=[], tools=TOOLS)
    again.load()
    assert [item.type for item in again.job().input] == ["function_call_output"]
    assert again.complete()["status"] == "completed"


def test_if_it_cannot_be_saved_it_fails_once_and_keeps_nothing():
    connection = open_connection()
    first = connection.respond()
    response_id, (one,) = begin(connection, store=True, previous=first["id"])
    connection.append(response_id, call_output(one))
    connection.generate(Text("hal"))
    connection.fail()
    assert types(connection.fail(error=Unavailable("The store is gone."))) == ["failed"]
    response = connection.order.responses[-1]
    assert (response["error"]["message"], response["usage"]) == ("The store is gone.", None)
    assert not len(connection.cache)


def test_the_tokens_of_a_summary_count_with_those_of_the_kept_steps():
    connection = Connection()
    first = connection.respond(says="much " * 500)
    compaction = {"type": "compaction", "compact_threshold": 1000}
    connection.create(previous=first["id"], tools=HOSTED, context_management=[compaction])
    connection.resolve()
    connection.weigh(2000)
    connection.finish(Text("a summary"))
    connection.finish(*hosted())
    end_only(connection)
    connection.generate(Text("hal"))
    connection.fail()
    response = connection.order.responses[-1]
    assert (response["status"], response["usage"]["output_tokens"]) == ("failed", 3 + 3)
    assert kinds(response) == ["mcp_list_tools", "compaction", "mcp_call"]


def test_stages_of_a_kept_response_end_with_its_save():
    connection = Connection(betas=Betas(timing=True, rollout=True))
    response_id, (one,) = begin(connection, store=True)
    connection.append(response_id, call_output(one))
    connection.fail()
    timing = connection.save()[-1]["timing"]
    assert [stage["name"] for stage in timing["stages"]][-2:] == ["store", "terminal"]
    assert timing["tokens"]["output"] == 3


def test_a_step_that_the_engine_refuses_is_kept_too():
    refusal = ContextLengthExceeded(2, 1)
    connection = open_connection(refuses=lambda job: refusal if job.parent is not None else None)
    response_id, (one,) = begin(connection)
    sent = connection.append(response_id, call_output(one))
    assert types(sent)[-1] == "failed"
    assert connection.cache.find(response_id) is not None


def test_appends_and_steers_that_wait_are_returned():
    connection = open_connection()
    response_id, (one,) = begin(connection)
    connection.append(response_id, call_output(one))
    connection.generate(*call("g"), Text("meanwhile"))
    (two,) = [event["item"]["call_id"] for event in connection.events if _is_call(event, "g")]
    connection.append(response_id, call_output(two))
    connection.steer(response_id)
    assert types(connection.fail())[-3:] == ["append.failed", "failed", "steer.failed"]
    connection.create(previous=response_id, input=[], tools=TOOLS)
    assert [item.type for item in connection.job().input] == ["function_call_output"]
    connection.complete()


def _is_call(event, name):
    return event["type"] == "response.output_item.done" and event["item"].get("name") == name


# Hosted calls.


def test_hosted_calls_of_finished_steps_are_not_made_again():
    connection = Connection()
    response_id = begin_hosted(connection)
    connection.finish(*hosted())
    end_only(connection, "42")
    connection.generate(Text("hal"))
    connection.fail()
    response = connection.order.responses[-1]
    assert (response["status"], kinds(response)) == ("failed", ["mcp_list_tools", "mcp_call"])
    connection.create(previous=response_id, input=[], tools=HOSTED)
    connection.resolve()
    assert told(connection.job()) == ["hi", "call f{}", "output 42"]
    assert [item.type for item in connection.job().input] == ["function_call_output"]
    assert connection.complete()["status"] == "completed"
    assert not running(connection)


def test_hosted_calls_of_the_failed_step_itself_are_kept():
    """One has ended, one runs, and the model was writing."""
    connection = Connection()
    connection.leaves_positions = True
    response_id = begin_hosted(connection)
    connection.finish(*hosted())
    end_only(connection, "42")
    connection.generate(*hosted("g"), *hosted("f", '{"n":1}'), Text("hal"))
    connection.end_call(running(connection)[0], "43")
    assert types(connection.fail())[-1] == "failed"
    response = connection.order.responses[-1]
    statuses = [item["status"] for item in response["output"] if item["type"] == "mcp_call"]
    assert statuses == ["completed", "completed", "failed"]
    assert len(connection.cancelled_calls) == 1
    state = connection.cache.find(response_id)
    assert state is not None
    assert state.position is None
    connection.create(previous=response_id, input="go on", tools=HOSTED)
    connection.resolve()
    assert [told(connection.job())[index] for index in (2, 3, -1)] == ["output 42", "call g{}", "go on"]
    assert "output 43" in told(connection.job())
    connection.complete()


def test_approved_calls_are_kept_if_the_first_step_fails():
    connection = Connection()
    connection.leaves_positions = True
    begin_hosted(connection, tools=[ASKING])
    connection.finish(*hosted())
    asked = connection.order.responses[-1]
    answer = {
        "type": "mcp_approval_response",
        "approval_request_id": asked["output"][-1]["id"],
        "approve": True,
    }
    connection.create(previous=asked["id"], input=[answer], tools=[ASKING])
    connection.resolve()
    connection.claim()
    end_only(connection, "42")
    connection.generate(Text("hal"))
    connection.fail()
    response = connection.order.responses[-1]
    assert (response["status"], kinds(response)) == ("failed", ["mcp_call"])
    state = connection.cache.find(response["id"])
    assert state is not None
    assert state.position is None, "no step has ended"
    connection.create(previous=response["id"], input="go on", tools=[ASKING])
    connection.resolve()
    assert told(connection.job())[-2:] == ["output 42", "go on"]


def test_hosted_calls_of_the_first_step_are_not_kept():
    connection = Connection()
    response_id = begin_hosted(connection)
    connection.generate(*hosted())
    connection.fail()
    assert connection.cache.find(response_id) is None


def test_a_connection_that_ends_keeps_a_response_that_waits_for_hosted_calls():
    connection = Connection()
    begin_hosted(connection, store=True)
    connection.finish(*hosted())
    connection.end(Unavailable("The server is shutting down."), grace_s=10)
    connection.tick(20)
    (save,) = connection.saves.values()
    assert save.state.response.status == "failed"
    assert [json.loads(item.raw)["status"] for item in save.state.output[1:]] == ["failed"]
    assert types(connection.save()) == ["failed", "error"]


def test_a_failed_response_adds_nothing_to_its_conversation():
    connection = Connection()
    connection.create(tools=HOSTED, conversation="conv_1", store=False)
    connection.load_conversation(message("before"))
    connection.resolve()
    connection.finish(*hosted())
    end_only(connection, "42")
    assert types(connection.fail())[-1] == "failed"
    assert not connection.saves


# Safety checks.


def guarded() -> Connection:
    server = Server()
    server.policy = Policy((Check("guard", action="block"),))
    return open_connection(server)


def second_step(connection: Connection, output: str) -> str:
    connection.create(rollout=True, tools=TOOLS)
    connection.inspect_all()
    connection.finish(*call())
    connection.inspect_all()
    done = connection.events[-1]
    connection.append(done["response_id"], call_output(done["required_input"][0]["call_id"], output))
    return str(done["response_id"])


def test_a_blocked_step_keeps_nothing():
    connection = guarded()
    response_id = second_step(connection, "bad")
    connection.inspect_all()
    assert connection.order.responses[-1]["status"] == "failed"
    assert connection.cache.find(response_id) is None


def test_outputs_that_were_not_inspected_are_not_kept():
    connection = guarded()
    response_id = second_step(connection, "fine")
    assert connection.inspections
    connection.end(ServerError())
    returned, ended = connection.events[-3:-1]
    assert (returned["type"], ended["type"]) == ("response.append.failed", "response.completed")
    state = connection.cache.find(response_id)
    assert state is not None
    assert not any(b"fine" in item.raw for item in state.context())


def test_what_has_passed_is_kept_and_not_inspected_again():
    connection = guarded()
    response_id = second_step(connection, "fine")
    connection.inspect_all()
    connection.generate(Text("hal"))
    connection.fail()
    connection.inspections.clear()
    seen = len(connection.inspected)
    connection.create(previous=response_id, input=[], tools=TOOLS)
    connection.complete()
    connection.inspect_all()
    assert [text for _, _, text in connection.inspected[seen:]] == ["ok"]
