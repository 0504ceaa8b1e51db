"""Steering: which steers are accepted, where the answer ends, and the response that follows."""

import json
from typing import Any

import pytest

from slipring.base.errors import InvalidRequest, ModelNotFound, ServerError, Unavailable
from slipring.core.betas import Betas
from slipring.core.generation import (
    CallArguments,
    CallStarted,
    Delta,
    RefusalText,
    Text,
    Thought,
    ThoughtSummary,
)
from slipring.core.session.lanes import MOST_ENDED
from tests.core.connection import (
    Connection,
    Json,
    Server,
    call_output,
    context_of,
    function,
    message,
    only_error,
    types,
)
from tests.pictures import PIXEL

CALL: list[Delta] = [CallStarted(kind="function", name="f"), CallArguments("{}")]
CUSTOM: list[Delta] = [CallStarted(kind="custom", name="g"), CallArguments("x")]


def running(lane: str | None = None, server: Server | None = None, **fields: Any) -> Connection:
    """A connection on which `resp_1` runs."""
    connection = Connection(server)
    connection.create(lane, **fields)
    return connection


def failure(event: Json) -> str:
    assert event["type"] == "response.steer.failed"
    assert event["error"]["message"]
    code: str = event["error"]["code"]
    return code


def asked_to_stop(connection: Connection, lane: str | None = None) -> bool:
    return connection.job(lane).stop.asked


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
    connection = running()
    answer = connection.steer("resp_1", input)
    assert answer == {
        "type": "response.steer.accepted",
        "sequence_number": 2,
        "steer": {"id": "steer_1", "previous_response_id": "resp_1"},
    }
    assert connection.steered == {"resp_1": 1}


def test_a_steer_is_answered_on_the_lane_of_its_response():
    connection = running("a")
    assert connection.steer("resp_1")["stream_id"] == "a"
    assert connection.steer("resp_1", 5)["stream_id"] == "a"


def test_images_in_a_steer_need_a_capable_model():
    picture = [{"role": "user", "content": [{"type": "input_image", "image_url": PIXEL}]}]
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
def test_an_invalid_steer_is_returned_and_changes_nothing(fields):
    connection = running()
    answer = connection.steer("resp_1", **fields)
    assert failure(answer) == "invalid_input"
    assert answer["steer"] == {"previous_response_id": "resp_1", "input": fields.get("input", "wait")}
    assert answer["sequence_number"] == 2
    assert not connection.steered
    assert connection.complete()["status"] == "completed"
    assert not connection.starts


@pytest.mark.parametrize("fields", [{}, {"previous_response_id": None}, {"previous_response_id": 5}])
def test_a_steer_without_a_target_is_invalid(fields):
    connection = running()
    (answer,) = connection.receive(json.dumps({"type": "response.steer", "input": "wait", **fields}))
    assert failure(answer) == "invalid_input"
    assert answer["steer"] == {"previous_response_id": "", "input": "wait"}


def test_a_steer_without_input_returns_an_empty_input():
    connection = running()
    (answer,) = connection.receive('{"type": "response.steer", "previous_response_id": "resp_1"}')
    assert (failure(answer), answer["steer"]["input"]) == ("invalid_input", "")


def test_a_steer_that_is_not_utf8_is_an_error():
    connection = running()
    frame = b'{"type": "response.steer", "previous_response_id": "resp_1", "input": "\xff"}'
    assert only_error(connection.receive(frame))["error"]["code"] == "invalid_json"


def test_an_unknown_response_cannot_be_steered():
    assert failure(Connection().steer("resp_1")) == "response_not_found"


def test_a_response_cannot_be_steered_before_it_is_created():
    connection = Connection(accepts=lambda job: False)
    connection.create()
    assert failure(connection.steer(connection.job().response_id)) == "response_not_found"


@pytest.mark.parametrize("tenant", ["tenant", "another tenant"])
def test_a_response_of_another_connection_cannot_be_steered(tenant):
    server = Server()
    running(server=server)
    assert failure(server.connect(tenant).steer("resp_1")) == "response_not_found"


def test_an_ended_response_cannot_be_steered():
    connection = running("a")
    connection.complete("a")
    answer = connection.steer("resp_1")
    assert (failure(answer), answer["stream_id"]) == ("response_already_completed", "a")
    connection.create("a")
    connection.finish(Text("half"), lane="a", reason="max_output_tokens")
    assert failure(connection.steer("resp_2")) == "response_not_active"
    connection.create("a")
    connection.fail("a")
    assert failure(connection.steer("resp_3")) == "response_not_found"


UNSUPPORTED = {
    "warmup": {"generate": False},
    "managed": {"model": "able", "context_management": [{"type": "compaction", "compact_threshold": 10**6}]},
}


@pytest.mark.parametrize("fields", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_some_responses_cannot_be_steered(fields):
    connection = running(**fields)
    assert failure(connection.steer("resp_1")) == "steering_not_supported"


def test_a_requested_compaction_cannot_be_steered():
    connection = running(model="able", input=[message("hi"), {"type": "compaction_trigger"}])
    assert failure(connection.steer("resp_1")) == "steering_not_supported"


def test_the_number_of_steers_per_response_is_limited():
    connection = running(server=Server(max_steers=2))
    connection.create("a")
    assert connection.steer("resp_1")["type"] == "response.steer.accepted"
    assert connection.steer("resp_1")["type"] == "response.steer.accepted"
    assert failure(connection.steer("resp_1")) == "too_many_pending_steers"
    assert connection.steer("resp_2")["type"] == "response.steer.accepted"
    connection.finish(Text("ok"))
    assert connection.steer("resp_3")["type"] == "response.steer.accepted"


def test_the_bytes_of_steers_per_connection_are_limited():
    connection = running(server=Server(max_queued_bytes=300))
    assert connection.steer("resp_1", "x" * 100)["type"] == "response.steer.accepted"
    assert failure(connection.steer("resp_1", "x" * 100)) == "too_many_pending_steers"
    connection.finish(Text("ok"))
    assert connection.steer("resp_2", "x" * 100)["type"] == "response.steer.accepted"
    connection.fail()
    connection.create()
    assert connection.steer("resp_3", "x" * 100)["type"] == "response.steer.accepted"


# Where an answer ends.


def test_an_answer_without_text_ends_at_once():
    connection = running()
    assert not asked_to_stop(connection)
    connection.steer("resp_1")
    assert asked_to_stop(connection)


@pytest.mark.parametrize(
    ("text", "ends"),
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
def test_an_answer_ends_after_its_sentence(text, ends):
    connection = running()
    for piece in (text[:-2], text[-2:-1], text[-1:]):
        connection.generate(Text(piece))
    connection.steer("resp_1")
    assert asked_to_stop(connection) is ends


def test_an_answer_without_sentences_ends_after_the_limit_of_pieces():
    connection = running(server=Server(steer_after_tokens=3))
    connection.generate(*[Text("so ")] * 10)
    connection.steer("resp_1")
    connection.generate(Text("much "), Text("and "))
    assert not asked_to_stop(connection)
    connection.generate(RefusalText("more "))
    assert asked_to_stop(connection)


def test_a_continued_sentence_resets_the_stop():
    connection = running()
    connection.generate(Text("Yes."))
    connection.steer("resp_1")
    connection.generate(Text(" But"))
    assert not asked_to_stop(connection)


@pytest.mark.parametrize("thought", [Thought("hm"), ThoughtSummary("hm")])
def test_reasoning_is_completed_before_the_answer_ends(thought):
    connection = running()
    connection.generate(thought)
    connection.steer("resp_1")
    assert asked_to_stop(connection)
    connection.finish(reason="steered")
    (item,) = connection.order.responses[0]["output"]
    assert item["type"] == "reasoning"


def test_an_answer_with_a_tool_call_is_not_ended():
    connection = running(tools=[function("f")])
    connection.generate(Text("Yes."))
    connection.steer("resp_1")
    assert asked_to_stop(connection)
    connection.generate(*CALL)
    assert not asked_to_stop(connection)
    connection.generate(Text("Done."))
    assert not asked_to_stop(connection)
    connection.finish(reason="steered")  # an engine that does not stop
    assert connection.order.responses[0]["status"] == "completed"


def test_an_answer_that_was_ended_is_incomplete_with_its_reason():
    connection = running(store=True)
    connection.generate(Text("One."))
    connection.steer("resp_1")
    connection.finish(reason="steered")
    connection.save()
    response = connection.order.responses[0]
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "steered"})
    assert [item["status"] for item in response["output"]] == ["incomplete"]
    assert connection.server.store["tenant", "resp_1"].response.status == "incomplete"


# Successors.


def test_a_successor_has_all_steers_as_input_and_the_settings_of_its_target():
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
    connection = running(**settings)
    target = connection.job()
    connection.generate(Text("One."))
    connection.steer("resp_1", "first")
    connection.steer("resp_1", [message("second"), message("third")])
    sent = connection.finish(reason="steered", position=None)
    expected = ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert types(sent) == [*expected, "created", "in_progress"]
    successor = sent[-1]["response"]
    assert successor["previous_response_id"] == "resp_1"
    for key in ("instructions", "temperature", "max_output_tokens", "metadata", "prompt_cache_key", "store"):
        assert successor[key] == sent[3]["response"][key]
    job = connection.job()
    assert (job.settings, job.head, job.fork) == (target.settings, target.head, False)
    assert job.parent is not None
    assert job.parent.id == "resp_1"
    contents = [item["content"] for item in context_of(job)]
    assert contents[0] == "hi"
    assert contents[2:] == ["first", "second", "third"]
    assert not asked_to_stop(connection)
    assert connection.complete()["status"] == "completed"
    assert connection.respond(previous="resp_2")["status"] == "completed"


@pytest.mark.parametrize("reason", ["stop", "max_output_tokens", "content_filter"])
def test_a_successor_follows_whatever_ended_the_answer(reason):
    connection = running()
    connection.steer("resp_1")
    connection.finish(Text("all of it"), reason=reason)
    expected = None if reason == "stop" else {"reason": reason}
    assert connection.order.responses[0]["incomplete_details"] == expected
    assert [item["content"] for item in context_of(connection.job())][-1] == "wait"


def test_a_successor_can_be_steered_by_its_own_id():
    connection = running("a")
    connection.steer("resp_1", "first")
    connection.finish(Text("one"), lane="a")
    assert failure(connection.steer("resp_1")) == "response_already_completed"
    assert connection.steer("resp_2", "second")["sequence_number"] == 2
    connection.finish(Text("two"), lane="a")
    assert [item["content"] for item in context_of(connection.job("a"))][-1] == "second"
    assert connection.complete("a")["id"] == "resp_3"


def test_a_successor_runs_before_turns_that_wait_in_its_lane():
    connection = running()
    connection.create(previous="resp_1", input="later")
    connection.steer("resp_1")
    connection.finish(Text("one"))
    assert connection.job().input[0].raw == b'{"type":"message","role":"user","content":"wait"}'
    connection.finish(Text("two"))
    assert [item["content"] for item in context_of(connection.job())][-1] == "later"
    assert connection.complete()["previous_response_id"] == "resp_1"


def test_a_successor_takes_over_the_slot_of_its_target():
    connection = running("a", Server(max_in_flight=1))
    connection.create("b")
    connection.steer("resp_1")
    connection.finish(Text("one"), lane="a")
    assert connection.session.in_flight == 1
    assert [turn.asked.lane for turn in connection.starts] == ["a"]
    connection.complete("a")
    connection.complete("b")


def test_a_steer_is_accepted_while_its_response_is_being_saved():
    connection = running(store=True)
    connection.finish(Text("one"))
    assert connection.steer("resp_1")["type"] == "response.steer.accepted"
    assert types(connection.save()) == ["completed", "created", "in_progress"]


def test_with_asks_each_turn_a_load_precedes_a_successor():
    connection = running()
    connection.session.shared.asks_each_turn = True
    connection.steer("resp_1")
    connection.finish(Text("one"))
    assert len(connection.loads) == 1
    assert types(connection.load()) == ["created", "in_progress"]
    assert [item["content"] for item in context_of(connection.job())][-1] == "wait"


def test_timing_events_precede_pending_events():
    connection = Connection(betas=Betas(timing=True))
    connection.create(tools=[function("f")])
    connection.steer("resp_1")
    connection.generate(*CALL)
    assert types(connection.finish())[-3:] == ["completed", "slipring.timing", "steer.pending"]


# Required outputs.


def pending(connection: Connection, *steers: str, lane: str | None = None) -> list[Json]:
    """End `resp_1` with two open calls and waiting steers."""
    connection.create(lane, tools=[function("f"), {"type": "custom", "name": "g"}])
    for input in steers:
        connection.steer("resp_1", input)
    connection.generate(*CALL, *CUSTOM, lane=lane)
    sent = connection.finish(lane=lane)
    assert not connection.starts
    return sent


OUTPUTS = [call_output("call_1"), call_output("call_2", kind="custom_tool_call_output")]


def test_steers_wait_for_required_outputs():
    connection = Connection()
    first, second = pending(connection, "first", "second")[-2:]
    assert types([first, second]) == ["steer.pending", "steer.pending"]
    assert [first["steer"]["id"], second["steer"]["id"]] == ["steer_1", "steer_2"]
    assert first["reason"] == "waiting_for_required_input"
    assert first["required_input"] == second["required_input"]
    assert first["required_input"] == [
        {"type": "function_call_output", "call_id": "call_1", "name": "f"},
        {"type": "custom_tool_call_output", "call_id": "call_2"},
    ]


def test_waiting_steers_come_between_the_outputs_and_the_rest_of_the_continuation():
    connection = Connection()
    pending(connection, "first", "second")
    connection.create(previous="resp_1", input=[*OUTPUTS, message("third")], temperature=0.25)
    items = context_of(connection.job())[-5:]
    assert [item.get("content") for item in items] == [None, None, "first", "second", "third"]
    assert connection.job().settings.temperature == 0.25
    assert connection.complete()["status"] == "completed"
    # Each steer is used once.
    connection.create(previous="resp_1", input=[*OUTPUTS, message("third")])
    assert "first" not in [item.get("content") for item in context_of(connection.job())]


def test_a_queued_continuation_takes_the_steers():
    connection = Connection()
    connection.create(tools=[function("f")])
    connection.create(previous="resp_1", input=[call_output("call_1")])
    connection.steer("resp_1")
    connection.generate(*CALL)
    connection.finish()
    assert [item.get("content") for item in context_of(connection.job())][-2:] == [None, "wait"]


def test_warmups_forks_and_other_chains_leave_steers_waiting():
    connection = Connection()
    pending(connection, "first", lane="a")
    connection.respond("a", "resp_1", generate=False, input=[])
    connection.respond("b", "resp_1", input=OUTPUTS)
    connection.respond("a")
    assert all("first" not in str(response["output"]) for response in connection.order.responses)
    connection.create("a", "resp_1", input=OUTPUTS)
    assert "first" in [item.get("content") for item in context_of(connection.job("a"))]


@pytest.mark.parametrize(
    "fields",
    [
        {"input": [message("no outputs")]},
        {"input": 5},
        {"temperature": "hot"},
        {"input": OUTPUTS, "model": "unknown"},
        {"generate": False, "model": "unknown"},
    ],
)
def test_a_refused_continuation_returns_the_steers(fields):
    connection = Connection()
    pending(connection, "first", "second")
    sent = connection.create(previous="resp_1", **fields)
    assert types(sent) == ["steer.failed", "steer.failed", "error"]
    assert {failure(event) for event in sent[:2]} == {"successor_creation_failed"}
    assert [event["steer"]["input"] for event in sent[:2]] == ["first", "second"]
    assert [event["steer"]["id"] for event in sent[:2]] == ["steer_1", "steer_2"]


def test_a_continuation_that_the_engine_refuses_returns_the_steers():
    connection = Connection(refuses=lambda job: InvalidRequest("No.") if job.parent is not None else None)
    pending(connection, "first")
    sent = connection.create(previous="resp_1", input=OUTPUTS)
    assert types(sent) == ["steer.failed", "error"]


def test_a_continuation_that_fails_after_created_has_consumed_the_steers():
    connection = Connection()
    pending(connection, "first")
    connection.create(previous="resp_1", input=OUTPUTS)
    assert types(connection.fail()) == ["failed"]


def test_a_failed_warmup_returns_the_steers_of_its_parent():
    connection = Connection()
    pending(connection, "first")
    connection.create(previous="resp_1", generate=False, input=[])
    assert types(connection.fail()) == ["failed", "steer.failed"]


def test_errors_name_the_index_in_the_clients_own_input():
    connection = Connection()
    pending(connection, "first", "second")
    sent = connection.create(previous="resp_1", input=[*OUTPUTS, call_output("call_9")])
    assert sent[-1]["error"]["param"] == "input[2].call_id"


def test_errors_after_the_steers_name_the_index_in_the_clients_own_input():
    connection = Connection()
    pending(connection, "first", "second")
    picture = {"role": "user", "content": [{"type": "input_image", "image_url": PIXEL}]}
    sent = connection.create(previous="resp_1", input=[*OUTPUTS, message("so"), picture])
    assert sent[-1]["error"]["param"] == "input[3].content[0]"


def test_an_error_about_a_steer_names_no_index_of_the_input():
    connection = Connection()
    connection.create(model="able", tools=[function("f")])
    picture = [{"role": "user", "content": [{"type": "input_image", "image_url": PIXEL}]}]
    connection.steer("resp_1", picture)
    connection.generate(*CALL)
    connection.finish()
    sent = connection.create(
        previous="resp_1", input=[call_output("call_1")]
    )  # model "m" does not support images
    assert types(sent) == ["steer.failed", "error"]
    assert sent[1]["error"]["param"] == "previous_response_id"


# Failures.


def fail_last(connection: Connection, lane: str) -> str:
    """Let a response fail, which its connection then forgets; returns its id."""
    connection.create(lane)
    response_id = connection.events[-1]["response"]["id"]
    connection.generate(Text("so"), lane=lane)
    connection.fail(lane=lane)
    return response_id


def test_a_failure_for_a_forgotten_response_is_sent_on_its_lane():
    connection = Connection(betas=Betas(rollout=True, tool_output=True))
    oldest = fail_last(connection, "a")
    newer = [fail_last(connection, "b") for _ in range(MOST_ENDED - 1)]
    for response_id, lane in ((oldest, "a"), (newer[-1], "b")):
        refused = connection.steer(response_id)
        assert (failure(refused), refused["stream_id"]) == ("response_not_found", lane)
        assert connection.append(response_id, call_output("call_1"))[-1]["stream_id"] == lane
        assert connection.stream_output(response_id, "call_1", "x")[-1]["stream_id"] == lane
    fail_last(connection, "b")
    assert "stream_id" not in connection.steer(oldest), "the lanes of so many are remembered"
    assert "stream_id" not in connection.steer("resp_x")


@pytest.mark.parametrize("work", ["engine", "store"])
def test_a_failed_response_returns_its_steers(work):
    connection = running(store=True)
    connection.steer("resp_1", "first")
    connection.generate(Text("one"))
    if work == "store":
        connection.finish()
    sent = connection.fail()
    assert types(sent)[-2:] == ["failed", "steer.failed"]
    assert failure(sent[-1]) == "response_not_active"
    assert sent[-1]["steer"] == {"id": "steer_1", "previous_response_id": "resp_1", "input": "first"}
    assert not connection.starts


def test_a_successor_that_the_engine_refuses_returns_the_steers_without_an_error_event():
    connection = Connection(refuses=lambda job: ServerError() if job.parent is not None else None)
    connection.create("a")
    connection.create("a", input="later")
    connection.steer("resp_1", "first")
    sent = connection.finish(Text("one"), lane="a")
    assert types(sent)[-3:] == ["steer.failed", "created", "in_progress"]
    assert failure(sent[-3]) == "successor_creation_failed"
    assert sent[-3]["stream_id"] == "a"
    assert "resp_1" in connection.cache  # the client may continue it


def test_a_successor_without_a_model_returns_the_steers(monkeypatch):
    connection = running()
    connection.steer("resp_1")

    def find(name: str | None) -> Any:
        raise ModelNotFound("m", [])

    monkeypatch.setattr(connection.server.models, "find", find)
    sent = connection.finish(Text("one"))
    assert failure(sent[-1]) == "successor_creation_failed"
    assert connection.session.in_flight == 0


def test_an_ending_connection_returns_the_steers():
    connection = running("a")
    connection.create("b", tools=[function("f")])
    connection.steer("resp_1", "first")
    connection.steer("resp_2", "second")
    connection.generate(*CALL, lane="b")
    connection.finish(lane="b")
    sent = connection.end(Unavailable("Enough."))
    assert types(sent) == ["steer.failed"]
    assert (failure(sent[0]), sent[0]["steer"]["input"]) == ("successor_creation_failed", "second")
    assert failure(connection.steer("resp_1")) == "response_not_active"
    assert only_error(connection.create("b", "resp_2"))["error"]["code"] == "service_unavailable"
    sent = connection.finish(Text("one"), lane="a")
    assert types(sent)[-3:] == ["completed", "steer.failed", "error"]
    assert connection.close is not None


def test_steers_are_dropped_when_the_client_disconnects():
    connection = running()
    connection.steer("resp_1")
    assert connection.hang_up() == []
    assert len(connection.cancelled) == 1
