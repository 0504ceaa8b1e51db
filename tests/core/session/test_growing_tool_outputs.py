"""Pieces of the outputs of running tools: when they are prefilled, and when they have no effect."""

import json
import tracemalloc
from typing import Any

import pytest
from msgspec import structs

from slipring.base.errors import ModelNotFound, Unavailable
from slipring.core.betas import Betas
from slipring.core.generation import CallArguments, CallEnded, CallStarted, Delta, Model, Text
from slipring.protocol.items.items import CallOutput
from tests.core.connection import (
    PLAIN,
    Connection,
    Json,
    Server,
    call_output,
    context_of,
    message,
    only_error,
    types,
)

BETAS = Betas(tool_output=True, rollout=True)
CALL: list[Delta] = [CallStarted(kind="function", name="f"), CallArguments("{}")]
LONG = "line of output\n" * 20
LONG_BYTES = len(json.dumps(LONG)) - 2


def not_served(name: str | None) -> Model:
    raise ModelNotFound(name or "", [])


def connect(**limits: float) -> Connection:
    return Connection(Server(**limits), betas=BETAS)


def call(client: Connection, *calls: list[Delta], lane: str | None = None, **fields: Any) -> Json:
    """A response that ends with calls."""
    client.create(lane, **fields)
    client.finish(*[delta for each in calls or (CALL,) for delta in each], lane=lane)
    response: Json = client.order.responses[-1]
    return response


def call_ids(response: Json) -> list[str]:
    return [item["call_id"] for item in response["output"] if item["type"].endswith("_call")]


def prefilled(client: Connection, response_id: str) -> list[tuple[str, str]]:
    """The outputs in a running prefill, by call."""
    prefill = client.prefills[response_id].prefill
    assert prefill.expects == "output"
    bodies = [item.body() for item in prefill.job.input]
    return [(body.call_id, str(body.output)) for body in bodies if isinstance(body, CallOutput)]


def test_pieces_are_prefilled_while_the_call_is_open() -> None:
    client = connect()
    response = call(client, instructions="Be brief.", reasoning={"effort": "low"})
    (call_id,) = call_ids(response)
    assert client.stream_output(response["id"], call_id, LONG) == []
    assert prefilled(client, response["id"]) == [(call_id, LONG)]
    job = client.prefills[response["id"]].prefill.job
    assert (job.head.instructions, job.settings.effort, job.generate) == ("Be brief.", "low", False)
    assert job.parent is client.cache.find(response["id"])


def test_the_answer_format_of_the_response_is_expected_again() -> None:
    client = connect()
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    response = call(client, text={"format": schema})
    client.stream_output(response["id"], call_ids(response)[0], LONG)
    state = client.cache.find(response["id"])
    assert state is not None
    job = client.prefills[response["id"]].prefill.job
    assert json.loads(job.settings.format.schema or b"") == {"type": "object"}


def test_pieces_that_arrive_during_a_prefill_are_merged_into_the_next() -> None:
    client = connect()
    response = call(client)
    (call_id,) = call_ids(response)
    for _ in range(3):
        client.stream_output(response["id"], call_id, LONG)
    assert prefilled(client, response["id"]) == [(call_id, LONG)]
    client.end_prefill(response["id"], 50)
    assert prefilled(client, response["id"]) == [(call_id, 3 * LONG)]
    assert client.prefills[response["id"]].prefill.done_tokens == 50
    client.end_prefill(response["id"], 150)
    assert not client.prefills, "nothing is new"


def test_every_piece_says_that_its_tool_still_runs() -> None:
    client = connect(max_tool_output_bytes=200)
    response = call(client)
    (call_id,) = call_ids(response)
    for size in (1, 100, 100, 100, 1):  # too little, a prefill, one that waits for it, too much, refused
        client.stream_output(response["id"], call_id, "x" * size)
    assert client.heard == {response["id"]: 5}
    client.end_output(response["id"], call_id)
    client.stream_output("resp_unknown", call_id, "x")
    assert client.heard == {response["id"]: 5}


def test_a_little_more_output_does_not_begin_a_prefill() -> None:
    client = connect()
    response = call(client)
    (call_id,) = call_ids(response)
    client.stream_output(response["id"], call_id, "x" * 63)
    assert not client.prefills
    client.stream_output(response["id"], call_id, "x")
    client.stream_output(response["id"], call_id, "x" * 12_800)
    client.end_prefill(response["id"])
    client.end_prefill(response["id"])
    client.stream_output(response["id"], call_id, "x" * 200)  # less than a 64th
    assert not client.prefills
    client.stream_output(response["id"], call_id, "x" * 20)
    assert len(prefilled(client, response["id"])[0][1]) == 64 + 12_800 + 220


def test_the_end_of_a_tool_is_prefilled_however_short_its_output_is() -> None:
    client = connect()
    response = call(client)
    (call_id,) = call_ids(response)
    client.stream_output(response["id"], call_id, "ok")
    client.end_output(response["id"], call_id)
    assert prefilled(client, response["id"]) == [(call_id, "ok")]


def test_the_outputs_of_several_calls_are_prefilled_in_the_order_of_the_calls() -> None:
    client = connect()
    response = call(client, CALL, CALL, CALL)
    first, second, third = call_ids(response)
    client.stream_output(response["id"], second, LONG)
    client.stream_output(response["id"], third, LONG)
    assert not client.prefills, "the first call has no output yet"
    client.stream_output(response["id"], first, "1" * 200)
    assert prefilled(client, response["id"]) == [(first, "1" * 200)]
    client.end_output(response["id"], first)
    client.end_prefill(response["id"])
    assert prefilled(client, response["id"]) == [(first, "1" * 200), (second, LONG)]


def test_a_call_that_needs_no_output_does_not_hold_up_the_others() -> None:
    client = connect()
    early = call(client)
    (first,) = call_ids(early)
    client.create(previous=early["id"], input=[call_output(first)], tool_choice="auto")
    client.finish(Text("a"), *CALL, reason="max_output_tokens")  # a call that was cut off
    cut_off = client.order.responses[-1]
    response = call(client, previous=cut_off["id"])
    open_calls = call_ids(response)
    client.stream_output(response["id"], open_calls[0], LONG)
    assert prefilled(client, response["id"]) == [(open_calls[0], LONG)]


def test_the_output_of_a_custom_tool_is_prefilled_as_such() -> None:
    client = connect()
    tools = [{"type": "custom", "name": "t"}]
    response = call(client, [CallStarted(kind="custom", name="t"), CallArguments("x")], tools=tools)
    client.stream_output(response["id"], call_ids(response)[0], LONG)
    (item,) = client.prefills[response["id"]].prefill.job.input
    assert item.type == "custom_tool_call_output"


def test_a_create_that_continues_the_response_ends_its_prefill() -> None:
    client = connect()
    response = call(client)
    (call_id,) = call_ids(response)
    client.stream_output(response["id"], call_id, LONG)
    client.create(previous=response["id"], input=[call_output(call_id, LONG)])
    assert not client.prefills
    (failed,) = client.stream_output(response["id"], call_id, LONG)
    assert failed["error"]["code"] == "call_not_open"
    assert [item.type for item in client.job().input] == ["function_call_output"]


def test_a_fork_leaves_the_prefill_alone() -> None:
    client = connect()
    response = call(client)
    (call_id,) = call_ids(response)
    client.stream_output(response["id"], call_id, LONG)
    client.create("other", previous=response["id"], input=[call_output(call_id)])
    assert prefilled(client, response["id"]) == [(call_id, LONG)]
    client.end_prefill(response["id"])
    client.stream_output(response["id"], call_id, LONG)
    assert prefilled(client, response["id"]) == [(call_id, 2 * LONG)]


def test_pieces_that_arrive_while_the_response_is_generated_are_prefilled_when_it_has_ended() -> None:
    client = connect()
    client.create()
    client.generate(*CALL, *CALL)  # the first call is complete
    (call_id,) = [event["item"]["call_id"] for event in client.events if event["type"].endswith("item.done")]
    response_id = client.events[0]["response"]["id"]
    assert client.stream_output(response_id, call_id, LONG) == []
    assert not client.prefills
    client.finish()
    assert prefilled(client, response_id) == [(call_id, LONG)]


def test_a_rollout_prefills_while_it_is_paused() -> None:
    client = connect()
    client.create(rollout=True)
    client.finish(*CALL, *CALL)
    response_id = client.events[0]["response"]["id"]
    first, second = (stub["call_id"] for stub in client.events[-1]["required_input"])
    client.append(response_id, call_output(first, "done"))
    client.stream_output(response_id, second, LONG)
    assert prefilled(client, response_id) == [(first, "done"), (second, LONG)]
    client.append(response_id, call_output(second, LONG))
    assert not client.prefills
    client.finish(*CALL)
    (third,) = (stub["call_id"] for stub in client.events[-1]["required_input"])
    client.stream_output(response_id, third, LONG)
    assert prefilled(client, response_id) == [(third, LONG)]
    assert client.prefills[response_id].prefill.done_tokens == 0


def test_the_pieces_of_one_call_are_prefilled_after_the_append_of_another() -> None:
    client = connect()
    client.create(rollout=True)
    client.finish(*CALL, *CALL)
    response_id = client.events[0]["response"]["id"]
    first, second = (stub["call_id"] for stub in client.events[-1]["required_input"])
    client.stream_output(response_id, second, LONG)
    assert not client.prefills
    client.append(response_id, call_output(first, "done"))
    assert prefilled(client, response_id) == [(first, "done"), (second, LONG)]


def test_a_prefill_that_fails_is_not_repeated() -> None:
    client = connect()
    response = call(client)
    (call_id,) = call_ids(response)
    client.stream_output(response["id"], call_id, LONG)
    client.end_prefill(response["id"], None)
    assert client.stream_output(response["id"], call_id, LONG) == []
    assert not client.prefills


def test_a_prefill_that_was_ended_reports_nothing() -> None:
    client = connect()
    response = call(client)
    client.stream_output(response["id"], call_ids(response)[0], LONG)
    ended = client.prefills[response["id"]]
    client.create(previous=response["id"], input=[call_output(call_ids(response)[0])])
    assert client.session.turns.prefilled(ended, 10) == []


def test_output_past_the_bound_has_no_effect_and_takes_no_memory() -> None:
    client = connect(max_tool_output_bytes=1000)
    response = call(client)
    (call_id,) = call_ids(response)
    client.stream_output(response["id"], call_id, "x" * 1000)
    client.end_prefill(response["id"])
    assert client.stream_output(response["id"], call_id, "x") == []
    client.end_output(response["id"], call_id)
    assert not client.prefills
    assert client.server.requests.used_bytes == 1000
    client.create(previous=response["id"], input=[call_output(call_id)], store=True)
    client.complete()
    assert client.server.requests.used_bytes == 0


def test_output_that_does_not_fit_the_memory_of_requests_has_no_effect() -> None:
    client = connect(tenant_request_bytes=2000)
    response = call(client)
    (call_id,) = call_ids(response)
    assert client.stream_output(response["id"], call_id, "x" * 5000) == []
    assert not client.prefills
    assert client.server.requests.used_bytes == 0


def test_outputs_of_responses_that_cannot_be_continued_any_more_are_forgotten() -> None:
    client = connect()
    forgotten = call(client)
    client.stream_output(forgotten["id"], call_ids(forgotten)[0], LONG)
    response = call(client)
    client.stream_output(response["id"], call_ids(response)[0], LONG)
    assert list(client.prefills) == [response["id"]]
    assert client.server.requests.used_bytes == LONG_BYTES


@pytest.mark.parametrize("ends", ["hang_up", "idle", "wind_down"])
def test_prefills_end_with_their_connection(ends: str) -> None:
    client = connect(idle_timeout_s=10.0)
    response = call(client)
    client.stream_output(response["id"], call_ids(response)[0], LONG)
    if ends == "hang_up":
        client.hang_up()
    elif ends == "idle":
        client.tick(10.0)
    else:
        client.end(Unavailable("The server stops."))
        assert client.stream_output(response["id"], call_ids(response)[0], LONG) == []
    assert not client.prefills


REFUSED: list[tuple[Json, str, str | None]] = [
    ({"response_id": "resp_unknown"}, "response_not_found", "response_id"),
    ({"call_id": "call_unknown"}, "call_not_open", "call_id"),
    ({"call_id": ""}, "invalid_input", "call_id"),
    ({"delta": 1}, "invalid_input", "delta"),
    ({"more": True}, "invalid_input", "more"),
    ({"response_id": None}, "invalid_input", "response_id"),
]


@pytest.mark.parametrize(("change", "code", "param"), REFUSED)
def test_a_piece_that_cannot_be_used_is_refused_by_name(change: Json, code: str, param: str | None) -> None:
    client = connect()
    response = call(client, lane="a")
    piece = {"response_id": response["id"], "call_id": call_ids(response)[0], "delta": LONG, **change}
    (event,) = client.receive(json.dumps({"type": "response.tool_output.delta", **piece}))
    assert event["type"] == "response.tool_output.failed"
    assert (event["error"]["code"], event["error"]["param"]) == (code, param)
    assert event["error"]["type"] == "invalid_request_error"
    assert event["call_id"] == (piece["call_id"] if isinstance(piece["call_id"], str) else "")
    assert event.get("stream_id") == ("a" if event["response_id"] == response["id"] else None)


def test_a_malformed_done_is_refused() -> None:
    client = connect()
    (event,) = client.receive('{"type": "response.tool_output.done", "response_id": 5}')
    assert (event["type"], event["response_id"], event["call_id"]) == ("response.tool_output.failed", "", "")


def test_a_piece_of_another_kind_of_call_is_refused() -> None:
    client = connect()
    tools = [{"type": "tool_search", "execution": "client"}]
    search: list[Delta] = [CallStarted(kind="tool_search", name="tool_search"), CallArguments("{}")]
    response = call(client, search, tools=tools)
    (event,) = client.stream_output(response["id"], call_ids(response)[0], LONG)
    assert event["error"]["code"] == "invalid_input"
    assert "function calls and custom tool calls" in event["error"]["message"]


def test_pieces_need_their_beta() -> None:
    client = Connection()
    event = only_error(client.stream_output("resp_1", "call_1", "x"))
    assert event["error"]["code"] == "unsupported_event_type"
    assert "slipring_tool_output=v1" in event["error"]["message"]


# Contexts that a user message rewrites


class Rewriting:
    """Models whose templates drop earlier thoughts."""

    def find(self, name: str | None) -> Model:
        return structs.replace(PLAIN, rewrites_answers=True)


def thinking() -> Connection:
    server = Server()
    server.models = Rewriting()  # type: ignore[assignment]
    return Connection(server, betas=BETAS)


def test_what_a_user_message_rewrites_is_prefilled_after_the_answer() -> None:
    client = thinking()
    response = client.respond()
    prefill = client.prefills[response["id"]].prefill
    assert (prefill.expects, prefill.job.input) == ("user", ())
    assert prefill.job.parent is client.cache.find(response["id"])
    client.end_prefill(response["id"])
    client.respond(previous=response["id"])
    assert len(client.prefills) == 1


def test_nothing_is_prefilled_for_a_model_that_is_not_served_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = thinking()
    client.create()
    monkeypatch.setattr(client.server.models, "find", not_served)
    assert client.complete()["status"] == "completed"
    assert not client.prefills


def test_nothing_is_prefilled_where_no_user_message_is_expected() -> None:
    client = thinking()
    call(client)
    client.create(generate=False)
    client.complete()
    client.create()
    client.finish(Text("half"), reason="max_output_tokens")
    assert not client.prefills
    client.create(input=[message("one")])
    client.create(input=[message("two")])  # waits in the same lane
    client.complete()
    assert not client.prefills
    client.complete()
    assert types(client.events)[-1] == "completed"
    assert len(client.prefills) == 1


def test_outputs_for_a_model_that_is_not_served_any_more_have_no_effect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = connect()
    response = call(client)
    monkeypatch.setattr(client.server.models, "find", not_served)
    assert client.stream_output(response["id"], call_ids(response)[0], LONG) == []
    assert not client.prefills


def test_outputs_of_a_response_that_was_evicted_are_not_prefilled_any_more() -> None:
    client = connect()
    response = call(client)
    for _ in range(2):
        client.stream_output(response["id"], call_ids(response)[0], LONG)
    client.cache.evict(response["id"])
    client.end_prefill(response["id"])
    assert not client.prefills
    assert client.server.requests.used_bytes == 0


# Bounds


@pytest.mark.parametrize("piece", ["", "ab"])
def test_many_small_pieces_take_as_much_memory_as_they_count(piece: str) -> None:
    client = connect()
    response = call(client, CALL, CALL)
    _, second = call_ids(response)  # kept until the first call has its output
    client.stream_output(response["id"], second, "begin")
    frame = {"response_id": response["id"], "call_id": second, "delta": piece}
    text = json.dumps({"type": "response.tool_output.delta", **frame})
    tracemalloc.start()
    for _ in range(5000):
        client.receive(text)
    used_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used_bytes < 2 * 5000 * len(piece) + 10_000


def test_a_running_prefill_takes_little_more_memory_than_its_pieces_count() -> None:
    client = connect()
    response = call(client)
    (call_id,) = call_ids(response)
    frame = {"response_id": response["id"], "call_id": call_id, "delta": "\0" * 100_000}
    text = json.dumps({"type": "response.tool_output.delta", **frame})
    tracemalloc.start()
    client.receive(text)
    used_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert prefilled(client, response["id"]) == [(call_id, "\0" * 100_000)]
    assert used_bytes < 2.5 * client.server.requests.used_bytes


def test_a_tool_that_has_ended_is_prefilled_once_and_adds_nothing() -> None:
    client = connect()
    response = call(client)
    (call_id,) = call_ids(response)
    client.stream_output(response["id"], call_id, LONG)
    client.end_output(response["id"], call_id)
    client.end_prefill(response["id"])
    client.end_prefill(response["id"])
    client.end_output(response["id"], call_id)
    assert not client.prefills
    assert client.stream_output(response["id"], call_id, LONG) == []
    assert not client.prefills
    assert client.server.requests.used_bytes == LONG_BYTES


def test_what_was_accepted_before_the_bound_was_reached_is_prefilled() -> None:
    client = connect(max_tool_output_bytes=1000)
    response = call(client)
    (call_id,) = call_ids(response)
    client.stream_output(response["id"], call_id, "x" * 64)
    client.stream_output(response["id"], call_id, "x" * 900)
    client.stream_output(response["id"], call_id, "x" * 100)  # too much
    client.stream_output(response["id"], call_id, "x")  # follows what was ignored
    client.end_output(response["id"], call_id)
    assert prefilled(client, response["id"]) == [(call_id, "x" * 64)]
    client.end_prefill(response["id"])
    assert prefilled(client, response["id"]) == [(call_id, "x" * 964)]
    client.end_prefill(response["id"])
    assert not client.prefills


def test_a_short_rest_is_prefilled_when_the_bound_is_reached() -> None:
    client = connect(max_tool_output_bytes=1000)
    response = call(client)
    (call_id,) = call_ids(response)
    client.stream_output(response["id"], call_id, "x" * 990)
    client.stream_output(response["id"], call_id, "y")
    client.end_prefill(response["id"])
    assert not client.prefills
    client.stream_output(response["id"], call_id, "y" * 10)  # too much
    assert prefilled(client, response["id"]) == [(call_id, "x" * 990 + "y")]


@pytest.mark.parametrize("served", [True, False])
def test_outputs_that_will_not_be_prefilled_take_no_memory(
    monkeypatch: pytest.MonkeyPatch, *, served: bool
) -> None:
    client = connect()
    response = call(client)
    (call_id,) = call_ids(response)
    if not served:

        def find(name: str | None) -> Model:
            raise ModelNotFound(name or "", [])

        monkeypatch.setattr(client.server.models, "find", find)
    client.stream_output(response["id"], call_id, LONG)
    if served:
        client.end_prefill(response["id"], None)
    assert client.server.requests.used_bytes == 0
    client.stream_output(response["id"], call_id, LONG)
    assert client.server.requests.used_bytes == 0


# Responses that can have no more pieces


def test_another_chain_on_the_lane_ends_the_prefill() -> None:
    client = connect()
    response = call(client)
    client.stream_output(response["id"], call_ids(response)[0], LONG)
    client.respond()
    assert not client.prefills
    assert client.server.requests.used_bytes == 0


@pytest.mark.parametrize("fields", [{"input": 5}, {"input": [call_output("call_unknown")]}])
def test_a_refused_continuation_ends_the_prefill(fields: Json) -> None:
    client = connect()
    response = call(client)
    client.stream_output(response["id"], call_ids(response)[0], LONG)
    only_error(client.create(previous=response["id"], **fields))
    assert response["id"] not in client.cache
    assert not client.prefills
    assert client.server.requests.used_bytes == 0


def test_a_conversation_that_continues_the_response_ends_the_prefill() -> None:
    client = connect()
    client.create(store=True)
    client.finish(*CALL)
    client.save()
    response = client.order.responses[-1]
    (call_id,) = call_ids(response)
    client.stream_output(response["id"], call_id, LONG)
    client.create(conversation="conv_1", input=[call_output(call_id, LONG)])
    before = client.server.requests.used_bytes
    client.load_conversation(tip=response["id"])
    assert not client.prefills
    assert client.server.requests.used_bytes == before - LONG_BYTES


def test_outputs_of_a_response_that_was_evicted_are_forgotten() -> None:
    client = connect()
    response = call(client)
    (call_id,) = call_ids(response)
    client.stream_output(response["id"], call_id, LONG)
    client.cache.evict(response["id"])
    (failed,) = client.stream_output(response["id"], call_id, LONG)
    assert failed["error"]["code"] == "response_not_found"
    assert not client.prefills
    assert client.server.requests.used_bytes == 0


def test_pieces_that_are_kept_for_a_response_that_was_evicted_have_no_effect() -> None:
    client = connect()
    response = call(client, CALL, CALL)
    _, second = call_ids(response)
    client.stream_output(response["id"], second, LONG)  # kept until the first call has its output
    client.cache.evict(response["id"])
    (failed,) = client.append(response["id"], call_output(second))
    assert failed["error"]["code"] == "response_not_found"
    assert not client.prefills


# When what is known of the next step changes


def test_pieces_that_were_kept_are_prefilled_when_the_call_before_has_its_output() -> None:
    client = connect()
    client.create(rollout=True)
    client.finish(*CALL, *CALL)
    response_id = client.events[0]["response"]["id"]
    first, second = (stub["call_id"] for stub in client.events[-1]["required_input"])
    client.stream_output(response_id, second, LONG)
    client.stream_output(response_id, first, "a" * 100)
    assert prefilled(client, response_id) == [(first, "a" * 100)]
    client.end_prefill(response_id)
    client.append(response_id, call_output("call_unknown"))
    assert not client.prefills, "a refused append changes nothing"
    client.append(response_id, call_output(first, "a" * 100))
    assert prefilled(client, response_id) == [(first, "a" * 100), (second, LONG)]
    client.end_prefill(response_id)
    assert not client.prefills


def test_pieces_for_a_response_that_ends_incomplete_are_prefilled_too() -> None:
    client = connect()
    client.create()
    client.generate(*CALL, CallEnded())
    (call_id,) = [event["item"]["call_id"] for event in client.events if event["type"].endswith("item.done")]
    response_id = client.events[0]["response"]["id"]
    client.stream_output(response_id, call_id, LONG)
    client.finish(*CALL, reason="max_output_tokens")
    assert client.events[-1]["type"] == "response.incomplete"
    assert prefilled(client, response_id) == [(call_id, LONG)]


def test_steers_that_wait_for_the_output_come_after_it() -> None:
    client = connect()
    client.create()
    response_id = client.events[0]["response"]["id"]
    client.steer(response_id, "Be brief.")
    client.finish(*CALL)
    (call_id,) = call_ids(client.order.responses[-1])
    client.stream_output(response_id, call_id, LONG)
    foreseen = client.prefills[response_id].prefill.job
    client.create(previous=response_id, input=[call_output(call_id, LONG)])
    *before, steer = context_of(client.job())
    assert (context_of(foreseen), steer["content"]) == (before, "Be brief.")
