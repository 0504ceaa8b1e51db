"""Hosted calls inside a response: lists, calls that run while the model writes, results, budgets, ends."""

import json
from typing import Any

import pytest

from slipring.base.errors import (
    AuthenticationFailed,
    ContextLengthExceeded,
    ExternalConnectorError,
    InvalidRequest,
    Unavailable,
)
from slipring.core.betas import Betas
from slipring.core.chain.hosted_items_in_context import UNKNOWN_OUTCOME
from slipring.core.generation import CallArguments, CallEnded, CallStarted, Delta, Text, Thought
from slipring.core.hosted_tools import CallOutcome, CallProgress, FetchedList
from slipring.core.session.actions import Resolved
from slipring.core.turn.output.hosted_calls import LOST
from slipring.core.turn.output.rejected_calls import LIMIT_REACHED, MOST_REJECTED, NOT_OFFERED
from slipring.protocol.items.hosted_items import HttpError, ProtocolError
from tests.core.connection import (
    Connection,
    Json,
    Seen,
    Server,
    call_output,
    function,
    listed,
    mcp,
    message,
    only_error,
    types,
)
from tests.core.hosted_turns import HOSTED, begin, end_only, hosted, kinds, running, told

BETAS = Betas(rollout=True, timing=True)
CLIENT: list[Delta] = [CallStarted("function", "own"), CallArguments("{}"), CallEnded()]
MISSPELT: list[Delta] = [
    CallStarted("function", "s__ff", is_offered=False),
    CallArguments("{}"),
    CallEnded(),
]
MIXED = [*HOSTED, function("own")]
_LOST = LOST.error
assert isinstance(_LOST, ProtocolError)
LOST_TEXT = _LOST.message


def last(connection: Connection) -> Json:
    response: Json = connection.order.responses[-1]
    return response


def call_items(response: Json) -> list[Json]:
    return [item for item in response["output"] if item["type"] == "mcp_call"]


def fetched(connection: Connection) -> set[str]:
    """The labels of the servers whose lists are being fetched."""
    return {label for asked in connection.listings.values() for label in asked.servers}


UNREACHABLE = FetchedList(
    error=HttpError(502, "Unreachable."), refusal=ExternalConnectorError("Unreachable.", param="tools")
)


# Lists.


def test_servers_are_found_in_tools_that_differ_from_those_of_the_parent() -> None:
    connection = Connection()
    connection.create(tools=[function("own")])
    first = connection.complete()
    connection.create(previous=first["id"], tools=[function("own")])
    assert not connection.resolves
    second = connection.complete()
    connection.create(previous=second["id"], tools=MIXED)
    assert connection.resolves


def test_a_response_begins_with_the_lists_of_its_servers() -> None:
    connection = Connection()
    connection.create(tools=[mcp("s"), mcp("t")])
    begun = ["output_item.added", "mcp_list_tools.in_progress"]
    assert types(connection.find_servers()) == ["created", "in_progress", *begun, *begun]
    # They are fetched side by side, and shown in the order in which they arrive.
    ended = ["mcp_list_tools.completed", "output_item.done"]
    sent = connection.end_list("t")
    assert (types(sent), {event["output_index"] for event in sent}) == (ended, {1})
    assert not connection.starts
    sent = connection.end_list("s")
    assert (types(sent), {event["output_index"] for event in sent}) == (ended, {0})
    assert [tool["name"] for tool in sent[1]["item"]["tools"]] == ["f", "g"]
    assert connection.end_lists() == []
    names = [(tool.namespace, tool.name) for tool in connection.job().offer.tools]
    assert names == [("s", "f"), ("s", "g"), ("t", "f")]
    assert told(connection.job()) == ["hi"]
    assert connection.complete()["output"][0]["server_label"] == "s"


def test_a_list_in_the_context_is_not_fetched_or_shown_again() -> None:
    connection = Connection()
    begin(connection)
    first = connection.complete()
    connection.create(previous=first["id"], tools=[mcp("s"), mcp("t")])
    connection.find_servers()
    assert fetched(connection) == {"t"}
    connection.list_tools()
    assert [(tool.namespace, tool.name) for tool in connection.job().offer.tools][:2] == [
        ("s", "f"),
        ("s", "g"),
    ]
    assert kinds(connection.complete()) == ["mcp_list_tools", "message"]
    history = [message("hi"), *first["output"], message("more")]
    connection.create(input=history, tools=HOSTED)
    connection.resolve()
    assert fetched(connection) == set()
    assert told(connection.job()) == ["hi", "ok", "more"]


def test_a_warmup_lists_tools() -> None:
    connection = Connection()
    connection.create(tools=HOSTED, generate=False)
    sent = connection.resolve()
    assert types(sent)[:2] == ["created", "output_item.added"]
    assert [tool.name for tool in connection.job().head.tools.callables] == ["f", "g"]
    warm = connection.complete()
    assert kinds(warm) == ["mcp_list_tools"]
    connection.create(previous=warm["id"], tools=HOSTED)
    connection.find_servers()
    assert fetched(connection) == set()


def test_a_server_that_may_not_be_used_is_refused_before_the_response_is_created() -> None:
    connection = Connection()
    connection.create(tools=HOSTED)
    error = only_error(connection.fail(error=InvalidRequest("No.", param="tools[0].server_url")))
    assert (error["status"], error["error"]["param"]) == (400, "tools[0].server_url")


def test_a_server_that_cannot_be_listed_fails_the_response() -> None:
    connection = Connection()
    connection.create(tools=[mcp("s"), mcp("t")])
    connection.find_servers()
    connection.end_list("t")
    sent = connection.end_list("s", fetched=UNREACHABLE)
    assert types(sent) == ["mcp_list_tools.failed", "output_item.done", "failed"]
    response = sent[-1]["response"]
    assert (response["error"]["code"], response["error"]["message"]) == ("server_error", "Unreachable.")
    assert [item.get("error") for item in response["output"]] == ["Unreachable.", None]
    assert not connection.listings


def test_a_failed_list_ends_those_that_are_still_fetched() -> None:
    connection = Connection()
    connection.create(tools=[mcp("s"), mcp("t")])
    connection.find_servers()
    sent = connection.end_list("s", fetched=UNREACHABLE)
    one = ["mcp_list_tools.failed", "output_item.done"]
    assert types(sent) == [*one, *one, "failed"]
    assert sent[-1]["response"]["output"][1]["error"] == "The list of tools is not available."


def test_a_list_with_an_error_is_shown_and_fetched_again() -> None:
    connection = Connection()
    connection.create(tools=HOSTED)
    connection.find_servers()
    sent = connection.end_list("s", fetched=FetchedList(error=HttpError(502, "Unreachable.")))
    assert types(sent) == ["mcp_list_tools.failed", "output_item.done"]
    connection.end_lists()
    assert not connection.job().offer.tools
    response = connection.complete()
    assert response["output"][0]["error"] == "Unreachable."
    connection.create(previous=response["id"], tools=HOSTED)
    connection.find_servers()
    assert fetched(connection) == {"s"}


def test_client_operator_and_list_together_say_what_may_be_called() -> None:
    server = Server()
    server.lists["s"] = tuple(listed(name, read_only=name != "g") for name in ("f", "g", "h"))
    connection = Connection(server)
    connection.create(tools=[mcp(allowed_tools={"read_only": True})])
    connection.resolve(permitted=frozenset({"f", "g"}))
    assert [tool.name for tool in connection.job().offer.tools] == ["f"]


# Calls.


def test_a_call_starts_while_the_model_writes_on_and_the_response_continues_with_its_result() -> None:
    connection = Connection()
    begin(connection)
    sent = connection.generate(Text("Let me see."), *hosted(arguments='{"a":1}'))
    assert types(sent)[-5:] == [
        "output_item.done",
        "output_item.added",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
    ]
    (call_id,) = running(connection)
    call = connection.calls[call_id].call
    assert (call.label, call.tool, call.arguments, call.server.handle) == ("s", "f", '{"a":1}', "handle of s")
    assert types(connection.finish(Text(" Meanwhile."))) == [
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
    ]
    sent = connection.end_call(call_id, "42")
    assert types(sent) == ["mcp_call.completed", "output_item.done"]
    assert (sent[0]["output_index"], sent[1]["item"]["output"]) == (2, "42")
    assert told(connection.job()) == ["hi", "Let me see.", 'call f{"a":1}', " Meanwhile.", "output 42"]
    response = connection.complete(text="It is 42.")
    assert kinds(response) == ["mcp_list_tools", "message", "mcp_call", "message", "message"]
    assert response["usage"]["output_tokens"] == 6
    connection.create(previous=response["id"])
    assert told(connection.job())[3:] == [" Meanwhile.", "output 42", "It is 42.", "hi"]


def test_the_next_step_has_the_results_alone_as_input() -> None:
    connection = Connection(betas=BETAS)
    begin(connection)
    connection.finish(*hosted())
    end_only(connection, "42")
    job = connection.job()
    assert [json.loads(item.raw)["output"] for item in job.input] == ["42"]
    assert job.parent is not None
    assert job.parent.id == job.response_id
    connection.complete()
    timing = connection.events[-1]["timing"]
    assert [stage["name"] for stage in timing["stages"]].count("tools") == 1
    assert len(timing["steps"]) == 2
    assert timing["hosted_calls"] == 1


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_parallel_calls_end_in_any_order(order: tuple[int, ...]) -> None:
    connection = Connection()
    begin(connection)
    connection.generate(*hosted("f", '{"n":0}'), *hosted("g", '{"n":1}'))
    ids = running(connection)
    if order[0] != 2:
        connection.end_call(ids[order[0]], str(order[0]))
    connection.finish(*hosted("f", '{"n":2}'))
    ids = [*ids, *(each for each in running(connection) if each not in ids)]
    for n in order:
        if ids[n] in connection.calls:
            connection.end_call(ids[n], str(n))
    context = ['call f{"n":0}', 'call g{"n":1}', 'call f{"n":2}', "output 0", "output 1", "output 2"]
    assert told(connection.job()) == ["hi", *context]
    response = connection.complete()
    assert [item["output"] for item in call_items(response)] == ["0", "1", "2"]
    connection.create(previous=response["id"])
    assert told(connection.job()) == ["hi", *context, "ok", "hi"]
    # A client that sends the history again gets the same context.
    resent = Connection()
    begin(resent, input=[message("hi"), *response["output"], message("hi")])
    assert told(resent.job()) == ["hi", *context, "ok", "hi"]


def test_results_are_prefilled_in_the_order_of_their_calls_while_others_run() -> None:
    connection = Connection()
    response_id = begin(connection)
    connection.finish(*hosted("f"), *hosted("g"), *hosted("f"))
    one, two, three = running(connection)
    connection.end_call(two, "two")
    assert not connection.prefills
    connection.end_call(one, "one")
    prefill = connection.prefills[response_id].prefill
    assert told(prefill.job)[-2:] == ["output one", "output two"]
    assert not prefill.job.generate
    connection.end_call(three, "three")
    assert not connection.prefills
    assert told(connection.job())[-3:] == ["output one", "output two", "output three"]


def test_a_prefill_of_results_that_fails_is_not_repeated() -> None:
    connection = Connection()
    response_id = begin(connection)
    connection.finish(*hosted("f"), *hosted("g"), *hosted("f"))
    one, two, _ = running(connection)
    connection.end_call(one, "one")
    connection.end_prefill(response_id, None)
    connection.end_call(two, "two")
    assert not connection.prefills


def test_pieces_of_a_clients_call_are_prefilled_when_the_hosted_calls_have_ended() -> None:
    connection = Connection(betas=Betas(rollout=True, tool_output=True))
    response_id = begin(connection, tools=MIXED, rollout=True)
    connection.finish(*hosted("f"), *hosted("g"), *CLIENT)
    one, two = running(connection)
    own = next(e["item"]["call_id"] for e in connection.events if e.get("item", {}).get("name") == "own")
    connection.stream_output(response_id, own, "line\n" * 40)
    assert not connection.prefills
    connection.end_call(one, "one")
    assert told(connection.prefills[response_id].prefill.job)[-1:] == ["output one"]
    connection.end_prefill(response_id)
    connection.end_call(two, "two")
    foreseen = connection.prefills[response_id].prefill.job
    assert told(foreseen)[-3:] == ["output one", "output two", "output " + "line\n" * 40]
    connection.append(response_id, call_output(own, "line\n" * 40))
    assert told(connection.job()) == told(foreseen)


@pytest.mark.parametrize("calls", [[*hosted("f"), *CLIENT], [*CLIENT, *hosted("f"), *CLIENT]])
def test_pieces_are_prefilled_after_the_results_of_hosted_calls(calls: list[Delta]) -> None:
    connection = Connection(betas=Betas(tool_output=True))
    response_id = begin(connection, tools=MIXED)
    connection.finish(*calls)
    end_only(connection, "one")
    own = [item["call_id"] for item in last(connection)["output"] if item["type"] == "function_call"]
    for call_id in own:
        connection.stream_output(response_id, call_id, "line\n" * 40)
        connection.end_output(response_id, call_id)
        while response_id in connection.prefills:
            foreseen = connection.prefills[response_id].prefill.job
            connection.end_prefill(response_id)
    outputs = [call_output(call_id, "line\n" * 40) for call_id in own]
    connection.create(previous=response_id, tools=MIXED, input=outputs)
    connection.resolve()
    assert told(connection.job()) == told(foreseen)


def test_a_failed_call_is_an_item_and_the_model_reads_why() -> None:
    connection = Connection()
    begin(connection)
    connection.finish(*hosted())
    sent = end_only(connection, error=ProtocolError(-1, "No such city."))
    assert types(sent) == ["mcp_call.failed", "output_item.done"]
    assert told(connection.job())[-1] == "output No such city."
    (item,) = call_items(connection.complete())
    assert (item["status"], item["output"]) == ("failed", None)


def test_steps_follow_each_other_until_the_model_calls_nothing() -> None:
    connection = Connection()
    begin(connection)
    for n in range(3):
        connection.finish(Thought("hm"), *hosted(arguments=f'{{"n":{n}}}'))
        end_only(connection, str(n))
    response = connection.complete()
    assert [item["output"] for item in call_items(response)] == ["0", "1", "2"]
    connection.create(previous=response["id"])
    assert [each for each in told(connection.job()) if each.startswith(("call", "output"))] == [
        *('call f{"n":0}', "output 0", 'call f{"n":1}', "output 1", 'call f{"n":2}', "output 2")
    ]


def test_a_call_that_the_model_breaks_off_is_not_made() -> None:
    connection = Connection()
    begin(connection)
    connection.generate(CallStarted("function", "f", "s"), CallArguments('{"a'), CallEnded(False))
    assert not connection.calls
    connection.finish(*hosted("g"))
    end_only(connection, "42")
    context = ["hi", 'call f{"a…', "call g{}", "output 42"]
    assert told(connection.job()) == context
    response = connection.complete()
    assert [item["status"] for item in call_items(response)] == ["incomplete", "completed"]
    connection.create(previous=response["id"])
    assert told(connection.job()) == [*context, "ok", "hi"]


def test_an_answer_that_is_cut_off_waits_for_its_calls() -> None:
    connection = Connection()
    begin(connection)
    connection.finish(
        *hosted(), CallStarted("function", "g", "s"), CallArguments('{"b'), reason="max_output_tokens"
    )
    (call_id,) = running(connection)
    connection.end_call(call_id, "42")
    response = last(connection)
    assert (response["status"], response["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    assert [item["status"] for item in call_items(response)] == ["completed", "incomplete"]
    connection.create(previous=response["id"])
    assert told(connection.job()) == ["hi", "call f{}", 'call g{"b…', "output 42", "hi"]


def test_no_step_follows_without_tokens_for_it() -> None:
    connection = Connection()
    begin(connection, max_output_tokens=18)
    connection.finish(*hosted(), Text("so"))
    end_only(connection)
    response = last(connection)
    assert (response["status"], response["incomplete_details"]["reason"]) == (
        "incomplete",
        "max_output_tokens",
    )


@pytest.mark.parametrize("tokens", [18, None], ids=["without tokens for a step", "with tokens for it"])
def test_no_step_follows_a_stop_sequence(tokens: int | None) -> None:
    """The call that stands before it ends, and the next response reads what it has returned."""
    connection = Connection()
    begin(connection, max_output_tokens=tokens)
    connection.finish(*hosted(), Text("so"), stop_sequence="END")
    end_only(connection)
    response = last(connection)
    assert (response["status"], response["stop_sequence"]) == ("completed", "END")
    assert [item["status"] for item in call_items(response)] == ["completed"]
    connection.create(previous=response["id"])
    assert told(connection.job()) == ["hi", "call f{}", "so", "output 42", "hi"]


def test_progress_is_reported_again_and_in_detail_if_the_client_wants() -> None:
    connection = Connection()
    begin(connection)
    connection.finish(*hosted())
    (call_id,) = running(connection)
    assert types(connection.report_progress(call_id, 0.5, "half")) == ["mcp_call.in_progress"]
    detailed = Connection(betas=Betas(tool_progress=True))
    begin(detailed)
    detailed.generate(*hosted())
    (call_id,) = running(detailed)
    (again, progress) = detailed.report_progress(call_id, 0.5, "half")
    assert again["type"] == "response.mcp_call.in_progress"
    assert (progress["type"], progress["progress"], progress["total"], progress["message"]) == (
        *("slipring.mcp_call.progress", 0.5),
        *(None, "half"),
    )


def test_calls_that_ended_are_not_reported() -> None:
    connection = Connection()
    begin(connection)
    connection.finish(*hosted())
    (call_id,) = running(connection)
    turn = connection.calls[call_id].turn
    connection.end_call(call_id)
    connection.complete()
    session = connection.session
    assert session.turns.call_ended(turn, call_id, LOST, 0.0) == []


def test_a_call_that_has_ended_says_no_more_while_another_one_runs() -> None:
    connection = Connection()
    begin(connection)
    connection.generate(*hosted(), *hosted("g"))
    first, second = running(connection)
    turn = connection.calls[first].turn
    connection.end_call(first, "1")
    turns = connection.session.turns
    assert turns.call_progressed(turn, first, CallProgress(1.0)) == []
    assert turns.call_ended(turn, first, CallOutcome("2"), 0.0) == []
    connection.finish()
    connection.end_call(second, "3")
    assert told(connection.job()) == ["hi", "call f{}", "call g{}", "output 1", "output 3"]


@pytest.mark.parametrize("fields", [{}, {"rollout": True}, {"tools": HOSTED}])
def test_an_engine_must_say_that_it_has_finished(fields: Json) -> None:
    connection = Connection(betas=BETAS)
    connection.create(**fields)
    if connection.resolves:
        connection.resolve()
    connection.generate(Text("hal"))
    (work,) = connection.starts.values()
    with pytest.raises(RuntimeError, match="without a Finished delta"):
        connection.done(work)


# Client tools beside hosted ones.


@pytest.mark.parametrize("hosted_first", [True, False])
def test_a_response_with_client_calls_ends_when_its_hosted_calls_have(hosted_first: bool) -> None:
    connection = Connection()
    begin(connection, tools=MIXED)
    calls = [*hosted(), *CLIENT] if hosted_first else [*CLIENT, *hosted()]
    assert "completed" not in types(connection.finish(*calls))
    sent = end_only(connection, "42")
    assert types(sent)[-1] == "completed"
    response = last(connection)
    (own,) = [item["call_id"] for item in response["output"] if item["type"] == "function_call"]
    begin(connection, previous=response["id"], tools=MIXED, input=[call_output(own, "own result")])
    order = ["call f{}", "call own{}"] if hosted_first else ["call own{}", "call f{}"]
    assert told(connection.job()) == ["hi", *order, "output 42", "output own result"]
    assert [item.type for item in connection.job().input] == ["function_call_output"] * 2
    history = [message("hi"), *response["output"], call_output(own, "own result")]
    begin(connection, lane="other", tools=MIXED, input=history)
    assert told(connection.job("other")) == ["hi", *order, "output 42", "output own result"]


@pytest.mark.parametrize("early", [True, False])
def test_a_rollout_waits_for_hosted_calls_and_for_its_client(early: bool) -> None:
    connection = Connection(betas=BETAS)
    response_id = begin(connection, tools=MIXED, rollout=True)
    connection.generate(*hosted(), *CLIENT)
    (own,) = [
        event["item"]["call_id"]
        for event in connection.events
        if event["type"] == "response.output_item.done" and event["item"]["type"] == "function_call"
    ]
    (call_id,) = running(connection)
    if early:
        assert connection.append(response_id, call_output(own, "own result")) == []
    assert connection.finish() == []
    sent = connection.end_call(call_id, "42")
    if early:
        assert types(sent)[-2:] == ["output_item.added", "output_item.done"]
    else:
        assert types(sent)[-1] == "done"
        connection.append(response_id, call_output(own, "own result"))
    assert told(connection.job()) == ["hi", "call f{}", "call own{}", "output 42", "output own result"]
    response = connection.complete()
    connection.create(previous=response["id"])
    assert told(connection.job())[1:-2] == ["call f{}", "call own{}", "output 42", "output own result"]


def test_a_rollout_with_hosted_calls_alone_needs_no_client() -> None:
    connection = Connection(betas=BETAS)
    begin(connection, rollout=True)
    connection.finish(*hosted())
    sent = end_only(connection, "42")
    assert "done" not in types(sent)
    assert told(connection.job()) == ["hi", "call f{}", "output 42"]


def test_a_client_call_that_is_cut_off_needs_no_answer_though_a_hosted_call_ends_after_it() -> None:
    connection = Connection()
    begin(connection, tools=[*HOSTED, {"type": "custom", "name": "own"}])
    connection.finish(*hosted(), CallStarted("custom", "own"), CallArguments("x"), reason="max_output_tokens")
    end_only(connection)
    connection.create(previous=last(connection)["id"])
    assert connection.job() is not None


# max_tool_calls and tool_choice.


def test_calls_past_the_budget_leave_no_item_and_the_model_reads_why() -> None:
    connection = Connection()
    begin(connection, max_tool_calls=1, tools=MIXED)
    connection.generate(*hosted())
    (call_id,) = running(connection)
    connection.generate(*hosted("g"))
    assert running(connection) == [call_id]
    connection.finish(position=Seen(connection.job()))
    connection.end_call(call_id, "42")
    job = connection.job()
    refused = f"output {LIMIT_REACHED}"
    assert told(job) == ["hi", "call f{}", "call g{}", "output 42", refused]
    assert [tool.name for tool in job.offer.tools] == ["own"]
    connection.finish(*hosted("g"))
    job = connection.job()
    assert told(job)[-2:] == ["call g{}", refused]
    connection.finish(Text("so"), position=Seen(job))
    response = last(connection)
    assert (response["status"], response["incomplete_details"]) == ("completed", None)
    assert kinds(response) == ["mcp_list_tools", "mcp_call", "message"]
    connection.create(previous=response["id"])
    assert told(connection.job()) == ["hi", "call f{}", "output 42", "so", "hi"]
    assert connection.job().parent.position is None, "it covers calls that no item shows"


def test_the_call_of_a_tool_that_is_not_on_offer_is_the_models_own_error() -> None:
    connection = Connection()
    begin(connection, tools=MIXED)
    connection.finish(Text("so"), *MISSPELT)
    assert told(connection.job())[-3:] == ["so", "call s__ff{}", f"output {NOT_OFFERED}"]
    connection.finish(*hosted())
    end_only(connection, "42")
    connection.finish(Text("done"))
    assert kinds(last(connection)) == ["mcp_list_tools", "message", "mcp_call", "message"]


def test_a_model_that_only_calls_what_is_not_on_offer_is_ended() -> None:
    connection = Connection()
    begin(connection)
    for _ in range(MOST_REJECTED):
        connection.finish(*MISSPELT)
    assert connection.starts
    connection.finish(*MISSPELT)
    assert (last(connection)["status"], kinds(last(connection))) == ("completed", ["mcp_list_tools"])


def test_a_call_that_is_not_on_offer_and_is_cut_off_leaves_nothing() -> None:
    connection = Connection()
    begin(connection)
    connection.finish(Text("so"), *MISSPELT[:1], CallArguments("{"), reason="max_output_tokens")
    assert kinds(last(connection)) == ["mcp_list_tools", "message"]
    connection.create(previous=last(connection)["id"])
    assert connection.job().parent.position is None


def test_without_hosted_tools_the_client_gets_a_call_that_is_not_on_offer() -> None:
    connection = Connection()
    connection.create(tools=[function("f")])
    connection.finish(CallStarted("function", "ff", is_offered=False), CallArguments("{}"), CallEnded())
    assert kinds(last(connection)) == ["function_call"]


def test_client_calls_and_failed_calls_and_the_budget() -> None:
    connection = Connection()
    begin(connection, max_tool_calls=2, tools=MIXED)
    connection.finish(*hosted())
    end_only(connection, error=ProtocolError(1, "no"))
    connection.finish(*hosted(), *CLIENT, *CLIENT, *hosted())
    end_only(connection, "42")
    counted = [kind for kind in kinds(last(connection)) if kind.endswith("call")]
    assert counted == ["mcp_call", "mcp_call", "function_call", "function_call"]


def test_a_named_server_or_tool_must_be_called_once() -> None:
    connection = Connection()
    tools = [mcp("s"), mcp("t"), function("own")]
    for choice, names in (
        ({"type": "mcp", "server_label": "s"}, ["f", "g"]),
        ({"type": "mcp", "server_label": "s", "name": "g"}, ["g"]),
    ):
        begin(connection, tools=tools, tool_choice=choice)
        assert [tool.name for tool in connection.job().offer.tools] == names
        assert connection.job().offer.required
        connection.finish(*hosted("g"))
        end_only(connection)
        assert not connection.job().offer.required
        assert len(connection.job().offer.tools) == 4
        assert connection.complete()["tool_choice"] == choice


def test_allowed_tools_may_name_servers() -> None:
    connection = Connection()
    choice = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "mcp", "server_label": "t"}, {"type": "function", "name": "own"}],
    }
    begin(connection, tools=[mcp("s"), mcp("t"), function("own")], tool_choice=choice)
    offer = connection.job().offer
    assert [(tool.namespace, tool.name) for tool in offer.tools] == [("t", "f"), (None, "own")]
    connection.finish(*hosted("f", label="t"))
    end_only(connection)
    assert [tool.name for tool in connection.job().offer.tools] == ["f", "own"]
    assert not connection.job().offer.required


def test_a_choice_of_an_unknown_server_is_refused() -> None:
    connection = Connection()
    connection.create(tools=HOSTED, tool_choice={"type": "mcp", "server_label": "x"})
    assert only_error(connection.resolve())["error"]["param"] == "tool_choice"


# The end while calls run.


def test_a_steer_waits_for_the_calls_that_have_begun() -> None:
    connection = Connection()
    response_id = begin(connection)
    connection.finish(*hosted("f"), *hosted("g"))
    one, two = running(connection)
    connection.end_call(one, "one")
    frame = {"type": "response.steer", "previous_response_id": response_id, "input": "stop"}
    assert types(connection.receive(json.dumps(frame))) == ["steer.accepted"]
    sent = connection.end_call(two, "two")
    assert types(sent)[:3] == ["mcp_call.completed", "output_item.done", "incomplete"]
    assert connection.cancelled_calls == []
    steered = last(connection)
    assert steered["incomplete_details"] == {"reason": "steered"}
    assert [item["status"] for item in call_items(steered)] == ["completed", "completed"]
    assert told(connection.job())[1:] == ["call f{}", "call g{}", "output one", "output two", "stop"]
    assert [tool.name for tool in connection.job().offer.tools] == ["f", "g"]
    assert not connection.prefills
    assert kinds(connection.complete()) == ["message"]


@pytest.mark.parametrize("ended", [True, False])
def test_a_steered_step_with_hosted_calls_gives_way(ended: bool) -> None:
    connection = Connection()
    response_id = begin(connection)
    connection.generate(*hosted())
    (call_id,) = running(connection)
    connection.steer(response_id, "stop")
    assert connection.job().stop.asked
    if ended:
        connection.end_call(call_id, "42")
    connection.finish(reason="steered")
    if not ended:
        connection.end_call(call_id, "42")
    assert connection.cancelled_calls == []
    assert last(connection)["status"] == "incomplete"
    assert told(connection.job())[-2:] == ["output 42", "stop"]


def test_a_steer_waits_for_client_calls_and_leaves_hosted_calls_running() -> None:
    connection = Connection()
    response_id = begin(connection, tools=MIXED)
    connection.finish(*hosted(), *CLIENT)
    assert connection.steer(response_id)["type"] == "response.steer.accepted"
    (call_id,) = running(connection)
    sent = connection.end_call(call_id)
    assert types(sent)[-2:] == ["completed", "steer.pending"]


@pytest.mark.parametrize("writes", [True, False])
def test_a_disconnect_cancels_calls(writes: bool) -> None:
    connection = Connection()
    begin(connection, store=True)
    connection.generate(*hosted())
    calls = running(connection)
    if not writes:
        connection.finish()
    connection.hang_up()
    assert connection.cancelled_calls == calls
    assert not connection.saves
    assert connection.server.requests.used_bytes == 0


@pytest.mark.parametrize("writes", [True, False])
def test_a_rollout_keeps_what_it_has_when_its_client_disconnects(writes: bool) -> None:
    connection = Connection(betas=BETAS)
    begin(connection, store=True, rollout=True)
    connection.finish(*hosted())
    end_only(connection, "42")
    connection.generate(*hosted("g"))
    if not writes:
        connection.finish()
    connection.hang_up()
    assert len(connection.cancelled_calls) == 1
    (save,) = connection.saves.values()
    assert [json.loads(item.raw).get("status") for item in save.state.output[1:]] == ["completed", "failed"]
    assert save.state.response.status == "incomplete"
    connection.save()
    again = Connection(connection.server)
    again.create(previous=save.state.id)
    again.load()
    assert told(again.job()) == ["hi", "call f{}", "output 42", "call g{}", f"output {LOST_TEXT}", "hi"]


def test_an_engine_that_fails_takes_its_calls_with_it() -> None:
    connection = Connection()
    begin(connection)
    connection.generate(*hosted())
    (call_id,) = running(connection)
    sent = connection.fail()
    assert types(sent) == ["mcp_call.failed", "output_item.done", "failed"]
    assert connection.cancelled_calls == [call_id]
    (item,) = call_items(last(connection))
    assert (item["status"], item["error"]["message"]) == ("failed", LOST_TEXT)


def test_a_step_that_the_engine_refuses_fails_the_response() -> None:
    connection = Connection(refuses=lambda job: ContextLengthExceeded(2, 1) if job.parent else None)
    begin(connection)
    connection.finish(*hosted())
    assert types(end_only(connection))[-1] == "failed"


def test_a_connection_that_ends_waits_for_calls_until_its_deadline() -> None:
    connection = Connection()
    begin(connection)
    connection.finish(*hosted())
    (call_id,) = running(connection)
    assert connection.end(Unavailable("The server is shutting down."), grace_s=10) == []
    connection.end_call(call_id, "42")
    assert told(connection.job())[-1] == "output 42"
    connection.finish(*hosted())
    (call_id,) = running(connection)
    sent = connection.tick(20)
    assert types(sent) == ["mcp_call.failed", "output_item.done", "failed", "error"]
    assert connection.cancelled_calls == [call_id]


def test_a_rollout_does_not_wait_for_its_client_on_a_connection_that_ends() -> None:
    connection = Connection(betas=BETAS)
    begin(connection, tools=MIXED, rollout=True)
    connection.finish(*hosted(), *CLIENT)
    connection.end(Unavailable("The server is shutting down."), grace_s=10)
    sent = end_only(connection)
    assert [kind for kind in types(sent) if kind in ("done", "completed")] == ["completed"]


def test_a_key_that_is_refused_between_two_steps_ends_the_response() -> None:
    connection = Connection()
    connection.session.shared.asks_each_turn = True
    connection.create(tools=HOSTED)
    connection.load()
    connection.resolve()
    connection.finish(*hosted())
    end_only(connection, "42")
    connection.load()
    connection.finish(*hosted("g"))
    end_only(connection, "43")
    connection.fail(error=AuthenticationFailed("Revoked."))
    response = last(connection)
    assert (response["status"], kinds(response)) == ("incomplete", ["mcp_list_tools", "mcp_call", "mcp_call"])


# Other turns.


def test_a_background_response_runs_hosted_calls() -> None:
    connection = Connection()
    connection.create_in_background(tools=HOSTED)
    assert types(connection.resolve())[:3] == ["created", "queued", "in_progress"]
    connection.finish(*hosted())
    end_only(connection)
    connection.finish(Text("ok"))
    connection.save()
    assert kinds(last(connection)) == ["mcp_list_tools", "mcp_call", "message"]


def test_tokens_are_counted_with_the_tools_of_servers() -> None:
    connection = Connection()
    connection.session.shared.counts_only = True
    connection.create(tools=HOSTED)
    connection.resolve()
    (weigh,) = connection.weighs.values()
    assert [tool.name for tool in weigh.job.head.tools.callables] == ["f", "g"]
    connection.weigh(7)
    assert connection.counted == [7]


def test_a_compacted_response_goes_on_with_hosted_calls() -> None:
    connection = Connection()
    first = connection.respond(says="much " * 500)
    connection.create(
        previous=first["id"],
        tools=HOSTED,
        context_management=[{"type": "compaction", "compact_threshold": 1000}],
        input="go on",
    )
    connection.resolve()
    connection.weigh(2000)
    connection.finish(Text("a summary"))
    context = told(connection.job())
    connection.finish(*hosted())
    end_only(connection, "42")
    assert told(connection.job()) == [*context, "call f{}", "output 42"]
    response = connection.complete()
    assert kinds(response) == ["mcp_list_tools", "compaction", "mcp_call", "message"]
    assert response["usage"]["output_tokens"] == 9
    connection.create(previous=response["id"])
    assert told(connection.job()) == [*context, "call f{}", "output 42", "ok", "hi"]


def test_a_history_that_is_sent_again_is_recognised() -> None:
    server = Server()
    connection = Connection(server)
    connection.leaves_positions = True
    begin(connection)
    connection.finish(*hosted("f"), *hosted("g"))
    one, two = running(connection)
    connection.end_call(two, "2")
    connection.end_call(one, "1")
    response = connection.complete()
    again = Connection(server)
    again.leaves_positions = True
    begin(again, input=[message("hi"), *response["output"], message("more")])
    job = again.job()
    assert job.recognised
    assert told(job) == ["hi", "call f{}", "call g{}", "output 1", "output 2", "ok", "more"]
    assert [item.type for item in job.input] == ["message"]


def test_a_conversation_repeats_no_outputs() -> None:
    """Items that come back from a conversation have been part of another context."""
    connection = Connection()
    begin(connection, store=True)
    connection.finish(*hosted("f"), Text("so"))
    end_only(connection, "1")
    connection.finish(Text("done"))
    connection.save()
    response = last(connection)
    state = connection.server.store[connection.tenant, response["id"]]
    references = [{"type": "item_reference", "id": item["id"]} for item in response["output"]]
    assert len(state.output) == 4
    connection.create(input=[message("hi"), *references, message("more")])
    connection.load()
    assert told(connection.job()) == ["hi", "call f{}", "so", "output 1", "done", "more"]
    connection.create("b", input=[references[2], message("more")])
    connection.load("b")
    assert told(connection.job("b")) == ["so", "more"]


def test_calls_of_other_servers_come_with_histories() -> None:
    """Without ids of this server, each call is a step of its own; without an outcome, it is unknown."""
    connection = Connection()
    call = {"type": "mcp_call", "server_label": "x", "name": "look", "arguments": "{}"}
    history: list[Any] = [
        message("hi"),
        {**call, "output": "1"},
        call,
        {**call, "error": "no"},
        message("more"),
    ]
    connection.create(input=history)
    assert told(connection.job()) == [
        *("hi", "call look{}", "output 1", "call look{}", f"output {UNKNOWN_OUTCOME}"),
        *("call look{}", "output no", "more"),
    ]


@pytest.mark.parametrize("content", ['"text"', "[1]", '[{"type":"text","text":7}]'])
def test_errors_of_calls_are_validated_on_arrival(content: str) -> None:
    connection = Connection()
    error = {"type": "mcp_tool_execution_error", "content": json.loads(content)}
    call = {"type": "mcp_call", "server_label": "x", "name": "look", "arguments": "{}", "error": error}
    assert only_error(connection.create(input=[call]))["error"]["param"].startswith("input[0]")


def test_results_that_come_after_the_end_of_a_turn_have_no_effect() -> None:
    connection = Connection()
    connection.create(tools=HOSTED)
    (asked,) = connection.resolves.values()
    connection.session.closed()
    turns, now = connection.session.turns, connection.server.now
    assert turns.done(asked, Resolved({}), now) == []
    assert turns.call_progressed(asked.turn, "call", CallProgress(1.0)) == []
    assert turns.call_ended(asked.turn, "call", LOST, now) == []
