"""A session: chaining, forking, eviction, warmup, storing. Frames that are wrong and the end of a
connection have files of their own."""

from types import SimpleNamespace
from typing import Any

import pytest

from slipring.core.generation import CallArguments, CallStarted, Text
from slipring.core.session.loaded import Loaded
from slipring.core.turn.phase import Phase
from slipring.errors import ApiError, AuthenticationFailed, InvalidRequest, RateLimited, ServerError
from tests.core.stage import Stage, World, call_output, context_of, function, message, only_error, types

CALL = (CallStarted(kind="function", name="f"), CallArguments("{}"))


def not_found(response_id: str, lane: str | None = None) -> dict[str, Any]:
    """The documented frame, key by key."""
    frame = {
        "type": "error",
        "status": 400,
        "sequence_number": 0,
        "error": {
            "type": "invalid_request_error",
            "code": "previous_response_not_found",
            "message": f"Previous response with id '{response_id}' not found.",
            "param": "previous_response_id",
        },
    }
    return frame if lane is None else {**frame, "stream_id": lane}


def is_lost(stage: Stage, response_id: str) -> bool:
    """Whether a response that was not stored can no longer be continued. Asks from a lane of its own."""
    events = stage.create("probe", previous=response_id)
    if not events:
        events = stage.load("probe")
    if events[0]["type"] == "error":
        assert events == [not_found(response_id, "probe")]
        return True
    stage.complete("probe")
    return False


# One response.


def test_a_text_answer_comes_in_the_canonical_order():
    stage = Stage()
    stage.create()
    stage.say(Text("Hel"))
    stage.say(Text("lo"))
    stage.finish()
    assert types(stage.events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in stage.events] == list(range(10))


def test_sequence_numbers_restart_with_each_response():
    stage = Stage()
    stage.respond()
    before = len(stage.events)
    stage.respond()
    assert [event["sequence_number"] for event in stage.events[before:]] == list(range(9))


def test_a_finished_response_says_what_it_was_asked():
    stage = Stage()
    response = stage.respond(
        instructions="be brief",
        metadata={"k": "v"},
        temperature=0.5,
        max_output_tokens=5,
        user="u",
        text={"verbosity": "low"},
        reasoning={"effort": "low", "summary": "auto"},
        store=True,
    )
    wanted = {
        "id": "resp_1",
        "created_at": 1000,
        "completed_at": 1000,
        "status": "completed",
        "model": "m",
        "instructions": "be brief",
        "metadata": {"k": "v"},
        "temperature": 0.5,
        "top_p": 1.0,
        "max_output_tokens": 5,
        "user": "u",
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "store": True,
        "previous_response_id": None,
        "tools": [],
        "tool_choice": "auto",
    }
    assert {key: response[key] for key in wanted} == wanted


def test_usage_counts_what_the_engine_counted():
    assert Stage().respond()["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 5},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 10,
    }


def test_an_unknown_model_is_refused_and_the_connection_goes_on():
    stage = Stage()
    refused = only_error(stage.create(model="nobody"))
    assert (refused["status"], refused["error"]["code"]) == (404, "model_not_found")
    assert stage.respond()["status"] == "completed"


def test_the_model_may_be_left_out():
    assert Stage().respond(model=None)["model"] == "m"


def test_an_engine_that_ends_without_saying_so_is_a_fault_and_no_answer():
    """The driver turns what is raised here into a failed response."""
    stage = Stage()
    stage.create()
    (turn,) = stage.starts
    with pytest.raises(RuntimeError):
        stage.session.finished(turn, 0.0)
    assert types(stage.fail()) == ["failed"]


# Chaining.


def test_a_context_is_previous_input_then_previous_output_then_new_input():
    stage = Stage()
    first = stage.respond(input="one", says="uno")
    stage.create(previous=first["id"], input=[message("two"), message("and three")])
    assert context_of(stage.job()) == [
        message("one"),
        *first["output"],
        message("two"),
        message("and three"),
    ]
    assert stage.complete()["previous_response_id"] == first["id"]


def test_a_response_that_is_not_stored_continues_from_the_connections_memory():
    stage = Stage()
    first = stage.respond(store=False)
    assert types(stage.create(previous=first["id"])) == ["created", "in_progress"]
    assert not stage.loads
    assert not stage.world.store


def test_an_older_response_of_a_lane_can_still_be_continued():
    stage = Stage()
    first = stage.respond()
    stage.respond(previous=first["id"])
    stage.create(previous=first["id"], input="again")
    assert context_of(stage.job()) == [message("hi"), *first["output"], message("again")]


def test_a_lane_without_previous_response_id_starts_afresh():
    stage = Stage()
    stage.respond()
    stage.create()
    assert stage.job().parent is None
    assert context_of(stage.job()) == [message("hi")]


def test_null_previous_response_id_is_none():
    stage = Stage()
    stage.respond()
    stage.create(previous_response_id=None)
    assert stage.job().parent is None


def test_a_stored_response_is_loaded_on_another_connection():
    world = World()
    first = world.connect().respond(store=True, input="one")
    stage = world.connect()
    assert stage.create(previous=first["id"], input="two") == []
    (load,) = stage.loads.values()
    assert (load.response_id, load.item_ids) == (first["id"], frozenset())
    assert types(stage.load()) == ["created", "in_progress"]
    assert context_of(stage.job()) == [message("one"), *first["output"], message("two")]


def test_in_progress_is_not_said_before_the_parent_is_bound():
    """Clients take it as the sign that they may advance the source of a fork."""
    world = World()
    first = world.connect().respond(store=True)
    stage = world.connect()
    assert stage.create("fork", previous=first["id"]) == []
    assert stage.create("other") != []
    assert types(stage.load("fork")) == ["created", "in_progress"]
    assert stage.job("fork").parent is world.store["tenant", first["id"]]


def test_a_load_occupies_its_lane():
    stage = Stage(World(max_in_flight=1))
    assert stage.create(previous="resp_x") == []
    assert stage.create() == []
    assert stage.create("other") == []
    assert types(stage.load()) == ["error", "created", "in_progress"]


def test_an_unknown_previous_response_is_refused_by_its_documented_frame():
    stage = Stage()
    assert stage.create("main", previous="resp_abc") == []
    assert stage.load("main") == [not_found("resp_abc", "main")]
    assert stage.create(previous="resp_abc") == []
    assert stage.load() == [not_found("resp_abc")]
    assert stage.respond("main")["status"] == "completed"


def test_an_empty_previous_response_id_is_not_found_rather_than_ignored():
    stage = Stage()
    stage.create(previous="")
    assert stage.load() == [not_found("")]


def test_a_response_that_was_not_stored_is_unknown_on_another_connection():
    world = World()
    first = world.connect().respond(store=False)
    other = world.connect()
    other.create(previous=first["id"])
    assert other.load() == [not_found(first["id"])]


def test_a_stored_response_of_another_tenant_is_unknown():
    world = World()
    first = world.connect("alice").respond(store=True)
    stage = world.connect("bob")
    stage.create(previous=first["id"])
    assert stage.load() == [not_found(first["id"])]


def test_a_stored_continuation_brings_its_unstored_past_along_but_not_its_id():
    world = World()
    stage = world.connect()
    first = stage.respond(store=False, input="one")
    second = stage.respond(previous=first["id"], store=True, input="two")
    other = world.connect()
    other.create(previous=second["id"], input="three")
    other.load()
    assert context_of(other.job())[0] == message("one")
    other.complete()
    assert is_lost(other, first["id"])


def test_a_failing_load_is_an_error_on_the_lane_and_no_failed_response():
    stage = Stage()
    stage.create("a", previous="resp_x")
    refused = only_error(stage.fail("a"))
    assert (refused["status"], refused["stream_id"]) == (500, "a")
    assert stage.respond("a")["status"] == "completed"


def test_a_position_that_the_engine_left_comes_back_with_the_parent():
    stage = Stage()
    stage.create()
    slot = SimpleNamespace(size_bytes=10)
    stage.finish(position=slot)
    stage.create(previous="resp_1")
    assert stage.job().parent.position is slot


# Forks.


def test_a_fork_runs_beside_its_source():
    stage = Stage()
    first = stage.respond("a")
    assert types(stage.create("b", previous=first["id"])) == ["created", "in_progress"]
    assert types(stage.create("a", previous=first["id"])) == ["created", "in_progress"]
    assert stage.job("a").parent is stage.job("b").parent
    stage.complete("b")
    stage.complete("a")


def test_a_fork_pins_its_parent_at_arrival_though_the_source_fails_meanwhile():
    stage = Stage()
    first = stage.respond("a", input="one")
    stage.create("b")
    assert stage.create("b", previous=first["id"], input="fork") == []
    stage.create("a", previous=first["id"])
    stage.fail("a")
    assert first["id"] not in stage.cache
    stage.complete("b")
    assert context_of(stage.job("b")) == [message("one"), *first["output"], message("fork")]


def test_a_fork_pins_its_parent_at_arrival_though_it_is_forgotten_meanwhile():
    """A memory this small keeps one response only, so the source's next one pushes the parent out."""
    stage = Stage(World(connection_cache_bytes=3500))
    first = stage.respond("a", input="x" * 500)
    stage.create("b")
    stage.create("b", previous=first["id"])
    stage.respond("a", input="y" * 1000)
    assert first["id"] not in stage.cache
    stage.complete("b")
    assert stage.job("b").parent.id == first["id"]


def test_a_waiting_continuation_on_the_parents_own_lane_pins_nothing():
    """Otherwise a failure before it could not take the parent away."""
    stage = Stage()
    first = stage.respond("a")
    stage.create("a", previous=first["id"])
    stage.create("a", previous=first["id"])
    assert types(stage.fail("a")) == ["failed"]
    assert stage.load("a") == [not_found(first["id"], "a")]


def test_a_response_can_be_forked_before_it_is_finished_if_the_fork_waits_long_enough():
    stage = Stage()
    stage.create("a")
    stage.create("b")
    stage.create("b", previous="resp_1")
    stage.complete("a")
    stage.complete("b")
    assert stage.job("b").parent.id == "resp_1"


# Eviction.

FAILURES_BEFORE_CREATION = {
    "an orphaned tool output": {"input": [call_output("call_nope")]},
    "an unknown model": {"model": "nobody"},
    "an unsupported field": {"background": True},
    "a field of the wrong type": {"temperature": "hot"},
    "a bad item": {"input": [{"type": "nonsense"}]},
    "an unseen image": {
        "input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]
    },
    "a tool choice without the tool": {"tool_choice": "required"},
    "bad tools": {"tools": [{"type": "function"}]},
    "stream: false": {"stream": False},
}


@pytest.mark.parametrize("fields", FAILURES_BEFORE_CREATION.values(), ids=FAILURES_BEFORE_CREATION)
def test_a_continuation_refused_on_its_parents_lane_takes_the_parent_with_it(fields):
    stage = Stage()
    first = stage.respond("a")
    assert 400 <= only_error(stage.create("a", previous=first["id"], **fields))["status"] < 500
    assert is_lost(stage, first["id"])


@pytest.mark.parametrize("fields", FAILURES_BEFORE_CREATION.values(), ids=FAILURES_BEFORE_CREATION)
def test_a_fork_that_is_refused_keeps_the_parent(fields):
    stage = Stage()
    first = stage.respond("a")
    only_error(stage.create("b", previous=first["id"], **fields))
    assert not is_lost(stage, first["id"])


def test_a_refusal_without_previous_response_id_evicts_nothing():
    stage = Stage()
    first = stage.respond()
    only_error(stage.create(model="nobody"))
    assert not is_lost(stage, first["id"])


@pytest.mark.parametrize("error", [ServerError(), RateLimited("busy"), InvalidRequest("too long")])
def test_an_engines_failure_on_the_parents_lane_takes_the_parent_with_it(error: ApiError):
    stage = Stage()
    first = stage.respond("a")
    stage.create("a", previous=first["id"])
    assert types(stage.fail("a", error)) == ["failed"]
    assert is_lost(stage, first["id"])


def test_an_engines_failure_on_a_fork_keeps_the_parent():
    stage = Stage()
    first = stage.respond("a")
    stage.create("b", previous=first["id"])
    assert types(stage.fail("b")) == ["failed"]
    assert not is_lost(stage, first["id"])


def test_only_the_parent_is_evicted_and_not_what_it_was_made_from():
    stage = Stage()
    first = stage.respond()
    second = stage.respond(previous=first["id"])
    only_error(stage.create(previous=second["id"], model="nobody"))
    assert is_lost(stage, second["id"])
    assert not is_lost(stage, first["id"])


def test_an_evicted_response_that_was_stored_is_loaded_again():
    stage = Stage()
    first = stage.respond(store=True)
    only_error(stage.create(previous=first["id"], model="nobody"))
    assert first["id"] not in stage.cache
    assert stage.create(previous=first["id"]) == []
    assert types(stage.load()) == ["created", "in_progress"]


def test_the_default_lane_evicts_like_any_other():
    stage = Stage()
    first = stage.respond()
    only_error(stage.create(previous=first["id"], model="nobody"))
    assert is_lost(stage, first["id"])


# How a response ends decides whether it can be continued.


@pytest.mark.parametrize("reason", ["max_output_tokens", "content_filter"])
def test_an_incomplete_response_can_be_continued(reason):
    stage = Stage()
    stage.create(input="one")
    events = stage.finish(Text("half a sen"), reason=reason)
    assert types(events)[-2:] == ["output_item.done", "incomplete"]
    response = events[-1]["response"]
    assert response["incomplete_details"] == {"reason": reason}
    assert response["output"][0]["status"] == "incomplete"
    stage.create(previous=response["id"], input="go on")
    assert context_of(stage.job()) == [message("one"), *response["output"], message("go on")]


def test_a_failed_response_cannot_be_continued():
    stage = Stage()
    stage.create()
    stage.say(Text("half"))
    events = stage.fail()
    assert types(events)[-1] == "failed"
    assert is_lost(stage, events[-1]["response"]["id"])


def test_a_failure_closes_what_was_open_and_says_why():
    stage = Stage()
    stage.create()
    stage.say(Text("half"))
    events = stage.fail(error=ServerError("The engine is gone."))
    assert types(events) == ["output_text.done", "content_part.done", "output_item.done", "failed"]
    response = events[-1]["response"]
    assert response["error"] == {"code": "server_error", "message": "The engine is gone."}
    assert response["output"][0]["status"] == "incomplete"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ServerError(), "server_error"),
        (RateLimited("slow down"), "rate_limit_exceeded"),
        (InvalidRequest("too long", code="context_length_exceeded"), "invalid_prompt"),
        (InvalidRequest("no", code="invalid_prompt"), "invalid_prompt"),
        (InvalidRequest("no", code="something_new"), "invalid_prompt"),
    ],
)
def test_failed_responses_use_the_codes_that_clients_know(error, code):
    stage = Stage()
    stage.create()
    assert stage.fail(error=error)[-1]["response"]["error"]["code"] == code


# Storing.


def test_a_response_is_called_complete_only_once_it_is_stored():
    stage = Stage()
    stage.create(store=True)
    assert types(stage.finish(Text("x")))[-1] == "output_item.done"
    assert types(stage.save()) == ["completed"]
    assert ("tenant", "resp_1") in stage.world.store


def test_store_is_the_default():
    stage = Stage()
    stage.create(store=None)
    stage.finish()
    assert stage.saves
    stage.save()
    assert stage.order.responses[-1]["store"] is True


def test_a_lane_waits_until_its_response_is_stored():
    stage = Stage()
    stage.create(store=True)
    assert stage.create(previous="resp_1") == []
    stage.finish()
    assert types(stage.save()) == ["completed", "created", "in_progress"]
    assert stage.job().parent.id == "resp_1"


@pytest.mark.parametrize("reason", ["stop", "max_output_tokens"])
def test_a_response_that_could_not_be_stored_has_failed(reason):
    stage = Stage()
    first = stage.respond("a")
    stage.create("a", previous=first["id"], store=True)
    stage.finish(Text("x"), lane="a", reason=reason)
    (turn,) = stage.saves
    events = stage.fail("a")
    assert types(events) == ["failed"]
    response = events[0]["response"]
    assert response["status"] == "failed"
    assert response["completed_at"] is None
    assert response["incomplete_details"] is None
    assert is_lost(stage, response["id"])
    assert is_lost(stage, first["id"])
    assert stage.session.saved(turn, 0.0) == []


# Warmup.


def test_a_warmup_is_created_and_completed_and_nothing_else():
    stage = Stage()
    stage.create(generate=False, input="long context", instructions="be brief")
    assert stage.job().generate is False
    stage.finish()
    assert types(stage.events) == ["created", "completed"]
    assert [event["sequence_number"] for event in stage.events] == [0, 1]
    response = stage.events[-1]["response"]
    assert (response["status"], response["output"]) == ("completed", [])
    assert (response["usage"]["input_tokens"], response["usage"]["output_tokens"]) == (7, 0)


def test_a_warmup_is_continued_with_empty_input():
    stage = Stage()
    warm = stage.respond(generate=False, input="one")
    assert types(stage.create(previous=warm["id"], input=[])) == ["created", "in_progress"]
    assert context_of(stage.job()) == [message("one")]
    stage.complete()


def test_a_warmup_is_continued_without_input():
    stage = Stage()
    warm = stage.respond(generate=False)
    stage.create(previous=warm["id"], input=None)
    assert context_of(stage.job()) == [message("hi")]


def test_the_prewarm_option_is_a_warmup():
    stage = Stage()
    stage.respond(prompt_cache_options={"prewarm": True})
    assert types(stage.events) == ["created", "completed"]


def test_prewarm_wins_over_generate_true():
    stage = Stage()
    stage.respond(generate=True, prompt_cache_options={"prewarm": True})
    assert types(stage.events) == ["created", "completed"]


def test_a_warmup_may_have_no_input_at_all():
    stage = Stage()
    assert stage.respond(generate=False, input=[])["output"] == []


def test_a_warmup_may_come_late_and_be_continued_further_down():
    stage = Stage()
    first = stage.respond(input="one")
    warm = stage.respond(previous=first["id"], generate=False, input="two")
    third = stage.respond(previous=warm["id"], input="three")
    stage.create(previous=third["id"], input="four")
    assert [item.get("content") for item in context_of(stage.job()) if item["role"] == "user"] == [
        "one",
        "two",
        "three",
        "four",
    ]


def test_a_warmup_takes_its_place_in_the_lane():
    stage = Stage()
    stage.create()
    assert stage.create(generate=False) == []
    assert stage.create() == []
    assert types(stage.finish()) == ["completed", "created"]
    assert types(stage.finish()) == ["completed", "created", "in_progress"]


def test_a_warmup_can_be_stored():
    stage = Stage()
    warm = stage.respond(generate=False, store=True)
    assert ("tenant", warm["id"]) in stage.world.store


def test_a_warmup_may_leave_calls_unanswered():
    stage = Stage()
    stage.create()
    stage.finish(*CALL)
    warm = stage.respond(previous="resp_1", generate=False, input=[])
    refused = only_error(stage.create(previous=warm["id"], input=[]))
    assert refused["error"]["message"] == "No tool output found for function call call_1."


def test_a_create_with_nothing_to_go_on_is_refused():
    for fields in ({"input": []}, {"input": None}):
        refused = only_error(Stage().create(**fields))
        assert refused["error"]["code"] == "missing_required_parameter"
        assert refused["error"]["param"] == "input"


def test_instructions_alone_are_something_to_go_on():
    assert Stage().respond(input=[], instructions="Say hello.")["status"] == "completed"


# Tool calls.


def test_a_call_is_answered_in_the_next_create():
    stage = Stage()
    stage.create(tools=[function("f")])
    first = stage.finish(*CALL)[-1]["response"]
    (call,) = first["output"]
    assert first["status"] == "completed"
    stage.create(previous=first["id"], input=[call_output(call["call_id"])], tools=[function("f")])
    assert context_of(stage.job())[-2:] == [call, call_output(call["call_id"])]
    stage.complete()


def test_an_orphaned_output_evicts_as_the_open_responses_suite_probes_it():
    stage = Stage()
    first = stage.respond(store=False)
    refused = only_error(stage.create(previous=first["id"], input=[call_output("call_nope")]))
    assert refused["error"]["message"] == (
        "No tool call found for function call output with call_id call_nope."
    )
    stage.create(previous=first["id"])
    assert stage.load() == [not_found(first["id"])]


# References.


def test_a_reference_to_an_item_of_the_chain_needs_no_store():
    stage = Stage()
    first = stage.respond(says="quote me")
    item = first["output"][0]
    stage.create(previous=first["id"], input=[{"type": "item_reference", "id": item["id"]}])
    assert not stage.loads
    assert context_of(stage.job()) == [message("hi"), item, item]


def test_a_reference_to_a_stored_item_is_loaded():
    world = World()
    item = world.connect().respond(store=True, says="quote me")["output"][0]
    stage = world.connect()
    assert stage.create(input=[message("see"), {"id": item["id"]}]) == []
    (load,) = stage.loads.values()
    assert (load.response_id, load.item_ids) == (None, frozenset({item["id"]}))
    stage.load()
    assert context_of(stage.job()) == [message("see"), item]


def test_a_reference_is_found_in_a_chain_that_had_to_be_loaded():
    world = World()
    source = world.connect()
    first = source.respond(store=False, says="quote me")
    second = source.respond(store=True, previous=first["id"])
    stage = world.connect()
    stage.create(previous=second["id"], input=[{"id": first["output"][0]["id"]}])
    stage.load()
    assert context_of(stage.job())[-1] == first["output"][0]


def test_what_was_referenced_stays_in_the_chain():
    stage = Stage()
    item = stage.respond(store=True, says="quote me")["output"][0]
    stage.create("b", input=[message("see"), {"id": item["id"]}])
    stage.load("b")
    second = stage.complete("b")
    stage.create("b", previous=second["id"])
    assert context_of(stage.job("b")) == [message("see"), item, *second["output"], message("hi")]


def test_a_reference_to_nothing_is_refused_by_name():
    stage = Stage()
    stage.create(input=[message("see"), {"type": "item_reference", "id": "msg_nope"}])
    refused = only_error(stage.load())
    assert refused["status"] == 400
    assert refused["error"]["message"] == "Item with id 'msg_nope' not found."
    assert refused["error"]["param"] == "input[1].id"


def test_items_of_unstored_responses_and_of_other_tenants_cannot_be_referenced():
    world = World()
    unstored = world.connect().respond(store=False)["output"][0]["id"]
    foreign = world.connect("bob").respond(store=True)["output"][0]["id"]
    for item_id in (unstored, foreign):
        stage = world.connect()
        stage.create(input=[{"type": "item_reference", "id": item_id}])
        assert "not found" in only_error(stage.load())["error"]["message"]


# Reports that come too late.


def test_reports_about_a_turn_that_has_ended_are_ignored():
    stage = Stage()
    stage.create()
    (turn,) = stage.starts
    stage.finish()
    assert turn.phase is Phase.ENDED
    assert stage.session.deltas(turn, [Text("late")]) == []
    assert stage.session.finished(turn, 0.0) == []
    assert stage.session.saved(turn, 0.0) == []
    assert stage.session.failed(turn, ServerError(), 0.0) == []
    assert stage.session.in_flight == 0


# Turns that need leave.


def asking() -> Stage:
    stage = Stage()
    stage.session.asks_each_turn = True
    return stage


def test_a_session_that_asks_loads_nothing_before_a_turn_that_misses_nothing():
    stage = asking()
    assert stage.create() == []
    (load,) = stage.loads.values()
    assert (load.response_id, load.item_ids) == (None, frozenset())
    assert not stage.starts
    assert types(stage.load()) == ["created", "in_progress"]
    first = stage.complete()
    stage.create(previous=first["id"], input="more")
    (load,) = stage.loads.values()
    assert (load.response_id, load.item_ids) == (None, frozenset())
    stage.load()
    assert len(context_of(stage.job())) == 3


def test_a_session_that_asks_loads_what_is_missing_with_the_same_question():
    world = World()
    stored = Stage(world).respond(store=True)
    stage = Stage(world)
    stage.session.asks_each_turn = True
    stage.create(previous=stored["id"])
    (load,) = stage.loads.values()
    assert load.response_id == stored["id"]
    stage.load()
    stage.complete()


def test_a_turn_that_waited_asks_when_its_time_has_come():
    stage = asking()
    stage.create("a")
    stage.create("a")
    stage.create("b")
    stage.load("a")
    assert len(stage.loads) == 1
    stage.complete("a")
    assert len(stage.loads) == 2
    error = only_error(stage.fail("a", AuthenticationFailed("No.")))
    assert (error["status"], error["stream_id"]) == (401, "a")
    stage.load("b")
    stage.complete("b")


def test_leave_that_comes_after_the_end_starts_nothing():
    stage = asking()
    stage.create()
    (turn,) = stage.loads
    stage.hang_up()
    assert stage.session.loaded(turn, Loaded(), stage.world.now) == []
