"""Approvals of hosted calls: requests, answers, what is refused, and what the model is told."""

import json
from typing import Any

import pytest

from slipring.base.errors import Unavailable
from slipring.core.betas import Betas
from slipring.core.chain.approvals import UNANSWERED, denial_text
from slipring.core.generation import CallArguments, CallEnded, CallStarted, Delta, Text
from tests.core.connection import (
    Connection,
    Json,
    Server,
    call_output,
    function,
    mcp,
    message,
    only_error,
    types,
)
from tests.core.hosted_turns import HOSTED, begin, end_only, hosted, kinds, running, told

ASKING = [{"type": "mcp", "server_label": "s"}]
CLIENT: list[Delta] = [CallStarted("function", "own"), CallArguments("{}"), CallEnded()]


def request(connection: Connection, *calls: Any, **fields: Any) -> Json:
    """A response that ends with approval requests, one for each call."""
    begin(connection, **{"tools": ASKING, **fields})
    connection.finish(*(delta for call in calls or (hosted(arguments='{"a":1}'),) for delta in call))
    if connection.saves:
        connection.save()
    response: Json = connection.order.responses[-1]
    return response


def requests_in(response: Json) -> list[str]:
    return [item["id"] for item in response["output"] if item["type"] == "mcp_approval_request"]


def answer(request_id: str, approve: bool = True, reason: str | None = None) -> Json:
    body: Json = {"type": "mcp_approval_response", "approval_request_id": request_id, "approve": approve}
    return body if reason is None else {**body, "reason": reason}


def approve(connection: Connection, previous: str | None, *items: Any, **fields: Any) -> list[Json]:
    """Send answers; returns the events up to the claim, if there is one."""
    connection.create(previous=previous, input=list(items), **{"tools": ASKING, **fields})
    return connection.resolve()


def refusal(sent: list[Json]) -> str | None:
    error: Json = only_error(sent)["error"]
    return error["param"]


def test_a_call_that_needs_approval_ends_the_response_with_a_request() -> None:
    connection = Connection()
    begin(connection, tools=ASKING)
    connection.generate(Text("May I?"), *hosted(arguments='{"a":1}'))
    sent = connection.finish()
    assert types(sent) == ["completed"]
    response = sent[-1]["response"]
    assert kinds(response) == ["mcp_list_tools", "message", "mcp_approval_request"]
    item = response["output"][-1]
    assert (item["server_label"], item["name"], item["arguments"]) == ("s", "f", '{"a":1}')
    assert not connection.calls


@pytest.mark.parametrize("history", [True, False])
def test_an_approved_call_runs_before_anything_is_generated(history: bool) -> None:
    connection = Connection()
    asked = request(connection)
    (request_id,) = requests_in(asked)
    if history:
        assert approve(connection, None, message("hi"), *asked["output"], answer(request_id)) == []
    else:
        assert approve(connection, asked["id"], answer(request_id)) == []
    assert not connection.starts
    sent = connection.claim()
    assert types(sent) == [
        *("created", "in_progress", "output_item.added", "mcp_call.in_progress"),
        *("mcp_call_arguments.delta", "mcp_call.in_progress", "mcp_call_arguments.done"),
    ]
    (call_id,) = running(connection)
    assert connection.calls[call_id].call.arguments == '{"a":1}'
    connection.end_call(call_id, "42")
    assert told(connection.job()) == ["hi", 'call f{"a":1}', "output 42"]
    response = connection.complete()
    assert kinds(response) == ["mcp_call", "message"]
    assert response["output"][0]["approval_request_id"] == request_id
    connection.create(previous=response["id"])
    assert told(connection.job()) == ["hi", 'call f{"a":1}', "output 42", "ok", "hi"]
    again = Connection(connection.server)
    whole = [message("hi"), *asked["output"], answer(request_id), *response["output"], message("more")]
    begin(again, input=whole, tools=ASKING)
    assert told(again.job()) == ["hi", 'call f{"a":1}', "output 42", "ok", "more"]


def test_a_denied_call_leaves_no_call_and_the_model_is_told_why() -> None:
    connection = Connection()
    asked = request(connection)
    approve(connection, asked["id"], answer(requests_in(asked)[0], approve=False, reason="Too dear."))
    assert told(connection.job()) == ["hi", 'call f{"a":1}', f"output {denial_text('Too dear.')}"]
    assert "Too dear." in denial_text("Too dear.")
    response = connection.complete()
    assert kinds(response) == ["message"]
    connection.create(previous=response["id"])
    assert told(connection.job())[2:] == [f"output {denial_text('Too dear.')}", "ok", "hi"]


@pytest.mark.parametrize("history", [True, False])
def test_a_request_without_an_answer_counts_as_denied(history: bool) -> None:
    connection = Connection()
    asked = request(connection, hosted("f"), hosted("g"))
    one, two = requests_in(asked)
    items = [answer(two, approve=False), message("never mind")]
    if history:
        items = [message("hi"), *asked["output"], *items]
    approve(connection, None if history else asked["id"], *items)
    expected = [
        "hi",
        "call f{}",
        "call g{}",
        f"output {UNANSWERED}",
        f"output {denial_text(None)}",
        "never mind",
    ]
    assert told(connection.job()) == expected
    response = connection.complete()
    assert refusal(approve(connection, response["id"], answer(one))) == "input[0].approval_request_id"


@pytest.mark.parametrize("history", [True, False])
def test_something_must_follow_a_request(history: bool) -> None:
    connection = Connection()
    asked = request(connection)
    items = [message("hi"), *asked["output"]] if history else []
    assert refusal(approve(connection, None if history else asked["id"], *items)) == "input"


def test_some_of_several_calls_are_approved() -> None:
    connection = Connection()
    asked = request(connection, hosted("f"), hosted("g"), hosted("f", '{"n":2}'))
    one, two, three = requests_in(asked)
    approve(connection, asked["id"], answer(one), answer(two, approve=False), answer(three))
    connection.claim()
    first, second = running(connection)
    connection.end_call(second, "2")
    connection.end_call(first, "1")
    outputs = ["output 1", f"output {denial_text(None)}", "output 2"]
    assert told(connection.job()) == ["hi", "call f{}", "call g{}", 'call f{"n":2}', *outputs]
    response = connection.complete()
    connection.create(previous=response["id"])
    assert told(connection.job())[4:-2] == outputs


def test_a_request_after_a_hosted_step_stands_after_its_results() -> None:
    connection = Connection()
    server = [mcp(require_approval={"never": {"tool_names": ["f"]}})]
    begin(connection, tools=server)
    connection.finish(*hosted("f"))
    end_only(connection, "1")
    connection.finish(*hosted("g"))
    asked = connection.order.responses[-1]
    approve(connection, asked["id"], answer(requests_in(asked)[0], approve=False), tools=server)
    expected = ["hi", "call f{}", "output 1", "call g{}", f"output {denial_text(None)}"]
    assert told(connection.job()) == expected
    resent = Connection(connection.server)
    history = [message("hi"), *asked["output"], answer(requests_in(asked)[0], approve=False)]
    begin(resent, input=history, tools=server)
    assert told(resent.job()) == expected


def test_a_request_beside_a_hosted_call() -> None:
    connection = Connection()
    server = [mcp(require_approval={"never": {"tool_names": ["f"]}})]
    begin(connection, tools=server)
    connection.finish(*hosted("f"), *hosted("g"))
    sent = end_only(connection, "1")
    asked = sent[-1]["response"]
    assert (asked["status"], kinds(asked)[1:]) == ("completed", ["mcp_call", "mcp_approval_request"])
    approve(connection, asked["id"], answer(requests_in(asked)[0]), tools=server)
    connection.claim()
    end_only(connection, "2")
    assert told(connection.job()) == ["hi", "call f{}", "call g{}", "output 1", "output 2"]


def test_an_approved_call_may_be_followed_by_more_steps() -> None:
    connection = Connection()
    asked = request(connection)
    approve(connection, asked["id"], answer(requests_in(asked)[0]), message("quickly"), tools=HOSTED)
    connection.claim()
    end_only(connection, "1")
    connection.finish(*hosted("g"))
    end_only(connection, "2")
    expected = ["hi", 'call f{"a":1}', "output 1", "quickly", "call g{}", "output 2"]
    assert told(connection.job()) == expected
    response = connection.complete()
    connection.create(previous=response["id"])
    assert told(connection.job()) == [*expected, "ok", "hi"]


def test_a_rollout_ends_with_a_request() -> None:
    connection = Connection(betas=Betas(rollout=True))
    begin(connection, tools=[*ASKING, function("own")], rollout=True)
    sent = connection.finish(*hosted(), *CLIENT)
    assert types(sent)[-1] == "completed"
    assert "done" not in types(sent)
    asked = sent[-1]["response"]
    (own,) = [item["call_id"] for item in asked["output"] if item["type"] == "function_call"]
    approve(connection, asked["id"], answer(requests_in(asked)[0]), call_output(own, "own"))
    connection.claim()
    end_only(connection, "1")
    assert told(connection.job()) == ["hi", "call f{}", "call own{}", "output 1", "output own"]


def test_a_broken_off_call_asks_for_nothing_and_its_position_is_given_up() -> None:
    connection = Connection()
    connection.leaves_positions = True
    begin(connection, tools=ASKING)
    connection.finish(CallStarted("function", "f", "s"), CallArguments("{"), CallEnded(False), Text("no"))
    response = connection.order.responses[-1]
    assert kinds(response) == ["mcp_list_tools", "message"]
    connection.create(previous=response["id"])
    assert told(connection.job()) == ["hi", "no", "hi"]
    assert connection.job().parent.position is None


# What is refused.


def test_an_approval_is_good_once() -> None:
    connection = Connection()
    asked = request(connection)
    (request_id,) = requests_in(asked)
    for lane, expected in ((None, None), ("b", "input")):
        connection.create(lane, asked["id"], input=[answer(request_id)], tools=ASKING)
        connection.resolve(lane)
        sent = connection.claim(lane)
        assert (refusal(sent) if expected else None) == expected
    history = [message("hi"), *asked["output"], answer(request_id)]
    connection.create("c", input=history, tools=ASKING)
    connection.resolve("c")
    assert refusal(connection.claim("c")) == "input"


@pytest.mark.parametrize(
    ("tools", "change"),
    [
        (ASKING, {"arguments": '{"a":2}'}),
        (ASKING, {"name": "g"}),
        ([{**ASKING[0], "server_url": "https://other.example"}], {}),
        (ASKING, {"id": "mcpr_10001_0000000000000000"}),
        (ASKING, {"id": "mine"}),
    ],
)
def test_a_request_that_was_changed_or_made_up_is_refused(tools: Any, change: Json) -> None:
    connection = Connection()
    asked = request(connection)
    item = {**asked["output"][-1], **change}
    sent = approve(connection, None, message("hi"), item, answer(item["id"]), tools=tools)
    assert refusal(sent) == "input[2].approval_request_id"
    assert not connection.claims


def test_a_request_of_another_tenant_is_refused() -> None:
    server = Server()
    asked = request(Connection(server, "one"))
    other = Connection(server, "two")
    sent = approve(other, None, message("hi"), *asked["output"], answer(requests_in(asked)[0]))
    assert refusal(sent) == "input[3].approval_request_id"


def test_a_changed_server_along_a_chain_is_refused() -> None:
    connection = Connection()
    asked = request(connection)
    tools = [{**ASKING[0], "server_url": "https://other.example"}]
    sent = approve(connection, asked["id"], answer(requests_in(asked)[0]), tools=tools)
    assert refusal(sent) == "input[0].approval_request_id"


@pytest.mark.parametrize(
    "tools", [[mcp("t")], [mcp(allowed_tools=["g"])], [function("own")]], ids=["server", "tool", "none"]
)
def test_an_approved_tool_must_be_offered(tools: Any) -> None:
    connection = Connection()
    asked = request(connection)
    connection.create(previous=asked["id"], input=[answer(requests_in(asked)[0])], tools=tools)
    sent = connection.resolve() if connection.resolves else connection.events[-1:]
    assert refusal(sent) == "input[0].approval_request_id"


def test_an_answer_to_an_unknown_request_is_refused() -> None:
    connection = Connection()
    asked = request(connection)
    known = answer(requests_in(asked)[0], approve=False)
    sent = approve(connection, asked["id"], known, answer("mcpr_x"))
    assert refusal(sent) == "input[1].approval_request_id"


# What a client sends again.


def answered(connection: Connection, approved: bool, **fields: Any) -> tuple[Json, Json, list[str]]:
    """A request, the response to its answer, and what the model has read then."""
    asked = request(connection)
    (request_id,) = requests_in(asked)
    approve(connection, asked["id"], answer(request_id, approved), **fields)
    if approved:
        connection.claim()
        end_only(connection, "42")
    read = told(connection.job())
    return asked, connection.complete(), [*read, "ok"]


@pytest.mark.parametrize("with_request", [True, False])
@pytest.mark.parametrize("approved", [True, False])
def test_an_answer_that_the_chain_has_means_nothing_new(approved: bool, with_request: bool) -> None:
    """Clients that keep the whole conversation send each answer with every turn, some with its request."""
    connection = Connection()
    asked, response, read = answered(connection, approved)
    repeated = [answer(requests_in(asked)[0], approved)]
    if with_request:
        repeated.insert(0, asked["output"][-1])
    for turn in range(1, 3):  # also in a response after the next one
        approve(connection, response["id"], *repeated, message(f"more {turn}"))
        assert not connection.claims
        read = [*read, f"more {turn}"]
        assert told(connection.job()) == read
        response = connection.complete()
        read.append("ok")
        state = connection.cache.find(response["id"])
        assert state is not None
        assert [item.type for item in state.input] == ["message"]


@pytest.mark.parametrize("approved", [True, False])
def test_an_answer_that_a_history_has_twice_means_nothing_new(approved: bool) -> None:
    connection = Connection()
    asked, response, read = answered(connection, approved)
    (request_id,) = requests_in(asked)
    yes = answer(request_id, approved)
    request_item = asked["output"][-1]
    history = [message("hi"), *asked["output"], yes, yes, *response["output"], request_item, yes]
    again = Connection(connection.server)
    begin(again, input=[*history, message("more")], tools=ASKING)
    assert told(again.job()) == [*read, "more"]


@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("where", ["one input", "chain", "history"])
def test_a_second_answer_does_not_change_the_first(approved: bool, where: str) -> None:
    connection = Connection()
    if where == "one input":
        asked = request(connection)
        (request_id,) = requests_in(asked)
        sent = approve(
            connection, asked["id"], answer(request_id, approved), answer(request_id, not approved)
        )
        assert refusal(sent) == "input[1].approval_request_id"
        return
    asked, response, _ = answered(connection, approved)
    (request_id,) = requests_in(asked)
    changed = answer(request_id, not approved)
    if where == "chain":
        sent = approve(connection, response["id"], changed)
        assert refusal(sent) == "input[0].approval_request_id"
    else:
        history = [
            message("hi"),
            *asked["output"],
            answer(request_id, approved),
            *response["output"],
            changed,
        ]
        sent = approve(Connection(connection.server), None, *history)
        assert refusal(sent) == f"input[{len(history) - 1}].approval_request_id"
    word = "approved" if approved else "denied"
    assert f"has been {word} already" in only_error(sent)["error"]["message"]


def test_an_approved_call_without_its_answer_counts_as_approved() -> None:
    connection = Connection()
    asked, response, read = answered(connection, True)
    (request_id,) = requests_in(asked)
    again = Connection(connection.server)
    begin(again, input=[message("hi"), *asked["output"], *response["output"]], tools=ASKING)
    assert told(again.job()) == read
    first = again.complete()
    approve(again, first["id"], answer(request_id), message("more"))
    assert told(again.job()) == [*read, "ok", "more"]
    second = again.complete()
    sent = approve(again, second["id"], answer(request_id, approve=False))
    assert refusal(sent) == "input[0].approval_request_id"


def test_a_denial_may_follow_what_counts_as_denied() -> None:
    connection = Connection()
    asked = request(connection)
    approve(connection, asked["id"], message("never mind"))
    response = connection.complete()
    approve(connection, response["id"], answer(requests_in(asked)[0], approve=False), message("more"))
    assert told(connection.job())[-3:] == ["never mind", "ok", "more"]


def test_a_request_that_the_chain_has_may_come_with_its_answer() -> None:
    connection = Connection()
    asked = request(connection)
    (request_id,) = requests_in(asked)
    approve(connection, asked["id"], asked["output"][-1], answer(request_id))
    connection.claim()
    end_only(connection, "42")
    assert told(connection.job()) == ["hi", 'call f{"a":1}', "output 42"]


def test_a_changed_request_with_an_id_that_the_chain_has_is_refused() -> None:
    connection = Connection()
    asked = request(connection)
    changed = {**asked["output"][-1], "arguments": "{}"}
    sent = approve(connection, asked["id"], changed, answer(requests_in(asked)[0]))
    assert only_error(sent)["error"]["message"].startswith("Duplicate item found with id")


def test_answers_are_remembered_across_a_compaction() -> None:
    connection = Connection()
    asked, response, _ = answered(connection, True)
    (request_id,) = requests_in(asked)
    connection.create(previous=response["id"], input=[{"type": "compaction_trigger"}], tools=ASKING)
    connection.resolve()
    connection.finish(Text("summary"))
    compacted = connection.order.responses[-1]
    approve(connection, compacted["id"], answer(request_id), message("more"))
    assert told(connection.job())[-1] == "more"


def test_a_warmup_cannot_approve() -> None:
    connection = Connection()
    asked = request(connection)
    sent = approve(connection, asked["id"], answer(requests_in(asked)[0]), generate=False)
    assert refusal(sent) == "input[0].approval_request_id"


def test_a_warmup_leaves_requests_open() -> None:
    connection = Connection()
    asked = request(connection)
    approve(connection, asked["id"], generate=False)
    warm = connection.complete()
    approve(connection, warm["id"], answer(requests_in(asked)[0]))
    connection.claim()
    end_only(connection, "1")
    assert told(connection.job()) == ["hi", 'call f{"a":1}', "output 1"]


def test_the_operator_can_require_approval() -> None:
    connection = Connection()
    connection.create(tools=HOSTED)
    connection.resolve(always_approve=True)
    connection.finish(*hosted())
    assert kinds(connection.order.responses[-1]) == ["mcp_list_tools", "mcp_approval_request"]


# Other turns.


def test_approvals_in_a_conversation() -> None:
    connection = Connection()
    connection.create(tools=ASKING, conversation="conv_1", store=True)
    connection.load_conversation()
    connection.resolve()
    connection.finish(*hosted())
    connection.save()
    asked = connection.order.responses[-1]
    (request_id,) = requests_in(asked)
    connection.create(tools=ASKING, conversation="conv_1", input=[answer(request_id)])
    connection.load_conversation(tip=asked["id"])
    connection.resolve()
    connection.claim()
    end_only(connection, "1")
    assert told(connection.job()) == ["hi", "call f{}", "output 1"]


def test_an_approval_in_the_background() -> None:
    connection = Connection()
    asked = request(connection, store=True)
    connection.create_in_background(
        tools=ASKING, previous_response_id=asked["id"], input=[answer(requests_in(asked)[0])]
    )
    sent = connection.resolve()
    assert types(sent) == ["created", "queued"]
    assert types(connection.claim())[0] == "in_progress"
    end_only(connection, "1")
    connection.finish(Text("ok"))
    connection.save()
    assert kinds(connection.order.responses[-1]) == ["mcp_call", "message"]


def test_a_used_approval_fails_a_background_response() -> None:
    connection = Connection()
    asked = request(connection, store=True)
    (request_id,) = requests_in(asked)
    connection.server.used.add((connection.tenant, request_id))
    connection.create_in_background(
        tools=ASKING, previous_response_id=asked["id"], input=[answer(request_id)]
    )
    connection.resolve()
    assert types(connection.claim()) == ["failed"]


def test_a_steer_waits_for_an_approved_call() -> None:
    connection = Connection()
    asked = request(connection)
    approve(connection, asked["id"], answer(requests_in(asked)[0]))
    connection.claim()
    (call_id,) = running(connection)
    steer = {"type": "response.steer", "previous_response_id": "resp_2", "input": "stop"}
    assert types(connection.receive(json.dumps(steer))) == ["steer.accepted"]
    connection.end_call(call_id, "42")
    assert connection.cancelled_calls == []
    steered = connection.order.responses[-1]
    assert (steered["status"], kinds(steered)) == ("incomplete", ["mcp_call"])
    assert told(connection.job()) == ["hi", 'call f{"a":1}', "output 42", "stop"]


@pytest.mark.parametrize("reason", ["stop", "steered"])
def test_steers_wait_for_the_decision_about_a_call(reason: Any) -> None:
    """As for the outputs of the client's own calls: otherwise the call would count as denied."""
    connection = Connection()
    begin(connection, tools=ASKING)
    connection.generate(Text("Well, "))
    connection.steer("resp_1", "hurry")
    connection.generate(*hosted())
    assert not connection.job().stop.asked
    sent = connection.finish(reason=reason)
    assert types(sent)[-2:] == ["completed", "steer.pending"]
    asked = connection.order.responses[-1]
    (request_id,) = requests_in(asked)
    (pending,) = [event for event in sent if event["type"] == "response.steer.pending"]
    assert pending["required_input"] == [{"type": "mcp_approval_response", "approval_request_id": request_id}]
    approve(connection, asked["id"], answer(request_id))
    connection.claim()
    (call_id,) = running(connection)
    connection.end_call(call_id, "42")
    assert told(connection.job())[-2:] == ["output 42", "hurry"]


def test_an_approved_call_is_cancelled_with_its_connection() -> None:
    connection = Connection()
    asked = request(connection)
    approve(connection, asked["id"], answer(requests_in(asked)[0]))
    connection.claim()
    calls = running(connection)
    connection.hang_up()
    assert connection.cancelled_calls == calls


def test_an_approved_call_that_outlasts_its_connection_fails_the_response_and_nothing_is_kept() -> None:
    connection = Connection()
    asked = request(connection)
    approve(connection, asked["id"], answer(requests_in(asked)[0]))
    connection.claim()
    calls = running(connection)
    connection.end(Unavailable("The server is shutting down."), grace_s=10)
    assert types(connection.tick(20)) == ["mcp_call.failed", "output_item.done", "failed", "error"]
    assert connection.cancelled_calls == calls
    failed = connection.order.responses[-1]
    assert (failed["usage"], kinds(failed)) == (None, ["mcp_call"])
    assert connection.cache.find(failed["id"]) is None


def test_approved_calls_count_towards_the_budget() -> None:
    connection = Connection()
    asked = request(connection)
    tools = [*HOSTED, function("own")]
    approve(
        connection,
        asked["id"],
        answer(requests_in(asked)[0]),
        tools=tools,
        max_tool_calls=1,
        tool_choice="required",
    )
    connection.claim()
    end_only(connection, "1")
    offer = connection.job().offer
    assert ([tool.name for tool in offer.tools], offer.required) == (["own"], True)


def test_tokens_are_counted_without_using_an_approval() -> None:
    connection = Connection()
    asked = request(connection)
    connection.session.shared.counts_only = True
    approve(connection, asked["id"], answer(requests_in(asked)[0]))
    connection.weigh(7)
    assert (connection.counted, connection.server.used) == ([7], set())


def test_a_compaction_of_a_context_with_an_open_request() -> None:
    connection = Connection()
    asked = request(connection)
    connection.create(previous=asked["id"], input=[{"type": "compaction_trigger"}], tools=ASKING)
    connection.resolve()
    assert told(connection.job())[1:3] == ['call f{"a":1}', "output (there is no output yet)"]
    connection.finish(Text("summary"))
    compacted = connection.order.responses[-1]
    sent = approve(connection, compacted["id"], answer(requests_in(asked)[0]))
    assert refusal(sent) == "input[0].approval_request_id"
