"""Clients that keep what was refused and send it again: the turn goes on, and no model reads it."""

import json
from typing import Any

import pytest

from slipring.core.checks.policies import Check, Policy
from slipring.core.generation import CallArguments, CallEnded, CallStarted, Text
from slipring.protocol.items.items import read_item
from tests.core.connection import (
    Connection,
    Json,
    Server,
    call_output,
    context_of,
    function,
    message,
    only_error,
    verdicts_of,
)

POLICY = Policy((Check("guard", action="block", mode="hold", on_error="closed"), Check("watch")))
PLACEHOLDER = "[Withheld: the safety check 'guard' has refused this content.]"
CALL = (CallStarted("function", "f"), CallArguments("{}"), CallEnded())


def connect(server: Server | None = None, **options: Any) -> Connection:
    server = server or Server()
    server.policy = POLICY
    connection = Connection(server, **options)
    connection.leaves_positions = True
    return connection


def block(connection: Connection, **fields: Any) -> None:
    """A turn that is blocked, before the check that only flags has answered."""
    connection.create(**fields)
    connection.inspect(0)
    assert "invalid_prompt" in json.dumps(connection.events[-1])


def answer(connection: Connection, text: str = "ok") -> Json:
    """Let the running turn end with this answer."""
    connection.inspect_all()
    connection.finish(Text(text))
    connection.inspect_all()
    response: Json = connection.events[-1]["response"]
    assert response["status"] == "completed", response
    return response


def require_nothing_refused(connection: Connection) -> None:
    assert b"bad" not in b"".join(connection.frames)
    for state in (*connection.cache.states(), *connection.server.store.values()):
        assert b"bad" not in b"".join(item.raw for item in (*state.input, *state.output))


def test_a_message_that_is_sent_again_with_the_next_one_is_withheld():
    connection = connect()
    connection.create()
    first = answer(connection)
    block(connection, previous=first["id"], input="bad")
    connection.create(previous=first["id"], input=[message("bad"), message("sorry")])
    assert [item["content"] for item in context_of(connection.job())[2:]] == [PLACEHOLDER, "sorry"]
    second = answer(connection)
    found = second["moderation"]["input"]
    assert (found["flagged"], found["categories"]) == (True, {"withheld": True})
    report = connection.reports[-1].report
    assert (report.withheld, report.flagged_by) == ({"guard": 1}, ("guard",))
    connection.create(previous=second["id"], input="go on")
    third = answer(connection)
    assert third["moderation"]["input"]["flagged"] is False
    assert [text for when, _, text in connection.inspected if when == "hold" and "ok" not in text] == [
        *("hi", "bad", "sorry", "go on")
    ]
    require_nothing_refused(connection)


def test_the_same_request_is_blocked_again_and_so_is_one_that_ends_with_it():
    connection = connect()
    both = [message("bad"), message("and this")]
    block(connection, input=both)
    for again in (both, [message("bad")], [message("hello"), message("bad")]):
        error = only_error(connection.create(input=again))
        assert error["error"]["code"] == "invalid_prompt"
    configured = [message("bad"), {"type": "configuration_update", "reasoning": {"effort": "low"}}]
    assert only_error(connection.create(input=configured))["error"]["code"] == "invalid_prompt"
    assert connection.starts == {}


def test_reminders_of_a_client_are_nothing_to_answer():
    connection = connect()
    asked = [message("bad"), message("Today is Monday.", "developer")]
    block(connection, input=asked)
    for role in ("developer", "system"):
        again = [*asked[:1], message("Some tools are gone.", role), message("Today is Monday.", role)]
        assert only_error(connection.create(input=again))["error"]["code"] == "invalid_prompt"
    assert connection.starts == {}
    connection.create(input=[*asked, message("hello")])
    assert "bad" not in json.dumps(answer(connection, "hi"))
    require_nothing_refused(connection)


def test_it_is_withheld_wherever_it_stands_in_a_history_and_the_history_is_recognised():
    connection = connect()
    history = [message("hello")]
    connection.create(input=history)
    history += [*answer(connection, "hi")["output"], message("bad")]
    block(connection, input=history)
    history += [message("I cannot help with that.", "assistant"), message("sorry")]
    connection.create(input=history)
    assert connection.job().recognised
    assert [item["content"] for item in context_of(connection.job())[2:]] == [
        *(PLACEHOLDER, "I cannot help with that.", "sorry")
    ]
    history += [*answer(connection)["output"], message("go on")]
    connection.create(input=history)
    assert connection.job().recognised
    assert len(connection.job().input) == 1
    answer(connection)
    assert connection.reports[-1].report.withheld == {"guard": 1}
    require_nothing_refused(connection)


def test_an_output_keeps_its_call():
    connection = connect()
    connection.create(tools=[function("f")])
    connection.inspect_all()
    connection.finish(*CALL)
    connection.inspect_all()
    called = connection.events[-1]["response"]
    tools = {"previous": called["id"], "tools": [function("f")]}
    block(connection, input=[call_output("call_1", "bad")], **tools)
    connection.create(input=[call_output("call_1", "bad"), message("never mind")], **tools)
    assert context_of(connection.job())[2] == call_output("call_1", PLACEHOLDER)
    answer(connection)
    require_nothing_refused(connection)


def test_an_item_of_a_conversation_does_not_end_it():
    connection = connect()
    connection.create(conversation="conv_1", store=True)
    connection.load_conversation(message("bad"))
    connection.inspect(0)
    assert "invalid_prompt" in json.dumps(connection.events[-1])
    connection.create(conversation="conv_1", store=True, input="sorry")
    connection.load_conversation(message("bad"))
    assert [item["content"] for item in context_of(connection.job())] == [PLACEHOLDER, "sorry"]
    connection.inspect_all()
    connection.finish(Text("ok"))
    connection.inspect_all()
    connection.save()
    assert connection.events[-1]["response"]["status"] == "completed"
    require_nothing_refused(connection)


def test_a_steer_that_was_refused_before_is_withheld_where_the_client_goes_on():
    connection = connect()
    block(connection, input="bad")
    connection.create(tools=[function("f")])
    connection.inspect_all()
    connection.generate(Text("Well. "))
    target = connection.events[-1]["response"]["id"]
    connection.steer(target, "bad")
    connection.finish(*CALL)
    connection.inspect_all()
    input = [call_output("call_1", "fine"), message("go on")]
    connection.create(previous=target, tools=[function("f")], input=input)
    said = [item.get("content") for item in context_of(connection.job())[-3:]]
    assert said == [None, PLACEHOLDER, "go on"]
    answer(connection)


def test_what_an_audit_has_refused_is_withheld():
    server = Server()
    server.policy = Policy((Check("late", action="block", mode="audit"),))
    connection = Connection(server)
    connection.create(input="hello")
    connection.finish(Text("so bad"))
    (started,) = connection.audits
    started.audit.settle(verdicts_of(started.audit.inspection, {}))
    connection.create(input=[message("hello"), message("so bad", "assistant"), message("go on")])
    said = [item["content"] for item in context_of(connection.job())]
    assert said == ["hello", PLACEHOLDER.replace("guard", "late"), "go on"]


@pytest.mark.parametrize("approval", [None, "mcpr_1"])
def test_the_result_of_a_hosted_call_is_withheld(approval: str | None):
    connection = connect()
    asked = {"type": "mcp_approval_request", "server_label": "s", "name": "f", "arguments": "{}"}
    granted = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    before = [{"id": "mcpr_1", **asked}, granted] if approval is not None else []
    call = {"type": "mcp_call", "id": "mcp_1", "server_label": "s", "name": "f", "arguments": "{}"}
    history = [message("hello"), *before, {**call, "output": "bad", "approval_request_id": approval}]
    block(connection, input=history)
    connection.create(input=[*history, message("go on")])
    told = context_of(connection.job())
    assert [item["output"] for item in told if item["type"] == "function_call_output"] == [PLACEHOLDER]
    answer(connection)
    require_nothing_refused(connection)


def test_thoughts_that_are_sealed_are_withheld():
    connection = connect()
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "bad"}]}
    block(connection, input=[message("hello"), thought, message("go on")])
    sealed = connection.server.ports.seal.seal("tenant", (read_item(json.dumps(thought).encode(), "input"),))
    hidden = {"type": "reasoning", "summary": [], "encrypted_content": sealed}
    connection.create(input=[message("hello"), hidden, message("go on"), message("now")])
    (told,) = [item for item in context_of(connection.job()) if item["type"] == "reasoning"]
    assert told["content"][0]["text"] == PLACEHOLDER
    assert "encrypted_content" not in told
    answer(connection)
    require_nothing_refused(connection)


def test_a_summary_of_a_thought_is_inspected_whatever_was_known_about_others():
    def history(*summary: str) -> list[Json]:
        parts = [{"type": "summary_text", "text": text} for text in summary]
        return [message("hello"), {"type": "reasoning", "summary": parts}, message("go on")]

    connection = connect()
    for clean in (history("fine"), history()):
        connection.create(input=clean)
        answer(connection)
    block(connection, input=history("bad"))
    for clean in (history("fine"), history("good"), history()):
        connection.create(input=clean)
        assert context_of(connection.job()) == clean
        answer(connection)
    connection.create(input=[*history("bad"), message("now")])
    assert context_of(connection.job())[1]["content"][0]["text"] == PLACEHOLDER
    answer(connection)
    require_nothing_refused(connection)


def test_what_nothing_can_stand_for_is_refused_again():
    connection = connect()
    history = [message("hello"), {"type": "image_generation_call", "id": "ig_1", "result": "bad"}]
    block(connection, input=history)
    error = only_error(connection.create(input=[*history, message("go on")]))
    assert error["error"]["code"] == "invalid_prompt"


def test_a_history_that_ends_with_it_can_still_be_compacted():
    connection = connect()
    block(connection, input="bad")
    connection.create(input=[message("hello"), message("bad"), {"type": "compaction_trigger"}])
    assert "bad" not in json.dumps(context_of(connection.job()))
