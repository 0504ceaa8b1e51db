"""Rollouts: a whole agent loop as one response, with appended call outputs."""

import json
from typing import Any

import pytest

from slipring.base.errors import AuthenticationFailed, ContextLengthExceeded, Unavailable
from slipring.core.betas import Betas
from slipring.core.generation import CallArguments, CallEnded, CallStarted, Delta, Text, Thought
from slipring.core.session import appends
from slipring.core.session.actions import Record, Save
from tests.core.connection import (
    Connection,
    Server,
    call_output,
    context_of,
    function,
    message,
    only_error,
    types,
)

ROLLOUTS = Betas(rollout=True, inject=True)
TOOLS = [function("f"), function("g")]


def call(name: str = "f", arguments: str = "{}") -> list[Delta]:
    return [CallStarted(kind="function", name=name), CallArguments(arguments)]


def open_connection(server: Server | None = None, **watch: Any) -> Connection:
    return Connection(server, betas=ROLLOUTS, **watch)


def begin(
    connection: Connection, *deltas: Delta, lane: str | None = None, **fields: Any
) -> tuple[str, list[str]]:
    """Start a rollout that pauses after a tool call; returns its id and the ids of its calls."""
    connection.create(lane, rollout=True, tools=TOOLS, **fields)
    sent = connection.finish(*(deltas or call()), lane=lane)
    assert types(sent)[-1] == "done"
    return sent[-1]["response_id"], [stub["call_id"] for stub in sent[-1]["required_input"]]


def call_and_speak(connection: Connection) -> tuple[str, str]:
    """Start a rollout that generates text after a tool call; returns its id and the call's id."""
    connection.create(rollout=True, tools=TOOLS)
    sent = connection.generate(*call(), Text("meanwhile"))
    (done,) = [event["item"] for event in sent if event["type"] == "response.output_item.done"]
    return connection.events[0]["response"]["id"], done["call_id"]


def test_a_rollout_does_not_wait_after_a_stop_sequence():
    connection = open_connection()
    connection.create(rollout=True, tools=TOOLS)
    connection.finish(*call(), Text("so"), stop_sequence="END")
    response = connection.events[-1]["response"]
    assert (response["status"], response["stop_sequence"]) == ("completed", "END")
    assert [item["type"] for item in response["output"]] == ["function_call", "message"]


def test_a_loop_is_one_response():
    connection = open_connection()
    first, (one,) = begin(connection, Thought("hm"), *call())
    sent = connection.append(first, call_output(one, "42"))
    assert types(sent) == ["output_item.added", "output_item.done"]
    sent = connection.finish(*call("g"))
    assert types(sent)[-1] == "done"
    (stub,) = sent[-1]["required_input"]
    assert stub == {"type": "function_call_output", "call_id": stub["call_id"], "name": "g"}
    connection.append(first, call_output(stub["call_id"], "43"))
    assert types(connection.finish(Text("done")))[-1] == "completed"
    (response,) = connection.order.responses
    assert [item["type"] for item in response["output"]] == [
        *("reasoning", "function_call", "function_call_output"),
        *("function_call", "function_call_output", "message"),
    ]
    assert response["id"] == first
    assert response["usage"]["input_tokens"] == 21, "the tokens of all its steps"
    assert response["usage"]["output_tokens"] == 9
    assert len(connection.reports) == 1


def test_each_step_gets_the_whole_context_and_the_last_position():
    connection = open_connection()
    connection.create(rollout=True, tools=TOOLS, input=[message("go")])
    sent = connection.finish(*call(), position=(here := _Position()))
    response_id, (one,) = sent[-1]["response_id"], [sent[-1]["required_input"][0]["call_id"]]
    connection.append(response_id, call_output(one, "42"))
    job = connection.job()
    assert job.parent is not None
    assert job.parent.position is here
    assert job.parent.id == job.response_id == response_id
    assert [item["type"] for item in context_of(job)] == ["message", "function_call", "function_call_output"]
    assert [json.loads(item.raw)["output"] for item in job.input] == ["42"]


class _Position:
    size_bytes = 10

    def unshared_bytes(self, earlier):
        return 10


@pytest.mark.parametrize("store", [False, True])
def test_a_rollout_can_be_continued_like_any_response(store):
    connection = open_connection()
    first, (one,) = begin(connection, store=store)
    connection.append(first, call_output(one))
    connection.finish(Text("done"))
    if store:
        assert not connection.order.responses
        connection.save()
    connection.create(previous=first, input=[message("more")])
    context = context_of(connection.job())
    assert [item["type"] for item in context] == [
        *("message", "function_call", "function_call_output", "message", "message"),
    ]
    node = connection.job().parent
    assert node is not None
    assert [item.type for item in node.prompt] == ["message", "function_call", "function_call_output"]
    assert [item.type for item in node.answer] == ["message"]
    assert node.tokens is None, "its usage counts its context more than once"
    connection.complete()


def test_outputs_may_arrive_one_by_one_and_in_any_order():
    connection = open_connection()
    response_id, (one, two) = begin(connection, *call(), *call("g"))
    connection.append(response_id, call_output(two, "second"))
    assert not connection.starts
    connection.append(response_id, call_output(one, "first"))
    assert [json.loads(item.raw)["output"] for item in connection.job().input] == ["second", "first"]
    connection.finish(Text("ok"))
    assert connection.order.responses[0]["status"] == "completed"


def test_an_output_may_arrive_while_the_model_generates():
    connection = open_connection()
    connection.create(rollout=True, tools=TOOLS)
    sent = connection.generate(*call(), *call("g"))
    done = next(event for event in sent if event["type"] == "response.output_item.done")
    response_id = sent[0].get("response", {}).get("id") or connection.events[0]["response"]["id"]
    assert connection.append(response_id, call_output(done["item"]["call_id"])) == []
    sent = connection.finish()
    assert types(sent)[-3:] == ["output_item.added", "output_item.done", "done"]
    (stub,) = sent[-1]["required_input"]
    assert stub["name"] == "g"
    connection.append(response_id, call_output(stub["call_id"]))
    connection.complete()


def test_a_held_append_that_is_returned_leaves_its_call_open():
    """Accepting an append closes its call only for later appends; the state has what was committed."""
    connection = open_connection()
    response_id, call_id = call_and_speak(connection)
    assert connection.append(response_id, call_output(call_id)) == []
    (refused,) = connection.append(response_id, call_output(call_id))
    assert refused["error"]["code"] == "invalid_input"
    connection.finish(reason="max_output_tokens")
    state = connection.cache.find(response_id)
    assert state is not None
    assert set(state.carry.open_calls) == {call_id}


def test_an_output_may_arrive_while_the_next_call_is_generated():
    connection = open_connection()
    connection.create(rollout=True, tools=TOOLS)
    sent = connection.generate(*call(), CallEnded(), *call("g", "{"))
    (done,) = [event["item"] for event in sent if event["type"] == "response.output_item.done"]
    first = connection.events[0]["response"]["id"]
    assert connection.append(first, call_output(done["call_id"], "42")) == []
    sent = connection.finish(CallArguments("}"), CallEnded())
    assert types(sent)[-1] == "done"
    assert [stub["name"] for stub in sent[-1]["required_input"]] == ["g"]


def test_a_rollout_does_not_pause_for_a_call_that_the_model_broke_off():
    connection = open_connection()
    connection.create(rollout=True, tools=TOOLS)
    assert types(connection.finish(*call(arguments="{"), CallEnded(False)))[-1] == "completed"


def test_a_rollout_does_not_pause_if_all_outputs_arrived_early():
    connection = open_connection()
    response_id, call_id = call_and_speak(connection)
    connection.append(response_id, call_output(call_id))
    assert "done" not in types(connection.finish())
    assert connection.job().parent is not None
    connection.complete()


def test_a_rollout_without_calls_ends_like_any_response():
    connection = open_connection()
    connection.create(rollout=True, tools=TOOLS)
    assert types(connection.finish(Text("hi")))[-1] == "completed"


def test_an_injection_is_answered_with_the_events_of_the_api():
    connection = open_connection()
    response_id, (one,) = begin(connection)
    sent = connection.append(response_id, call_output(one), kind="inject")
    assert types(sent) == ["inject.created", "output_item.added", "output_item.done"]
    assert sent[0]["response_id"] == response_id
    connection.complete()
    (refused,) = connection.append(response_id, call_output(one), kind="inject")
    assert refused["error"]["code"] == "response_already_completed"
    assert refused["input"] == [call_output(one)]
    (refused,) = connection.append("resp_unknown", call_output(one), kind="inject")
    assert refused["error"]["code"] == "response_not_found"


@pytest.mark.parametrize(
    "fields",
    [{"input": "text"}, {"input": []}, {"input": [{"type": "odd"}]}, {"response_id": 3}, {"extra": 1}],
)
def test_a_malformed_injection_closes_the_connection(fields):
    connection = open_connection()
    response_id, (one,) = begin(connection)
    sent = connection.append(response_id, call_output(one), kind="inject", **fields)
    assert types(sent) == ["completed", "error"], "the finished steps are kept"
    assert sent[-1]["status"] == 400
    assert connection.close is not None
    assert connection.close.code == 1008


def test_an_injection_without_call_outputs_is_returned():
    connection = open_connection()
    response_id, (one,) = begin(connection)
    (sent,) = connection.append(response_id, message("hi"), kind="inject")
    assert (sent["type"], sent["input"]) == ("response.inject.failed", [message("hi")])
    assert "is not the output of a tool call" in sent["error"]["message"]
    connection.append(response_id, call_output(one), kind="inject")
    connection.complete()


@pytest.mark.parametrize(
    ("items", "code", "param"),
    [
        ([call_output("call_nobody")], "invalid_input", "input[0].call_id"),
        ([message("hi")], "invalid_input", "input[0].type"),
        ([{"type": "function_call_output", "call_id": "c"}], "invalid_input", "input[0].output"),
        ([{"type": "function_call_output", "output": "c"}], "invalid_input", "input[0].call_id"),
        ([], "invalid_input", "input"),
    ],
)
def test_an_invalid_append_is_returned(items, code, param):
    connection = open_connection()
    response_id, (one,) = begin(connection)
    (sent,) = connection.append(response_id, *items)
    assert sent["type"] == "response.append.failed"
    assert (sent["error"]["code"], sent["error"]["param"]) == (code, param)
    assert (sent["response_id"], sent["input"]) == (response_id, items)
    assert not connection.starts
    connection.append(response_id, call_output(one))
    connection.complete()


def test_an_append_is_accepted_as_a_whole_or_not_at_all():
    connection = open_connection()
    response_id, (one, two) = begin(connection, *call(), *call("g"))
    (sent,) = connection.append(response_id, call_output(one), call_output("call_nobody"))
    assert sent["error"]["param"] == "input[1].call_id"
    (sent,) = connection.append(response_id, call_output(one), call_output(one))
    assert sent["error"]["param"] == "input[1].call_id"
    connection.append(response_id, call_output(one), call_output(two))
    (sent,) = connection.append(response_id, call_output(one))
    assert sent["error"]["code"] == "invalid_input"
    connection.complete()


def test_an_append_needs_a_running_rollout():
    connection = open_connection()
    connection.create()
    response_id = connection.events[0]["response"]["id"]
    (sent,) = connection.append(response_id, call_output("c"))
    assert sent["error"]["code"] == "append_not_supported"
    connection.complete()
    (sent,) = connection.append(response_id, call_output("c"))
    assert sent["error"]["code"] == "response_already_completed"
    (sent,) = connection.append("resp_unknown", call_output("c"))
    assert sent["error"]["code"] == "response_not_found"
    connection.create("lane", rollout=True, tools=TOOLS, store=True)
    rollout = connection.events[-1]["response"]["id"]
    connection.finish(Text("hi"), lane="lane")
    (sent,) = connection.append(rollout, call_output("c"))
    assert (sent["error"]["code"], sent["stream_id"]) == ("response_already_completed", "lane")
    connection.save("lane")


@pytest.mark.parametrize("limit", ["max_queued_bytes", "connection_cache_bytes"])
def test_an_append_above_the_limits_is_returned(limit):
    server = Server(**{limit: 2_000})
    connection = open_connection(server)
    response_id, (one,) = begin(connection)
    (sent,) = connection.append(response_id, call_output(one, "x" * 2_100))
    assert sent["error"]["code"] == "too_much_pending_input"
    connection.append(response_id, call_output(one, "x" * 200))
    connection.complete()


@pytest.mark.parametrize("kind", ["append", "inject"])
def test_append_and_inject_need_their_betas(kind):
    connection = Connection()
    error = only_error(connection.append("resp_1", call_output("c"), kind=kind))["error"]
    assert (error["code"], error["param"]) == ("unsupported_event_type", "type")
    assert "OpenAI-Beta" in error["message"]


def test_a_rollout_needs_its_beta():
    error = only_error(Connection().create(rollout=True))["error"]
    assert error["param"] == "rollout"
    assert "slipring_rollout=v1" in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"generate": False}, "generate"),
        ({"context_management": [{"type": "compaction", "compact_threshold": 5000}]}, "context_management"),
        ({"input": [message("hi"), {"type": "compaction_trigger"}]}, "context_management"),
        ({"background": True}, "background"),
        ({"rollout": "yes"}, "rollout"),
    ],
)
def test_fields_that_clash_with_rollout_are_refused(fields, param):
    connection = open_connection()
    assert only_error(connection.create(**{"rollout": True, **fields}))["error"]["param"] == param


def test_a_rollout_that_times_out_completes_with_open_calls():
    connection = open_connection(Server(rollout_wait_s=30.0))
    response_id, (one,) = begin(connection)
    assert connection.tick(29.9) == []
    sent = connection.tick(0.2)
    assert types(sent) == ["completed"]
    connection.create(previous=response_id, input=[call_output(one)])
    connection.complete()


def test_a_rollout_that_times_out_keeps_the_outputs_that_arrived():
    connection = open_connection(Server(rollout_wait_s=30.0))
    response_id, (one, two) = begin(connection, *call(), *call("g"))
    connection.tick(29.0)
    connection.append(response_id, call_output(two))
    assert connection.tick(29.0) == [], "an append restarts the wait"
    connection.tick(2.0)
    assert [item["type"] for item in connection.order.responses[0]["output"]] == [
        *("function_call", "function_call", "function_call_output")
    ]
    assert only_error(connection.create(previous=response_id))["error"]["message"].endswith(f"{one}.")


def test_a_rollout_that_timed_out_can_be_continued_with_the_missing_output():
    connection = open_connection(Server(rollout_wait_s=30.0))
    connection.create(rollout=True, tools=TOOLS)
    sent = connection.finish(*call(), *call("g"), position=_Position())
    one, two = (stub["call_id"] for stub in sent[-1]["required_input"])
    connection.append(sent[-1]["response_id"], call_output(two))
    connection.tick(31.0)
    connection.create(previous=sent[-1]["response_id"], input=[call_output(one)])
    job = connection.job()
    assert job.parent is not None
    assert job.parent.position is not None
    assert [item.call_id for item in job.input] == [two, one], "no engine has processed the appended output"
    assert [item.call_id for item in job.context()][1:] == [one, two, two, one]
    connection.complete()


def test_a_paused_rollout_blocks_its_lane_only():
    connection = open_connection()
    response_id, (one,) = begin(connection)
    assert connection.create(input="queued") == []
    connection.respond("other")
    connection.append(response_id, call_output(one))
    connection.finish(Text("ok"))
    connection.complete()
    assert len(connection.order.responses) == 3


def test_a_paused_rollout_completes_when_its_connection_ends():
    connection = open_connection()
    response_id, _ = begin(connection)
    sent = connection.end(Unavailable("The server is shutting down."))
    assert types(sent) == ["completed", "error"]
    assert connection.close is not None
    assert response_id in connection.cache


def test_a_rollout_does_not_pause_on_an_ending_connection():
    connection = open_connection()
    connection.create(rollout=True, tools=TOOLS)
    connection.end(Unavailable("The server is shutting down."))
    assert types(connection.finish(*call()))[-2:] == ["completed", "error"]


def test_a_stored_rollout_is_kept_when_the_client_disconnects():
    server = Server()
    connection = open_connection(server)
    response_id, (one,) = begin(connection, store=True)
    connection.create(input="never begun")
    connection.hang_up()
    assert not connection.starts
    connection.save()
    again = open_connection(server)
    again.create(previous=response_id, input=[call_output(one)], rollout=True)
    again.load()
    again.complete()


def test_held_appends_are_returned_if_the_response_fails():
    connection = open_connection()
    response_id, call_id = call_and_speak(connection)
    output = call_output(call_id)
    connection.append(response_id, output)
    connection.append(response_id, output, kind="inject")
    sent = connection.fail()
    assert types(sent)[-2:] == ["append.failed", "failed"]
    assert sent[-2]["input"] == [output]


def test_held_appends_are_returned_if_the_answer_is_truncated():
    connection = open_connection()
    response_id, call_id = call_and_speak(connection)
    connection.append(response_id, call_output(call_id), kind="inject")
    sent = connection.finish(reason="max_output_tokens")
    assert types(sent)[-2:] == ["inject.failed", "incomplete"]
    connection.create(previous=response_id, input=[call_output(call_id)])
    connection.complete()


def test_a_failed_step_fails_the_response():
    connection = open_connection(
        refuses=lambda job: ContextLengthExceeded(2, 1) if job.parent is not None else None
    )
    response_id, (one,) = begin(connection)
    connection.append(response_id, call_output(one))
    assert connection.order.responses[0]["status"] == "failed"
    assert connection.order.responses[0]["error"]["code"] == "context_length_exceeded"


def test_limits_apply_to_the_whole_response():
    connection = open_connection()
    connection.create(rollout=True, tools=TOOLS, max_output_tokens=20)
    response_id = connection.events[0]["response"]["id"]
    sent = connection.finish(*call())
    connection.append(response_id, call_output(sent[-1]["required_input"][0]["call_id"]))
    assert connection.job().settings.max_output_tokens == 17
    # After the second step, fewer tokens are left than a step needs.
    assert types(connection.finish(*call()))[-1] == "completed"


@pytest.mark.parametrize(
    ("choice", "offered"),
    [
        ("required", ["f", "g"]),
        ({"type": "function", "name": "g"}, ["f", "g"]),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}, ["g"]),
        ("auto", ["f", "g"]),
    ],
)
def test_a_required_call_is_required_once(choice, offered):
    connection = open_connection()
    response_id, (one,) = begin(connection, *call("g"), tool_choice=choice)
    connection.append(response_id, call_output(one))
    offer = connection.job().offer
    assert not offer.required
    assert [tool.name for tool in offer.tools] == offered
    connection.complete()


def test_a_steer_waits_for_the_outputs_and_then_ends_the_rollout():
    connection = open_connection()
    response_id, (one,) = begin(connection)
    assert connection.steer(response_id, "other way")["type"] == "response.steer.accepted"
    assert not connection.starts
    connection.append(response_id, call_output(one))
    assert connection.job().stop.asked
    sent = connection.finish(reason="steered")
    assert types(sent) == ["incomplete", "created", "in_progress"]
    assert sent[0]["response"]["incomplete_details"] == {"reason": "steered"}
    job = connection.job()
    assert [item["type"] for item in context_of(job)][-2:] == ["function_call_output", "message"]
    # It is a rollout as well.
    assert types(connection.finish(*call()))[-1] == "done"


def test_a_steer_is_not_delayed_by_answered_calls():
    connection = open_connection()
    response_id, (one,) = begin(connection)
    connection.append(response_id, call_output(one))
    connection.generate(Text("So far. "))
    connection.steer(response_id, "other way")
    assert connection.job().stop.asked
    connection.finish(reason="steered")
    connection.complete()


def test_a_steer_of_a_rollout_that_times_out_is_pending():
    connection = open_connection(Server(rollout_wait_s=30.0))
    response_id, _ = begin(connection)
    connection.steer(response_id, "other way")
    assert types(connection.tick(31.0)) == ["completed", "steer.pending"]


def test_the_report_lists_the_stages_of_every_step():
    connection = Connection(betas=Betas(timing=True, rollout=True))
    response_id, (one,) = begin(connection)
    connection.server.now += 5.0
    connection.append(response_id, call_output(one))
    sent = connection.finish(Text("ok"))
    timing = sent[-1]["timing"]
    names = [connection["name"] for connection in timing["stages"]]
    assert names[names.index("client") :] == ["client", "render", "prefill", "generate", "terminal"]
    waited = next(connection for connection in timing["stages"] if connection["name"] == "client")
    assert waited["duration_ms"] == 5000
    assert timing["tokens"]["output"] == 6


def test_held_bytes_are_limited_over_all_lanes():
    connection = open_connection(Server(connection_cache_bytes=9_000))
    paused = []
    for lane in ("a", "b", "c", "d"):
        response_id, calls = begin(connection, *call(), *call("g"), lane=lane)
        paused.append((response_id, calls))
    refused = 0
    for response_id, (one, _) in paused:
        sent = connection.append(response_id, call_output(one, "x" * 900))
        refused += types(sent) == ["append.failed"]
    assert 0 < refused < 4


def test_a_rollout_above_the_size_limit_ends_after_its_step():
    connection = open_connection(Server(connection_cache_bytes=3_000))
    response_id, (one,) = begin(connection)
    connection.append(response_id, call_output(one, "x" * 1500))
    assert types(connection.finish(*call("f", "x" * 1000)))[-1] == "completed"


def test_a_search_can_be_answered_in_a_rollout():
    connection = open_connection()
    connection.create(rollout=True, tools=[function("f"), {"type": "tool_search", "execution": "client"}])
    sent = connection.finish(CallStarted(kind="tool_search", name="tool_search"), CallArguments("{}"))
    (stub,) = sent[-1]["required_input"]
    assert stub == {"type": "tool_search_output", "call_id": stub["call_id"], "execution": "client"}
    loaded = [function("loaded")]
    connection.append(sent[-1]["response_id"], {**stub, "tools": loaded})
    assert "loaded" in [tool.name for tool in connection.job().offer.tools]
    connection.complete()


def test_found_tools_that_break_tool_choice_are_returned():
    connection = open_connection()
    allowed = [{"type": "function", "name": "f"}, {"type": "tool_search"}]
    connection.create(
        rollout=True,
        tools=[function("f"), {"type": "tool_search", "execution": "client"}],
        tool_choice={"type": "allowed_tools", "mode": "auto", "tools": allowed},
    )
    sent = connection.finish(CallStarted(kind="tool_search", name="tool_search"), CallArguments("{}"))
    (stub,) = sent[-1]["required_input"]
    unoffered = {**stub, "tools": [{"type": "custom", "name": "f"}]}
    (refused,) = connection.append(sent[-1]["response_id"], unoffered)
    assert refused["error"]["code"] == "invalid_input"
    connection.append(refused["response_id"], {**stub, "tools": []})
    connection.complete()


@pytest.mark.parametrize("store", [False, True])
def test_finished_steps_are_kept_when_the_client_disconnects_during_a_step(store):
    server = Server()
    connection = open_connection(server)
    response_id, (one,) = begin(connection, store=store)
    connection.append(response_id, call_output(one))
    connection.generate(Text("half"))
    left = connection.session.leave(server.now)
    assert [type(action).__name__ for action in left].count("Cancel") == 1
    if not store:
        assert response_id in connection.cache, "it can be parked"
        state = connection.cache.find(response_id)
    else:
        (state,) = [action.state for action in left if isinstance(action, Save)]
    assert [item.type for item in state.output] == ["function_call", "function_call_output", "message"]
    assert (state.response.status, state.response.usage.output_tokens) == ("incomplete", 3 + 1)
    assert state.position is None
    reports = [action for action in left + connection.session.closed() if isinstance(action, Record)]
    assert reports[-1].report.tokens.output == 3 + 1, "the step that is cut off is estimated"


def test_a_first_step_is_cancelled_when_the_client_disconnects():
    connection = open_connection()
    connection.create(rollout=True, tools=TOOLS, store=True)
    connection.generate(Text("half"))
    connection.hang_up()
    assert not connection.saves


def test_finished_steps_are_kept_after_the_grace_period():
    connection = open_connection()
    response_id, (one,) = begin(connection)
    connection.append(response_id, call_output(one))
    connection.generate(Text("half"))
    connection.end(Unavailable("The server is shutting down."), grace_s=10.0)
    sent = connection.tick(11.0)
    assert types(sent)[-2:] == ["incomplete", "error"]
    (response,) = connection.order.responses
    assert response["incomplete_details"] == {"reason": None}
    assert response_id in connection.cache


def test_finished_steps_are_counted_if_a_later_one_fails():
    connection = open_connection()
    response_id, (one,) = begin(connection)
    connection.append(response_id, call_output(one))
    connection.fail()
    assert connection.reports[-1].report.tokens.output == 3


def test_with_asks_each_turn_a_load_precedes_every_step():
    connection = open_connection()
    connection.session.shared.asks_each_turn = True
    connection.create(rollout=True, tools=TOOLS)
    connection.load()
    sent = connection.finish(*call(), *call("g"))
    response_id, stubs = sent[-1]["response_id"], sent[-1]["required_input"]
    connection.append(response_id, *(call_output(stub["call_id"]) for stub in stubs))
    assert not connection.starts
    connection.load()
    sent = connection.finish(*call())
    connection.append(response_id, call_output(sent[-1]["required_input"][0]["call_id"]))
    sent = connection.fail(error=AuthenticationFailed("no such key"))
    assert types(sent)[-1] == "completed"
    assert connection.order.responses[-1]["output"][-1]["type"] == "function_call_output"


def test_a_long_rollout_has_a_bounded_list_of_stages():
    connection = Connection(betas=Betas(timing=True, rollout=True))
    response_id, (one,) = begin(connection)
    for _ in range(300):
        connection.append(response_id, call_output(one))
        one = connection.finish(*call())[-1]["required_input"][0]["call_id"]
    connection.append(response_id, call_output(one))
    timing = connection.finish(Text("ok"))[-1]["timing"]
    assert len(timing["stages"]) < 410
    assert timing["stages"][0]["name"] == "rollout"


def test_an_append_beyond_the_number_of_items_of_a_response_is_returned(monkeypatch):
    monkeypatch.setattr(appends, "MOST_ITEMS", 3)
    connection = open_connection()
    response_id, calls = begin(connection, *call(), *call("g"))
    (sent,) = connection.append(response_id, *map(call_output, calls))
    assert sent["error"]["code"] == "too_much_pending_input"
    assert types(connection.append(response_id, call_output(calls[0]))) == [
        "output_item.added",
        "output_item.done",
    ]
