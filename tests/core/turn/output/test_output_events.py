"""Output: from deltas to events. `Connection` validates each event and the order; here content is tested."""

import json
from collections import Counter
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from slipring.core.generation import (
    Annotated,
    CallArguments,
    CallEnded,
    CallStarted,
    Delta,
    RefusalText,
    Text,
    Thought,
    ThoughtSummary,
)
from slipring.protocol.responses import Logprob, TopLogprob
from tests.core.connection import Connection, Json, emitted, types


def output_events(*deltas: Delta, reason: str = "stop", model: str = "m") -> list[Json]:
    """The events between the opening and the terminal event."""
    connection = Connection()
    connection.create(model=model)
    connection.generate(*deltas)
    connection.finish(reason=reason)
    return connection.events[2:-1]


def items(*deltas: Delta, reason: str = "stop") -> list[Json]:
    return [event["item"] for event in output_events(*deltas, reason=reason) if "item.done" in event["type"]]


def test_text_deltas_become_one_message():
    (item,) = items(Text("Hel"), Text(""), Text("lo"))
    assert item == {
        "type": "message",
        "id": "msg_10000",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}],
    }


def test_logprobs_are_sent_with_their_text():
    """Bytes are in the finished part only: the SDK's types for the events have none."""
    top = TopLogprob(token="b", logprob=-2.0, bytes=[98])
    logprob = Logprob(token="a", logprob=-0.5, bytes=[97], top_logprobs=[top])
    events = output_events(Text("a", [logprob]), Text("b", [logprob]), model="able")
    sent = {"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "b", "logprob": -2.0}]}
    kept = {
        "token": "a",
        "logprob": -0.5,
        "bytes": [97],
        "top_logprobs": [{"token": "b", "logprob": -2.0, "bytes": [98]}],
    }
    by_type = {event["type"].removeprefix("response."): event for event in events}
    assert by_type["output_text.delta"]["logprobs"] == [sent]
    assert by_type["output_text.done"]["logprobs"] == [sent, sent]
    assert by_type["content_part.done"]["part"]["logprobs"] == [kept, kept]


def test_a_refusal_is_a_separate_part():
    (item,) = items(Text("I "), RefusalText("will "), RefusalText("not."))
    assert [part["type"] for part in item["content"]] == ["output_text", "refusal"]
    assert item["content"][1] == {"type": "refusal", "refusal": "will not."}


def test_text_after_a_refusal_is_another_part():
    (item,) = items(Text("a"), RefusalText("b"), Text("c"))
    assert [part.get("text", part.get("refusal")) for part in item["content"]] == ["a", "b", "c"]


def test_a_function_call_is_streamed():
    events = output_events(
        CallStarted(kind="function", name="f"), CallArguments('{"a":'), CallArguments("1}")
    )
    assert types(events) == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    assert events[-1]["item"] == {
        "type": "function_call",
        "id": "fc_10000",
        "call_id": "call_1",
        "name": "f",
        "arguments": '{"a":1}',
        "status": "completed",
    }


def test_a_call_is_done_when_it_ends():
    connection = Connection()
    connection.create()
    first = connection.generate(CallStarted("function", "f"), CallArguments("{}"), CallEnded())
    assert types(first)[-2:] == ["function_call_arguments.done", "output_item.done"]
    assert first[-1]["item"]["status"] == "completed"
    second = connection.generate(CallStarted("custom", "g"), CallArguments("x"), CallEnded())
    assert types(second)[-2:] == ["custom_tool_call_input.done", "output_item.done"]
    search = connection.generate(CallStarted("tool_search", "tool_search"), CallArguments("{}"), CallEnded())
    assert types(search) == ["output_item.added", "output_item.done"]
    assert types(connection.finish()) == ["completed"]
    connection.order.finish()


def test_a_call_that_the_model_broke_off_is_incomplete_in_a_complete_response():
    deltas = CallStarted("function", "f"), CallArguments('{"a":'), CallEnded(False), Text("so")
    call, message = items(*deltas)
    assert (call["status"], message["status"]) == ("incomplete", "completed")


def test_a_custom_tool_call_is_streamed():
    events = output_events(CallStarted(kind="custom", name="sh", namespace="os"), CallArguments("ls"))
    assert types(events) == [
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
    ]
    assert events[-1]["item"] == {
        "type": "custom_tool_call",
        "id": "ctc_10000",
        "call_id": "call_1",
        "name": "sh",
        "input": "ls",
        "status": "completed",
        "namespace": "os",
    }


def test_a_custom_tool_call_that_was_cut_off_is_incomplete():
    (call,) = items(CallStarted(kind="custom", name="sh"), CallArguments("l"), reason="max_output_tokens")
    assert (call["type"], call["status"]) == ("custom_tool_call", "incomplete")


@pytest.mark.parametrize(
    ("written", "more"), [("", {}), (',"working_directory":null', {}), (',"timeout_ms":5', {"timeout_ms": 5})]
)
def test_a_local_shell_call_has_no_nulls(written, more):
    arguments = CallArguments('{"command":["ls"]' + written + "}")
    (call,) = items(CallStarted(kind="local_shell", name="local_shell"), arguments, CallEnded())
    assert call["action"] == {"type": "exec", "command": ["ls"], "env": {}, **more}


def test_a_call_without_arguments_is_still_done():
    assert items(CallStarted(kind="function", name="f"))[0]["arguments"] == ""


def test_consecutive_calls_have_different_ids():
    calls = items(CallStarted(kind="function", name="f"), CallStarted(kind="function", name="f"))
    assert [(call["id"], call["call_id"]) for call in calls] == [
        ("fc_10000", "call_1"),
        ("fc_10001", "call_2"),
    ]


def test_raw_reasoning_is_content():
    (item,) = items(Thought("hm"), Thought("m"))
    assert (item["type"], item["summary"]) == ("reasoning", [])
    assert item["content"] == [{"type": "reasoning_text", "text": "hmm"}]


def test_a_summary_has_parts():
    (item,) = items(ThoughtSummary("a"), ThoughtSummary("b"), ThoughtSummary("c", index=1))
    assert [part["text"] for part in item["summary"]] == ["ab", "c"]
    assert "content" not in item


def test_a_summary_may_precede_or_follow_the_reasoning_text():
    """Only one part is open at a time, whatever the engine's order."""
    (before,) = items(ThoughtSummary("s"), Thought("t"))
    (after,) = items(Thought("t"), ThoughtSummary("s"))
    for item in (before, after):
        assert [part["text"] for part in item["summary"]] == ["s"]
        assert [part["text"] for part in item["content"]] == ["t"]


def test_reasoning_texts_and_summaries_may_alternate():
    (item,) = items(Thought("a"), ThoughtSummary("s"), Thought("b"), ThoughtSummary("t", index=1))
    assert [part["text"] for part in item["summary"]] == ["s", "t"]
    assert "".join(part["text"] for part in item["content"]) == "ab"


def test_a_delta_of_another_kind_closes_the_open_item():
    kinds = [
        item["type"]
        for item in items(
            Thought("hm"), Text("a"), CallStarted(kind="function", name="f"), Text("b"), Thought("c")
        )
    ]
    assert kinds == ["reasoning", "message", "function_call", "message", "reasoning"]


def test_a_truncated_answer_has_an_incomplete_last_item():
    first, second = items(Text("a"), CallStarted(kind="function", name="f"), reason="max_output_tokens")
    assert (first["status"], second["status"]) == ("completed", "incomplete")


def test_arguments_outside_a_call_are_an_engine_error():
    connection = Connection()
    connection.create()
    (work,) = connection.starts.values()
    with pytest.raises(TypeError):
        emitted(connection.session, work, [Text("a"), CallArguments("{}")])
    connection.fail()
    connection.order.finish()


@pytest.mark.parametrize("before", [[], [Text("a")], [CallStarted("function", "f"), CallEnded()]])
def test_the_end_of_a_call_outside_a_call_is_an_engine_error(before):
    connection = Connection()
    connection.create()
    (work,) = connection.starts.values()
    with pytest.raises(TypeError):
        emitted(connection.session, work, [*before, CallEnded()])
    connection.fail()
    connection.order.finish()


def test_sequence_numbers_have_no_gap_after_a_batch_failed_midway():
    connection = Connection()
    connection.create()
    (work,) = connection.starts.values()
    with pytest.raises(TypeError):
        emitted(connection.session, work, [Text("a"), CallArguments("{}")])
    connection.fail()
    assert [event["sequence_number"] for event in connection.events] == list(range(len(connection.events)))
    assert connection.events[-1]["response"]["output"][0]["content"][0]["text"] == "a"


# Any order of deltas.

_LETTERS = "αβγδεζ"
_PIECES: list[list[Delta]] = [
    [Text("α")],
    [RefusalText("β")],
    [Thought("γ")],
    [ThoughtSummary("δ")],
    [ThoughtSummary("δ", index=1)],
    [CallStarted(kind="function", name="f")],
    [CallStarted(kind="function", name="f"), CallArguments("ε"), CallArguments("ε")],
    [CallStarted(kind="custom", name="g"), CallArguments("ζ")],
    [CallStarted(kind="function", name="f"), CallArguments("ε"), CallEnded()],
    [CallStarted(kind="function", name="f"), CallArguments("ε"), CallEnded(False)],
]
_deltas = st.lists(st.sampled_from(_PIECES), max_size=10).map(lambda pieces: [*chain.from_iterable(pieces)])


def letters(text: str) -> Counter[str]:
    """Count each Greek letter; only the deltas contain any."""
    return Counter(letter for letter in text if letter in _LETTERS)


@given(_deltas, st.sampled_from(["stop", "max_output_tokens", "fail"]), st.integers(1, 4))
def test_any_deltas_yield_valid_events_and_lose_no_text(deltas, end, batch):
    """`Connection` checks order, indexes, sequence numbers and that deltas add up to the done events."""
    connection = Connection()
    connection.create()
    for start in range(0, len(deltas), batch):
        connection.generate(*deltas[start : start + batch])
    events = connection.fail() if end == "fail" else connection.finish(reason=end)
    connection.order.finish()
    sent = json.dumps(events[-1]["response"]["output"], ensure_ascii=False)
    assert letters(sent) == letters("".join(getattr(delta, "text", "") for delta in deltas))


def test_done_items_are_byte_for_byte_those_of_the_terminal_event_and_of_the_state():
    connection = Connection()
    connection.create("a")
    call = (CallStarted(kind="function", name="f"), CallArguments("{}"))
    connection.generate(Thought("hm"), Text('é"\n'), *call, lane="a")
    connection.finish(lane="a")
    done = [
        frame.partition(b'"item":')[2]
        for frame, event in zip(connection.frames, connection.events, strict=True)
        if event["type"] == "response.output_item.done"
    ]
    state = connection.cache.find("resp_1")
    assert state is not None
    raws = [item.raw for item in state.output]
    assert [json.loads(raw) for raw in raws] == connection.events[-1]["response"]["output"]
    for raw, rest in zip(raws, done, strict=True):
        assert rest.startswith(raw)
    assert b'"output":[' + b",".join(raws) + b"]" in connection.frames[-1]


def test_annotations_are_sent_and_kept_with_their_text():
    source = b'{"type":"url_citation","url":"https://a.example","title":"A","start_index":0,"end_index":1}'
    events = output_events(Text("a"), Annotated(Raw(source)), Text("b"), Annotated(Raw(source)))
    sent = [event for event in events if "annotation" in event["type"]]
    assert [event["annotation_index"] for event in sent] == [0, 1]
    assert sent[0]["annotation"] == json.loads(source)
    assert sent[0]["content_index"] == 0
    part = next(event["part"] for event in events if event["type"] == "response.content_part.done")
    assert (part["text"], part["annotations"]) == ("ab", [json.loads(source)] * 2)


@pytest.mark.parametrize("text", ['{"query":', "plainly", ""])
def test_invalid_json_arguments_of_a_search_become_a_string(text):
    (item,) = items(CallStarted("tool_search", "tool_search"), CallArguments(text))
    assert item["arguments"] == text
    assert item["status"] == "completed"
