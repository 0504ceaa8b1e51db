"""Steering: what is accepted, where an answer ends for it, and what follows."""

import json
from typing import Any

import pytest

from slipring.core.betas import Betas
from slipring.core.generation import CallArguments, CallStarted, Delta, Refused, Text, Thought, ThoughtSummary
from slipring.errors import InvalidRequest, ModelNotFound, ServerError, Unavailable
from tests.core.stage import Json, Stage, World, call_output, context_of, function, message, only_error, types

CALL: list[Delta] = [CallStarted(kind="function", name="f"), CallArguments("{}")]
CUSTOM: list[Delta] = [CallStarted(kind="custom", name="g"), CallArguments("x")]


def running(lane: str | None = None, world: World | None = None, **fields: Any) -> Stage:
    """A connection on which `resp_1` is being made."""
    stage = Stage(world)
    stage.create(lane, **fields)
    return stage


def failure(event: Json) -> str:
    assert event["type"] == "response.steer.failed"
    assert event["error"]["message"]
    code: str = event["error"]["code"]
    return code


def asked_to_stop(stage: Stage, lane: str | None = None) -> bool:
    return stage.job(lane).stop.asked


# Acceptance.


@pytest.mark.parametrize(
    "input",
    [
        "wait",
        [{"role": "user", "content": "wait"}],
        [message("one"), message("two")],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "wait"}]}],
    ],
)
def test_a_steer_is_accepted_with_an_id_and_a_number_of_its_response(input):
    stage = running()
    answer = stage.steer("resp_1", input)
    assert answer == {
        "type": "response.steer.accepted",
        "sequence_number": 2,
        "steer": {"id": "steer_1", "previous_response_id": "resp_1"},
    }


def test_a_steer_is_answered_on_the_lane_of_its_response():
    stage = running("a")
    assert stage.steer("resp_1")["stream_id"] == "a"
    assert stage.steer("resp_1", 5)["stream_id"] == "a"


def test_images_are_for_models_that_see_them():
    picture = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]
    assert failure(running().steer("resp_1", picture)) == "invalid_input"
    assert running(model="able").steer("resp_1", picture)["type"] == "response.steer.accepted"


INVALID = {
    "no input": {"input": None},
    "a number": {"input": 5},
    "an object": {"input": {}},
    "no items": {"input": []},
    "no text": {"input": ""},
    "another role": {"input": [message("hi", "system")]},
    "an assistant": {"input": [message("hi", "assistant")]},
    "an output": {"input": [call_output("call_1")]},
    "an id": {"input": [{**message("hi"), "id": "msg_1"}]},
    "a status": {"input": [{**message("hi"), "status": "completed"}]},
    "another type": {"input": [{**message("hi"), "type": "reasoning"}]},
    "no content": {"input": [{"role": "user"}]},
    "text of an answer": {"input": [{"role": "user", "content": [{"type": "output_text", "text": "a"}]}]},
    "a lane": {"stream_id": "a"},
    "a null lane": {"stream_id": None},
    "a model": {"model": "m"},
    "an unknown key": {"x": 1},
}


@pytest.mark.parametrize("fields", INVALID.values(), ids=INVALID)
def test_what_is_not_valid_is_given_back_and_changes_nothing(fields):
    stage = running()
    answer = stage.steer("resp_1", **fields)
    assert failure(answer) == "invalid_input"
    assert answer["steer"] == {"previous_response_id": "resp_1", "input": fields.get("input", "wait")}
    assert answer["sequence_number"] == 2
    assert stage.complete()["status"] == "completed"
    assert not stage.starts


@pytest.mark.parametrize("fields", [{}, {"previous_response_id": None}, {"previous_response_id": 5}])
def test_a_steer_without_a_target_is_not_valid(fields):
    stage = running()
    (answer,) = stage.receive(json.dumps({"type": "response.steer", "input": "wait", **fields}))
    assert failure(answer) == "invalid_input"
    assert answer["steer"] == {"previous_response_id": "", "input": "wait"}


def test_a_steer_without_input_gives_nothing_back():
    stage = running()
    (answer,) = stage.receive('{"type": "response.steer", "previous_response_id": "resp_1"}')
    assert (failure(answer), answer["steer"]["input"]) == ("invalid_input", "")


def test_a_steer_that_is_no_text_is_an_error():
    stage = running()
    frame = b'{"type": "response.steer", "previous_response_id": "resp_1", "input": "\xff"}'
    assert only_error(stage.receive(frame))["error"]["code"] == "invalid_json"


def test_a_response_that_nobody_knows_is_not_found():
    assert failure(Stage().steer("resp_1")) == "response_not_found"


def test_a_response_is_not_known_before_it_exists():
    stage = Stage(accepts=lambda job: False)
    stage.create()
    assert failure(stage.steer(stage.job().response_id)) == "response_not_found"


@pytest.mark.parametrize("tenant", ["tenant", "somebody else"])
def test_a_response_of_another_connection_is_not_found(tenant):
    world = World()
    running(world=world)
    assert failure(world.connect(tenant).steer("resp_1")) == "response_not_found"


def test_a_response_that_is_over_cannot_be_steered():
    stage = running("a")
    stage.complete("a")
    answer = stage.steer("resp_1")
    assert (failure(answer), answer["stream_id"]) == ("response_already_completed", "a")
    stage.create("a")
    stage.finish(Text("half"), lane="a", reason="max_output_tokens")
    assert failure(stage.steer("resp_2")) == "response_not_active"
    stage.create("a")
    stage.fail("a")
    assert failure(stage.steer("resp_3")) == "response_not_found"


UNSUPPORTED = {
    "warmup": {"generate": False},
    "managed": {"model": "able", "context_management": [{"type": "compaction", "compact_threshold": 10**6}]},
}


@pytest.mark.parametrize("fields", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_some_responses_cannot_be_steered(fields):
    stage = running(**fields)
    assert failure(stage.steer("resp_1")) == "steering_not_supported"


def test_a_compaction_that_was_asked_for_cannot_be_steered():
    stage = running(model="able", input=[message("hi"), {"type": "compaction_trigger"}])
    assert failure(stage.steer("resp_1")) == "steering_not_supported"


def test_so_many_steers_may_wait_for_a_response_and_no_more():
    stage = running(world=World(max_steers=2))
    stage.create("a")
    assert stage.steer("resp_1")["type"] == "response.steer.accepted"
    assert stage.steer("resp_1")["type"] == "response.steer.accepted"
    assert failure(stage.steer("resp_1")) == "too_many_pending_steers"
    assert stage.steer("resp_2")["type"] == "response.steer.accepted"
    stage.finish(Text("ok"))
    assert stage.steer("resp_3")["type"] == "response.steer.accepted"


def test_so_many_bytes_of_steers_may_wait_on_a_connection_and_no_more():
    stage = running(world=World(max_queued_bytes=300))
    assert stage.steer("resp_1", "x" * 100)["type"] == "response.steer.accepted"
    assert failure(stage.steer("resp_1", "x" * 100)) == "too_many_pending_steers"
    stage.finish(Text("ok"))
    assert stage.steer("resp_2", "x" * 100)["type"] == "response.steer.accepted"
    stage.fail()
    stage.create()
    assert stage.steer("resp_3", "x" * 100)["type"] == "response.steer.accepted"


# Where an answer ends.


def test_an_answer_that_has_said_nothing_ends_at_once():
    stage = running()
    assert not asked_to_stop(stage)
    stage.steer("resp_1")
    assert asked_to_stop(stage)


@pytest.mark.parametrize(
    ("said", "ends"),
    [
        ("One two", False),
        ("One two.", True),
        ("One two. ", True),
        ('"One two."', True),
        ("**One two!**", True),
        ("One\n", True),
        ("それだ。", True),
        ("Version 3.", False),
        ("e.g. this", False),
    ],
)
def test_an_answer_ends_with_its_sentence(said, ends):
    stage = running()
    for piece in (said[:-2], said[-2:-1], said[-1:]):
        stage.say(Text(piece))
    stage.steer("resp_1")
    assert asked_to_stop(stage) is ends


def test_an_answer_without_sentences_ends_after_so_many_pieces():
    stage = running(world=World(steer_after_tokens=3))
    stage.say(*[Text("so ")] * 10)
    stage.steer("resp_1")
    stage.say(Text("much "), Text("and "))
    assert not asked_to_stop(stage)
    stage.say(Refused("more "))
    assert asked_to_stop(stage)


def test_a_sentence_that_goes_on_takes_the_wish_back():
    stage = running()
    stage.say(Text("Yes."))
    stage.steer("resp_1")
    stage.say(Text(" But"))
    assert not asked_to_stop(stage)


@pytest.mark.parametrize("thought", [Thought("hm"), ThoughtSummary("hm")])
def test_a_thought_is_finished(thought):
    stage = running()
    stage.say(thought)
    stage.steer("resp_1")
    assert asked_to_stop(stage)
    stage.finish(reason="steered")
    (item,) = stage.order.responses[0]["output"]
    assert (item["type"], item["status"]) == ("reasoning", "completed")


def test_an_answer_that_calls_a_tool_is_not_ended():
    stage = running(tools=[function("f")])
    stage.say(Text("Yes."))
    stage.steer("resp_1")
    assert asked_to_stop(stage)
    stage.say(*CALL)
    assert not asked_to_stop(stage)
    stage.say(Text("Done."))
    assert not asked_to_stop(stage)
    stage.finish(reason="steered")  # an engine that could not be held back
    assert stage.order.responses[0]["status"] == "completed"


def test_an_answer_that_was_ended_is_incomplete_and_says_why():
    stage = running(store=True)
    stage.say(Text("One."))
    stage.steer("resp_1")
    stage.finish(reason="steered")
    stage.save()
    response = stage.order.responses[0]
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "steered"})
    assert [item["status"] for item in response["output"]] == ["incomplete"]
    assert stage.world.store["tenant", "resp_1"].response.status == "incomplete"


# What follows.


def test_a_successor_follows_with_all_that_was_added_and_the_settings_of_its_target():
    settings: Json = {
        "instructions": "Be brief.",
        "tools": [function("f")],
        "tool_choice": "auto",
        "temperature": 0.5,
        "max_output_tokens": 50,
        "metadata": {"k": "v"},
        "reasoning": {"effort": "low"},
        "prompt_cache_key": "key",
    }
    stage = running(**settings)
    target = stage.job()
    stage.say(Text("One."))
    stage.steer("resp_1", "first")
    stage.steer("resp_1", [message("second"), message("third")])
    told = stage.finish(reason="steered", position=None)
    expected = ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert types(told) == [*expected, "created", "in_progress"]
    successor = told[-1]["response"]
    assert successor["previous_response_id"] == "resp_1"
    for key in ("instructions", "temperature", "max_output_tokens", "metadata", "prompt_cache_key", "store"):
        assert successor[key] == told[3]["response"][key]
    job = stage.job()
    assert (job.settings, job.head, job.fork) == (target.settings, target.head, False)
    assert job.parent is not None
    assert job.parent.id == "resp_1"
    said = [item["content"] for item in context_of(job)]
    assert said[0] == "hi"
    assert said[2:] == ["first", "second", "third"]
    assert not asked_to_stop(stage)
    assert stage.complete()["status"] == "completed"
    assert stage.respond(previous="resp_2")["status"] == "completed"


@pytest.mark.parametrize("reason", ["stop", "max_output_tokens", "content_filter"])
def test_a_successor_follows_however_an_answer_ends_by_itself(reason):
    stage = running()
    stage.steer("resp_1")
    stage.finish(Text("all of it"), reason=reason)
    expected = None if reason == "stop" else {"reason": reason}
    assert stage.order.responses[0]["incomplete_details"] == expected
    assert [item["content"] for item in context_of(stage.job())][-1] == "wait"


def test_a_successor_can_be_steered_by_its_own_id():
    stage = running("a")
    stage.steer("resp_1", "first")
    stage.finish(Text("one"), lane="a")
    assert failure(stage.steer("resp_1")) == "response_already_completed"
    assert stage.steer("resp_2", "second")["sequence_number"] == 2
    stage.finish(Text("two"), lane="a")
    assert [item["content"] for item in context_of(stage.job("a"))][-1] == "second"
    assert stage.complete("a")["id"] == "resp_3"


def test_a_successor_goes_before_all_that_waits_for_its_lane():
    stage = running()
    stage.create(previous="resp_1", input="later")
    stage.steer("resp_1")
    stage.finish(Text("one"))
    assert stage.job().input[0].raw == b'{"type":"message","role":"user","content":"wait"}'
    stage.finish(Text("two"))
    assert [item["content"] for item in context_of(stage.job())][-1] == "later"
    assert stage.complete()["previous_response_id"] == "resp_1"


def test_a_successor_needs_no_place_of_its_own():
    stage = running("a", World(max_in_flight=1))
    stage.create("b")
    stage.steer("resp_1")
    stage.finish(Text("one"), lane="a")
    assert stage.session.in_flight == 1
    assert [turn.lane for turn in stage.starts] == ["a"]
    stage.complete("a")
    stage.complete("b")


def test_a_steer_is_accepted_while_its_response_is_saved():
    stage = running(store=True)
    stage.finish(Text("one"))
    assert stage.steer("resp_1")["type"] == "response.steer.accepted"
    assert types(stage.save()) == ["completed", "created", "in_progress"]


def test_a_successor_is_asked_for_like_any_other_turn():
    stage = running()
    stage.session.asks_each_turn = True
    stage.steer("resp_1")
    stage.finish(Text("one"))
    assert len(stage.loads) == 1
    assert types(stage.load()) == ["created", "in_progress"]
    assert [item["content"] for item in context_of(stage.job())][-1] == "wait"


def test_timings_come_before_what_is_put_off():
    stage = Stage(betas=Betas(timing=True))
    stage.create(tools=[function("f")])
    stage.steer("resp_1")
    stage.say(*CALL)
    assert types(stage.finish())[-3:] == ["completed", "slipring.timing", "steer.pending"]


# Calls that the client has to answer.


def pending(stage: Stage, *steers: str, lane: str | None = None) -> list[Json]:
    """`resp_1` calls two tools and is over, with steers that wait."""
    stage.create(lane, tools=[function("f"), {"type": "custom", "name": "g"}])
    for input in steers:
        stage.steer("resp_1", input)
    stage.say(*CALL, *CUSTOM, lane=lane)
    told = stage.finish(lane=lane)
    assert not stage.starts
    return told


OUTPUTS = [call_output("call_1"), call_output("call_2", kind="custom_tool_call_output")]


def test_steers_wait_for_what_the_client_owes():
    stage = Stage()
    first, second = pending(stage, "first", "second")[-2:]
    assert types([first, second]) == ["steer.pending", "steer.pending"]
    assert [first["steer"]["id"], second["steer"]["id"]] == ["steer_1", "steer_2"]
    assert first["reason"] == "waiting_for_required_input"
    assert first["required_input"] == second["required_input"]
    assert first["required_input"] == [
        {"type": "function_call_output", "call_id": "call_1", "name": "f"},
        {"type": "custom_tool_call_output", "call_id": "call_2"},
    ]


def test_what_waits_comes_before_the_input_of_the_continuation():
    stage = Stage()
    pending(stage, "first", "second")
    stage.create(previous="resp_1", input=[*OUTPUTS, message("third")], temperature=0.25)
    said = context_of(stage.job())[-5:]
    assert [item.get("content") for item in said] == ["first", "second", None, None, "third"]
    assert stage.job().settings.temperature == 0.25
    assert stage.complete()["status"] == "completed"
    # Once, and not again.
    stage.create(previous="resp_1", input=[*OUTPUTS, message("third")])
    assert "first" not in [item.get("content") for item in context_of(stage.job())]


def test_a_continuation_that_waits_already_takes_them():
    stage = Stage()
    stage.create(tools=[function("f")])
    stage.create(previous="resp_1", input=[call_output("call_1")])
    stage.steer("resp_1")
    stage.say(*CALL)
    stage.finish()
    assert [item.get("content") for item in context_of(stage.job())][-2:] == ["wait", None]


def test_warmups_forks_and_others_leave_them_where_they_are():
    stage = Stage()
    pending(stage, "first", lane="a")
    stage.respond("a", "resp_1", generate=False, input=[])
    stage.respond("b", "resp_1", input=OUTPUTS)
    stage.respond("a")
    assert all("first" not in str(response["output"]) for response in stage.order.responses)
    stage.create("a", "resp_1", input=OUTPUTS)
    assert "first" in [item.get("content") for item in context_of(stage.job("a"))]


@pytest.mark.parametrize(
    "fields",
    [
        {"input": [message("no outputs")]},
        {"input": 5},
        {"temperature": "hot"},
        {"input": OUTPUTS, "model": "nobody"},
        {"generate": False, "model": "nobody"},
    ],
)
def test_a_continuation_that_is_refused_gives_them_back(fields):
    stage = Stage()
    pending(stage, "first", "second")
    told = stage.create(previous="resp_1", **fields)
    assert types(told) == ["steer.failed", "steer.failed", "error"]
    assert {failure(event) for event in told[:2]} == {"successor_creation_failed"}
    assert [event["steer"]["input"] for event in told[:2]] == ["first", "second"]
    assert [event["steer"]["id"] for event in told[:2]] == ["steer_1", "steer_2"]


def test_a_continuation_that_the_engine_refuses_gives_them_back():
    stage = Stage(refuses=lambda job: InvalidRequest("No.") if job.parent is not None else None)
    pending(stage, "first")
    told = stage.create(previous="resp_1", input=OUTPUTS)
    assert types(told) == ["steer.failed", "error"]


def test_a_continuation_that_fails_after_it_exists_has_them():
    stage = Stage()
    pending(stage, "first")
    stage.create(previous="resp_1", input=OUTPUTS)
    assert types(stage.fail()) == ["failed"]


def test_a_warmup_that_fails_gives_them_back_with_its_parent():
    stage = Stage()
    pending(stage, "first")
    stage.create(previous="resp_1", generate=False, input=[])
    assert types(stage.fail()) == ["failed", "steer.failed"]


def test_errors_name_places_in_the_input_as_it_was_sent():
    stage = Stage()
    pending(stage, "first", "second")
    told = stage.create(previous="resp_1", input=[*OUTPUTS, call_output("call_9")])
    assert told[-1]["error"]["param"] == "input[2].call_id"


def test_an_error_about_what_was_added_names_no_place_of_the_input():
    stage = Stage()
    stage.create(model="able", tools=[function("f")])
    picture = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]
    stage.steer("resp_1", picture)
    stage.say(*CALL)
    stage.finish()
    told = stage.create(previous="resp_1", input=[call_output("call_1")])  # the model m sees no images
    assert types(told) == ["steer.failed", "error"]
    assert told[1]["error"]["param"] == "previous_response_id"


# What cannot be.


@pytest.mark.parametrize("work", ["engine", "store"])
def test_a_response_that_fails_gives_them_back(work):
    stage = running(store=True)
    stage.steer("resp_1", "first")
    stage.say(Text("one"))
    if work == "store":
        stage.finish()
    told = stage.fail()
    assert types(told)[-2:] == ["failed", "steer.failed"]
    assert failure(told[-1]) == "response_not_active"
    assert told[-1]["steer"] == {"id": "steer_1", "previous_response_id": "resp_1", "input": "first"}
    assert not stage.starts


def test_a_successor_that_the_engine_refuses_gives_them_back_and_is_no_error():
    stage = Stage(refuses=lambda job: ServerError() if job.parent is not None else None)
    stage.create("a")
    stage.create("a", input="later")
    stage.steer("resp_1", "first")
    told = stage.finish(Text("one"), lane="a")
    assert types(told)[-3:] == ["steer.failed", "created", "in_progress"]
    assert failure(told[-3]) == "successor_creation_failed"
    assert told[-3]["stream_id"] == "a"
    assert "resp_1" in stage.cache  # its client may well go on from it


def test_a_successor_without_a_model_gives_them_back(monkeypatch):
    stage = running()
    stage.steer("resp_1")

    def find(name: str | None) -> Any:
        raise ModelNotFound("m", [])

    monkeypatch.setattr(stage.world.models, "find", find)
    told = stage.finish(Text("one"))
    assert failure(told[-1]) == "successor_creation_failed"
    assert stage.session.in_flight == 0


def test_a_connection_that_ends_gives_them_back():
    stage = running("a")
    stage.create("b", tools=[function("f")])
    stage.steer("resp_1", "first")
    stage.steer("resp_2", "second")
    stage.say(*CALL, lane="b")
    stage.finish(lane="b")
    told = stage.end(Unavailable("Enough."))
    assert types(told) == ["steer.failed"]
    assert (failure(told[0]), told[0]["steer"]["input"]) == ("successor_creation_failed", "second")
    assert failure(stage.steer("resp_1")) == "response_not_active"
    assert only_error(stage.create("b", "resp_2"))["error"]["code"] == "service_unavailable"
    told = stage.finish(Text("one"), lane="a")
    assert types(told)[-3:] == ["completed", "steer.failed", "error"]
    assert stage.close is not None


def test_a_client_that_leaves_takes_them_along():
    stage = running()
    stage.steer("resp_1")
    assert stage.hang_up() == []
    assert len(stage.cancelled) == 1
