"""Answers: the message of a response, and the chunks of its events."""

import json
from typing import Any, TypeVar

import pytest
from msgspec import UNSET, Raw, UnsetType, structs

from slipring.protocol import events, wire
from slipring.protocol.chat_completions.requests import ChatTranslation
from slipring.protocol.events import PADDED, Event, EventLogprob, EventTopLogprob
from slipring.protocol.responses import (
    CustomToolCallItem,
    FunctionCallItem,
    IncompleteDetails,
    InputTokensDetails,
    Logprob,
    OutputItem,
    OutputMessage,
    OutputTextPart,
    OutputTokensDetails,
    ReasoningItem,
    ReasoningTextPart,
    RefusalPart,
    Response,
    ResponseError,
    ResponseModeration,
    ResponseModerationError,
    ResponseModerationResult,
    SummaryTextPart,
    TopLogprob,
    Usage,
)
from tests.chat_wire import check_completion, read_blocks, read_stream
from tests.core.connection import node
from tests.protocol.chat_completions.sent import USER, Json, translated

CITATION = {"type": "url_citation", "url": "https://x", "title": "X", "start_index": 0, "end_index": 1}
OTHER_ANNOTATION = {"type": "file_path", "file_id": "f", "index": 0}
RESPONSE_ID = "resp_" + "0123456789abcdef" * 2
E = TypeVar("E", bound=Event)
USAGE = Usage(10, InputTokensDetails(4, 6), 5, OutputTokensDetails(2), 15)


def response(*items: OutputItem, **fields: Any) -> Response:
    blank = structs.replace(node(RESPONSE_ID).response, usage=USAGE)
    return structs.replace(blank, output=[wire.raw(item) for item in items], **fields)


def message(*parts: OutputTextPart | RefusalPart) -> OutputMessage:
    return OutputMessage("msg_1", "completed", list(parts))


def text(words: str, **fields: Any) -> OutputMessage:
    return message(OutputTextPart(words, **fields))


def function(number: int, arguments: str = "{}") -> FunctionCallItem:
    return FunctionCallItem("fc_1", f"call_{number}", "look", arguments, "completed")


def custom(number: int) -> CustomToolCallItem:
    return CustomToolCallItem("ctc_1", f"call_{number}", "run", "ls", "completed")


def body(answer: Response, **fields: Any) -> Json:
    translation, _ = translated(USER, **fields)
    assert translation.ends(Stage().event(events.Completed, response=answer))
    return check_completion(wire.encode(translation.body(answer)))


def choice(answer: Response, **fields: Any) -> Json:
    found: Json = body(answer, **fields)["choices"][0]
    return found


def test_a_text_is_the_content() -> None:
    found = body(response(text("hi"), metadata={"a": "b"}))
    assert found["id"] == "chatcmpl-" + "0123456789abcdef" * 2
    assert (found["model"], found["system_fingerprint"], found["metadata"]) == ("m", "fp_test", {"a": "b"})
    assert found["choices"] == [
        {
            "index": 0,
            "message": {"content": "hi", "refusal": None, "annotations": [], "role": "assistant"},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert found["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 6, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 2,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def test_thoughts_and_refusals_have_fields_of_their_own() -> None:
    thought = ReasoningItem("rs_1", [], [ReasoningTextPart("h"), ReasoningTextPart("m")])
    summed = ReasoningItem("rs_2", [SummaryTextPart("one"), SummaryTextPart("two")])
    found = choice(response(thought, summed, message(RefusalPart("no"))))["message"]
    assert (found["reasoning_content"], found["refusal"], found["content"]) == (
        "hm\n\none\n\ntwo",
        "no",
        None,
    )


def test_calls_have_ids_that_no_other_answer_has() -> None:
    found = choice(response(function(3), custom(4)))
    assert found["finish_reason"] == "tool_calls"
    assert found["message"]["content"] is None
    assert found["message"]["tool_calls"] == [
        {
            "id": "call_89abcdef0123456789abcdef_3",
            "type": "function",
            "function": {"name": "look", "arguments": "{}"},
        },
        {"id": "call_89abcdef0123456789abcdef_4", "type": "custom", "custom": {"name": "run", "input": "ls"}},
    ]


def test_a_call_of_an_older_function_is_a_function_call() -> None:
    found = choice(response(function(0)), functions=[{"name": "look"}])
    assert found["message"]["function_call"] == {"name": "look", "arguments": "{}"}
    assert found["finish_reason"] == "function_call"
    assert "tool_calls" not in found["message"]


def test_a_custom_call_is_a_tool_call_beside_older_functions_too() -> None:
    found = choice(response(custom(0)), functions=[{"name": "look"}])
    assert "tool_calls" in found["message"]


def test_items_that_the_api_has_no_place_for_are_left_out() -> None:
    unknown = structs.replace(
        response(text("hi")), output=[Raw(b'{"type":"compaction"}'), wire.raw(text("hi"))]
    )
    assert choice(unknown)["message"]["content"] == "hi"


@pytest.mark.parametrize(
    ("reason", "shown"),
    [("max_output_tokens", "length"), ("content_filter", "content_filter"), (None, "length")],
)
def test_an_incomplete_answer_says_why(reason: Any, shown: str) -> None:
    cut = response(text("h"), status="incomplete", incomplete_details=IncompleteDetails(reason))
    assert choice(cut)["finish_reason"] == shown


def test_an_answer_without_anything_has_an_empty_content() -> None:
    assert choice(response())["message"]["content"] == ""


def test_a_response_without_usage_has_none() -> None:
    translation, _ = translated(USER)
    silent = response(text("hi"), usage=None)
    assert translation.ends(Stage().event(events.Completed, response=silent))
    assert translation.body(silent).usage is None


def test_annotations_and_logprobs_are_passed_on() -> None:
    logprob = Logprob("h", -0.5, [104], [TopLogprob("h", -0.5, [104])])
    annotated = text("h", annotations=[wire.raw(CITATION), wire.raw(OTHER_ANNOTATION)], logprobs=[logprob])
    found = choice(response(annotated), logprobs=True, top_logprobs=1)
    inner = {key: value for key, value in CITATION.items() if key != "type"}
    assert found["message"]["annotations"] == [{"type": "url_citation", "url_citation": inner}]
    token = {"token": "h", "logprob": -0.5, "bytes": [104]}
    assert found["logprobs"] == {"content": [{**token, "top_logprobs": [token]}], "refusal": None}


MODERATION = ResponseModeration(
    ResponseModerationResult("check", False, {}, {}, {}), ResponseModerationError("timeout", "Too slow.")
)


def test_what_checks_found_is_passed_on() -> None:
    found = body(response(text("hi"), moderation=MODERATION))["moderation"]
    assert (found["input"]["type"], found["input"]["results"][0]["model"]) == ("moderation_results", "check")
    assert found["output"] == {"type": "error", "code": "timeout", "message": "Too slow."}


@pytest.mark.parametrize(("prompt_tokens", "cached"), [(10, 1), (0, 4)])
def test_several_choices_share_their_prompt(prompt_tokens: int, cached: int) -> None:
    translation, _ = translated(USER, n=2)
    prompt = Usage(prompt_tokens, InputTokensDetails(1, 9), 0, OutputTokensDetails(0), prompt_tokens)
    translation.prefilled(prompt)
    two, one = response(text("b")), response(text("a"))
    assert not translation.ends(Stage("1").event(events.Completed, response=two))
    assert translation.ends(Stage("0").event(events.Completed, response=one))
    found = check_completion(wire.encode(translation.body(one)))
    assert [each["message"]["content"] for each in found["choices"]] == ["a", "b"]
    usage = found["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (10, 10, 20)
    assert usage["prompt_tokens_details"]["cached_tokens"] == cached


def test_a_failure_of_one_choice_is_that_of_all() -> None:
    translation, _ = translated(USER, n=2)
    assert translation.ends(Stage("1").event(events.Failed, response=response()))


# Streams -----------------------------------------------------------------------------------------


class Stage:
    """Makes the events of one response, in their order."""

    def __init__(self, lane: str | None = None) -> None:
        self._lane = UNSET if lane is None else lane
        self._number = 0

    def event(self, kind: type[E], **fields: Any) -> E:
        self._number += 1
        return kind(sequence_number=self._number, stream_id=self._lane, **fields)

    def created(self) -> Event:
        return self.event(events.Created, response=response())

    def delta(self, kind: type[Event], piece: str, at: int = 0, **fields: Any) -> Event:
        return self.event(kind, item_id="i", output_index=at, delta=piece, **fields)

    def text(self, piece: str, at: int = 0, **fields: Any) -> Event:
        given = {"logprobs": [], **fields}
        return self.delta(events.OutputTextDelta, piece, at, content_index=0, **given)

    def item(self, item: OutputItem, at: int = 0) -> Event:
        return self.event(events.OutputItemAdded, item=item, output_index=at)

    def completed(self, **fields: Any) -> Event:
        return self.event(events.Completed, response=response(**fields))


def stream(*sent: Event, **fields: Any) -> str:
    translation, _ = translated(USER, stream=True, **fields)
    blocks = b"".join(map(translation.frames, sent)) + translation.end()
    return blocks.decode()


def deltas(*sent: Event, **fields: Any) -> list[Json]:
    """The deltas between the first chunk and the last."""
    chunks = read_stream(stream(*sent, **fields))
    return [chunk["choices"][0]["delta"] for chunk in chunks[1:-1]]


def test_a_stream_begins_with_the_role_and_ends_with_the_reason() -> None:
    stage = Stage()
    blocks = read_blocks(stream(stage.created(), stage.text("h"), stage.text("i"), stage.completed()))
    chunks = [json.loads(block) for block in blocks[:-1]]
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"content": "", "role": "assistant", "refusal": None},
        {"content": "h"},
        {"content": "i"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
    assert blocks[-1] == "[DONE]"


def test_the_usage_comes_last_and_only_if_it_is_asked_for() -> None:
    stage = Stage()
    sent = (stage.created(), stage.text("h"), stage.completed())
    assert all("usage" not in chunk for chunk in read_stream(stream(*sent)))
    *others, last = read_stream(stream(*sent, stream_options={"include_usage": True}))
    assert [chunk["usage"] for chunk in others] == [None, None, None]
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 15)


def test_a_response_without_usage_ends_without_it() -> None:
    stage = Stage()
    text = stream(stage.created(), stage.completed(usage=None), stream_options={"include_usage": True})
    assert '"total_tokens"' not in text


def test_calls_begin_with_id_and_name_and_go_on_by_index() -> None:
    stage = Stage()
    found = deltas(
        stage.created(),
        stage.item(function(0)),
        stage.delta(events.FunctionCallArgumentsDelta, "{"),
        stage.delta(events.FunctionCallArgumentsDelta, "}"),
        stage.item(custom(1), 1),
        stage.delta(events.CustomToolCallInputDelta, "ls", 1),
        stage.completed(),
    )
    assert [delta["tool_calls"][0] for delta in found] == [
        {
            "index": 0,
            "id": "call_89abcdef0123456789abcdef_0",
            "type": "function",
            "function": {"name": "look", "arguments": ""},
        },
        {"index": 0, "function": {"arguments": "{"}},
        {"index": 0, "function": {"arguments": "}"}},
        {
            "index": 1,
            "id": "call_89abcdef0123456789abcdef_1",
            "type": "custom",
            "custom": {"name": "run", "input": ""},
        },
        {"index": 1, "custom": {"input": "ls"}},
    ]


def test_a_call_of_an_older_function_is_streamed_as_such() -> None:
    stage = Stage()
    sent = (
        stage.created(),
        stage.item(function(0)),
        stage.delta(events.FunctionCallArgumentsDelta, "{}"),
        stage.completed(),
    )
    chunks = read_stream(stream(*sent, functions=[{"name": "look"}]))
    assert [chunk["choices"][0]["delta"] for chunk in chunks[1:-1]] == [
        {"function_call": {"name": "look", "arguments": ""}},
        {"function_call": {"arguments": "{}"}},
    ]
    assert chunks[-1]["choices"][0]["finish_reason"] == "function_call"


def test_thoughts_summaries_and_refusals_have_fields_of_their_own() -> None:
    stage = Stage()
    found = deltas(
        stage.created(),
        stage.item(ReasoningItem("rs_1", [])),
        stage.delta(events.ReasoningTextDelta, "h", content_index=0),
        stage.delta(events.ReasoningTextDelta, "m", content_index=0),
        stage.delta(events.ReasoningSummaryTextDelta, "one", 1, summary_index=0),
        stage.delta(events.ReasoningSummaryTextDelta, "two", 1, summary_index=1),
        stage.delta(events.RefusalDelta, "no", 2, content_index=0),
        stage.completed(),
    )
    assert found == [
        {"reasoning_content": "h"},
        {"reasoning_content": "m"},
        {"reasoning_content": "\n\none"},
        {"reasoning_content": "\n\ntwo"},
        {"refusal": "no"},
    ]


def test_of_each_item_the_thought_or_its_summary_is_sent() -> None:
    stage = Stage()
    found = deltas(
        stage.created(),
        stage.delta(events.ReasoningTextDelta, "h", content_index=0),
        stage.delta(events.ReasoningSummaryTextDelta, "in short", summary_index=0),
        stage.delta(events.ReasoningTextDelta, "m", content_index=0),
        stage.delta(events.ReasoningSummaryTextDelta, "one", 1, summary_index=0),
        stage.delta(events.ReasoningTextDelta, "two", 1, content_index=0),
        stage.completed(),
    )
    assert [delta["reasoning_content"] for delta in found] == ["h", "m", "\n\none"]


def test_texts_of_two_messages_are_separated() -> None:
    stage = Stage()
    sent = (stage.created(), stage.text("a"), stage.text("", 2), stage.text("b", 2), stage.completed())
    assert [delta["content"] for delta in deltas(*sent)] == ["a", "", "\n\nb"]


def test_the_logprobs_of_a_stream_have_bytes_where_the_token_is_whole() -> None:
    stage = Stage()
    logprob = EventLogprob("h", -0.5, [EventTopLogprob("\ufffd", -1.5)])
    sent = (stage.created(), stage.text("h", logprobs=[logprob]), stage.completed())
    found = read_stream(stream(*sent, logprobs=True))[1]["choices"][0]["logprobs"]
    assert found["content"] == [
        {
            "token": "h",
            "logprob": -0.5,
            "bytes": [104],
            "top_logprobs": [{"token": "\ufffd", "logprob": -1.5, "bytes": None}],
        }
    ]
    assert read_stream(stream(*sent))[1]["choices"][0]["logprobs"] is None


def test_annotations_are_streamed() -> None:
    stage = Stage()

    def annotation(given: Json) -> Event:
        place = {"item_id": "i", "output_index": 0, "content_index": 0, "annotation_index": 0}
        return stage.event(events.OutputTextAnnotationAdded, annotation=wire.raw(given), **place)

    sent = (stage.created(), annotation(OTHER_ANNOTATION), annotation(CITATION), stage.completed())
    assert [delta["annotations"][0]["type"] for delta in deltas(*sent)] == ["url_citation"]


def test_padded_deltas_have_their_padding() -> None:
    stage = Stage()
    plain = stage.text("h")
    padded = PADDED[events.OutputTextDelta](**structs.asdict(plain), obfuscation="xyz")
    chunks = read_stream(stream(stage.created(), padded, stage.text("i"), stage.completed()))
    assert [chunk.get("obfuscation") for chunk in chunks] == [None, "xyz", None, None]


def test_events_that_the_api_has_no_place_for_are_left_out() -> None:
    translation, _ = translated(USER, stream=True)
    stage = Stage()
    assert translation.frames(stage.event(events.InProgress, response=response())) == b""


def test_what_checks_found_comes_with_the_end() -> None:
    stage = Stage()
    chunks = read_stream(stream(stage.created(), stage.completed(moderation=MODERATION)))
    assert [("moderation" in chunk) for chunk in chunks] == [False, True]


def test_a_choice_that_is_cut_off_ends_with_the_reason() -> None:
    stage = Stage()
    details = IncompleteDetails("max_output_tokens")
    end = stage.event(events.Incomplete, response=response(incomplete_details=details))
    assert read_stream(stream(stage.created(), end))[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("code", "kind"), [("invalid_prompt", "invalid_request_error"), ("server_error", "server_error")]
)
def test_a_failure_ends_the_stream_with_an_error(code: str, kind: str) -> None:
    stage = Stage()
    failed = stage.event(events.Failed, response=response(error=ResponseError(code, "No.")))
    blocks = read_blocks(stream(stage.created(), stage.text("h"), failed))
    assert json.loads(blocks[-1]) == {"error": {"type": kind, "code": code, "message": "No.", "param": None}}


def test_choices_are_told_apart_by_their_lane() -> None:
    one, two = Stage("0"), Stage("1")
    text = stream(
        *(one.created(), two.created(), two.text("b"), one.text("a"), one.completed(), two.completed()),
        n=2,
        stream_options={"include_usage": True},
    )
    *chunks, last = read_stream(text)
    assert [chunk["choices"][0]["index"] for chunk in chunks] == [0, 1, 1, 0, 0, 1]
    assert last["usage"]["completion_tokens"] == 10


def test_the_first_choice_begins_with_the_prompt() -> None:
    one, two = Stage("0"), Stage("1")
    sent = (Stage().created(), one.created(), two.created(), one.completed(), two.completed())
    chunks = read_stream(stream(*sent, n=2))
    assert [chunk["choices"][0]["index"] for chunk in chunks] == [0, 1, 0, 1]


def test_a_translation_that_has_read_nothing_can_name_an_error() -> None:
    assert ChatTranslation("fp").streams is False
    assert not isinstance(ChatTranslation("fp").form.fingerprint, UnsetType)
