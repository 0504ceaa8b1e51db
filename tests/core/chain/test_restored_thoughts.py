"""A client that sends its history without the model's thoughts: the model reads them again."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipring.core.chain.resent_history import Thoughts
from slipring.core.generation import CallArguments, CallStarted, Delta, Text, Thought
from slipring.protocol.items.items import Item
from tests.core.chain.test_resent_history import connect
from tests.core.connection import Connection, Json, Seen, call_output, message, visible

CALL: list[Delta] = [CallStarted(kind="function", name="f"), CallArguments("{}")]


def turn(connection: Connection, *deltas: Delta, **fields: Any) -> list[Json]:
    """Post a request and answer with these deltas; returns the output items."""
    connection.post(**fields)
    connection.finish(*deltas)
    output: list[Json] = connection.order.responses[-1]["output"]
    return output


def continued(connection: Connection, **fields: Any) -> list[Json]:
    """Post a request; what the engine has processed of its context."""
    connection.post(**fields)
    parent = connection.job().parent
    if parent is None:
        return []
    assert isinstance(parent.position, Seen)
    return parent.position.content


def without_thoughts(items: list[Json]) -> list[Json]:
    return [item for item in items if item["type"] != "reasoning"]


def thoughts_in(items: list[Json]) -> list[str]:
    return [item["content"] for item in items if item["type"] == "reasoning"]


def test_thoughts_that_were_left_out_are_in_the_context():
    connection = connect()
    output = turn(connection, Thought("hm"), Text("ok"), input="hello")
    sent = [message("hello"), *without_thoughts(output), message("more")]
    content = continued(connection, input=sent)
    assert thoughts_in(content) == ["hm"]
    assert len(content) == 3
    job = connection.job()
    assert job.parent is not None
    assert visible(job.parent.output) == [{"type": "message", "role": "assistant", "content": "ok"}]


def test_a_loop_without_thoughts_continues_at_every_step():
    connection = connect()
    sent = [message("hello")]
    for number in range(3):
        output = turn(connection, Thought(f"thought {number}"), *CALL, input=sent)
        call = output[-1]
        sent = [*sent, *without_thoughts(output), call_output(call["call_id"])]
    content = continued(connection, input=sent)
    assert thoughts_in(content) == ["thought 0", "thought 1", "thought 2"]
    assert connection.job().parent is not None
    assert [item["type"] for item in visible(connection.job().input)] == ["function_call_output"]


def test_thoughts_that_are_sent_must_be_those_of_the_model():
    connection = connect()
    output = turn(connection, Thought("hm"), Text("ok"), input="hello")
    foreign = {**output[0], "content": [{"type": "reasoning_text", "text": "another"}]}
    history = [message("hello"), *output, message("more")]
    assert thoughts_in(continued(connection, input=history)) == ["hm"]
    connection.finish(Text("first"))
    changed = [message("hello"), foreign, output[1], message("more")]
    assert len(continued(connection, input=changed)) == 1
    assert thoughts_in(visible(connection.job().input)) == ["another"]


def test_thoughts_of_an_answer_may_come_back_as_one():
    """As they do from clients of Chat Completions."""
    connection = connect()
    output = turn(connection, Thought("hm"), Text("ok"), Thought("so"), *CALL, input="hello")
    thought, said, _, call = output
    joined = {**thought, "content": [{"type": "reasoning_text", "text": "hm\n\nso"}]}
    history = [message("hello"), joined, said, call, call_output(call["call_id"])]
    assert thoughts_in(continued(connection, input=history)) == ["hm", "so"]
    connection.finish(Text("done"))
    other = {**thought, "content": [{"type": "reasoning_text", "text": "hm\n\nno"}]}
    assert continued(connection, input=[message("hello"), other, *history[2:]]) == [message("hello")]


def test_a_thought_at_the_end_of_a_history_is_read():
    connection = connect()
    output = turn(connection, Thought("hm"), Text("ok"), input="hello")
    content = continued(connection, input=[message("hello"), output[0]])
    assert len(content) == 1
    assert thoughts_in(visible(connection.job().input)) == ["hm"]


def test_an_answer_of_thoughts_alone_is_not_continued_by_its_question():
    connection = connect()
    turn(connection, Thought("hm"), input="hello")
    assert thoughts_in(continued(connection, input=[message("hello"), message("more")])) == []


def test_clients_that_can_send_thoughts_continue_none_that_were_restored():
    connection = connect()
    output = turn(connection, Thought("hm"), Text("ok"), input="hello")
    sent = [message("hello"), *without_thoughts(output), message("more")]
    turn(connection, Text("second"), input=sent)
    connection.create(input=sent)
    assert connection.job().parent is None


@given(st.data())
def test_the_context_is_the_history_with_the_models_own_thoughts(data: st.DataObject):
    """Clients keep, drop or change thoughts as they like, and send any of their histories again."""
    connection = connect()
    histories: list[list[Json]] = [[]]
    own: dict[str, str] = {}
    for number in range(data.draw(st.integers(1, 6))):
        history = data.draw(st.sampled_from(histories))
        shown = [_as_sent(item, data) for item in history]
        sent = [*(item for item in shown if item is not None), message(f"say {number % 2}")]
        connection.post(input=sent)
        job = connection.job()
        position = job.parent.position if job.parent is not None else None
        content = position.content if isinstance(position, Seen) else []
        read = content + visible(job.input)
        expected = visible_items(sent)
        assert without_thoughts(read) == without_thoughts(expected)
        assert set(thoughts_in(expected)) <= set(thoughts_in(read))
        restored = [each for each in thoughts_in(read) if each not in thoughts_in(expected)]
        assert all(each in own for each in restored)
        thought = f"thought {number}"
        own[thought] = ""
        connection.finish(*([Thought(thought)] if data.draw(st.booleans()) else []), Text(f"ok {number % 2}"))
        histories.append([*sent, *connection.order.responses[-1]["output"]])


def _as_sent(item: Json, data: st.DataObject) -> Json | None:
    """What a client makes of an item of its history; None if it drops it."""
    if item["type"] != "reasoning":
        return item
    choice = data.draw(st.sampled_from(("kept", "dropped", "changed")))
    if choice == "changed":
        return {**item, "content": [{"type": "reasoning_text", "text": "changed"}]}
    return item if choice == "kept" else None


def visible_items(items: list[Json]) -> list[Json]:
    """The items as the context shows them."""
    shown = []
    for item in items:
        seen = {key: value for key, value in item.items() if key not in ("id", "status", "summary", "phase")}
        for key in ("content", "output"):
            if isinstance(seen.get(key), list):
                seen[key] = "".join(part["text"] for part in seen[key])
        shown.append(seen)
    return shown


def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gets the length of every history whose thoughts are compared with those of a context."""
    lengths: list[int] = []
    departs_at = Thoughts.departs_at

    def noted(self: Thoughts, items: Sequence[Item]) -> int | None:
        lengths.append(len(items))
        return departs_at(self, items)

    monkeypatch.setattr(Thoughts, "departs_at", noted)
    return lengths


def test_behind_a_changed_thought_no_context_is_looked_at(monkeypatch: pytest.MonkeyPatch):
    connection = connect()
    history = [message("hello")]
    for number in range(12):
        output = turn(connection, Thought(f"thought {number}"), Text("ok"), input=history)
        history = [*history, *output, message(f"more {number}")]
    thought = next(index for index, item in enumerate(history) if item["type"] == "reasoning")
    history[thought] = {**history[thought], "content": [{"type": "reasoning_text", "text": "another"}]}
    lengths = looked_at(monkeypatch)
    assert len(continued(connection, input=history)) == 1
    assert lengths == [len(history) - 1, 1]


def test_few_contexts_are_looked_at_for_a_history_that_leaves_out_thoughts_of_its_client(
    monkeypatch: pytest.MonkeyPatch,
):
    connection = connect()
    own = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "mine"}]}
    history = [message("hello"), own, message("more")]
    for number in range(12):
        output = turn(connection, Text("ok"), input=history)
        history = [*history, *output, message(f"more {number}")]
    history.remove(own)
    lengths = looked_at(monkeypatch)
    assert continued(connection, input=history) == []
    assert len(lengths) == 8
