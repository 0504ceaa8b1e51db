"""Compaction: when it is due, the summary job, and the compacted context."""

import json
from typing import Any

import pytest

from slipring.base.errors import InvalidRequest, ServerError
from slipring.core.betas import Betas
from slipring.core.generation import CallArguments, CallStarted, Delta, RefusalText, Text, Thought
from slipring.core.turn.compaction import _LEAD, is_users
from slipring.protocol.items.items import user_message
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

TRIGGER = {"type": "compaction_trigger"}
MANAGED = [{"type": "compaction", "compact_threshold": 100}]
CALL: list[Delta] = [CallStarted("function", "look"), CallArguments("{}")]


def texts(items: list[Json]) -> list[str]:
    return [item["content"] if isinstance(item["content"], str) else "…" for item in items]


def blob_of(response: Json) -> str:
    (item,) = [item for item in response["output"] if item["type"] == "compaction"]
    blob: str = item["encrypted_content"]
    return blob


def compacted(connection: Connection, previous: str | None = None, says: str = "ok", **fields: Any) -> Json:
    """Complete a turn whose context is compacted; returns the response object."""
    connection.create(previous=previous, **{"context_management": MANAGED, **fields})
    connection.weigh(100)
    connection.finish(Text("a summary"))
    return connection.complete(text=says)


# When it is due.


@pytest.mark.parametrize(("tokens", "is_due"), [(99, False), (100, True), (101, True)])
def test_a_context_is_compacted_at_its_threshold(tokens: int, is_due: bool) -> None:
    connection = Connection()
    connection.create(context_management=MANAGED)
    assert not connection.starts
    sent = connection.weigh(tokens)
    assert types(sent)[:2] == ["created", "in_progress"]
    assert ("output_item.added" in types(sent)) is is_due
    assert connection.job().offer.forbidden is is_due


def test_a_context_that_is_certainly_short_is_not_counted() -> None:
    connection = Connection()
    first = connection.respond(context_management=[{"type": "compaction", "compact_threshold": 5000}])
    assert not connection.weighs
    assert first["status"] == "completed"
    connection.create(
        previous=first["id"], context_management=[{"type": "compaction", "compact_threshold": 5000}]
    )
    assert connection.starts
    assert not connection.weighs


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "x" * 4000},
        {"instructions": "x" * 4000},
        {"tools": [function("look", description="x" * 4000)]},
        {"model": "able", "input": [message([{"type": "input_image", "image_url": PIXEL}])]},
    ],
)
def test_a_context_that_may_be_long_is_counted(fields: Json) -> None:
    connection = Connection()
    first = connection.respond()
    connection.create(
        previous=first["id"], context_management=[{"type": "compaction", "compact_threshold": 5000}], **fields
    )
    (weigh,) = connection.weighs.values()
    assert weigh.job.parent is not None
    assert weigh.job.parent.id == first["id"]


def test_a_context_counted_by_another_model_is_counted_again() -> None:
    connection = Connection()
    first = connection.respond(model="able")
    managed = [{"type": "compaction", "compact_threshold": 5000}]
    connection.create(previous=first["id"], model="m", context_management=managed)
    assert connection.weighs


def test_after_a_compaction_the_context_is_counted_and_not_the_usage() -> None:
    connection = Connection()
    made = compacted(connection)
    assert made["usage"]["input_tokens"] == 14
    connection.create(
        previous=made["id"], context_management=[{"type": "compaction", "compact_threshold": 5000}]
    )
    assert connection.weighs


def test_a_warmup_compacts_nothing() -> None:
    connection = Connection()
    warmed = connection.respond(generate=False, context_management=MANAGED, input="x" * 9000)
    assert warmed["output"] == []


def test_the_default_threshold_comes_from_the_models_context_window() -> None:
    connection = Connection()
    connection.create(model="able", input="x" * 9000, context_management=[{"type": "compaction"}])
    connection.weigh(7999)
    assert not connection.job().offer.forbidden
    connection = Connection()
    connection.create(model="able", input="x" * 9000, context_management=[{"type": "compaction"}])
    connection.weigh(8000)
    assert connection.job().offer.forbidden


@pytest.mark.parametrize(
    ("entries", "param"),
    [
        ([{"type": "truncation"}], "context_management[0].type"),
        ([{"type": "compaction"}], "context_management[0].compact_threshold"),
        (
            [*MANAGED, {"type": "compaction", "compact_threshold": 0}],
            "context_management[1].compact_threshold",
        ),
        ([*MANAGED, {}], "context_management[1].type"),
        ([*MANAGED, 5], "context_management[1]"),
    ],
)
def test_unsupported_context_management_is_refused_by_name(entries: list[Any], param: str) -> None:
    refused = only_error(Connection().create(context_management=entries))
    assert (refused["status"], refused["error"]["param"]) == (400, param)


def test_the_lowest_of_several_thresholds_applies() -> None:
    connection = Connection()
    connection.create(context_management=[{"type": "compaction", "compact_threshold": 7000}, *MANAGED])
    connection.weigh(100)
    assert connection.job().offer.forbidden


# Events and jobs.


def test_the_events_of_a_compaction_precede_those_of_the_answer() -> None:
    connection = Connection()
    connection.create(context_management=MANAGED)
    opening = connection.weigh(100)
    assert types(opening) == ["created", "in_progress", "output_item.added", "compaction.compacting"]
    assert opening[2]["item"] == {"type": "compaction", "id": opening[3]["item_id"], "encrypted_content": ""}
    assert connection.generate(Thought("hm"), Text("a summary")) == []
    closing = connection.finish()
    assert types(closing) == ["output_item.done"]
    assert closing[0]["item"]["id"] == opening[3]["item_id"]
    answer = connection.generate(Text("hello"))
    assert types(answer) == ["output_item.added", "content_part.added", "output_text.delta"]
    assert answer[0]["output_index"] == 1
    last = connection.finish()[-1]
    assert types([last]) == ["completed"]
    assert [item["type"] for item in last["response"]["output"]] == ["compaction", "message"]


def test_usage_is_the_sum_of_summary_and_answer() -> None:
    usage = compacted(Connection())["usage"]
    assert usage["input_tokens"] == 14
    assert usage["input_tokens_details"]["cached_tokens"] == 4
    assert usage["output_tokens"] == 6
    assert usage["total_tokens"] == 20


def test_the_summary_job_continues_the_parent() -> None:
    connection = Connection()
    tools = [function("look")]
    first = connection.respond(instructions="Be brief.", tools=tools)
    connection.create(
        previous=first["id"],
        instructions="Be brief.",
        tools=tools,
        tool_choice="required",
        input="and now?",
        max_output_tokens=7,
        text={"format": {"type": "json_object"}},
        context_management=[{"type": "compaction", "compact_threshold": 1000}],
    )
    ordinary = next(iter(connection.weighs.values())).job
    connection.weigh(1000)
    job = connection.job()
    assert job.parent is ordinary.parent
    assert job.head is ordinary.head
    assert job.input[:-1] == ordinary.input
    assert "summary" in context_of(job)[-1]["content"]
    assert (job.settings.format.kind, job.settings.max_output_tokens) == ("text", 250)
    connection.finish(Text("s"))
    real = connection.job()
    assert real.parent is None
    assert real.settings == ordinary.settings
    assert real.offer == ordinary.offer
    assert real.head is ordinary.head


def test_the_answer_is_generated_from_the_compacted_context() -> None:
    connection = Connection()
    first = connection.respond(input="one", says="two")
    connection.create(previous=first["id"], input="three", context_management=MANAGED)
    connection.weigh(500)
    connection.finish(Text(" a summary "))
    sent = context_of(connection.job())
    assert texts(sent)[0] == "one"
    assert texts(sent)[1].endswith("\n\na summary")
    assert texts(sent)[2] == "three"
    assert [item["role"] for item in sent] == ["user"] * 3


def test_the_summary_follows_the_answered_messages() -> None:
    connection = Connection()
    connection.create(input="look", tools=[function("look")])
    first = connection.finish(*CALL)[-1]["response"]
    call = first["output"][0]
    connection.create(
        previous=first["id"],
        tools=[function("look")],
        input=[call_output(call["call_id"])],
        context_management=MANAGED,
    )
    connection.weigh(500)
    connection.finish(Text("it was 42"))
    sent = texts(context_of(connection.job()))
    assert sent[0] == "look"
    assert sent[1].endswith("it was 42")
    assert len(sent) == 2


def test_a_truncated_summary_is_used() -> None:
    connection = Connection()
    connection.create(context_management=MANAGED)
    connection.weigh(100)
    connection.finish(Text("half a sum"), reason="max_output_tokens")
    assert texts(context_of(connection.job()))[0].endswith("half a sum")
    assert connection.complete()["status"] == "completed"


def test_a_summary_is_never_longer_than_what_it_replaces() -> None:
    connection = Connection()
    connection.create(input="look " * 100, context_management=MANAGED)
    connection.weigh(100)
    job = connection.job()
    length = sum(len(item.raw) for item in job.input[:-1])
    assert job.is_summary
    connection.generate(Thought("x" * 2 * length), Text("y" * (length - 1)))
    assert not job.stop.asked
    connection.generate(Text("yz"))
    assert job.stop.asked
    connection.finish(Text("z" * length), reason="steered")
    answering = connection.job()
    assert not answering.is_summary
    assert not answering.stop.asked
    summary = texts(context_of(answering))[0].removeprefix(_LEAD)
    assert summary == "y" * (length - 1) + "y"


def test_the_shortest_context_has_room_for_a_summary() -> None:
    connection = Connection()
    connection.create(input="x", context_management=MANAGED)
    connection.weigh(100)
    connection.finish(Text("y" * 999))
    assert texts(context_of(connection.job()))[0] == _LEAD + "y" * 200


@pytest.mark.parametrize(
    ("deltas", "reason"),
    [
        ([], "stop"),
        ([Text(" \n")], "stop"),
        ([Thought("hm")], "stop"),
        ([RefusalText("I will not")], "stop"),
        ([Text("a")], "content_filter"),
    ],
)
def test_without_a_summary_the_response_fails(deltas: list[Any], reason: str) -> None:
    connection = Connection()
    first = connection.respond()
    connection.create(previous=first["id"], context_management=MANAGED)
    connection.weigh(100)
    last = connection.finish(*deltas, reason=reason)[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "server_error"
    assert last["response"]["output"] == []
    assert first["id"] not in connection.cache


def test_an_engine_that_fails_on_the_summary_fails_the_response() -> None:
    connection = Connection()
    connection.create(context_management=MANAGED)
    connection.weigh(100)
    connection.generate(Text("half"))
    failed = connection.fail()
    assert types(failed) == ["failed"]
    assert connection.respond()["status"] == "completed"


def test_an_engine_that_refuses_the_summary_refuses_the_request() -> None:
    connection = Connection(refuses=lambda job: InvalidRequest("too long", param="input"))
    connection.create(context_management=MANAGED)
    assert only_error(connection.weigh(100))["error"]["param"] == "input"


def test_an_engine_that_refuses_the_compacted_context_fails_the_response() -> None:
    connection = Connection()
    connection.create(context_management=MANAGED)
    connection.weigh(100)
    connection.finish(Text("s"))
    last = connection.fail(error=InvalidRequest("no"))[-1]
    assert last["type"] == "response.failed"
    assert [item["type"] for item in last["response"]["output"]] == ["compaction"]


def test_an_engine_that_cannot_count_refuses_the_request() -> None:
    connection = Connection()
    connection.create(context_management=MANAGED)
    assert only_error(connection.fail())["status"] == 500
    assert connection.session.in_flight == 0


@pytest.mark.parametrize("summed_up", [False, True])
def test_a_client_that_disconnects_cancels_the_compaction(summed_up: bool) -> None:
    connection = Connection()
    connection.create(context_management=MANAGED)
    if summed_up:
        connection.weigh(100)
        connection.finish(Text("s"))
    connection.hang_up()
    assert len(connection.cancelled) == 1
    assert not connection.starts
    assert not connection.weighs
    assert connection.cache.used_bytes == 0


def test_a_late_count_is_ignored() -> None:
    connection = Connection()
    connection.create(context_management=MANAGED)
    (weigh,) = connection.weighs.values()
    connection.hang_up()
    assert connection.session.turns.done(weigh, 100, 0.0) == []


def test_the_grace_period_may_end_during_a_compaction() -> None:
    connection = Connection()
    connection.create(context_management=MANAGED)
    connection.weigh(100)
    connection.end(ServerError(), grace_s=1.0)
    sent = connection.tick(2.0)
    assert types(sent)[0] == "failed"
    assert connection.close is not None


def test_a_compaction_has_its_own_stages() -> None:
    connection = Connection(betas=Betas(timing=True))
    compacted(connection)
    names = [lap["name"] for lap in connection.events[-1]["timing"]["stages"]]
    assert names.index("weigh") < names.index("compact") < names.index("render") < names.index("generate")
    assert connection.events[-1]["timing"]["tokens"]["input"] == 14


# Continuations.


def test_a_continuation_builds_on_the_compacted_context() -> None:
    connection = Connection()
    first = connection.respond(input="one", says="two")
    made = compacted(connection, first["id"], input="three", says="four")
    assert made["previous_response_id"] == first["id"]
    connection.create(previous=made["id"], input="five")
    job = connection.job()
    assert job.parent is not None
    assert (job.parent.parent, job.parent.depth) == (None, 1)
    sent = context_of(job)
    assert [item["role"] for item in sent] == ["user", "user", "user", "assistant", "user"]
    assert texts(sent)[0] == "one"
    assert texts(sent)[-1] == "five"
    assert "encrypted_content" not in json.dumps(sent)


def test_the_state_lists_the_input_though_the_context_begins_after_it() -> None:
    connection = Connection()
    first = connection.respond(input="one", store=True)
    made = compacted(connection, first["id"], input="three", store=True)
    state = connection.server.store["tenant", made["id"]]
    assert [json.loads(item.raw)["content"] for item in state.input] == ["three"]
    assert [item.type for item in state.output] == ["compaction", "message"]
    assert state.prompt == state.output[0].opened
    assert state.answer == state.output[1:]
    assert list(state.context()) == [*state.prompt, *state.answer]


def test_a_compaction_releases_the_parent() -> None:
    connection = Connection()
    first = connection.respond(input="x" * 50_000)
    made = compacted(connection, first["id"])
    connection.cache.evict(first["id"])
    assert connection.cache.used_bytes < 20_000
    assert made["id"] in connection.cache


def test_a_compaction_can_be_compacted_again_and_repeats_no_summary() -> None:
    connection = Connection()
    first = compacted(connection, input="one")
    second = compacted(connection, first["id"], input="two", says="last")
    connection.create(previous=second["id"], input="three")
    sent = texts([item for item in context_of(connection.job()) if item["role"] == "user"])
    assert [text for text in sent if "summary" not in text.lower()] == ["one", "two", "three"]
    assert len(sent) == 4


def test_a_client_with_its_own_history_sends_the_compaction_instead() -> None:
    server = Server()
    made = compacted(server.connect(), input="one")
    connection = server.connect()
    connection.create(input=[*made["output"], message("two")])
    sent = context_of(connection.job())
    assert [item["role"] for item in sent] == ["user", "user", "assistant", "user"]
    assert sent[1]["content"] == "one"


def test_the_newest_messages_that_fit_are_kept() -> None:
    connection = Connection()
    first = connection.respond(input=[message("a" * 400), message("b" * 400), message("c" * 400)])
    connection.create(
        previous=first["id"],
        input="d" * 400,
        context_management=[{"type": "compaction", "compact_threshold": 1000}],
    )
    connection.weigh(1000)
    connection.finish(Text("s"))
    sent = [text[0] for text in texts(context_of(connection.job()))]
    assert sent == ["b", "c", "S", "d"]


def test_unanswered_messages_are_kept_whatever_their_length() -> None:
    connection = Connection()
    first = connection.respond(input="a")
    connection.create(
        previous=first["id"],
        input=[message("q" * 5000), message("n" * 5000, role="developer")],
        context_management=[{"type": "compaction", "compact_threshold": 1000}],
    )
    connection.weigh(5000)
    connection.finish(Text("s"))
    assert [text[0] for text in texts(context_of(connection.job()))] == ["a", "S", "q", "n"]


def test_tools_and_settings_from_items_stay() -> None:
    connection = Connection()
    brought = [
        {"type": "additional_tools", "role": "developer", "tools": [function("later")]},
        {"type": "configuration_update", "reasoning": {"effort": "low"}},
        {"type": "configuration_update", "reasoning": {"effort": "high"}},
        {"type": "configuration_update", "text": {"format": {"type": "json_object"}}},
    ]
    first = connection.respond(input=[*brought, message("go")])
    made = compacted(connection, first["id"])
    connection.create(previous=made["id"])
    job = connection.job()
    assert [tool.name for tool in job.offer.tools] == ["later"]
    assert (job.settings.effort, job.settings.format.kind) == ("high", "json_object")
    kept = [item["type"] for item in context_of(job)]
    assert kept.count("additional_tools") == 1
    assert kept.count("configuration_update") == 2


def test_found_tools_stay_without_their_search() -> None:
    connection = Connection()
    search = {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {}}
    found = {"type": "tool_search_output", "call_id": "c", "tools": [function("later", defer_loading=True)]}
    first = connection.respond(input=[message("go"), search, found])
    made = compacted(connection, first["id"])
    connection.create(previous=made["id"])
    assert [tool.name for tool in connection.job().offer.tools] == ["later"]
    kept = [item["type"] for item in context_of(connection.job())]
    assert kept.count("additional_tools") == 1
    assert not [kind for kind in kept if kind.startswith("tool_search")]


# The trigger.


def test_a_trigger_produces_a_compaction_only() -> None:
    connection = Connection()
    first = connection.respond(input="one", says="two")
    sent = connection.create(previous=first["id"], input=[message("three"), TRIGGER])
    assert types(sent) == ["created", "in_progress", "output_item.added", "compaction.compacting"]
    assert [item.get("type") for item in context_of(connection.job())][-2:] == ["message", "message"]
    sent = connection.finish(Text("all of it"))
    assert types(sent) == ["output_item.done", "completed"]
    made = sent[-1]["response"]
    assert [item["type"] for item in made["output"]] == ["compaction"]
    assert made["usage"]["total_tokens"] == 10
    connection.create(previous=made["id"], input="four")
    left = texts(context_of(connection.job()))
    assert (left[0], left[2], left[3]) == ("one", "three", "four")
    assert left[1].endswith("all of it")


def test_a_trigger_is_not_an_item_of_the_response() -> None:
    connection = Connection()
    made = connection.respond(input=[message("one"), TRIGGER], store=True, says="s")
    assert [item.type for item in connection.server.store["tenant", made["id"]].input] == ["message"]


def test_a_truncated_summary_still_completes_a_trigger() -> None:
    connection = Connection()
    connection.create(input=[message("one"), TRIGGER])
    last = connection.finish(Text("half"), reason="max_output_tokens", position=object())[-1]
    assert last["type"] == "response.completed"
    state = connection.session.recall(last["response"]["id"])
    assert state is not None
    assert state.position is None


@pytest.mark.parametrize(
    ("items", "fields", "param"),
    [
        ([TRIGGER, message("one")], {}, "input[0]"),
        ([message("one"), TRIGGER, TRIGGER], {}, "input[1]"),
        ([message("one"), TRIGGER], {"generate": False}, "input[1]"),
        ([TRIGGER], {}, "input"),
    ],
)
def test_a_misplaced_trigger_is_refused(items: list[Json], fields: Json, param: str) -> None:
    assert only_error(Connection().create(input=items, **fields))["error"]["param"] == param


def test_a_trigger_needs_no_token_count() -> None:
    connection = Connection()
    connection.create(input=[message("one"), TRIGGER], context_management=MANAGED)
    assert not connection.weighs
    assert connection.job().offer.forbidden


# Open calls.


def test_calls_stay_open_across_a_compaction() -> None:
    connection = Connection()
    connection.create(input="look", tools=[function("look")])
    first = connection.finish(*CALL)[-1]["response"]
    call_id = first["output"][0]["call_id"]
    made = connection.respond(previous=first["id"], input=[TRIGGER], says="s")
    refused = only_error(connection.create(previous=made["id"], input="well?"))
    assert call_id in refused["error"]["message"]
    made = connection.respond(previous=None, input=[*made["output"], call_output(call_id), message("well?")])
    assert made["status"] == "completed"


def test_a_call_from_before_a_compaction_can_be_answered() -> None:
    connection = Connection()
    connection.create(input="look", tools=[function("look")])
    first = connection.finish(*CALL)[-1]["response"]
    call_id = first["output"][0]["call_id"]
    made = connection.respond(previous=first["id"], input=[TRIGGER], says="s")
    connection.create(previous=made["id"], input=[call_output(call_id)])
    assert [item["type"] for item in context_of(connection.job())][-2:] == [
        "function_call",
        "function_call_output",
    ]


def test_answered_calls_are_dropped() -> None:
    connection = Connection()
    connection.create(input="look", tools=[function("look")])
    first = connection.finish(*CALL)[-1]["response"]
    call_id = first["output"][0]["call_id"]
    made = compacted(connection, first["id"], input=[call_output(call_id)])
    refused = only_error(connection.create(previous=made["id"], input=[call_output(call_id)]))
    assert refused["error"]["param"] == "input[0].call_id"


def test_a_truncated_call_is_dropped() -> None:
    connection = Connection()
    connection.create(input="look", tools=[{"type": "custom", "name": "note"}])
    cut = connection.finish(CallStarted("custom", "note"), CallArguments("ha"), reason="max_output_tokens")
    made = connection.respond(previous=cut[-1]["response"]["id"], input=[TRIGGER], says="s")
    assert connection.respond(previous=made["id"])["status"] == "completed"


def test_a_summary_does_not_count_as_a_user_message() -> None:
    connection = Connection()
    made = connection.respond(input=[message("one"), TRIGGER], says="s")
    items = connection.server.ports.seal.open("tenant", blob_of(made))
    assert [is_users(item) for item in items] == [False, True]
    assert not is_users(user_message(json.loads(items[0].raw)["content"]))


def test_system_and_developer_messages_are_kept() -> None:
    connection = Connection()
    first = connection.respond(input=[message("rule", role="developer"), message("a")])
    connection.create(
        previous=first["id"],
        input="b",
        context_management=[{"type": "compaction", "compact_threshold": 1000}],
    )
    connection.weigh(1000)
    connection.finish(Text("s"))
    assert [text[0] for text in texts(context_of(connection.job()))] == ["r", "a", "S", "b"]


def test_a_message_next_to_a_tool_output_counts_as_unanswered() -> None:
    connection = Connection()
    connection.create(input="a", tools=[function("f")])
    first = connection.finish(CallStarted("function", "f"), CallArguments("{}"))[-1]["response"]
    connection.create(
        previous=first["id"],
        tools=[function("f")],
        input=[message("q" * 5000), call_output("call_1")],
        context_management=[{"type": "compaction", "compact_threshold": 1000}],
    )
    connection.weigh(5000)
    connection.finish(Text("s"))
    assert [text[0] for text in texts(context_of(connection.job()))] == ["a", "S", "q"]


def test_the_summary_job_has_placeholder_outputs_for_open_calls() -> None:
    connection = Connection()
    connection.create(input="a", tools=[function("f")])
    first = connection.finish(CallStarted("function", "f"), CallArguments("{}"))[-1]["response"]
    connection.create(previous=first["id"], tools=[function("f")], input=[{"type": "compaction_trigger"}])
    asked = [item.type for item in connection.job().input]
    assert asked == ["function_call_output", "message"]
    connection.finish(Text("s"))
    connection.create(
        previous="resp_2", input=[call_output("call_1")], tools=[function("f")]
    )  # the call itself is still open, and can be answered
    kinds = [item["type"] for item in context_of(connection.job())]
    assert kinds[-2:] == ["function_call", "function_call_output"]


def test_open_calls_that_models_see_get_placeholder_outputs() -> None:
    search = {"type": "tool_search_call", "call_id": "s", "arguments": {}, "execution": "client"}
    shell = {"type": "shell_call", "call_id": "t", "action": {"commands": ["ls"]}}
    connection = Connection()
    computer = {"type": "computer_call", "call_id": "u", "actions": [{"type": "wait"}]}
    connection.create(input=[message("hi"), search, shell, computer, TRIGGER])
    *_, found, printed, seen, asks = connection.job().input
    kinds = [item.type for item in (found, printed, seen, asks)]
    assert kinds == ["tool_search_output", "function_call_output", "function_call_output", "message"]
    assert (found.call_id, printed.call_id, seen.call_id) == ("s", "t", "u")


def test_a_summary_without_a_finished_delta_is_an_engine_error() -> None:
    connection = Connection()
    connection.create(input=[message("hi"), TRIGGER])
    (work,) = connection.starts.values()
    with pytest.raises(RuntimeError):
        connection.done(work)
