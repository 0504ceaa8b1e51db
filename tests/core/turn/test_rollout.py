"""Rollouts: a whole agent loop as one response, and what a client may add to it."""

import json
from typing import Any

import pytest

from slipring.core.betas import Betas
from slipring.core.generation import CallArguments, CallStarted, Delta, Text, Thought
from slipring.core.session.actions import Record, Save
from slipring.errors import AuthenticationFailed, ContextLengthExceeded, Unavailable
from tests.core.stage import Stage, World, call_output, context_of, function, message, only_error, types

ROLLOUTS = Betas(rollout=True, inject=True)
TOOLS = [function("f"), function("g")]


def call(name: str = "f", arguments: str = "{}") -> list[Delta]:
    return [CallStarted(kind="function", name=name), CallArguments(arguments)]


def open_stage(world: World | None = None, **watch: Any) -> Stage:
    return Stage(world, betas=ROLLOUTS, **watch)


def begin(stage: Stage, *said: Delta, lane: str | None = None, **fields: Any) -> tuple[str, list[str]]:
    """A rollout that has called a tool and waits; its id, and the ids of its calls."""
    stage.create(lane, rollout=True, tools=TOOLS, **fields)
    told = stage.finish(*(said or call()), lane=lane)
    assert types(told)[-1] == "done"
    return told[-1]["response_id"], [stub["call_id"] for stub in told[-1]["required_input"]]


def speak_on(stage: Stage) -> tuple[str, str]:
    """A rollout whose model has called a tool and goes on speaking; its id, and that of the call."""
    stage.create(rollout=True, tools=TOOLS)
    told = stage.say(*call(), Text("meanwhile"))
    (done,) = [event["item"] for event in told if event["type"] == "response.output_item.done"]
    return stage.events[0]["response"]["id"], done["call_id"]


def test_a_loop_is_one_response():
    stage = open_stage()
    first, (one,) = begin(stage, Thought("hm"), *call())
    told = stage.append(first, call_output(one, "42"))
    assert types(told) == ["output_item.added", "output_item.done"]
    told = stage.finish(*call("g"))
    assert types(told)[-1] == "done"
    (stub,) = told[-1]["required_input"]
    assert stub == {"type": "function_call_output", "call_id": stub["call_id"], "name": "g"}
    stage.append(first, call_output(stub["call_id"], "43"))
    assert types(stage.finish(Text("done")))[-1] == "completed"
    (response,) = stage.order.responses
    assert [item["type"] for item in response["output"]] == [
        *("reasoning", "function_call", "function_call_output"),
        *("function_call", "function_call_output", "message"),
    ]
    assert response["id"] == first
    assert response["usage"]["input_tokens"] == 21, "the tokens of all its steps"
    assert response["usage"]["output_tokens"] == 9
    assert len(stage.reports) == 1


def test_each_step_is_given_the_whole_context_and_where_the_last_one_left_off():
    stage = open_stage()
    stage.create(rollout=True, tools=TOOLS, input=[message("go")])
    told = stage.finish(*call(), position=(here := _Position()))
    response_id, (one,) = told[-1]["response_id"], [told[-1]["required_input"][0]["call_id"]]
    stage.append(response_id, call_output(one, "42"))
    job = stage.job()
    assert job.parent is not None
    assert job.parent.position is here
    assert job.parent.id == job.response_id == response_id
    assert [item["type"] for item in context_of(job)] == ["message", "function_call", "function_call_output"]
    assert [json.loads(item.raw)["output"] for item in job.input] == ["42"]


class _Position:
    size_bytes = 10


@pytest.mark.parametrize("store", [False, True])
def test_it_can_be_continued_like_any_other(store):
    stage = open_stage()
    first, (one,) = begin(stage, store=store)
    stage.append(first, call_output(one))
    stage.finish(Text("done"))
    if store:
        assert not stage.order.responses
        stage.save()
    stage.create(previous=first, input=[message("more")])
    context = context_of(stage.job())
    assert [item["type"] for item in context] == [
        *("message", "function_call", "function_call_output", "message", "message"),
    ]
    node = stage.job().parent
    assert node is not None
    assert [item.type for item in node.told] == ["message", "function_call", "function_call_output"]
    assert [item.type for item in node.said] == ["message"]
    assert node.tokens is None, "its usage counts its context more than once"
    stage.complete()


def test_answers_may_come_one_by_one_and_in_any_order():
    stage = open_stage()
    response_id, (one, two) = begin(stage, *call(), *call("g"))
    stage.append(response_id, call_output(two, "second"))
    assert not stage.starts
    stage.append(response_id, call_output(one, "first"))
    assert [json.loads(item.raw)["output"] for item in stage.job().input] == ["second", "first"]
    stage.finish(Text("ok"))
    assert stage.order.responses[0]["status"] == "completed"


def test_an_answer_may_come_before_the_model_is_silent():
    stage = open_stage()
    stage.create(rollout=True, tools=TOOLS)
    told = stage.say(*call(), *call("g"))
    done = next(event for event in told if event["type"] == "response.output_item.done")
    response_id = told[0].get("response", {}).get("id") or stage.events[0]["response"]["id"]
    assert stage.append(response_id, call_output(done["item"]["call_id"])) == []
    told = stage.finish()
    assert types(told)[-3:] == ["output_item.added", "output_item.done", "done"]
    (stub,) = told[-1]["required_input"]
    assert stub["name"] == "g"
    stage.append(response_id, call_output(stub["call_id"]))
    stage.complete()


def test_it_does_not_even_pause_where_everything_came_before():
    stage = open_stage()
    response_id, call_id = speak_on(stage)
    stage.append(response_id, call_output(call_id))
    assert "done" not in types(stage.finish())
    assert stage.job().parent is not None
    stage.complete()


def test_a_response_without_calls_ends_as_ever():
    stage = open_stage()
    stage.create(rollout=True, tools=TOOLS)
    assert types(stage.finish(Text("hi")))[-1] == "completed"


def test_an_injection_is_answered_as_the_api_says():
    stage = open_stage()
    response_id, (one,) = begin(stage)
    told = stage.append(response_id, call_output(one), kind="inject")
    assert types(told) == ["inject.created", "output_item.added", "output_item.done"]
    assert told[0]["response_id"] == response_id
    stage.complete()
    (refused,) = stage.append(response_id, call_output(one), kind="inject")
    assert refused["error"]["code"] == "response_already_completed"
    assert refused["input"] == [call_output(one)]
    (refused,) = stage.append("resp_nobody", call_output(one), kind="inject")
    assert refused["error"]["code"] == "response_not_found"


@pytest.mark.parametrize(
    "fields",
    [{"input": "text"}, {"input": []}, {"input": [{"type": "odd"}]}, {"response_id": 3}, {"extra": 1}],
)
def test_an_injection_that_is_none_ends_the_connection(fields):
    stage = open_stage()
    response_id, (one,) = begin(stage)
    told = stage.append(response_id, call_output(one), kind="inject", **fields)
    assert types(told) == ["completed", "error"], "what is there of the rollout is kept"
    assert told[-1]["status"] == 400
    assert stage.close is not None
    assert stage.close.code == 1008


def test_an_injection_of_what_answers_nothing_is_given_back():
    stage = open_stage()
    response_id, (one,) = begin(stage)
    (told,) = stage.append(response_id, message("hi"), kind="inject")
    assert (told["type"], told["input"]) == ("response.inject.failed", [message("hi")])
    assert "answers no call" in told["error"]["message"]
    stage.append(response_id, call_output(one), kind="inject")
    stage.complete()


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
def test_what_cannot_be_appended_is_given_back(items, code, param):
    stage = open_stage()
    response_id, (one,) = begin(stage)
    (told,) = stage.append(response_id, *items)
    assert told["type"] == "response.append.failed"
    assert (told["error"]["code"], told["error"]["param"]) == (code, param)
    assert (told["response_id"], told["input"]) == (response_id, items)
    assert not stage.starts
    stage.append(response_id, call_output(one))
    stage.complete()


def test_all_of_an_append_is_taken_or_nothing():
    stage = open_stage()
    response_id, (one, two) = begin(stage, *call(), *call("g"))
    (told,) = stage.append(response_id, call_output(one), call_output("call_nobody"))
    assert told["error"]["param"] == "input[1].call_id"
    (told,) = stage.append(response_id, call_output(one), call_output(one))
    assert told["error"]["param"] == "input[1].call_id"
    stage.append(response_id, call_output(one), call_output(two))
    (told,) = stage.append(response_id, call_output(one))
    assert told["error"]["code"] == "invalid_input"
    stage.complete()


def test_appending_to_what_takes_nothing():
    stage = open_stage()
    stage.create()
    response_id = stage.events[0]["response"]["id"]
    (told,) = stage.append(response_id, call_output("c"))
    assert told["error"]["code"] == "append_not_supported"
    stage.complete()
    (told,) = stage.append(response_id, call_output("c"))
    assert told["error"]["code"] == "response_already_completed"
    (told,) = stage.append("resp_nobody", call_output("c"))
    assert told["error"]["code"] == "response_not_found"
    stage.create("lane", rollout=True, tools=TOOLS, store=True)
    rollout = stage.events[-1]["response"]["id"]
    stage.finish(Text("hi"), lane="lane")
    (told,) = stage.append(rollout, call_output("c"))
    assert (told["error"]["code"], told["stream_id"]) == ("response_already_completed", "lane")
    stage.save("lane")


@pytest.mark.parametrize("limit", ["max_queued_bytes", "connection_cache_bytes"])
def test_too_much_is_given_back(limit):
    world = World(**{limit: 1_000})
    stage = open_stage(world)
    response_id, (one,) = begin(stage)
    (told,) = stage.append(response_id, call_output(one, "x" * 1_100))
    assert told["error"]["code"] == "too_much_pending_input"
    stage.append(response_id, call_output(one, "x" * 200))
    stage.complete()


@pytest.mark.parametrize("kind", ["append", "inject"])
def test_what_nobody_asked_for_is_not_understood(kind):
    stage = Stage()
    error = only_error(stage.append("resp_1", call_output("c"), kind=kind))["error"]
    assert (error["code"], error["param"]) == ("unsupported_event_type", "type")
    assert "OpenAI-Beta" in error["message"]


def test_a_rollout_has_to_be_agreed_upon_first():
    error = only_error(Stage().create(rollout=True))["error"]
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
def test_what_a_rollout_cannot_be(fields, param):
    stage = open_stage()
    assert only_error(stage.create(**{"rollout": True, **fields}))["error"]["param"] == param


def test_a_client_that_never_answers_has_a_response_with_open_calls():
    stage = open_stage(World(rollout_wait_s=30.0))
    response_id, (one,) = begin(stage)
    assert stage.tick(29.9) == []
    told = stage.tick(0.2)
    assert types(told) == ["completed"]
    stage.create(previous=response_id, input=[call_output(one)])
    stage.complete()


def test_what_came_of_two_answers_in_time_is_kept():
    stage = open_stage(World(rollout_wait_s=30.0))
    response_id, (one, two) = begin(stage, *call(), *call("g"))
    stage.tick(29.0)
    stage.append(response_id, call_output(two))
    assert stage.tick(29.0) == [], "it has just heard of its client"
    stage.tick(2.0)
    assert [item["type"] for item in stage.order.responses[0]["output"]] == [
        *("function_call", "function_call", "function_call_output")
    ]
    assert only_error(stage.create(previous=response_id))["error"]["message"].endswith(f"{one}.")


def test_the_rest_of_what_came_in_time_is_continued():
    stage = open_stage(World(rollout_wait_s=30.0))
    stage.create(rollout=True, tools=TOOLS)
    told = stage.finish(*call(), *call("g"), position=_Position())
    one, two = (stub["call_id"] for stub in told[-1]["required_input"])
    stage.append(told[-1]["response_id"], call_output(two))
    stage.tick(31.0)
    stage.create(previous=told[-1]["response_id"], input=[call_output(one)])
    job = stage.job()
    assert job.parent is not None
    assert job.parent.position is None, "no engine has read the answer that came"
    assert [item.call_id for item in job.context()][1:] == [one, two, two, one]
    stage.complete()


def test_the_lane_waits_and_others_do_not():
    stage = open_stage()
    response_id, (one,) = begin(stage)
    assert stage.create(input="queued") == []
    stage.respond("other")
    stage.append(response_id, call_output(one))
    stage.finish(Text("ok"))
    stage.complete()
    assert len(stage.order.responses) == 3


def test_it_ends_with_its_connection():
    stage = open_stage()
    response_id, _ = begin(stage)
    told = stage.end(Unavailable("The server is shutting down."))
    assert types(told) == ["completed", "error"]
    assert stage.close is not None
    assert response_id in stage.cache


def test_it_does_not_pause_while_its_connection_ends():
    stage = open_stage()
    stage.create(rollout=True, tools=TOOLS)
    stage.end(Unavailable("The server is shutting down."))
    assert types(stage.finish(*call()))[-2:] == ["completed", "error"]


def test_a_client_that_is_gone_finds_what_was_stored():
    world = World()
    stage = open_stage(world)
    response_id, (one,) = begin(stage, store=True)
    stage.create(input="never begun")
    stage.hang_up()
    assert not stage.starts
    stage.save()
    again = open_stage(world)
    again.create(previous=response_id, input=[call_output(one)], rollout=True)
    again.load()
    again.complete()


def test_what_was_sent_early_comes_back_where_the_response_fails():
    stage = open_stage()
    response_id, call_id = speak_on(stage)
    sent = call_output(call_id)
    stage.append(response_id, sent)
    stage.append(response_id, sent, kind="inject")
    told = stage.fail()
    assert types(told)[-2:] == ["append.failed", "failed"]
    assert told[-2]["input"] == [sent]


def test_what_was_sent_early_comes_back_where_the_answer_is_cut_off():
    stage = open_stage()
    response_id, call_id = speak_on(stage)
    stage.append(response_id, call_output(call_id), kind="inject")
    told = stage.finish(reason="max_output_tokens")
    assert types(told)[-2:] == ["inject.failed", "incomplete"]
    stage.create(previous=response_id, input=[call_output(call_id)])
    stage.complete()


def test_a_step_that_fails_fails_the_response():
    stage = open_stage(refuses=lambda job: ContextLengthExceeded(2, 1) if job.parent is not None else None)
    response_id, (one,) = begin(stage)
    stage.append(response_id, call_output(one))
    assert stage.order.responses[0]["status"] == "failed"
    assert stage.order.responses[0]["error"]["code"] == "invalid_prompt"
    assert response_id not in stage.cache


def test_bounds_are_of_the_whole_response():
    stage = open_stage()
    stage.create(rollout=True, tools=TOOLS, max_output_tokens=20, max_tool_calls=2)
    response_id = stage.events[0]["response"]["id"]
    told = stage.finish(*call())
    stage.append(response_id, call_output(told[-1]["required_input"][0]["call_id"]))
    settings = stage.job().settings
    assert (settings.max_output_tokens, settings.max_tool_calls) == (17, 1)
    # The second step leaves less than an answer needs: nothing could follow on it.
    assert types(stage.finish(*call()))[-1] == "completed"


def test_no_more_tools_than_were_allowed():
    stage = open_stage()
    response_id, (one,) = begin(stage, max_tool_calls=1)
    stage.append(response_id, call_output(one))
    assert stage.job().offer.forbidden
    stage.complete()


@pytest.mark.parametrize(
    ("choice", "offered"),
    [
        ("required", ["f", "g"]),
        ({"type": "function", "name": "g"}, ["f", "g"]),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}, ["g"]),
        ("auto", ["f", "g"]),
    ],
)
def test_what_is_required_is_required_once(choice, offered):
    stage = open_stage()
    response_id, (one,) = begin(stage, *call("g"), tool_choice=choice)
    stage.append(response_id, call_output(one))
    offer = stage.job().offer
    assert not offer.required
    assert [tool.name for tool in offer.tools] == offered
    stage.complete()


def test_a_steer_waits_for_the_answer_and_ends_the_rollout_behind_it():
    stage = open_stage()
    response_id, (one,) = begin(stage)
    assert stage.steer(response_id, "other way")["type"] == "response.steer.accepted"
    assert not stage.starts
    stage.append(response_id, call_output(one))
    assert stage.job().stop.asked
    told = stage.finish(reason="steered")
    assert types(told) == ["incomplete", "created", "in_progress"]
    assert told[0]["response"]["incomplete_details"] == {"reason": "steered"}
    job = stage.job()
    assert [item["type"] for item in context_of(job)][-2:] == ["function_call_output", "message"]
    # It is a rollout as well.
    assert types(stage.finish(*call()))[-1] == "done"


def test_a_steer_while_it_speaks_is_not_held_up_by_calls_that_were_answered():
    stage = open_stage()
    response_id, (one,) = begin(stage)
    stage.append(response_id, call_output(one))
    stage.say(Text("So far. "))
    stage.steer(response_id, "other way")
    assert stage.job().stop.asked
    stage.finish(reason="steered")
    stage.complete()


def test_a_steer_of_one_that_waits_in_vain_is_pending():
    stage = open_stage(World(rollout_wait_s=30.0))
    response_id, _ = begin(stage)
    stage.steer(response_id, "other way")
    assert types(stage.tick(31.0)) == ["completed", "steer.pending"]


def test_where_the_time_goes_is_told_step_by_step():
    stage = Stage(betas=Betas(timing=True, rollout=True))
    response_id, (one,) = begin(stage)
    stage.world.now += 5.0
    stage.append(response_id, call_output(one))
    told = stage.finish(Text("ok"))
    timing = told[-1]["timing"]
    names = [stage["name"] for stage in timing["stages"]]
    assert names[names.index("client") :] == ["client", "render", "prefill", "generate", "terminal"]
    waited = next(stage for stage in timing["stages"] if stage["name"] == "client")
    assert waited["duration_ms"] == 5000
    assert timing["tokens"]["output"] == 6
    line = stage.reports[-1].report.as_line(None)
    assert " client_ms=5000.0 " in line
    assert line.count("render_ms=") == 1


def test_what_rollouts_hold_is_bounded_over_all_lanes():
    stage = open_stage(World(connection_cache_bytes=6_000))
    paused = []
    for lane in ("a", "b", "c", "d"):
        response_id, calls = begin(stage, *call(), *call("g"), lane=lane)
        paused.append((response_id, calls))
    refused = 0
    for response_id, (one, _) in paused:
        told = stage.append(response_id, call_output(one, "x" * 900))
        refused += types(told) == ["append.failed"]
    assert 0 < refused < 4


def test_one_that_has_grown_too_large_ends_where_it_is():
    stage = open_stage(World(connection_cache_bytes=3_000))
    response_id, (one,) = begin(stage)
    stage.append(response_id, call_output(one, "x" * 1500))
    assert types(stage.finish(*call("f", "x" * 1000)))[-1] == "completed"


def test_a_search_is_answered_with_what_is_asked_for():
    stage = open_stage()
    stage.create(rollout=True, tools=[function("f"), {"type": "tool_search", "execution": "client"}])
    told = stage.finish(CallStarted(kind="tool_search", name="tool_search"), CallArguments("{}"))
    (stub,) = told[-1]["required_input"]
    assert stub == {"type": "tool_search_output", "call_id": stub["call_id"], "execution": "client"}
    loaded = [function("loaded")]
    stage.append(told[-1]["response_id"], {**stub, "tools": loaded})
    assert "loaded" in [tool.name for tool in stage.job().offer.tools]
    stage.complete()


def test_tools_that_leave_nothing_to_call_are_given_back():
    stage = open_stage()
    allowed = [{"type": "function", "name": "f"}, {"type": "tool_search"}]
    stage.create(
        rollout=True,
        tools=[function("f"), {"type": "tool_search", "execution": "client"}],
        tool_choice={"type": "allowed_tools", "mode": "auto", "tools": allowed},
    )
    told = stage.finish(CallStarted(kind="tool_search", name="tool_search"), CallArguments("{}"))
    (stub,) = told[-1]["required_input"]
    (refused,) = stage.append(told[-1]["response_id"], {**stub, "tools": [{"type": "custom", "name": "f"}]})
    assert refused["error"]["code"] == "invalid_input"
    stage.append(refused["response_id"], {**stub, "tools": []})
    stage.complete()


@pytest.mark.parametrize("store", [False, True])
def test_what_was_done_is_kept_when_the_client_is_gone_in_the_middle_of_a_step(store):
    world = World()
    stage = open_stage(world)
    response_id, (one,) = begin(stage, store=store)
    stage.append(response_id, call_output(one))
    stage.say(Text("half"))
    left = stage.session.leave(world.now)
    assert [type(action).__name__ for action in left].count("Cancel") == 1
    if not store:
        assert response_id in stage.cache, "it can be parked"
        state = stage.cache.find(response_id)
    else:
        (state,) = [action.state for action in left if isinstance(action, Save)]
    assert [item.type for item in state.output] == ["function_call", "function_call_output", "message"]
    assert (state.response.status, state.response.usage.output_tokens) == ("incomplete", 3)
    assert state.position is None
    reports = [action for action in left + stage.session.closed() if isinstance(action, Record)]
    assert reports[-1].report.tokens.output == 3, "what was spent is counted"


def test_a_first_step_that_nobody_waits_for_leaves_nothing():
    stage = open_stage()
    stage.create(rollout=True, tools=TOOLS, store=True)
    stage.say(Text("half"))
    stage.hang_up()
    assert not stage.saves


def test_what_was_done_is_kept_when_the_grace_is_over():
    stage = open_stage()
    response_id, (one,) = begin(stage)
    stage.append(response_id, call_output(one))
    stage.say(Text("half"))
    stage.end(Unavailable("The server is shutting down."), grace_s=10.0)
    told = stage.tick(11.0)
    assert types(told)[-2:] == ["incomplete", "error"]
    (response,) = stage.order.responses
    assert response["incomplete_details"] == {"reason": None}
    assert response_id in stage.cache


def test_what_the_steps_took_is_counted_where_one_fails():
    stage = open_stage()
    response_id, (one,) = begin(stage)
    stage.append(response_id, call_output(one))
    stage.fail()
    assert stage.reports[-1].report.tokens.output == 3


def test_whether_it_may_go_on_is_asked_where_that_may_change():
    stage = open_stage()
    stage.session.asks_each_turn = True
    stage.create(rollout=True, tools=TOOLS)
    stage.load()
    told = stage.finish(*call(), *call("g"))
    response_id, stubs = told[-1]["response_id"], told[-1]["required_input"]
    stage.append(response_id, *(call_output(stub["call_id"]) for stub in stubs))
    assert not stage.starts
    stage.load()
    told = stage.finish(*call())
    stage.append(response_id, call_output(told[-1]["required_input"][0]["call_id"]))
    told = stage.fail(error=AuthenticationFailed("no such key"))
    assert types(told)[-1] == "completed"
    assert stage.order.responses[-1]["output"][-1]["type"] == "function_call_output"


def test_a_long_rollout_does_not_grow_its_timings():
    stage = Stage(betas=Betas(timing=True, rollout=True))
    response_id, (one,) = begin(stage)
    for _ in range(300):
        stage.append(response_id, call_output(one))
        one = stage.finish(*call())[-1]["required_input"][0]["call_id"]
    stage.append(response_id, call_output(one))
    timing = stage.finish(Text("ok"))[-1]["timing"]
    assert len(timing["stages"]) < 410
    assert timing["stages"][0]["name"] == "rollout"
