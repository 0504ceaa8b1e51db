"""A session: chaining, forking, eviction, warmup, storing."""

from types import SimpleNamespace
from typing import Any

import pytest

from slipring.base.errors import (
    ApiError,
    AuthenticationFailed,
    InvalidRequest,
    NotFound,
    RateLimited,
    ServerError,
)
from slipring.core.generation import CallArguments, CallStarted, Finished, Text
from slipring.core.session.actions import Counted, Flush, Loaded
from tests.core.connection import (
    Connection,
    Server,
    call_output,
    context_of,
    emitted,
    function,
    message,
    only_error,
    types,
)

CALL = (CallStarted(kind="function", name="f"), CallArguments("{}"))


def not_found(response_id: str, lane: str | None = None) -> dict[str, Any]:
    """The documented error event."""
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


def is_lost(connection: Connection, response_id: str) -> bool:
    """Whether an unstored response can no longer be continued. Uses a separate lane."""
    events = connection.create("probe", previous=response_id)
    if not events:
        events = connection.load("probe")
    if events[0]["type"] == "error":
        assert events == [not_found(response_id, "probe")]
        return True
    connection.complete("probe")
    return False


# One response.


def test_events_of_a_text_answer_are_sent_in_the_canonical_order():
    connection = Connection()
    connection.create()
    connection.generate(Text("Hel"))
    connection.generate(Text("lo"))
    connection.finish()
    assert types(connection.events) == [
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
    assert [event["sequence_number"] for event in connection.events] == list(range(10))


def test_what_no_client_waits_for_follows_the_last_event():
    """The state of a response is remembered, and its turn reported, when the driver has written the event."""
    connection = Connection()
    connection.create(store=False)
    connection.generate(Text("hello"))
    (work,) = connection.starts.values()
    turns, now = connection.session.turns, connection.server.now
    emitted(connection.session, work, [Finished("stop", input_tokens=7, cached_tokens=2, output_tokens=1)])
    *sent, flush = turns.done(work, None, now)
    assert isinstance(flush, Flush)
    assert [type(event).__name__ for action in sent for event in action.events][-1] == "Completed"
    assert (len(connection.cache), connection.session.in_flight) == (0, 1)
    (record,) = turns.done(flush, None, now)
    assert record.report.status == "completed"
    assert (len(connection.cache), connection.session.in_flight) == (1, 0)


def test_sequence_numbers_restart_with_each_response():
    connection = Connection()
    connection.respond()
    before = len(connection.events)
    connection.respond()
    assert [event["sequence_number"] for event in connection.events[before:]] == list(range(9))


def test_a_finished_response_repeats_its_request():
    connection = Connection()
    response = connection.respond(
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


def test_usage_is_what_the_engine_counted():
    assert Connection().respond()["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {
            "cached_tokens": 2,
            "cache_write_tokens": 5,
        },
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 10,
    }


def test_written_tokens_are_counted_under_the_lifetime_that_the_request_asks_for():
    for ttl, written in (("12h", (0, 5)), ("30m", (5, 0))):
        usage = Connection().respond(prompt_cache_options={"ttl": ttl})["usage"]
        details = usage["input_tokens_details"]["cache_write_tokens_details"]
        assert details == {"ttl_30m_tokens": written[0], "ttl_12h_tokens": written[1]}
    usage = Connection().respond(prompt_cache_options={"mode": "implicit"})["usage"]
    assert "cache_write_tokens_details" not in usage["input_tokens_details"]


def test_an_unknown_model_is_refused_and_the_connection_stays_usable():
    connection = Connection()
    refused = only_error(connection.create(model="unknown"))
    assert (refused["status"], refused["error"]["code"]) == (404, "model_not_found")
    assert connection.respond()["status"] == "completed"


def test_the_model_may_be_left_out():
    assert Connection().respond(model=None)["model"] == "m"


def test_an_engine_that_ends_without_finished_is_an_internal_error():
    """The response fails, and the driver logs the exception."""
    connection = Connection()
    connection.create()
    (work,) = connection.starts.values()
    with pytest.raises(RuntimeError):
        connection.done(work)
    assert types(connection.events)[-1] == "failed"
    assert connection.session.in_flight == 0


# Chaining.


def test_a_context_is_previous_input_then_previous_output_then_new_input():
    connection = Connection()
    first = connection.respond(input="one", says="uno")
    connection.create(previous=first["id"], input=[message("two"), message("and three")])
    assert context_of(connection.job()) == [
        message("one"),
        *first["output"],
        message("two"),
        message("and three"),
    ]
    assert connection.complete()["previous_response_id"] == first["id"]


def test_an_unstored_response_is_continued_from_the_connections_cache():
    connection = Connection()
    first = connection.respond(store=False)
    assert types(connection.create(previous=first["id"])) == ["created", "in_progress"]
    assert not connection.loads
    assert not connection.server.store


def test_an_older_response_of_a_lane_can_still_be_continued():
    connection = Connection()
    first = connection.respond()
    connection.respond(previous=first["id"])
    connection.create(previous=first["id"], input="again")
    assert context_of(connection.job()) == [message("hi"), *first["output"], message("again")]


def test_a_create_without_previous_response_id_starts_a_new_chain():
    connection = Connection()
    connection.respond()
    connection.create()
    assert connection.job().parent is None
    assert context_of(connection.job()) == [message("hi")]


def test_null_previous_response_id_is_none():
    connection = Connection()
    connection.respond()
    connection.create(previous_response_id=None)
    assert connection.job().parent is None


def test_a_stored_response_is_loaded_on_another_connection():
    server = Server()
    first = server.connect().respond(store=True, input="one")
    connection = server.connect()
    assert connection.create(previous=first["id"], input="two") == []
    (load,) = connection.loads.values()
    assert (load.response_id, load.item_ids) == (first["id"], frozenset())
    assert types(connection.load()) == ["created", "in_progress"]
    assert context_of(connection.job()) == [message("one"), *first["output"], message("two")]


def test_in_progress_is_not_sent_before_the_parent_is_bound():
    """Clients advance the source of a fork when they receive it."""
    server = Server()
    first = server.connect().respond(store=True)
    connection = server.connect()
    assert connection.create("fork", previous=first["id"]) == []
    assert connection.create("other") != []
    assert types(connection.load("fork")) == ["created", "in_progress"]
    assert connection.job("fork").parent is server.store["tenant", first["id"]]


def test_a_load_occupies_its_lane():
    connection = Connection(Server(max_in_flight=1))
    assert connection.create(previous="resp_x") == []
    assert connection.create() == []
    assert connection.create("other") == []
    assert types(connection.load()) == ["error", "created", "in_progress"]


def test_an_unknown_previous_response_is_refused_by_its_documented_frame():
    connection = Connection()
    assert connection.create("main", previous="resp_abc") == []
    assert connection.load("main") == [not_found("resp_abc", "main")]
    assert connection.create(previous="resp_abc") == []
    assert connection.load() == [not_found("resp_abc")]
    assert connection.respond("main")["status"] == "completed"


def test_an_empty_previous_response_id_is_not_found_rather_than_ignored():
    connection = Connection()
    connection.create(previous="")
    assert connection.load() == [not_found("")]


def test_an_unstored_response_is_unknown_on_another_connection():
    server = Server()
    first = server.connect().respond(store=False)
    other = server.connect()
    other.create(previous=first["id"])
    assert other.load() == [not_found(first["id"])]


def test_a_stored_response_of_another_tenant_is_unknown():
    server = Server()
    first = server.connect("alice").respond(store=True)
    connection = server.connect("bob")
    connection.create(previous=first["id"])
    assert connection.load() == [not_found(first["id"])]


def test_a_stored_continuation_includes_its_unstored_parent_but_not_the_parents_id():
    server = Server()
    connection = server.connect()
    first = connection.respond(store=False, input="one")
    second = connection.respond(previous=first["id"], store=True, input="two")
    other = server.connect()
    other.create(previous=second["id"], input="three")
    other.load()
    assert context_of(other.job())[0] == message("one")
    other.complete()
    assert is_lost(other, first["id"])


def test_a_failed_load_is_an_error_on_the_lane_and_not_a_failed_response():
    connection = Connection()
    connection.create("a", previous="resp_x")
    refused = only_error(connection.fail("a"))
    assert (refused["status"], refused["stream_id"]) == (500, "a")
    assert connection.respond("a")["status"] == "completed"


def test_the_engines_position_is_passed_back_with_the_parent():
    connection = Connection()
    connection.create()
    slot = SimpleNamespace(size_bytes=10)
    connection.finish(position=slot)
    connection.create(previous="resp_1")
    assert connection.job().parent.position is slot


# Forks.


def test_a_fork_runs_concurrently_with_its_source():
    connection = Connection()
    first = connection.respond("a")
    assert types(connection.create("b", previous=first["id"])) == ["created", "in_progress"]
    assert types(connection.create("a", previous=first["id"])) == ["created", "in_progress"]
    assert connection.job("a").parent is connection.job("b").parent
    connection.complete("b")
    connection.complete("a")


def test_a_queued_fork_keeps_its_parent_though_the_source_fails():
    connection = Connection()
    first = connection.respond("a", input="one")
    connection.create("b")
    assert connection.create("b", previous=first["id"], input="fork") == []
    connection.create("a", previous=first["id"])
    connection.fail("a")
    assert first["id"] not in connection.cache
    connection.complete("b")
    assert context_of(connection.job("b")) == [message("one"), *first["output"], message("fork")]


def test_a_queued_fork_keeps_its_parent_though_the_cache_evicts_it():
    """This cache holds one response only, so the source's next response evicts the parent."""
    connection = Connection(Server(connection_cache_bytes=4300))
    first = connection.respond("a", input="x" * 500)
    connection.create("b")
    connection.create("b", previous=first["id"])
    connection.respond("a", input="y" * 1000)
    assert first["id"] not in connection.cache
    connection.complete("b")
    assert connection.job("b").parent.id == first["id"]


def test_a_waiting_continuation_on_the_parents_own_lane_pins_nothing():
    """Otherwise a failure before it could not evict the parent."""
    connection = Connection()
    first = connection.respond("a")
    connection.create("a", previous=first["id"])
    connection.create("a", previous=first["id"])
    assert types(connection.fail("a")) == ["failed"]
    assert connection.load("a") == [not_found(first["id"], "a")]


def test_a_response_can_be_forked_before_it_is_finished_if_the_fork_waits_long_enough():
    connection = Connection()
    connection.create("a")
    connection.create("b")
    connection.create("b", previous="resp_1")
    connection.complete("a")
    connection.complete("b")
    assert connection.job("b").parent.id == "resp_1"


# Eviction.

FAILURES_BEFORE_CREATION = {
    "an orphaned tool output": {"input": [call_output("call_nope")]},
    "an unknown model": {"model": "unknown"},
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
def test_a_continuation_refused_on_its_parents_lane_evicts_the_parent(fields):
    connection = Connection()
    first = connection.respond("a")
    assert 400 <= only_error(connection.create("a", previous=first["id"], **fields))["status"] < 500
    assert is_lost(connection, first["id"])


@pytest.mark.parametrize("fields", FAILURES_BEFORE_CREATION.values(), ids=FAILURES_BEFORE_CREATION)
def test_a_fork_that_is_refused_keeps_the_parent(fields):
    connection = Connection()
    first = connection.respond("a")
    only_error(connection.create("b", previous=first["id"], **fields))
    assert not is_lost(connection, first["id"])


def test_a_refusal_without_previous_response_id_evicts_nothing():
    connection = Connection()
    first = connection.respond()
    only_error(connection.create(model="unknown"))
    assert not is_lost(connection, first["id"])


@pytest.mark.parametrize("error", [ServerError(), RateLimited("busy"), InvalidRequest("too long")])
def test_an_engine_failure_on_the_parents_lane_evicts_the_parent(error: ApiError):
    connection = Connection()
    first = connection.respond("a")
    connection.create("a", previous=first["id"])
    assert types(connection.fail("a", error)) == ["failed"]
    assert is_lost(connection, first["id"])


def test_an_engine_failure_on_a_fork_keeps_the_parent():
    connection = Connection()
    first = connection.respond("a")
    connection.create("b", previous=first["id"])
    assert types(connection.fail("b")) == ["failed"]
    assert not is_lost(connection, first["id"])


def test_only_the_parent_is_evicted_and_not_its_ancestors():
    connection = Connection()
    first = connection.respond()
    second = connection.respond(previous=first["id"])
    only_error(connection.create(previous=second["id"], model="unknown"))
    assert is_lost(connection, second["id"])
    assert not is_lost(connection, first["id"])


def test_an_evicted_response_that_was_stored_is_loaded_again():
    connection = Connection()
    first = connection.respond(store=True)
    only_error(connection.create(previous=first["id"], model="unknown"))
    assert first["id"] not in connection.cache
    assert connection.create(previous=first["id"]) == []
    assert types(connection.load()) == ["created", "in_progress"]


def test_the_default_lane_evicts_like_any_other():
    connection = Connection()
    first = connection.respond()
    only_error(connection.create(previous=first["id"], model="unknown"))
    assert is_lost(connection, first["id"])


# How a response ends decides whether it can be continued.


@pytest.mark.parametrize("reason", ["max_output_tokens", "content_filter"])
def test_an_incomplete_response_can_be_continued(reason):
    connection = Connection()
    connection.create(input="one")
    events = connection.finish(Text("half a sen"), reason=reason)
    assert types(events)[-2:] == ["output_item.done", "incomplete"]
    response = events[-1]["response"]
    assert response["incomplete_details"] == {"reason": reason}
    assert response["output"][0]["status"] == "incomplete"
    connection.create(previous=response["id"], input="go on")
    assert context_of(connection.job()) == [message("one"), *response["output"], message("go on")]


def test_a_failed_response_cannot_be_continued():
    connection = Connection()
    connection.create()
    connection.generate(Text("half"))
    events = connection.fail()
    assert types(events)[-1] == "failed"
    assert is_lost(connection, events[-1]["response"]["id"])


def test_a_failure_closes_open_items_and_gives_the_reason():
    connection = Connection()
    connection.create()
    connection.generate(Text("half"))
    events = connection.fail(error=ServerError("The engine is gone."))
    assert types(events) == ["output_text.done", "content_part.done", "output_item.done", "failed"]
    response = events[-1]["response"]
    assert response["error"] == {"code": "server_error", "message": "The engine is gone."}
    assert response["output"][0]["status"] == "incomplete"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ServerError(), "server_error"),
        (RateLimited("slow down"), "rate_limit_exceeded"),
        (InvalidRequest("too long", code="context_length_exceeded"), "context_length_exceeded"),
        (RateLimited("no money", code="insufficient_quota"), "insufficient_quota"),
        (NotFound("no model", code="model_not_found"), "model_not_found"),
        (InvalidRequest("no", code="invalid_prompt"), "invalid_prompt"),
        (InvalidRequest("no", code="something_new"), "invalid_prompt"),
    ],
)
def test_failed_responses_use_the_codes_of_the_api(error, code):
    connection = Connection()
    connection.create()
    assert connection.fail(error=error)[-1]["response"]["error"]["code"] == code


# Storing.


def test_a_response_completes_only_once_it_is_stored():
    connection = Connection()
    connection.create(store=True)
    assert types(connection.finish(Text("x")))[-1] == "output_item.done"
    assert types(connection.save()) == ["completed"]
    assert ("tenant", "resp_1") in connection.server.store


def test_store_is_the_default():
    connection = Connection()
    connection.create(store=None)
    connection.finish()
    assert connection.saves
    connection.save()
    assert connection.order.responses[-1]["store"] is True


def test_a_lane_waits_until_its_response_is_stored():
    connection = Connection()
    connection.create(store=True)
    assert connection.create(previous="resp_1") == []
    connection.finish()
    assert types(connection.save()) == ["completed", "created", "in_progress"]
    assert connection.job().parent.id == "resp_1"


@pytest.mark.parametrize("reason", ["stop", "max_output_tokens"])
def test_a_response_that_could_not_be_stored_fails(reason):
    connection = Connection()
    first = connection.respond("a")
    connection.create("a", previous=first["id"], store=True)
    connection.finish(Text("x"), lane="a", reason=reason)
    (save,) = connection.saves.values()
    events = connection.fail("a")
    assert types(events) == ["failed"]
    response = events[0]["response"]
    assert response["status"] == "failed"
    assert response["completed_at"] is None
    assert response["incomplete_details"] is None
    assert is_lost(connection, response["id"])
    assert is_lost(connection, first["id"])
    assert connection.session.turns.done(save, None, 0.0) == []


# Warmup.


def test_a_warmup_sends_created_and_completed_only():
    connection = Connection()
    connection.create(generate=False, input="long context", instructions="be brief")
    assert connection.job().generate is False
    connection.finish()
    assert types(connection.events) == ["created", "completed"]
    assert [event["sequence_number"] for event in connection.events] == [0, 1]
    response = connection.events[-1]["response"]
    assert (response["status"], response["output"]) == ("completed", [])
    assert (response["usage"]["input_tokens"], response["usage"]["output_tokens"]) == (7, 0)


def test_a_warmup_is_continued_with_empty_input():
    connection = Connection()
    warm = connection.respond(generate=False, input="one")
    assert types(connection.create(previous=warm["id"], input=[])) == ["created", "in_progress"]
    assert context_of(connection.job()) == [message("one")]
    connection.complete()


def test_a_warmup_is_continued_without_input():
    connection = Connection()
    warm = connection.respond(generate=False)
    connection.create(previous=warm["id"], input=None)
    assert context_of(connection.job()) == [message("hi")]


def test_the_prewarm_option_is_a_warmup():
    connection = Connection()
    connection.respond(prompt_cache_options={"prewarm": True})
    assert types(connection.events) == ["created", "completed"]


def test_prewarm_wins_over_generate_true():
    connection = Connection()
    connection.respond(generate=True, prompt_cache_options={"prewarm": True})
    assert types(connection.events) == ["created", "completed"]


def test_a_warmup_may_have_no_input_at_all():
    connection = Connection()
    assert connection.respond(generate=False, input=[])["output"] == []


def test_a_warmup_may_continue_a_chain():
    connection = Connection()
    first = connection.respond(input="one")
    warm = connection.respond(previous=first["id"], generate=False, input="two")
    third = connection.respond(previous=warm["id"], input="three")
    connection.create(previous=third["id"], input="four")
    assert [item.get("content") for item in context_of(connection.job()) if item["role"] == "user"] == [
        "one",
        "two",
        "three",
        "four",
    ]


def test_a_warmup_waits_in_its_lane():
    connection = Connection()
    connection.create()
    assert connection.create(generate=False) == []
    assert connection.create() == []
    assert types(connection.finish()) == ["completed", "created"]
    assert types(connection.finish()) == ["completed", "created", "in_progress"]


def test_a_warmup_can_be_stored():
    connection = Connection()
    warm = connection.respond(generate=False, store=True)
    assert ("tenant", warm["id"]) in connection.server.store


def test_a_warmup_may_leave_calls_unanswered():
    connection = Connection()
    connection.create()
    connection.finish(*CALL)
    warm = connection.respond(previous="resp_1", generate=False, input=[])
    refused = only_error(connection.create(previous=warm["id"], input=[]))
    assert refused["error"]["message"] == "No tool output found for function call call_1."


def test_a_create_without_input_instructions_or_parent_is_refused():
    for fields in ({"input": []}, {"input": None}):
        refused = only_error(Connection().create(**fields))
        assert refused["error"]["code"] == "missing_required_parameter"
        assert refused["error"]["param"] == "input"


def test_instructions_alone_are_enough_for_a_create():
    assert Connection().respond(input=[], instructions="Say hello.")["status"] == "completed"


# Tool calls.


def test_a_call_is_answered_in_the_next_create():
    connection = Connection()
    connection.create(tools=[function("f")])
    first = connection.finish(*CALL)[-1]["response"]
    (call,) = first["output"]
    assert first["status"] == "completed"
    connection.create(previous=first["id"], input=[call_output(call["call_id"])], tools=[function("f")])
    assert context_of(connection.job())[-2:] == [call, call_output(call["call_id"])]
    connection.complete()


def test_an_orphaned_output_evicts_as_the_open_responses_suite_probes_it():
    connection = Connection()
    first = connection.respond(store=False)
    refused = only_error(connection.create(previous=first["id"], input=[call_output("call_nope")]))
    assert refused["error"]["message"] == (
        "No tool call found for function call output with call_id call_nope."
    )
    connection.create(previous=first["id"])
    assert connection.load() == [not_found(first["id"])]


# References.


def test_a_reference_to_an_item_of_the_chain_needs_no_store():
    connection = Connection()
    first = connection.respond(says="quote me")
    item = first["output"][0]
    connection.create(previous=first["id"], input=[{"type": "item_reference", "id": item["id"]}])
    assert not connection.loads
    assert context_of(connection.job()) == [message("hi"), item, item]


def test_a_reference_to_a_stored_item_is_loaded():
    server = Server()
    item = server.connect().respond(store=True, says="quote me")["output"][0]
    connection = server.connect()
    assert connection.create(input=[message("see"), {"id": item["id"]}]) == []
    (load,) = connection.loads.values()
    assert (load.response_id, load.item_ids) == (None, frozenset({item["id"]}))
    connection.load()
    assert context_of(connection.job()) == [message("see"), item]


def test_a_reference_is_found_in_a_chain_that_had_to_be_loaded():
    server = Server()
    source = server.connect()
    first = source.respond(store=False, says="quote me")
    second = source.respond(store=True, previous=first["id"])
    connection = server.connect()
    connection.create(previous=second["id"], input=[{"id": first["output"][0]["id"]}])
    connection.load()
    assert context_of(connection.job())[-1] == first["output"][0]


def test_referenced_items_stay_in_the_chain():
    connection = Connection()
    item = connection.respond(store=True, says="quote me")["output"][0]
    connection.create("b", input=[message("see"), {"id": item["id"]}])
    connection.load("b")
    second = connection.complete("b")
    connection.create("b", previous=second["id"])
    assert context_of(connection.job("b")) == [message("see"), item, *second["output"], message("hi")]


def test_an_unknown_reference_is_refused_by_name():
    connection = Connection()
    connection.create(input=[message("see"), {"type": "item_reference", "id": "msg_nope"}])
    refused = only_error(connection.load())
    assert refused["status"] == 400
    assert refused["error"]["message"] == "Item with id 'msg_nope' not found."
    assert refused["error"]["param"] == "input[1].id"


def test_items_of_unstored_responses_and_of_other_tenants_cannot_be_referenced():
    server = Server()
    unstored = server.connect().respond(store=False)["output"][0]["id"]
    foreign = server.connect("bob").respond(store=True)["output"][0]["id"]
    for item_id in (unstored, foreign):
        connection = server.connect()
        connection.create(input=[{"type": "item_reference", "id": item_id}])
        assert "not found" in only_error(connection.load())["error"]["message"]


# Late results.


def test_results_for_an_ended_turn_are_ignored():
    connection = Connection()
    connection.create()
    (work,) = connection.starts.values()
    connection.finish()
    assert work.turn.place == "ended"
    assert emitted(connection.session, work, [Text("late")]) == []
    assert connection.session.turns.done(work, None, 0.0) == []
    assert connection.session.turns.failed(work, ServerError(), 0.0) == []
    assert connection.session.in_flight == 0


# Sessions with asks_each_turn.


def asking() -> Connection:
    connection = Connection()
    connection.session.shared.asks_each_turn = True
    return connection


def test_with_asks_each_turn_an_empty_load_precedes_a_turn_that_lacks_nothing():
    connection = asking()
    assert connection.create() == []
    (load,) = connection.loads.values()
    assert (load.response_id, load.item_ids) == (None, frozenset())
    assert not connection.starts
    assert types(connection.load()) == ["created", "in_progress"]
    first = connection.complete()
    connection.create(previous=first["id"], input="more")
    (load,) = connection.loads.values()
    assert (load.response_id, load.item_ids) == (None, frozenset())
    connection.load()
    assert len(context_of(connection.job())) == 3


def test_with_asks_each_turn_one_load_also_fetches_what_is_missing():
    server = Server()
    stored = Connection(server).respond(store=True)
    connection = Connection(server)
    connection.session.shared.asks_each_turn = True
    connection.create(previous=stored["id"])
    (load,) = connection.loads.values()
    assert load.response_id == stored["id"]
    connection.load()
    connection.complete()


def test_with_asks_each_turn_a_queued_turn_asks_when_it_begins():
    connection = asking()
    connection.create("a")
    connection.create("a")
    connection.create("b")
    connection.load("a")
    assert len(connection.loads) == 1
    connection.complete("a")
    assert len(connection.loads) == 2
    error = only_error(connection.fail("a", AuthenticationFailed("No.")))
    assert (error["status"], error["stream_id"]) == (401, "a")
    connection.load("b")
    connection.complete("b")


def test_a_load_that_ends_after_the_client_disconnected_starts_nothing():
    connection = asking()
    connection.create()
    (load,) = connection.loads.values()
    connection.hang_up()
    assert connection.done(load, Loaded()) == []


def test_a_session_that_only_counts_ends_a_turn_with_its_number_of_tokens():
    connection = Connection()
    connection.session.shared.counts_only = True
    assert connection.create() == []
    (weigh,) = connection.weighs.values()
    assert weigh.enough is None
    assert connection.session.turns.done(weigh, 42, 0.0) == [Counted(42)]
    assert connection.session.in_flight == 0
    assert connection.session.closed() == []


def test_a_create_without_room_in_its_queue_is_reported():
    connection = Connection(Server(max_queued=0))
    connection.create()
    only_error(connection.create())
    (record,) = connection.reports
    assert (record.report.status, record.report.error_code) == ("refused", "rate_limit_exceeded")
    assert [lap.name for lap in record.report.stages] == ["decode", "terminal"]
