"""Compaction: when it is due, what the model is asked, what is left of a context and goes on from there."""

import json
from typing import Any

import pytest

from slipring.core.betas import Betas
from slipring.core.generation import CallArguments, CallStarted, Delta, Refused, Text, Thought
from slipring.core.turn.compaction import is_users
from slipring.errors import InvalidRequest, ServerError
from slipring.protocol.items import user_message
from tests.core.stage import Json, Stage, World, call_output, context_of, function, message, only_error, types

TRIGGER = {"type": "compaction_trigger"}
MANAGED = [{"type": "compaction", "compact_threshold": 100}]
CALL: list[Delta] = [CallStarted("function", "look"), CallArguments("{}")]


def texts(items: list[Json]) -> list[str]:
    return [item["content"] if isinstance(item["content"], str) else "…" for item in items]


def blob_of(response: Json) -> str:
    (item,) = [item for item in response["output"] if item["type"] == "compaction"]
    blob: str = item["encrypted_content"]
    return blob


def compacted(stage: Stage, previous: str | None = None, says: str = "ok", **fields: Any) -> Json:
    """A turn whose context is found to be too long, seen through."""
    stage.create(previous=previous, **{"context_management": MANAGED, **fields})
    stage.weigh(100)
    stage.finish(Text("all that was said"))
    return stage.complete(text=says)


# When it is due.


@pytest.mark.parametrize(("tokens", "is_due"), [(99, False), (100, True), (101, True)])
def test_a_context_is_compacted_from_its_threshold_on(tokens: int, is_due: bool) -> None:
    stage = Stage()
    stage.create(context_management=MANAGED)
    assert not stage.starts
    told = stage.weigh(tokens)
    assert types(told)[:2] == ["created", "in_progress"]
    assert ("output_item.added" in types(told)) is is_due
    assert stage.job().offer.forbidden is is_due


def test_what_is_short_for_certain_is_not_weighed() -> None:
    stage = Stage()
    first = stage.respond(context_management=[{"type": "compaction", "compact_threshold": 5000}])
    assert not stage.weighs
    assert first["status"] == "completed"
    stage.create(previous=first["id"], context_management=[{"type": "compaction", "compact_threshold": 5000}])
    assert stage.starts
    assert not stage.weighs


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "x" * 4000},
        {"instructions": "x" * 4000},
        {"tools": [function("look", description="x" * 4000)]},
        {"model": "able", "input": [message([{"type": "input_image", "image_url": "http://x/a.png"}])]},
    ],
)
def test_what_may_be_long_is_weighed(fields: Json) -> None:
    stage = Stage()
    first = stage.respond()
    stage.create(
        previous=first["id"], context_management=[{"type": "compaction", "compact_threshold": 5000}], **fields
    )
    (weigh,) = stage.weighs.values()
    assert weigh.job.parent is not None
    assert weigh.job.parent.id == first["id"]


def test_what_another_model_has_counted_is_weighed() -> None:
    stage = Stage()
    first = stage.respond(model="able")
    managed = [{"type": "compaction", "compact_threshold": 5000}]
    stage.create(previous=first["id"], model="m", context_management=managed)
    assert stage.weighs


def test_a_response_after_a_compaction_is_weighed_by_its_context_and_not_by_its_usage() -> None:
    stage = Stage()
    made = compacted(stage)
    assert made["usage"]["input_tokens"] == 14
    stage.create(previous=made["id"], context_management=[{"type": "compaction", "compact_threshold": 5000}])
    assert stage.weighs


def test_a_warmup_compacts_nothing() -> None:
    stage = Stage()
    warmed = stage.respond(generate=False, context_management=MANAGED, input="x" * 9000)
    assert warmed["output"] == []


def test_without_a_threshold_the_model_says_how_much_is_too_much() -> None:
    stage = Stage()
    stage.create(model="able", input="x" * 9000, context_management=[{"type": "compaction"}])
    stage.weigh(7999)
    assert not stage.job().offer.forbidden
    stage = Stage()
    stage.create(model="able", input="x" * 9000, context_management=[{"type": "compaction"}])
    stage.weigh(8000)
    assert stage.job().offer.forbidden


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
def test_what_cannot_be_managed_is_refused_by_name(entries: list[Any], param: str) -> None:
    refused = only_error(Stage().create(context_management=entries))
    assert (refused["status"], refused["error"]["param"]) == (400, param)


def test_of_several_thresholds_the_lowest_holds() -> None:
    stage = Stage()
    stage.create(context_management=[{"type": "compaction", "compact_threshold": 7000}, *MANAGED])
    stage.weigh(100)
    assert stage.job().offer.forbidden


# How it goes.


def test_the_events_of_a_compaction_come_before_those_of_the_answer() -> None:
    stage = Stage()
    stage.create(context_management=MANAGED)
    opening = stage.weigh(100)
    assert types(opening) == ["created", "in_progress", "output_item.added", "compaction.compacting"]
    assert opening[2]["item"] == {"type": "compaction", "id": opening[3]["item_id"], "encrypted_content": ""}
    assert stage.say(Thought("hm"), Text("a summary")) == []
    closing = stage.finish()
    assert types(closing) == ["output_item.done"]
    assert closing[0]["item"]["id"] == opening[3]["item_id"]
    answer = stage.say(Text("hello"))
    assert types(answer) == ["output_item.added", "content_part.added", "output_text.delta"]
    assert answer[0]["output_index"] == 1
    last = stage.finish()[-1]
    assert types([last]) == ["completed"]
    assert [item["type"] for item in last["response"]["output"]] == ["compaction", "message"]


def test_usage_is_of_both_jobs() -> None:
    usage = compacted(Stage())["usage"]
    assert usage["input_tokens"] == 14
    assert usage["input_tokens_details"]["cached_tokens"] == 4
    assert usage["output_tokens"] == 6
    assert usage["total_tokens"] == 20


def test_the_summary_goes_on_where_the_parent_ended() -> None:
    stage = Stage()
    tools = [function("look")]
    first = stage.respond(instructions="Be brief.", tools=tools)
    stage.create(
        previous=first["id"],
        instructions="Be brief.",
        tools=tools,
        tool_choice="required",
        input="and now?",
        max_output_tokens=7,
        text={"format": {"type": "json_object"}},
        context_management=[{"type": "compaction", "compact_threshold": 1000}],
    )
    ordinary = next(iter(stage.weighs.values())).job
    stage.weigh(1000)
    job = stage.job()
    assert job.parent is ordinary.parent
    assert job.head is ordinary.head
    assert job.input[:-1] == ordinary.input
    assert "summary" in context_of(job)[-1]["content"]
    assert (job.settings.format.kind, job.settings.max_output_tokens) == ("text", 250)
    stage.finish(Text("s"))
    real = stage.job()
    assert real.parent is None
    assert real.settings == ordinary.settings
    assert real.offer == ordinary.offer
    assert real.head is ordinary.head


def test_the_answer_is_made_from_what_is_left() -> None:
    stage = Stage()
    first = stage.respond(input="one", says="two")
    stage.create(previous=first["id"], input="three", context_management=MANAGED)
    stage.weigh(500)
    stage.finish(Text(" a summary "))
    told = context_of(stage.job())
    assert texts(told)[0] == "one"
    assert texts(told)[1].endswith("\n\na summary")
    assert texts(told)[2] == "three"
    assert [item["role"] for item in told] == ["user"] * 3


def test_the_summary_stands_behind_what_was_worked_on() -> None:
    stage = Stage()
    stage.create(input="look", tools=[function("look")])
    first = stage.finish(*CALL)[-1]["response"]
    call = first["output"][0]
    stage.create(
        previous=first["id"],
        tools=[function("look")],
        input=[call_output(call["call_id"])],
        context_management=MANAGED,
    )
    stage.weigh(500)
    stage.finish(Text("it was 42"))
    told = texts(context_of(stage.job()))
    assert told[0] == "look"
    assert told[1].endswith("it was 42")
    assert len(told) == 2


def test_a_summary_that_was_cut_off_is_used() -> None:
    stage = Stage()
    stage.create(context_management=MANAGED)
    stage.weigh(100)
    stage.finish(Text("half a sum"), reason="max_output_tokens")
    assert texts(context_of(stage.job()))[0].endswith("half a sum")
    assert stage.complete()["status"] == "completed"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ([], "stop"),
        ([Text(" \n")], "stop"),
        ([Thought("hm")], "stop"),
        ([Refused("I will not")], "stop"),
        ([Text("a")], "content_filter"),
    ],
)
def test_without_a_summary_the_response_fails(said: list[Any], reason: str) -> None:
    stage = Stage()
    first = stage.respond()
    stage.create(previous=first["id"], context_management=MANAGED)
    stage.weigh(100)
    last = stage.finish(*said, reason=reason)[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "server_error"
    assert last["response"]["output"] == []
    assert first["id"] not in stage.cache


def test_an_engine_that_fails_on_the_summary_fails_the_response() -> None:
    stage = Stage()
    stage.create(context_management=MANAGED)
    stage.weigh(100)
    stage.say(Text("half"))
    failed = stage.fail()
    assert types(failed) == ["failed"]
    assert stage.respond()["status"] == "completed"


def test_an_engine_that_refuses_the_summary_refuses_the_request() -> None:
    stage = Stage(refuses=lambda job: InvalidRequest("too long", param="input"))
    stage.create(context_management=MANAGED)
    assert only_error(stage.weigh(100))["error"]["param"] == "input"


def test_an_engine_that_refuses_what_is_left_fails_the_response() -> None:
    stage = Stage()
    stage.create(context_management=MANAGED)
    stage.weigh(100)
    stage.finish(Text("s"))
    last = stage.fail(error=InvalidRequest("no"))[-1]
    assert last["type"] == "response.failed"
    assert [item["type"] for item in last["response"]["output"]] == ["compaction"]


def test_an_engine_that_cannot_count_refuses_the_request() -> None:
    stage = Stage()
    stage.create(context_management=MANAGED)
    assert only_error(stage.fail())["status"] == 500
    assert stage.session.in_flight == 0


@pytest.mark.parametrize("summed_up", [False, True])
def test_whoever_hangs_up_stops_the_work(summed_up: bool) -> None:
    stage = Stage()
    stage.create(context_management=MANAGED)
    if summed_up:
        stage.weigh(100)
        stage.finish(Text("s"))
    stage.hang_up()
    assert len(stage.cancelled) == 1
    assert not stage.starts
    assert not stage.weighs
    assert stage.cache.used_bytes == 0


def test_a_count_that_comes_too_late_is_ignored() -> None:
    stage = Stage()
    stage.create(context_management=MANAGED)
    (weigh,) = stage.weighs.values()
    stage.hang_up()
    assert stage.session.weighed(weigh, 100) == []


def test_the_grace_of_a_connection_ends_while_it_compacts() -> None:
    stage = Stage()
    stage.create(context_management=MANAGED)
    stage.weigh(100)
    stage.end(ServerError(), grace_s=1.0)
    told = stage.tick(2.0)
    assert types(told)[0] == "failed"
    assert stage.close is not None


def test_its_time_is_told_in_stages_of_their_own() -> None:
    stage = Stage(betas=Betas(timing=True))
    compacted(stage)
    names = [lap["name"] for lap in stage.events[-1]["timing"]["stages"]]
    assert names.index("weigh") < names.index("compact") < names.index("render") < names.index("generate")
    assert stage.events[-1]["timing"]["tokens"]["input"] == 14


# What goes on from there.


def test_a_continuation_goes_on_from_what_is_left() -> None:
    stage = Stage()
    first = stage.respond(input="one", says="two")
    made = compacted(stage, first["id"], input="three", says="four")
    assert made["previous_response_id"] == first["id"]
    stage.create(previous=made["id"], input="five")
    job = stage.job()
    assert job.parent is not None
    assert (job.parent.parent, job.parent.depth) == (None, 1)
    told = context_of(job)
    assert [item["role"] for item in told] == ["user", "user", "user", "assistant", "user"]
    assert texts(told)[0] == "one"
    assert texts(told)[-1] == "five"
    assert "encrypted_content" not in json.dumps(told)


def test_the_state_lists_the_input_though_the_context_begins_behind_it() -> None:
    stage = Stage()
    first = stage.respond(input="one", store=True)
    made = compacted(stage, first["id"], input="three", store=True)
    state = stage.world.store["tenant", made["id"]]
    assert [json.loads(item.raw)["content"] for item in state.input] == ["three"]
    assert [item.type for item in state.output] == ["compaction", "message"]
    assert state.told == state.output[0].opened
    assert state.said == state.output[1:]
    assert list(state.context()) == [*state.told, *state.said]


def test_the_parent_is_let_go() -> None:
    stage = Stage()
    first = stage.respond(input="x" * 50_000)
    made = compacted(stage, first["id"])
    stage.cache.evict(first["id"])
    assert stage.cache.used_bytes < 20_000
    assert made["id"] in stage.cache


def test_a_compaction_can_be_compacted_again_and_repeats_no_summary() -> None:
    stage = Stage()
    first = compacted(stage, input="one")
    second = compacted(stage, first["id"], input="two", says="last")
    stage.create(previous=second["id"], input="three")
    told = texts([item for item in context_of(stage.job()) if item["role"] == "user"])
    assert [text for text in told if "summary" not in text.lower()] == ["one", "two", "three"]
    assert len(told) == 4


def test_a_client_that_keeps_its_own_history_sends_the_compaction_instead_of_it() -> None:
    world = World()
    made = compacted(world.connect(), input="one")
    stage = world.connect()
    stage.create(input=[*made["output"], message("two")])
    told = context_of(stage.job())
    assert [item["role"] for item in told] == ["user", "user", "assistant", "user"]
    assert told[1]["content"] == "one"


def test_only_the_newest_messages_are_kept_and_only_as_many_as_fit() -> None:
    stage = Stage()
    first = stage.respond(input=[message("a" * 400), message("b" * 400), message("c" * 400)])
    stage.create(
        previous=first["id"],
        input="d" * 400,
        context_management=[{"type": "compaction", "compact_threshold": 1000}],
    )
    stage.weigh(1000)
    stage.finish(Text("s"))
    told = [text[0] for text in texts(context_of(stage.job()))]
    assert told == ["b", "c", "S", "d"]


def test_what_waits_for_an_answer_is_kept_however_long_it_is() -> None:
    stage = Stage()
    first = stage.respond(input="a")
    stage.create(
        previous=first["id"],
        input=[message("q" * 5000), message("n" * 5000, role="developer")],
        context_management=[{"type": "compaction", "compact_threshold": 1000}],
    )
    stage.weigh(5000)
    stage.finish(Text("s"))
    assert [text[0] for text in texts(context_of(stage.job()))] == ["a", "S", "q", "n"]


def test_tools_and_settings_that_items_brought_stay() -> None:
    stage = Stage()
    brought = [
        {"type": "additional_tools", "role": "developer", "tools": [function("later")]},
        {"type": "configuration_update", "reasoning": {"effort": "low"}},
        {"type": "configuration_update", "reasoning": {"effort": "high"}},
        {"type": "configuration_update", "text": {"format": {"type": "json_object"}}},
    ]
    first = stage.respond(input=[*brought, message("go")])
    made = compacted(stage, first["id"])
    stage.create(previous=made["id"])
    job = stage.job()
    assert [tool.name for tool in job.offer.tools] == ["later"]
    assert (job.settings.effort, job.settings.format.kind) == ("high", "json_object")
    kept = [item["type"] for item in context_of(job)]
    assert kept.count("additional_tools") == 1
    assert kept.count("configuration_update") == 2


def test_tools_that_were_found_stay_without_their_search() -> None:
    stage = Stage()
    search = {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {}}
    found = {"type": "tool_search_output", "call_id": "c", "tools": [function("later", defer_loading=True)]}
    first = stage.respond(input=[message("go"), search, found])
    made = compacted(stage, first["id"])
    stage.create(previous=made["id"])
    assert [tool.name for tool in stage.job().offer.tools] == ["later"]
    kept = [item["type"] for item in context_of(stage.job())]
    assert kept.count("additional_tools") == 1
    assert not [kind for kind in kept if kind.startswith("tool_search")]


# The trigger.


def test_a_trigger_makes_a_compaction_and_nothing_else() -> None:
    stage = Stage()
    first = stage.respond(input="one", says="two")
    told = stage.create(previous=first["id"], input=[message("three"), TRIGGER])
    assert types(told) == ["created", "in_progress", "output_item.added", "compaction.compacting"]
    assert [item.get("type") for item in context_of(stage.job())][-2:] == ["message", "message"]
    told = stage.finish(Text("all of it"))
    assert types(told) == ["output_item.done", "completed"]
    made = told[-1]["response"]
    assert [item["type"] for item in made["output"]] == ["compaction"]
    assert made["usage"]["total_tokens"] == 10
    stage.create(previous=made["id"], input="four")
    left = texts(context_of(stage.job()))
    assert (left[0], left[2], left[3]) == ("one", "three", "four")
    assert left[1].endswith("all of it")


def test_a_trigger_is_no_item_of_the_response() -> None:
    stage = Stage()
    made = stage.respond(input=[message("one"), TRIGGER], store=True, says="s")
    assert [item.type for item in stage.world.store["tenant", made["id"]].input] == ["message"]


def test_a_cut_off_summary_completes_a_trigger_all_the_same() -> None:
    stage = Stage()
    stage.create(input=[message("one"), TRIGGER])
    last = stage.finish(Text("half"), reason="max_output_tokens", position=object())[-1]
    assert last["type"] == "response.completed"
    state = stage.session.recall(last["response"]["id"])
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
def test_a_trigger_that_makes_no_sense_is_refused(items: list[Json], fields: Json, param: str) -> None:
    assert only_error(Stage().create(input=items, **fields))["error"]["param"] == param


def test_a_trigger_needs_no_weighing() -> None:
    stage = Stage()
    stage.create(input=[message("one"), TRIGGER], context_management=MANAGED)
    assert not stage.weighs
    assert stage.job().offer.forbidden


# Calls that nobody has answered yet.


def test_calls_stay_open_across_a_compaction() -> None:
    stage = Stage()
    stage.create(input="look", tools=[function("look")])
    first = stage.finish(*CALL)[-1]["response"]
    call_id = first["output"][0]["call_id"]
    made = stage.respond(previous=first["id"], input=[TRIGGER], says="s")
    refused = only_error(stage.create(previous=made["id"], input="well?"))
    assert call_id in refused["error"]["message"]
    made = stage.respond(previous=None, input=[*made["output"], call_output(call_id), message("well?")])
    assert made["status"] == "completed"


def test_the_output_of_a_call_from_before_a_compaction_finds_its_call() -> None:
    stage = Stage()
    stage.create(input="look", tools=[function("look")])
    first = stage.finish(*CALL)[-1]["response"]
    call_id = first["output"][0]["call_id"]
    made = stage.respond(previous=first["id"], input=[TRIGGER], says="s")
    stage.create(previous=made["id"], input=[call_output(call_id)])
    assert [item["type"] for item in context_of(stage.job())][-2:] == [
        "function_call",
        "function_call_output",
    ]


def test_calls_that_were_answered_are_covered() -> None:
    stage = Stage()
    stage.create(input="look", tools=[function("look")])
    first = stage.finish(*CALL)[-1]["response"]
    call_id = first["output"][0]["call_id"]
    made = compacted(stage, first["id"], input=[call_output(call_id)])
    refused = only_error(stage.create(previous=made["id"], input=[call_output(call_id)]))
    assert refused["error"]["param"] == "input[0].call_id"


def test_a_fragment_of_a_call_does_not_come_back_as_one_that_insists() -> None:
    stage = Stage()
    stage.create(input="look", tools=[{"type": "custom", "name": "note"}])
    cut = stage.finish(CallStarted("custom", "note"), CallArguments("ha"), reason="max_output_tokens")
    made = stage.respond(previous=cut[-1]["response"]["id"], input=[TRIGGER], says="s")
    assert stage.respond(previous=made["id"])["status"] == "completed"


def test_a_summary_is_not_taken_for_a_message_of_the_user() -> None:
    stage = Stage()
    made = stage.respond(input=[message("one"), TRIGGER], says="s")
    items = stage.world.means.seal.open("tenant", blob_of(made))
    assert [is_users(item) for item in items] == [False, True]
    assert not is_users(user_message(json.loads(items[0].raw)["content"]))


def test_what_those_with_authority_said_is_kept() -> None:
    stage = Stage()
    first = stage.respond(input=[message("rule", role="developer"), message("a")])
    stage.create(
        previous=first["id"],
        input="b",
        context_management=[{"type": "compaction", "compact_threshold": 1000}],
    )
    stage.weigh(1000)
    stage.finish(Text("s"))
    assert [text[0] for text in texts(context_of(stage.job()))] == ["r", "a", "S", "b"]


def test_a_message_beside_a_tools_output_still_waits_for_its_answer() -> None:
    stage = Stage()
    stage.create(input="a", tools=[function("f")])
    first = stage.finish(CallStarted("function", "f"), CallArguments("{}"))[-1]["response"]
    stage.create(
        previous=first["id"],
        tools=[function("f")],
        input=[message("q" * 5000), call_output("call_1")],
        context_management=[{"type": "compaction", "compact_threshold": 1000}],
    )
    stage.weigh(5000)
    stage.finish(Text("s"))
    assert [text[0] for text in texts(context_of(stage.job()))] == ["a", "S", "q"]


def test_a_summary_is_not_asked_for_with_a_call_that_waits() -> None:
    stage = Stage()
    stage.create(input="a", tools=[function("f")])
    first = stage.finish(CallStarted("function", "f"), CallArguments("{}"))[-1]["response"]
    stage.create(previous=first["id"], tools=[function("f")], input=[{"type": "compaction_trigger"}])
    asked = [item.type for item in stage.job().input]
    assert asked == ["function_call_output", "message"]
    stage.finish(Text("s"))
    stage.create(
        previous="resp_2", input=[call_output("call_1")], tools=[function("f")]
    )  # the call itself is still open, and can be answered
    kinds = [item["type"] for item in context_of(stage.job())]
    assert kinds[-2:] == ["function_call", "function_call_output"]
