"""Where a history that was not recognised departs from the one before."""

import json
from typing import Any

import pytest

from slipring.core.chain import resent_history
from slipring.core.chain.resent_history import KnownHistories, Outline
from slipring.core.generation import CallArguments, CallStarted, Text, Thought
from slipring.protocol.items.item_digests import OUTLINE_BYTES, item_outline, outlined_field
from slipring.protocol.items.items import Item, read_item
from slipring.protocol.turn_report import Departure
from tests.core.chain.test_resent_history import connect
from tests.core.connection import Connection, Json, function, message

TOOLS = [function("f"), function("g")]
OK = (Text("ok"),)


def turn(connection: Connection, history: list[Json], *, says: Any = OK, **fields: Any) -> Json:
    connection.create(input=history, **{"tools": TOOLS, "instructions": "Be kind.", **fields})
    connection.finish(*says)
    response: Json = connection.order.responses[-1]
    return response


def departed(connection: Connection) -> str | None:
    report = connection.reports[-1].report
    return report.departed.place if report.departed else None


@pytest.fixture
def asked() -> tuple[Connection, list[Json]]:
    """A connection after a turn with a call and one with its output, and the history."""
    connection = connect()
    history = [message("one")]
    first = turn(connection, history, says=(CallStarted("function", "f"), CallArguments('{"a":1}')))
    history += [*first["output"]]
    history.append({"type": "function_call_output", "call_id": history[-1]["call_id"], "output": "5"})
    second = turn(connection, history)
    history += [*second["output"], message("two")]
    assert departed(connection) is None
    return connection, history


def changed(history: list[Json], at: int, **fields: Any) -> list[Json]:
    return [*history[:at], {**history[at], **fields}, *history[at + 1 :]]


def test_a_history_that_goes_on_departs_nowhere(asked: tuple[Connection, list[Json]]) -> None:
    connection, history = asked
    third = turn(connection, history)
    assert departed(connection) is None
    turn(connection, [*history, *third["output"], message("three")])
    assert departed(connection) is None
    turn(connection, history[:3])
    assert departed(connection) is None, "a part of it, for another answer"
    turn(connection, [message("something else")])
    assert departed(connection) is None, "another conversation"


@pytest.mark.parametrize(
    ("at", "fields", "place"),
    [
        (0, {"content": "One"}, "input[0].content"),
        (1, {"arguments": '{"a":2}'}, "input[1].arguments"),
        (1, {"name": "g"}, "input[1].name"),
        (2, {"output": "6"}, "input[2].output"),
        (3, {"content": "no"}, "input[3].content"),
        (3, {"role": "user", "content": "ok"}, "input[3].role"),
    ],
)
def test_the_first_item_that_differs_and_its_field_are_named(
    asked: tuple[Connection, list[Json]], at: int, fields: Json, place: str
) -> None:
    connection, history = asked
    turn(connection, changed(history, at, **fields))
    assert departed(connection) == place
    assert connection.reports[-1].report.departed.type == history[at]["type"]


def test_what_differs_before_the_items_is_named(asked: tuple[Connection, list[Json]]) -> None:
    connection, history = asked
    turn(connection, history, tools=[*TOOLS[:1], function("h")])
    assert departed(connection) == "tools"
    connection, history = asked
    turn(connection, history, instructions="Be brief.", tools=TOOLS)
    assert departed(connection) == "instructions"


def test_another_model_is_named(asked: tuple[Connection, list[Json]]) -> None:
    connection, history = asked
    turn(connection, history, model="able")
    assert departed(connection) == "model"


def test_a_history_whose_context_is_forgotten_is_named(asked: tuple[Connection, list[Json]]) -> None:
    connection, history = asked
    known = connection.server.known
    for tenant in list(known._by_tenant):
        known.forget(tenant)
    turn(connection, history)
    assert departed(connection) == "memory"


def test_histories_are_forgotten_in_time_and_with_a_deleted_response(
    asked: tuple[Connection, list[Json]],
) -> None:
    connection, history = asked
    known = connection.server.known
    wrong = changed(history, 0, content="One")
    assert len(known.histories) == 1
    known.forget_response(connection.tenant, "resp_of_no_one")
    turn(connection, wrong)
    assert departed(connection) is None
    connection.server.now += 100_000
    turn(connection, changed(wrong, 0, content="Two"))
    assert departed(connection) is None
    connection.server.now += 100_000
    known.sweep(connection.server.now)
    assert not len(known.histories)


def test_clients_that_leave_thoughts_out_are_told_of_their_own_items() -> None:
    connection = connect()
    connection.post(input=[message("one")])
    connection.finish(Thought("Hm."), Text("ok"))
    answer = connection.order.responses[-1]["output"]
    connection.post(input=[message("one"), answer[1], message("two")])
    connection.finish(Text("ok"))
    assert departed(connection) is None
    connection.post(input=[message("one"), answer[0], {**answer[1], "content": "no"}, message("two")])
    connection.finish(Text("ok"))
    assert departed(connection) == "input[2].content"


def test_other_tenants_have_other_histories(asked: tuple[Connection, list[Json]]) -> None:
    connection, history = asked
    other = connect(connection.server, "another")
    turn(other, changed(history, 1, name="g"))
    assert departed(other) is None


def test_histories_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    histories = KnownHistories(60, 2**20)
    head = ("m", b"", b"")
    for number in range(20):
        histories.remember("t", f"resp_{number}", Outline(head, b"x" * OUTLINE_BYTES, b""), 0.0)
    assert len(histories) == 16
    assert histories.find("t", "resp_3") is None
    assert histories.find("t", None) is None
    monkeypatch.setattr(resent_history, "MOST_ITEMS", 1)
    histories.remember("t", "resp_19", Outline(head, b"x" * 2 * OUTLINE_BYTES, b""), 0.0)
    assert histories.find("t", "resp_19") is None


def test_long_histories_are_not_compared(
    asked: tuple[Connection, list[Json]], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, history = asked
    monkeypatch.setattr(resent_history, "MOST_ITEMS", 3)
    turn(connection, changed(history, 1, name="g"))
    assert departed(connection) is None


def test_an_outline_shows_the_field_that_differs() -> None:
    def item(**fields: Any) -> Item:
        return read_item(json.dumps(fields).encode(), "input[0]")

    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    custom = {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "a"}
    pairs: list[tuple[Json, Json, str]] = [
        (call, {**call, "call_id": "d"}, "call_id"),
        (call, custom, "type"),
        (custom, {**custom, "input": "b"}, "input"),
        ({"type": "reasoning", "summary": []}, {"role": "user", "content": ""}, "type"),
    ]
    for one, other, field in pairs:
        before, after = item(**one), item(**other)
        assert outlined_field(item_outline(before), item_outline(after), after) == field
    assert Departure("tools").place == "tools"
