"""A history that a client sends again continues the context that it repeats."""

import json
from typing import Any

import pytest

from slipring.base.errors import UnsupportedParameter
from slipring.core.betas import Betas
from slipring.core.generation import Accepted, CallArguments, CallStarted, Delta, Job, Text, Thought
from tests.core.connection import (
    Connection,
    Json,
    Seen,
    Server,
    call_output,
    context_of,
    function,
    message,
    only_error,
    visible,
)

CALL: list[Delta] = [CallStarted(kind="function", name="f"), CallArguments("{}")]


def connect(server: Server | None = None, tenant: str = "tenant", **options: Any) -> Connection:
    connection = Connection(server, tenant, **options)
    connection.leaves_positions = True
    return connection


def turn(connection: Connection, *deltas: Delta, **fields: Any) -> Json:
    """Create a response and answer with these deltas; returns the response object."""
    connection.create(**fields)
    connection.finish(*(deltas or [Text("ok")]))
    if connection.saves:
        connection.save()
    response: Json = connection.order.responses[-1]
    return response


def started(connection: Connection, **fields: Any) -> Job:
    connection.create(**fields)
    return connection.job()


def recognised(job: Job) -> int:
    """How many items of the context the job continues; checks that the position stands for them."""
    if job.parent is None:
        assert not job.recognised
        return 0
    assert job.recognised
    assert not job.fork
    seen = job.parent.position
    assert isinstance(seen, Seen)
    assert seen.content == visible(job.parent.context())
    return len(visible(job.parent.context()))


def history(asked: str, response: Json) -> list[Json]:
    return [message(asked), *response["output"]]


def test_a_resent_history_continues_the_response_that_it_ends_with():
    connection = connect()
    first = turn(connection, input="hello")
    sent = [*history("hello", first), message("more")]
    job = started(connection, input=sent)
    assert recognised(job) == 2
    assert job.parent is not None
    assert [item["content"] for item in map(json.loads, (item.raw for item in job.input))] == ["more"]
    assert context_of(job) == sent
    assert visible(job.parent.answer) == [{"type": "message", "role": "assistant", "content": "ok"}]


def test_the_response_has_no_parent_and_all_of_its_input():
    connection = connect()
    first = turn(connection, input="hello")
    second = turn(connection, input=[*history("hello", first), message("more")], store=True)
    assert second["previous_response_id"] is None
    state = connection.server.store["tenant", second["id"]]
    assert state.parent is None
    assert len(state.input) == 3
    assert connection.reports[-1].report.recognised_items == 2
    assert connection.reports[-1].report.input_items == 3


def test_a_chain_is_recognised_over_another_connection():
    server = Server()
    first = connect(server)
    one = turn(first, input="hello")
    two = turn(first, *CALL, previous=one["id"], input="more")
    first.hang_up()
    output = call_output(two["output"][0]["call_id"])
    sent = [*history("hello", one), *history("more", two), output]
    job = started(connect(server), input=sent)
    assert recognised(job) == 4
    assert job.parent is not None
    assert job.parent.root_id == one["id"]


def test_a_loop_of_resent_histories_has_one_root():
    connection = connect()
    sent: list[Json] = []
    for number in range(3):
        sent = [*sent, message(f"say {number}")]
        response = turn(connection, input=sent)
        sent += response["output"]
    job = started(connection, input=[*sent, message("last")])
    assert recognised(job) == 6
    assert job.parent is not None
    assert job.parent.root_id == connection.order.responses[0]["id"]


def test_chains_that_begin_alike_have_roots_of_their_own():
    connection = connect()
    turn(connection, input="hello")
    second = started(connection, input="hello")
    assert second.parent is not None
    assert second.parent.root_id == second.response_id
    connection.finish(Text("other"))
    response = connection.order.responses[-1]
    third = started(connection, input=[*history("hello", response), message("more")])
    assert third.parent is not None
    assert third.parent.root_id == second.response_id


def test_a_loop_without_thoughts_keeps_the_root_of_its_second_turn():
    connection = connect()
    sent: list[Json] = []
    roots = []
    for number in range(4):
        sent.append(message(f"say {number}"))
        job = started(connection, input=sent)
        roots.append(job.parent.root_id if job.parent is not None else job.response_id)
        connection.finish(Thought("hm"), Text("ok"))
        sent += connection.order.responses[-1]["output"][1:]
    assert roots == ["resp_1", "resp_2", "resp_2", "resp_2"]


def test_without_its_thoughts_the_question_is_recognised_and_not_the_answer():
    connection = connect()
    first = turn(connection, Thought("hm"), Text("ok"), input="hello")
    sent = [item for item in history("hello", first) if item["type"] != "reasoning"]
    job = started(connection, input=[*sent, message("more")])
    assert recognised(job) == 1


def test_a_request_that_is_repeated_continues_its_own_question():
    connection = connect()
    turn(connection, input="hello")
    job = started(connection, input="hello")
    assert recognised(job) == 1
    assert job.input == ()


def test_a_warmup_is_recognised():
    connection = connect()
    connection.create(input="hello", generate=False)
    connection.finish()
    assert len(connection.server.known) == 1
    assert recognised(started(connection, input=[message("hello"), message("more")])) == 1


def test_a_history_that_ends_with_an_answer_is_recognised_up_to_the_question():
    connection = connect()
    first = turn(connection, input="hello")
    assert recognised(started(connection, input=history("hello", first))) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"instructions": "Be brief."},
        {"tools": [function("f")]},
        {"model": "able"},
        {"input": [message("hullo"), message("more")]},
    ],
)
def test_another_head_model_or_text_is_not_recognised(other: Json):
    connection = connect()
    turn(connection, input="hello")
    assert recognised(started(connection, **{"input": [message("hello"), message("more")], **other})) == 0


def test_another_tenant_is_not_recognised():
    server = Server()
    turn(connect(server, "alice"), input="hello")
    assert recognised(started(connect(server, "bob"), input="hello")) == 0
    assert recognised(started(connect(server, "alice"), input="hello")) == 1


def test_the_head_is_shared_with_the_context():
    connection = connect()
    fields: Json = {"instructions": "Be brief.", "tools": [function("f")]}
    turn(connection, input="hello", **fields)
    job = started(connection, input=[message("hello"), message("more")], **fields)
    assert job.parent is not None
    assert job.head is job.parent.head


def test_tools_that_items_bring_are_read_together_with_those_of_the_head():
    connection = connect()
    tools = {"type": "additional_tools", "role": "developer", "tools": [function("g")]}
    fields: Json = {"tools": [function("f")]}
    turn(connection, input=[tools, message("hello")], **fields)
    job = started(connection, input=[tools, message("hello"), message("more")], **fields)
    assert recognised(job) == 2
    assert [tool.name for tool in job.offer.tools] == ["f", "g"]


def test_encrypted_thoughts_are_recognised_by_their_content():
    connection = connect()
    include = ["reasoning.encrypted_content"]
    first = turn(connection, Thought("hm"), Text("ok"), input="hello", include=include)
    thought, *rest = first["output"]
    del thought["content"]  # as clients do that keep only what they cannot read
    job = started(connection, input=[message("hello"), thought, *rest, message("more")], include=include)
    assert recognised(job) == 3


def test_a_compacted_context_is_recognised_from_its_compaction_on():
    connection = connect()
    managed = [{"type": "compaction", "compact_threshold": 10}]
    connection.create(input="hello " * 300, context_management=managed)
    connection.weigh(1000)
    connection.finish(Text("in short"))
    response = turn_end(connection)
    job = started(connection, input=[*response["output"], message("more")])
    assert job.parent is not None
    assert recognised(job) == len(job.parent.input) + 1


def turn_end(connection: Connection) -> Json:
    connection.finish(Text("ok"))
    response: Json = connection.order.responses[-1]
    return response


def test_a_requested_compaction_leaves_no_context():
    connection = connect()
    connection.create(input=[message("hello"), {"type": "compaction_trigger"}])
    connection.finish(Text("in short"))
    assert len(connection.server.known) == 0


def test_what_was_answered_does_not_depend_on_what_is_recognised():
    """A compaction keeps the messages after the last output of the history, recognised or not."""
    kept = []
    for known in (True, False):
        connection = connect(Server(recognised_s=600.0 if known else 0.0))
        first = turn(connection, *CALL, input="hello")
        output = call_output(first["output"][0]["call_id"])
        sent = [*history("hello", first), message("meanwhile"), output, {"type": "compaction_trigger"}]
        connection.create(input=sent)
        assert connection.job().recognised is known
        connection.finish(Text("in short"))
        state = connection.cache.states()[-1]
        kept.append([json.loads(item.raw)["content"] for item in state.prompt])
    assert kept[0] == kept[1]


def test_a_setting_that_a_history_repeats_is_kept_once_by_a_compaction():
    """Items that are known are the same objects wherever the history repeats their bytes."""
    update = {"type": "configuration_update", "reasoning": {"effort": "low"}}
    kept = []
    for known in (True, False):
        connection = connect(Server(recognised_s=600.0 if known else 0.0))
        sent = [update, message("hello"), update]
        turn(connection, input=sent)
        connection.create(input=[*sent, message("more"), {"type": "compaction_trigger"}])
        connection.finish(Text("in short"))
        state = connection.cache.states()[-1]
        kept.append([item.type for item in state.prompt])
    assert kept[0] == kept[1]
    assert kept[0].count("configuration_update") == 1


def test_a_context_from_which_items_were_dropped_is_not_known():
    connection = connect(accepts=lambda job: False)
    connection.create(input="hello")
    connection.generate(Accepted(dropped_items=1))
    connection.finish(Text("ok"))
    assert len(connection.server.known) == 0
    (state,) = connection.cache.states()
    assert state.digest is None
    connection.create(previous=state.id, input="more")
    connection.generate(Accepted())
    connection.finish(Text("ok"))
    assert len(connection.server.known) == 0


def test_a_rendering_from_the_beginning_shares_no_memory():
    connection = connect(accepts=lambda job: False)
    for fallback in (None, None, "the head changed"):
        connection.create(input="hello" if fallback is None else [message("hello"), message("more")])
        connection.generate(Accepted(fallback=fallback))
        connection.finish(Text("ok"))
    *earlier, asked, answered = connection.server.known._by_tenant["tenant"].values()
    assert len(earlier) == 2
    assert (asked.parent, answered.parent) == (None, asked)


def test_equal_requests_at_once_share_no_memory():
    connection = connect()
    sent = [message(f"say {number}") for number in range(50)]
    for lane in ("a", "b"):
        connection.create(lane, input=sent)
    known = connection.server.known
    connection.finish(Text("one"), lane="a")
    before = known.used_bytes
    connection.finish(Text("two"), lane="b")
    assert len(known) == 3
    assert known.used_bytes - before > 50 * 100  # of the second's own position


def test_a_large_output_is_not_digested():
    connection = connect()
    turn(connection, Text("x" * 600_000), input="hello")
    assert len(connection.server.known) == 0


def test_a_rollout_is_recognised_as_a_whole():
    connection = connect(betas=Betas(rollout=True))
    connection.create(input="hello", rollout=True)
    connection.finish(*CALL)
    (call,) = [item for item in connection.events if item["type"] == "response.output_item.done"]
    connection.append(connection.events[0]["response"]["id"], call_output(call["item"]["call_id"]))
    connection.finish(Text("ok"))
    response = connection.order.responses[-1]
    job = started(connection, input=[*history("hello", response), message("more")])
    assert recognised(job) == 4


def test_a_paused_rollout_with_unprocessed_outputs_is_continued_before_its_last_step():
    connection = connect(betas=Betas(rollout=True))
    connection.create(input="hello", rollout=True)
    connection.finish(*CALL, *CALL)
    call = next(item for item in connection.events if item["type"] == "response.output_item.done")
    connection.append(connection.events[0]["response"]["id"], call_output(call["item"]["call_id"]))
    connection.tick(connection.server.limits.rollout_wait_s)
    (response,) = connection.order.responses
    outputs = [call_output(item["call_id"]) for item in response["output"] if item["type"] == "function_call"]
    sent = [message("hello"), *response["output"][:2], *outputs]
    assert recognised(started(connection, input=sent)) == 1


def test_a_rollout_whose_last_step_says_nothing_leaves_no_context():
    connection = connect(betas=Betas(rollout=True))
    connection.create(input="hello", rollout=True)
    connection.finish(*CALL)
    (call,) = [item for item in connection.events if item["type"] == "response.output_item.done"]
    connection.append(connection.events[0]["response"]["id"], call_output(call["item"]["call_id"]))
    connection.finish()
    assert len(connection.server.known) == 0


def test_an_engine_without_reproducible_positions_is_given_whole_histories():
    connection = Connection()
    turn(connection, input="hello")
    assert len(connection.server.known) == 0


def test_a_client_that_wants_no_retention_leaves_no_context():
    connection = connect(betas=Betas(keeps_nothing=True))
    turn(connection, input="hello")
    assert len(connection.server.known) == 0


def test_recognition_can_be_switched_off():
    connection = connect(Server(recognised_s=0.0))
    first = turn(connection, input="hello")
    assert recognised(started(connection, input=[*history("hello", first), message("more")])) == 0
    assert len(connection.server.known) == 0


def test_an_error_of_the_engine_names_the_clients_item():
    def refuses(job: Job) -> UnsupportedParameter | None:
        asks = job.input and b"image" in job.input[0].raw
        return UnsupportedParameter("Invalid 'input[0].x'.", param="input[0].x") if asks else None

    connection = connect(refuses=refuses)
    first = turn(connection, input="hello")
    error = only_error(connection.create(input=[*history("hello", first), message("an image")]))
    assert error["error"]["param"] == "input[2].x"
    assert error["error"]["message"] == "Invalid 'input[2].x'."


def test_an_error_of_the_history_names_its_item_as_without_recognition():
    connection = connect()
    first = turn(connection, input="hello")
    orphan = call_output("call_unknown")
    error = only_error(connection.create(input=[*history("hello", first), orphan]))
    assert error["error"]["param"] == "input[2].call_id"


def test_references_are_resolved_before_a_history_is_recognised():
    connection = connect()
    first = turn(connection, input="hello", store=True)
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    connection.create(input=[message("hello"), reference, message("more")])
    connection.load()
    assert recognised(connection.job()) == 2
