"""From deltas to events. The stage checks every frame and their order; here it is what they say."""

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
    CallStarted,
    Delta,
    Refused,
    Text,
    Thought,
    ThoughtSummary,
)
from slipring.protocol.responses import Logprob, TopLogprob
from tests.core.stage import Json, Stage, types


def said(*deltas: Delta, reason: str = "stop", model: str = "m") -> list[Json]:
    """The events of the output alone."""
    stage = Stage()
    stage.create(model=model)
    stage.say(*deltas)
    stage.finish(reason=reason)
    return stage.events[2:-1]


def items(*deltas: Delta, reason: str = "stop") -> list[Json]:
    return [event["item"] for event in said(*deltas, reason=reason) if "item.done" in event["type"]]


def test_pieces_of_text_make_one_message():
    (item,) = items(Text("Hel"), Text(""), Text("lo"))
    assert item == {
        "type": "message",
        "id": "msg_10000",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}],
    }


def test_logprobs_travel_with_their_text():
    """Bytes are in the finished part only: the SDK's types for the events have none."""
    top = TopLogprob(token="b", logprob=-2.0, bytes=[98])
    logprob = Logprob(token="a", logprob=-0.5, bytes=[97], top_logprobs=[top])
    events = said(Text("a", [logprob]), Text("b", [logprob]), model="able")
    told = {"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "b", "logprob": -2.0}]}
    kept = {
        "token": "a",
        "logprob": -0.5,
        "bytes": [97],
        "top_logprobs": [{"token": "b", "logprob": -2.0, "bytes": [98]}],
    }
    by_type = {event["type"].removeprefix("response."): event for event in events}
    assert by_type["output_text.delta"]["logprobs"] == [told]
    assert by_type["output_text.done"]["logprobs"] == [told, told]
    assert by_type["content_part.done"]["part"]["logprobs"] == [kept, kept]


def test_a_refusal_is_a_part_of_its_own():
    (item,) = items(Text("I "), Refused("will "), Refused("not."))
    assert [part["type"] for part in item["content"]] == ["output_text", "refusal"]
    assert item["content"][1] == {"type": "refusal", "refusal": "will not."}


def test_text_after_a_refusal_is_a_further_part():
    (item,) = items(Text("a"), Refused("b"), Text("c"))
    assert [part.get("text", part.get("refusal")) for part in item["content"]] == ["a", "b", "c"]


def test_a_function_call_is_streamed():
    events = said(CallStarted(kind="function", name="f"), CallArguments('{"a":'), CallArguments("1}"))
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


def test_a_custom_tool_call_is_streamed():
    events = said(CallStarted(kind="custom", name="sh", namespace="os"), CallArguments("ls"))
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
        "namespace": "os",
    }


def test_a_call_without_arguments_is_still_done():
    assert items(CallStarted(kind="function", name="f"))[0]["arguments"] == ""


def test_calls_one_after_the_other_have_ids_of_their_own():
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


def test_a_summary_may_come_before_or_after_the_thoughts():
    """Only one part is open at a time, whatever the engine's order."""
    (before,) = items(ThoughtSummary("s"), Thought("t"))
    (after,) = items(Thought("t"), ThoughtSummary("s"))
    for item in (before, after):
        assert [part["text"] for part in item["summary"]] == ["s"]
        assert [part["text"] for part in item["content"]] == ["t"]


def test_thoughts_and_summaries_may_alternate():
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


def test_what_was_open_at_the_cut_is_incomplete_and_what_was_not_is_completed():
    first, second = items(Text("a"), CallStarted(kind="function", name="f"), reason="max_output_tokens")
    assert (first["status"], second["status"]) == ("completed", "incomplete")


def test_arguments_outside_a_call_are_an_engines_fault():
    stage = Stage()
    stage.create()
    (turn,) = stage.starts
    with pytest.raises(TypeError):
        stage.session.deltas(turn, [Text("a"), CallArguments("{}")])
    stage.fail()
    stage.order.finish()


def test_numbers_have_no_gap_though_a_batch_broke_in_the_middle():
    stage = Stage()
    stage.create()
    (turn,) = stage.starts
    with pytest.raises(TypeError):
        stage.session.deltas(turn, [Text("a"), CallArguments("{}")])
    stage.fail()
    assert [event["sequence_number"] for event in stage.events] == list(range(len(stage.events)))
    assert stage.events[-1]["response"]["output"][0]["content"][0]["text"] == "a"


# Any order of deltas.

_LETTERS = "αβγδεζ"
_PIECES: list[list[Delta]] = [
    [Text("α")],
    [Refused("β")],
    [Thought("γ")],
    [ThoughtSummary("δ")],
    [ThoughtSummary("δ", index=1)],
    [CallStarted(kind="function", name="f")],
    [CallStarted(kind="function", name="f"), CallArguments("ε"), CallArguments("ε")],
    [CallStarted(kind="custom", name="g"), CallArguments("ζ")],
]
_deltas = st.lists(st.sampled_from(_PIECES), max_size=10).map(lambda pieces: [*chain.from_iterable(pieces)])


def letters(text: str) -> Counter[str]:
    """How often each letter of the deltas occurs; nothing else in a frame is Greek."""
    return Counter(letter for letter in text if letter in _LETTERS)


@given(_deltas, st.sampled_from(["stop", "max_output_tokens", "fail"]), st.integers(1, 4))
def test_any_deltas_make_lawful_events_and_lose_no_text(deltas, end, batch):
    """The stage's own checks are the heart of this: order, indexes, numbers, and texts that add up."""
    stage = Stage()
    stage.create()
    for start in range(0, len(deltas), batch):
        stage.say(*deltas[start : start + batch])
    events = stage.fail() if end == "fail" else stage.finish(reason=end)
    stage.order.finish()
    told = json.dumps(events[-1]["response"]["output"], ensure_ascii=False)
    assert letters(told) == letters("".join(getattr(delta, "text", "") for delta in deltas))


def test_done_items_are_byte_for_byte_those_of_the_terminal_event_and_of_the_state():
    stage = Stage()
    stage.create("a")
    call = (CallStarted(kind="function", name="f"), CallArguments("{}"))
    stage.say(Thought("hm"), Text('é"\n'), *call, lane="a")
    stage.finish(lane="a")
    done = [
        frame.partition(b'"item":')[2]
        for frame, event in zip(stage.frames, stage.events, strict=True)
        if event["type"] == "response.output_item.done"
    ]
    state = stage.cache.find("resp_1")
    assert state is not None
    raws = [item.raw for item in state.output]
    assert [json.loads(raw) for raw in raws] == stage.events[-1]["response"]["output"]
    for raw, rest in zip(raws, done, strict=True):
        assert rest.startswith(raw)
    assert b'"output":[' + b",".join(raws) + b"]" in stage.frames[-1]


def test_annotations_are_told_and_kept_with_their_text():
    source = b'{"type":"url_citation","url":"https://a.example","title":"A","start_index":0,"end_index":1}'
    events = said(Text("a"), Annotated(Raw(source)), Text("b"), Annotated(Raw(source)))
    told = [event for event in events if "annotation" in event["type"]]
    assert [event["annotation_index"] for event in told] == [0, 1]
    assert told[0]["annotation"] == json.loads(source)
    assert told[0]["content_index"] == 0
    part = next(event["part"] for event in events if event["type"] == "response.content_part.done")
    assert (part["text"], part["annotations"]) == ("ab", [json.loads(source)] * 2)


@pytest.mark.parametrize("text", ['{"query":', "plainly", ""])
def test_what_a_search_says_that_is_no_json_is_told_as_a_string(text):
    (item,) = items(CallStarted("tool_search", "tool_search"), CallArguments(text))
    assert item["arguments"] == text
    assert item["status"] == "completed"
