"""The checks in `tests.wire` accept valid exchanges and report every kind of violation.

Each violation test changes one thing in a valid sample and matches the expected message, because a check that
fails for another reason would prove nothing.
"""

import copy
import json
import re
from typing import Any

import pytest

from tests.wire import Order, check_frame, check_http_error, check_response, check_sse_event, check_window

Json = dict[str, Any]
Events = list[Json]

# Builders ----------------------------------------------------------------------------------------


def usage(read: int = 5, written: int = 3) -> Json:
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read + written,
    }


def response(status: str = "in_progress", **changes: Any) -> Json:
    is_failed, is_incomplete = status == "failed", status == "incomplete"
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_700_000_000,
        "completed_at": 1_700_000_001 if status == "completed" else None,
        "status": status,
        "background": False,
        "error": {"code": "server_error", "message": "The engine died."} if is_failed else None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_incomplete else None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "model": "tiny",
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "usage": usage() if status in {"completed", "incomplete"} else None,
        "metadata": {},
        "user": None,
        **changes,
    }


def function_tool(**changes: Any) -> Json:
    tool = {"type": "function", "name": "look", "description": None, "strict": None}
    return {**tool, "parameters": {"type": "object", "x-note": {"any": "thing"}}, **changes}


def error_frame(**changes: Any) -> Json:
    error = {
        "type": "invalid_request_error",
        "code": "previous_response_not_found",
        "message": "Previous response with id 'resp_x' not found.",
        "param": "previous_response_id",
    }
    return {"type": "error", "status": 400, "error": error, **changes}


def lifecycle(verb: str, status: str, **changes: Any) -> Json:
    return {"type": f"response.{verb}", "response": response(status, **changes)}


def streamed_text(place: Json, kind: str, whole: str, text: str) -> Events:
    """Two deltas and the `.done` that repeats them."""
    extra: Json = {"logprobs": []} if kind == "output_text" else {}
    delta = {"type": f"response.{kind}.delta", **place, **extra}
    done = {"type": f"response.{kind}.done", **place, **extra}
    return [{**delta, "delta": text[:2]}, {**delta, "delta": text[2:]}, {**done, whole: text}]


def content_part(place: Json, part: Json) -> Events:
    kind = part["type"]
    whole = "refusal" if kind == "refusal" else "text"
    return [
        {"type": "response.content_part.added", **place, "part": {**part, whole: ""}},
        *streamed_text(place, kind, whole, part[whole]),
        {"type": "response.content_part.done", **place, "part": part},
    ]


def summary_part(place: Json, part: Json) -> Events:
    family = "response.reasoning_summary_part"
    return [
        {"type": f"{family}.added", **place, "part": {**part, "text": ""}},
        *streamed_text(place, "reasoning_summary_text", "text", part["text"]),
        {"type": f"{family}.done", **place, "part": part},
    ]


def text_part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def message(*parts: Json, item_id: str = "msg_1") -> Json:
    common = {"type": "message", "id": item_id, "role": "assistant"}
    return {**common, "status": "completed", "content": list(parts or [text_part("Hello.")])}


REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "Think first."}],
    "content": [{"type": "reasoning_text", "text": "One and one..."}],
}
FUNCTION_CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "look",
    "arguments": '{"at": "sky"}',
    "status": "completed",
}
CUSTOM_CALL = {
    "type": "custom_tool_call",
    "id": "ctc_1",
    "call_id": "call_2",
    "name": "run",
    "input": "print(1)",
    "status": "completed",
}
MCP_CALL = {
    "type": "mcp_call",
    "id": "mcp_1",
    "server_label": "files",
    "name": "read",
    "arguments": '{"path": "a"}',
    "output": "text of a",
    "error": None,
    "approval_request_id": None,
    "status": "completed",
}
FAILED_MCP_CALL = {
    **MCP_CALL,
    "id": "mcp_2",
    "output": None,
    "error": {"type": "mcp_protocol_error", "code": 1, "message": "no"},
    "status": "failed",
}
MCP_LIST = {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "files", "tools": []}
MCP_REQUEST = {
    "type": "mcp_approval_request",
    "id": "mcpr_1",
    "server_label": "files",
    "name": "read",
    "arguments": "{}",
}
COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "c2VjcmV0"}
REFUSAL = {"type": "refusal", "refusal": "I would rather not."}
CITATION = {
    "type": "url_citation",
    "url": "https://a.example",
    "title": "A",
    "start_index": 0,
    "end_index": 1,
}


def emptied(item: Json) -> Json:
    """Return the item as in its `output_item.added`."""
    if item["type"] == "mcp_approval_request":
        return dict(item)
    empty = {"content": [], "summary": [], "arguments": "", "input": "", "status": "in_progress"}
    if item["type"] == "mcp_call":
        empty |= {"output": None, "error": None}
    return {**item, **{key: value for key, value in empty.items() if key in item}}


def item_events(item: Json, index: int) -> Events:
    place = {"item_id": item["id"], "output_index": index}
    inside: Events = []
    if item["type"] == "function_call":
        inside = streamed_text(place, "function_call_arguments", "arguments", item["arguments"])
    elif item["type"] == "mcp_call":
        inside = [
            {"type": "response.mcp_call.in_progress", **place},
            *streamed_text(place, "mcp_call_arguments", "arguments", item["arguments"]),
            {"type": f"response.mcp_call.{item['status']}", **place},
        ]
    elif item["type"] == "mcp_list_tools":
        verbs = ("in_progress", "completed")
        inside = [{"type": f"response.mcp_list_tools.{verb}", **place} for verb in verbs]
    elif item["type"] == "custom_tool_call":
        inside = streamed_text(place, "custom_tool_call_input", "input", item["input"])
    elif item["type"] == "compaction":
        inside = [{"type": "response.compaction.compacting", **place}]
    for number, part in enumerate(item.get("summary", [])):
        inside += summary_part({**place, "summary_index": number}, part)
    for number, part in enumerate(item.get("content", [])):
        inside += content_part({**place, "content_index": number}, part)
    return [
        {"type": "response.output_item.added", "output_index": index, "item": emptied(item)},
        *inside,
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]


def numbered(events: Events, lane: str | None = None) -> Events:
    """Return copies of the events with sequence numbers and a lane."""
    marks = {} if lane is None else {"stream_id": lane}
    events = copy.deepcopy(events)
    return [{**event, "sequence_number": n, **marks} for n, event in enumerate(events)]


def turn(
    *items: Json,
    status: str = "completed",
    lane: str | None = None,
    **changes: Any,
) -> Events:
    events = [lifecycle("created", "in_progress", **changes)]
    events.append(lifecycle("in_progress", "in_progress", **changes))
    for index, item in enumerate(items):
        events += item_events(item, index)
    events.append(lifecycle(status, status, **{"output": list(items), **changes}))
    return numbered(events, lane)


def warmup(status: str = "completed", **changes: Any) -> Events:
    terminal = {"usage": usage(written=0), **changes} if status == "completed" else changes
    return numbered(
        [lifecycle("created", "in_progress"), lifecycle(status, status, **terminal)],
    )


def steer(verb: str, number: int, target: str = "resp_1", **changes: Any) -> Json:
    event: Json = {"type": f"response.steer.{verb}", "sequence_number": number, **changes}
    event["steer"] = {"id": "steer_1", "previous_response_id": target}
    if verb == "pending":
        stub = {"type": "function_call_output", "call_id": "call_1", "name": "look"}
        event |= {"reason": "waiting_for_required_input", "required_input": [stub]}
    if verb == "failed":
        event["steer"]["input"] = "Stop."
        code = "response_not_found"
        event["error"] = {"type": "invalid_request_error", "code": code, "message": "No."}
    return event


def see_all(events: Events) -> Order:
    """Check the events of a whole connection, after which no response may be open."""
    order = Order()
    for event in events:
        order.see(event)
    order.finish()
    return order


EVERYTHING = (
    REASONING,
    message(text_part("Hello."), REFUSAL),
    FUNCTION_CALL,
    CUSTOM_CALL,
    MCP_CALL,
    COMPACTION,
)

LAWFUL = {
    "text": turn(message()),
    "every kind of item": turn(*EVERYTHING),
    "named lane": turn(message(), lane="main"),
    "no output": turn(),
    "cut short": turn({**message(), "status": "incomplete"}, status="incomplete"),
    "failed late": turn(message(), status="failed"),
    "failed without its output": turn(message(), status="failed", output=[]),
    "warmup": warmup(),
    "failed warmup": warmup("failed"),
    "error alone": [error_frame(), error_frame(stream_id="main", sequence_number=0)],
    "steered": [
        *turn(FUNCTION_CALL),
        steer("pending", 8),
        steer("failed", 0),
        steer("failed", 3, target="resp_unknown"),
    ],
}


def complains(complaint: str) -> Any:
    return pytest.raises(AssertionError, match=re.escape(complaint))


# One document ------------------------------------------------------------------------------------


@pytest.mark.parametrize("events", LAWFUL.values(), ids=LAWFUL)
def test_valid_frames_pass_and_are_returned_parsed(events: Events) -> None:
    for event in events:
        assert check_frame(json.dumps(event)) == event
        assert check_frame(json.dumps(event).encode()) == event


@pytest.mark.parametrize("name", ["text", "every kind of item", "cut short", "failed late"])
def test_valid_events_pass_over_sse(name: str) -> None:
    for event in LAWFUL[name]:
        assert check_sse_event(event["type"], json.dumps(event)) == event


@pytest.mark.parametrize("status", ["completed", "failed", "incomplete", "in_progress", "queued"])
def test_a_valid_response_passes_as_text_bytes_and_object(status: str) -> None:
    body = response(status)
    text = json.dumps(body)
    assert check_response(body) == check_response(text) == check_response(text.encode()) == body


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ("[DONE]", "not JSON"),
        (b'{"type": "\xff"}', "not JSON in UTF-8"),
        ('{"type": "error", "type": "error"}', "duplicate key"),
        ('{"type": NaN}', "NaN is not JSON"),
        ("{}", "unknown event type None"),
        ('{"type": ["error"]}', "unknown event type"),
        ('{"type": "response.gone"}', "unknown event type 'response.gone'"),
        ('{"type": "response.done"}', "keys of response.done"),
        ('{"type": "codex.rate_limits"}', "unknown event type"),
    ],
)
def test_a_message_that_is_no_event_is_refused(raw: str | bytes, complaint: str) -> None:
    with complains(complaint):
        check_frame(raw)


def test_lone_surrogates_are_refused() -> None:
    with complains("not a valid ResponseTextWsDelta"):
        check_frame(json.dumps({**LAWFUL["text"][4], "delta": "\ud800"}))


ADDED_PLACE = {"item_id": "msg_1", "output_index": 0, "content_index": 0}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"surplus": 1}, "response.surplus: Extra inputs"),
        ({"output": [{**message(), "surplus": 1}]}, "surplus: Extra inputs"),
        ({"output": [message({**text_part("a"), "surplus": 1})]}, "surplus: Extra inputs"),
        ({"tools": [function_tool(surplus=1)]}, "FunctionTool.surplus: Extra inputs"),
        ({"usage": {**usage(), "surplus": 1}}, "response.usage.surplus: Extra inputs"),
        ({"text": {"format": {"type": "text", "surplus": 1}}}, "surplus: Extra inputs"),
        ({"tool_choice": {"type": "shell", "surplus": 1}}, "surplus: Extra inputs"),
        ({"tools": [{"type": "acme_tool"}]}, "response.tools.0"),
        ({"tools": ["acme_tool"]}, "response.tools.0"),
        ({"tools": "none"}, "response.tools: Input should be a valid array"),
        ({"created_at": "1"}, "response.created_at: Input should be a valid number"),
        ({"max_output_tokens": 1.0}, "max_output_tokens: Input should be a valid integer"),
        ({"metadata": {"a": 1}}, "response.metadata.a: Input should be a valid string"),
        ({"output": [{**FUNCTION_CALL, "namespace": None}]}, "function_call.namespace is null"),
        ({"output": [{**CUSTOM_CALL, "asked_by": "me"}]}, "asked_by: Extra inputs"),
        ({"presence_penalty": "0"}, "response.presence_penalty has the wrong type"),
        ({"frequency_penalty": False}, "response.frequency_penalty has the wrong type"),
        ({"store": 1}, "response.store has the wrong type"),
        ({"text": {"format": {"type": "text"}, "verbosity": None}}, "text.verbosity is null"),
        ({"text": {}}, "text.format is missing or null"),
        ({"text": {"format": None}}, "text.format is missing or null"),
        ({"completed_at": None}, "completed_at is None when completed"),
        ({"usage": None}, "usage is null when completed"),
        ({"error": {"code": "server_error", "message": "m"}}, "error is {"),
        ({"incomplete_details": {"reason": "steered"}}, "incomplete_details is {"),
        ({"usage": {**usage(), "total_tokens": 9}}, "usage.total_tokens: found 9, expected 8"),
        ({"usage": usage(read=1)}, "2 cached of 1 input tokens"),
        (
            {"usage": {**usage(), "output_tokens_details": {"reasoning_tokens": 4}}},
            "4 reasoning of 3 output tokens",
        ),
    ],
)
def test_a_wrong_response_object_is_refused_everywhere(change: Json, complaint: str) -> None:
    body = response("completed", **change)
    event = {"type": "response.completed", "sequence_number": 1, "response": body}
    with complains(complaint):
        check_frame(json.dumps(event))
    with complains(complaint):
        check_sse_event("response.completed", json.dumps(event))
    with complains(complaint.removeprefix("response.")):
        check_response(body)


@pytest.mark.parametrize(
    ("status", "change", "complaint"),
    [
        ("in_progress", {"completed_at": 1}, "completed_at is 1 when in_progress"),
        ("in_progress", {"usage": usage()}, "usage is already set when in_progress"),
        ("queued", {"usage": usage()}, "usage is already set when queued"),
        ("failed", {"error": None}, "error is None when failed"),
        ("incomplete", {"incomplete_details": None}, "incomplete_details is None when incomplete"),
        ("incomplete", {"usage": None}, "usage is null when incomplete"),
    ],
)
def test_outcome_and_status_must_agree(status: str, change: Json, complaint: str) -> None:
    with complains(complaint):
        check_response(response(status, **change))


@pytest.mark.parametrize("key", response())
def test_every_key_of_the_response_is_required(key: str) -> None:
    (event,) = numbered([lifecycle("created", "in_progress")])
    del event["response"][key]
    with complains(key):
        check_frame(json.dumps(event))


NOT_NULL = """
id object created_at status model output tools tool_choice truncation parallel_tool_calls text top_p
presence_penalty frequency_penalty top_logprobs temperature store background service_tier
"""


@pytest.mark.parametrize("key", NOT_NULL.split())
def test_null_is_refused_where_other_schemas_refuse_it(key: str) -> None:
    with complains(key):
        check_response({**response(), key: None})


@pytest.mark.parametrize("key", sorted(response().keys() - set(NOT_NULL.split())))
def test_null_is_accepted_everywhere_else(key: str) -> None:
    check_response({**response(), key: None})


def test_an_echoed_function_tool_passes_with_nulls() -> None:
    check_response(response(tools=[function_tool(parameters=None)]))


@pytest.mark.parametrize("key", ["description", "parameters", "strict"])
def test_an_echoed_function_tool_carries_all_its_keys(key: str) -> None:
    tool = function_tool()
    del tool[key]
    with complains(f"function tool lacks the keys ['{key}']"):
        check_response(response(tools=[tool]))


def test_unknown_tool_types_pass_only_if_they_are_named() -> None:
    body = response(tools=[{"type": "acme_tool", "any": "thing"}, function_tool()])
    event = {"type": "response.created", "sequence_number": 0, "response": body}
    named = frozenset({"acme_tool"})
    assert check_frame(json.dumps(event), named) == event
    assert check_sse_event("response.created", json.dumps(event), named) == event
    assert check_response(body, named) == body
    with complains("tools.0"):
        check_response(body, frozenset({"other_tool"}))


def test_extra_keys_are_allowed_only_on_the_response() -> None:
    with complains("store: Extra inputs"):
        check_frame(json.dumps({**LAWFUL["text"][0], "store": True}))
    with complains("store: Extra inputs"):
        check_response(response(output=[{**message(), "store": True}]))


@pytest.mark.parametrize("lane", [None, 7, "", "bad name!", "x" * 257])
def test_a_stream_id_that_no_client_can_send_is_refused(lane: object) -> None:
    for event in (LAWFUL["text"][0], LAWFUL["text"][4], error_frame(), steer("accepted", 1)):
        with complains("stream_id"):
            check_frame(json.dumps({**event, "stream_id": lane}))


def broken_error(**changes: Any) -> Json:
    frame = error_frame()
    frame["error"] |= changes
    return frame


@pytest.mark.parametrize(
    ("frame", "complaint"),
    [
        (error_frame(status=None), "error has the status None"),
        (error_frame(status=200), "error has the status 200"),
        (error_frame(status="400"), "status: Input should be a valid integer"),
        (error_frame(headers={"a": "b"}), "headers: Extra inputs"),
        (error_frame(error="text"), "error: Input should be an object"),
        (broken_error(type=None), "error.type: Input should be a valid string"),
        (broken_error(type=""), "error.type is missing"),
        (broken_error(code=None), "error.code is missing"),
        (broken_error(code=""), "error.code is missing"),
        (broken_error(message=""), "error.message is missing"),
        (broken_error(surplus=1), "error.surplus: Extra inputs"),
        ({"type": "error", "code": "c", "message": "m", "status": 400}, "error: Field required"),
    ],
)
def test_a_wrong_websocket_error_is_refused(frame: Json, complaint: str) -> None:
    with complains(complaint):
        check_frame(json.dumps(frame))


def test_a_websocket_error_always_has_a_status() -> None:
    frame = error_frame()
    del frame["status"]
    with complains("error has the status None"):
        check_frame(json.dumps(frame))


def flat_error(**changes: Any) -> Json:
    error = {"type": "error", "code": None, "message": "Broken.", "param": None}
    return {**error, "sequence_number": 0, **changes}


def test_a_flat_error_passes_over_sse() -> None:
    assert check_sse_event("error", json.dumps(flat_error())) == flat_error()


@pytest.mark.parametrize(
    ("name", "event", "complaint"),
    [
        ("response.created", flat_error(), "name of the SSE event"),
        ("error", flat_error(stream_id="main"), "stream_id over SSE"),
        ("error", flat_error(status=400), "status: Extra inputs"),
        ("error", flat_error(message=""), "error.message is empty"),
        ("error", error_frame(sequence_number=0), "message: Field required"),
        ("response.steer.accepted", steer("accepted", 1), "unknown event type"),
        ("response.created", numbered([lifecycle("created", "in_progress")], "a")[0], "stream_id"),
    ],
)
def test_a_wrong_sse_event_is_refused(name: str, event: Json, complaint: str) -> None:
    with complains(complaint):
        check_sse_event(name, json.dumps(event))


@pytest.mark.parametrize("key", ["type", "code", "message", "param", "sequence_number"])
def test_a_flat_error_carries_all_its_keys(key: str) -> None:
    event = flat_error()
    del event[key]
    with complains(key):
        check_sse_event("error", json.dumps(event))


def http_error(**changes: Any) -> Json:
    return {"error": {"message": "No.", "type": "t", "param": None, "code": "c", **changes}}


def test_an_http_error_passes_as_text_and_object() -> None:
    assert check_http_error(http_error()) == check_http_error(json.dumps(http_error()))


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({}, "keys of the error body"),
        ({**http_error(), "surplus": 1}, "keys of the error body"),
        ({"error": "text"}, "error is not an object"),
        ({"error": {"message": "No.", "type": "t", "param": None}}, "keys of the error"),
        (http_error(surplus=1), "keys of the error"),
        (http_error(message=""), "error.message"),
        (http_error(type=None), "error.type"),
        (http_error(param=1), "error.param"),
        (http_error(code=404), "error.code"),
        ("[]", "not a JSON object"),
    ],
)
def test_a_wrong_http_error_is_refused(body: Json | str, complaint: str) -> None:
    with complains(complaint):
        check_http_error(body)


# Sequences of events -----------------------------------------------------------------------------


@pytest.mark.parametrize("events", LAWFUL.values(), ids=LAWFUL)
def test_valid_sequences_pass(events: Events) -> None:
    see_all(events)


def test_finished_responses_and_errors_are_recorded_in_order() -> None:
    first = turn(message(), lane="a")
    second = turn(message(), lane="b", id="resp_2")
    refused = error_frame(stream_id="a")
    order = see_all([*first[:5], *second, refused, *first[5:]])
    assert order.responses == [second[-1]["response"], first[-1]["response"]]
    assert order.errors == [refused]


def test_a_lane_may_have_one_response_after_the_other() -> None:
    chained = turn(message(), id="resp_2", previous_response_id="resp_1")
    order = see_all([*turn(message()), *chained])
    assert [finished["id"] for finished in order.responses] == ["resp_1", "resp_2"]


def test_a_failed_response_may_have_part_of_the_open_item() -> None:
    partial = {**message(item_id="msg_2"), "status": "incomplete"}
    events = turn(message(), partial, status="failed")
    see_all(numbered([event for event in events if event is not events[-2]]))


def test_a_failed_response_may_lack_finished_items_but_keeps_their_order() -> None:
    second = message(item_id="msg_2")
    events = turn(message(), second, status="failed")
    see_all(changed(events, "response.failed", response__output=[second]))
    with complains("output of response.failed has foreign items"):
        see_all(changed(events, "response.failed", response__output=[second, message()]))


def test_a_failed_response_that_is_kept_lacks_only_its_last_items() -> None:
    second = message(item_id="msg_2")
    events = changed(turn(message(), second, status="failed"), "response.failed", response__usage=usage())
    see_all(changed(events, "response.failed", response__output=[message()]))
    with complains("output of a failed response that is kept"):
        see_all(changed(events, "response.failed", response__output=[second]))


def test_a_failed_response_may_lack_the_open_item() -> None:
    events = turn(message(), {**FUNCTION_CALL, "status": "incomplete"}, status="failed")
    events = numbered([event for event in events if event is not events[-2]])
    see_all(changed(events, "response.failed", response__output=[]))
    see_all(changed(events, "response.failed", response__output=[message()]))


def test_an_incomplete_call_may_lack_its_done_event() -> None:
    events = turn({**FUNCTION_CALL, "status": "incomplete"}, status="incomplete")
    see_all(without(events, "response.function_call_arguments.done"))


def test_annotations_are_allowed_inside_their_part() -> None:
    see_all(annotated())


def test_the_answer_to_a_steer_has_a_number_of_the_steered_response() -> None:
    events = turn(message())
    see_all(numbered([*events[:3], steer("accepted", 0), *events[3:]]))


def test_an_abandoned_connection_may_leave_a_response_open() -> None:
    order = Order()
    for event in turn(message())[:-1]:
        order.see(event)
    with complains("responses without a terminal event: {None: 'resp_1'}"):
        order.finish()
    order.finish(abandoned=True)


def annotated(annotation_index: int = 0, annotations: tuple[Json, ...] = (CITATION,)) -> Events:
    """Return a text whose part has `annotations`, one of which was streamed."""
    events = turn(message({**text_part("Hello."), "annotations": list(annotations)}))
    added = find(events, "response.content_part.added")
    events[added]["part"]["annotations"] = []
    annotation = {
        "type": "response.output_text.annotation.added",
        **ADDED_PLACE,
        "annotation_index": annotation_index,
        "annotation": CITATION,
    }
    events.insert(added + 1, annotation)
    return numbered(events)


def find(events: Events, kind: str) -> int:
    return [event["type"] for event in events].index(kind)


def without(events: Events, kind: str) -> Events:
    """Leave out the first event of a type."""
    at = find(events, kind)
    return numbered(events[:at] + events[at + 1 :])


def doubled(events: Events, kind: str) -> Events:
    at = find(events, kind)
    return numbered(events[: at + 1] + events[at:])


def changed(events: Events, kind: str, **changes: Any) -> Events:
    """Change fields of the first event of a type; `item__id` reaches one level down."""
    events = copy.deepcopy(events)
    event = events[find(events, kind)]
    for path, value in changes.items():
        *outer, key = path.split("__")
        (event[outer[0]] if outer else event)[key] = value
    return events


def inserted(events: Events, at: int, *more: Json) -> Events:
    return numbered([*events[:at], *more, *events[at:]])


TEXT = turn(message())
CALL = turn(FUNCTION_CALL)
CUSTOM = turn(CUSTOM_CALL)
MCP = turn(MCP_CALL)
LISTED = turn(MCP_LIST)
REASONED = turn(REASONING)
REFUSED = turn(message(REFUSAL))
TWO_PARTS = turn(message(text_part("One."), text_part("Two.")))
TWO_ITEMS = turn(message(), FUNCTION_CALL)
FAILED = turn(message(), status="failed")
PROGRESS = {"type": "response.web_search_call.searching", "item_id": "msg_1", "output_index": 0}
AUDIO = {"type": "response.audio.delta", "delta": "AAAA"}

VIOLATIONS: dict[str, tuple[Events, str]] = {
    # Lifecycle
    "nothing before created": (TEXT[1:], "no response is open on lane None"),
    "created is not number 0": (
        changed(TEXT, "response.created", sequence_number=1),
        "sequence_number: found 1, expected 0",
    ),
    "gap in the numbers": ([*TEXT[:4], *TEXT[5:]], "sequence_number: found 5, expected 4"),
    "number repeated": ([*TEXT[:4], *TEXT[3:]], "sequence_number: found 3, expected 4"),
    "no number": (
        changed(TEXT, "response.output_text.delta", sequence_number=None),
        "sequence_number: found None",
    ),
    "created as completed": (
        changed(TEXT, "response.created", response__status="completed"),
        "status in response.created",
    ),
    "created with output": (
        changed(TEXT, "response.created", response__output=[message()]),
        "output in response.created",
    ),
    "two responses on a lane": (
        [*TEXT[:3], *turn(id="resp_2")],
        "response.created while lane None is busy",
    ),
    "two responses on a named lane": (
        [*turn(lane="a")[:1], *turn(id="resp_2", lane="a")],
        "response.created while lane 'a' is busy",
    ),
    "id used twice": ([*TEXT, *TEXT], "second response with the id resp_1"),
    "no in_progress": (
        without(TEXT, "response.in_progress"),
        "response.output_item.added before response.in_progress",
    ),
    "second in_progress": (doubled(TEXT, "response.in_progress"), "second response.in_progress"),
    "in_progress of another response": (
        changed(TEXT, "response.in_progress", response__id="resp_2"),
        "id in response.in_progress",
    ),
    "in_progress as queued": (
        changed(TEXT, "response.in_progress", response__status="queued"),
        "status in response.in_progress",
    ),
    "queued": (
        inserted(TEXT, 1, lifecycle("queued", "queued")),
        "response.queued of a response that is waited for",
    ),
    "created_at moves": (
        changed(TEXT, "response.completed", response__created_at=1),
        "created_at in response.completed",
    ),
    "parent changes": (
        changed(TEXT, "response.completed", response__previous_response_id="resp_0"),
        "previous_response_id in response.completed",
    ),
    "terminal event of another response": (
        changed(TEXT, "response.completed", response__id="resp_2"),
        "id in response.completed",
    ),
    "no terminal event": (TEXT[:-1], "responses without a terminal event: {None: 'resp_1'}"),
    "two terminal events": (doubled(TEXT, "response.completed"), "no response is open"),
    "delta after the end": ([*TEXT, TEXT[4]], "no response is open on lane None"),
    "event on another lane": (
        [*TEXT[:4], {**TEXT[4], "stream_id": "b"}],
        "no response is open on lane 'b'",
    ),
    "lane is lost": (
        [*turn(message(), lane="a")[:4], TEXT[4]],
        "no response is open on lane None",
    ),
    "lane is null": ([{**TEXT[0], "stream_id": None}], "stream_id is not a string"),
    # Terminal events
    "completed as failed": (
        changed(TEXT, "response.completed", response__status="failed"),
        "status in response.completed",
    ),
    "completed without a time": (
        changed(TEXT, "response.completed", response__completed_at=None),
        "completed_at is None when completed",
    ),
    "completed without usage": (
        changed(TEXT, "response.completed", response__usage=None),
        "usage is null when completed",
    ),
    "wrong sum of tokens": (
        changed(TEXT, "response.completed", response__usage={**usage(), "total_tokens": 1}),
        "usage.total_tokens",
    ),
    "output is lost": (
        changed(TEXT, "response.completed", response__output=[]),
        "output in response.completed",
    ),
    "output is altered": (
        changed(TEXT, "response.completed", response__output=[message(text_part("Bye."))]),
        "output in response.completed",
    ),
    "output is reordered": (
        changed(TWO_ITEMS, "response.completed", response__output=[FUNCTION_CALL, message()]),
        "output in response.completed",
    ),
    "completed with an open item": (
        without(TEXT, "response.output_item.done"),
        "response.completed while an item is open",
    ),
    "failed with an invented item": (
        changed(FAILED, "response.failed", response__output=[FUNCTION_CALL]),
        "output of response.failed has foreign items",
    ),
    "failed with an altered item": (
        changed(FAILED, "response.failed", response__output=[message(text_part("Bye."))]),
        "output of response.failed has foreign items",
    ),
    "failed, open item as completed": (
        without(FAILED, "response.output_item.done"),
        "the open item is called completed",
    ),
    "failed, open item of another type": (
        changed(
            without(FAILED, "response.output_item.done"),
            "response.failed",
            response__output=[{**FUNCTION_CALL, "id": "msg_1", "status": "incomplete"}],
        ),
        "type of the open item",
    ),
    "failed without an error": (
        changed(FAILED, "response.failed", response__error=None),
        "error is None when failed",
    ),
    "warmup that generates": (warmup(usage=usage()), "output tokens of a warmup"),
    "incomplete at once": (
        warmup("incomplete", usage=usage(written=0)),
        "response.incomplete before response.in_progress",
    ),
    # Items
    "items do not start at 0": (
        changed(TEXT, "response.output_item.added", output_index=1),
        "output_index of the added item: found 1, expected 0",
    ),
    "item index is not next": (
        [*TWO_ITEMS[:9], {**TWO_ITEMS[9], "output_index": 0}],
        "output_index of the added item: found 0, expected 1",
    ),
    "two open items": (
        without(TWO_ITEMS, "response.output_item.done"),
        "an item is added while another one is open",
    ),
    "item id used twice": (turn(message(), message()), "second item msg_1"),
    "item without an id": (
        changed(CALL, "response.output_item.added", item__id=None),
        "function_call item has no id",
    ),
    "item added as completed": (
        changed(TEXT, "response.output_item.added", item__status="completed"),
        "status of the added item",
    ),
    "message added with content": (
        changed(TEXT, "response.output_item.added", item__content=[text_part("Hello.")]),
        "message item is added with ['content']",
    ),
    "reasoning added with a summary": (
        changed(REASONED, "response.output_item.added", item__summary=REASONING["summary"]),
        "reasoning item is added with ['summary']",
    ),
    "call added with arguments": (
        changed(CALL, "response.output_item.added", item__arguments="{}"),
        "function_call item is added with ['arguments']",
    ),
    "custom call added with input": (
        changed(CUSTOM, "response.output_item.added", item__input="x"),
        "custom_tool_call item is added with ['input']",
    ),
    "item done that is not open": (
        doubled(TEXT, "response.output_item.done"),
        "response.output_item.done outside of an open item",
    ),
    "item done at another index": (
        changed(TEXT, "response.output_item.done", output_index=1),
        "output_index of the done item",
    ),
    "item changes its id": (
        changed(TEXT, "response.output_item.done", item__id="msg_2"),
        "id of the finished item",
    ),
    "item changes its type": (
        changed(TEXT, "response.output_item.done", item__type="reasoning"),
        "type of the finished item",
    ),
    "call changes its call_id": (
        changed(CALL, "response.output_item.done", item__call_id="call_9"),
        "call_id of the finished item",
    ),
    "call changes its name": (
        changed(CALL, "response.output_item.done", item__name="leap"),
        "name of the finished item",
    ),
    "item done but in progress": (
        changed(TEXT, "response.output_item.done", item__status="in_progress"),
        "finished item is still in_progress",
    ),
    "message done with other content": (
        changed(TEXT, "response.output_item.done", item__content=[text_part("Bye.")]),
        "content of the finished item",
    ),
    "reasoning done without its summary": (
        changed(REASONED, "response.output_item.done", item__summary=[]),
        "summary of the finished item",
    ),
    "reasoning done without its content": (
        changed(REASONED, "response.output_item.done", item__content=None),
        "content of the finished item",
    ),
    "call done with other arguments": (
        changed(CALL, "response.output_item.done", item__arguments="{}"),
        "arguments of the finished item",
    ),
    "call cut short with other arguments": (
        changed(CALL, "response.output_item.done", item__arguments="{", item__status="incomplete"),
        "arguments of the finished item",
    ),
    "custom call done with other input": (
        changed(CUSTOM, "response.output_item.done", item__input="x"),
        "input of the finished item",
    ),
    "call without arguments.done": (
        without(CALL, "response.function_call_arguments.done"),
        "function_call item is done before its text is",
    ),
    "call without any arguments event": (
        numbered([*turn({**FUNCTION_CALL, "arguments": ""})[:3], *CALL[-2:]]),
        "function_call item is done before its text is",
    ),
    "hosted call without arguments.done": (
        without(MCP, "response.mcp_call_arguments.done"),
        "completed before the arguments are complete",
    ),
    "hosted call that never begins": (
        without(MCP, "response.mcp_call.in_progress"),
        "completed is the first event of an item",
    ),
    "hosted call without an end": (without(MCP, "response.mcp_call.completed"), "end of a call"),
    "hosted call with another end than its item": (
        changed(MCP, "response.output_item.done", item__status="failed"),
        "end of a call",
    ),
    "hosted call with an error though it completed": (
        changed(MCP, "response.output_item.done", item__error=FAILED_MCP_CALL["error"]),
        "error when completed",
    ),
    "progress after the end of a hosted call": (
        inserted(MCP, 8, {**MCP[3], "sequence_number": 0}),
        "in_progress after the end of a hosted call",
    ),
    "an item within a hosted call whose arguments are not complete": (
        inserted(MCP, 5, {**MCP[2], "output_index": 1}),
        "an item is added while another one is open",
    ),
    "a response that ends while a hosted call runs": (
        numbered([*MCP[:7], MCP[-1]]),
        "while an item is open",
    ),
    "an item before its response is in progress": (
        numbered([LISTED[0], *LISTED[2:6], LISTED[1], *LISTED[6:]]),
        "an item before response.in_progress",
    ),
    "a list that ends otherwise than its item says": (
        changed(LISTED, "response.output_item.done", item__error="unreachable"),
        "end of a list",
    ),
    "a changed approval request": (
        changed(turn(MCP_REQUEST), "response.output_item.done", item__arguments="[]"),
        "what is to be approved",
    ),
    "hosted call with other arguments than its empty .done": (
        numbered([*MCP[:4], {**MCP[6], "arguments": ""}, *MCP[-3:]]),
        "arguments of the finished item",
    ),
    "custom call without input.done": (
        without(CUSTOM, "response.custom_tool_call_input.done"),
        "custom_tool_call item is done before its text is",
    ),
    "progress without an item": (inserted(TEXT, 2, PROGRESS), "outside of an open item"),
    "event that belongs to no item": (
        inserted(TEXT, 3, AUDIO),
        "output_index of response.audio.delta: found None",
    ),
    # Parts
    "part without an item": (
        without(TEXT, "response.output_item.added"),
        "response.content_part.added outside of an open item",
    ),
    "part of another item": (
        changed(TEXT, "response.content_part.added", item_id="msg_2"),
        "item_id of response.content_part.added",
    ),
    "part at another output index": (
        changed(TEXT, "response.content_part.added", output_index=1),
        "output_index of response.content_part.added",
    ),
    "parts do not start at 0": (
        changed(TEXT, "response.content_part.added", content_index=1),
        "content_index: found 1, expected 0",
    ),
    "summary parts do not start at 0": (
        changed(REASONED, "response.reasoning_summary_part.added", summary_index=1),
        "summary_index: found 1, expected 0",
    ),
    "two open parts": (
        without(TWO_PARTS, "response.content_part.done"),
        "a part is added while another one is open",
    ),
    "reasoning text in a message": (
        changed(TEXT, "response.content_part.added", part={"type": "reasoning_text", "text": ""}),
        "reasoning_text part in the content of a message item",
    ),
    "output text in reasoning": (
        changed(REASONED, "response.content_part.added", part=text_part("")),
        "output_text part in the content of a reasoning item",
    ),
    "summary in a message": (
        inserted(
            TEXT,
            3,
            {
                "type": "response.reasoning_summary_part.added",
                "item_id": "msg_1",
                "output_index": 0,
                "summary_index": 0,
                "part": {"type": "summary_text", "text": ""},
            },
        ),
        "summary_text part in the summary of a message item",
    ),
    "part added with text": (
        changed(TEXT, "response.content_part.added", part=text_part("He")),
        "text of a part that was just added",
    ),
    "part done that is not open": (
        doubled(TEXT, "response.content_part.done"),
        "response.content_part.done outside of an open content part",
    ),
    "part done at another index": (
        changed(TEXT, "response.content_part.done", content_index=1),
        "content_index: found 1, expected 0",
    ),
    "part changes its type": (
        changed(TEXT, "response.content_part.done", part=REFUSAL),
        "type of the finished part",
    ),
    "part done before its text": (
        without(TEXT, "response.output_text.done"),
        "output_text part is done before its text is",
    ),
    "part done with another text": (
        changed(TEXT, "response.content_part.done", part=text_part("Bye.")),
        "text of the finished part",
    ),
    "refusal part done with another text": (
        changed(REFUSED, "response.content_part.done", part={**REFUSAL, "refusal": "No."}),
        "text of the finished part",
    ),
    "summary part done with another text": (
        changed(REASONED, "response.reasoning_summary_part.done", part__text="x"),
        "text of the finished part",
    ),
    "part left open": (
        without(TEXT, "response.content_part.done"),
        "item is done while one of its parts is open",
    ),
    "annotation out of order": (annotated(annotation_index=1), "annotation_index"),
    "annotation never streamed": (
        annotated(annotations=(CITATION, CITATION)),
        "annotations of the part",
    ),
    "annotation outside of a part": (
        inserted(TEXT, 3, annotated()[4]),
        "annotation.added outside of an open content part",
    ),
    "annotation in a refusal": (
        inserted(REFUSED, 4, annotated()[4]),
        "type of the part with an annotation",
    ),
    # Texts
    "delta outside of a part": (
        without(TEXT, "response.content_part.added"),
        "response.output_text.delta outside of an open content part",
    ),
    "summary delta in a content part": (
        inserted(REASONED, 9, REASONED[4]),
        "response.reasoning_summary_text.delta outside of an open summary part",
    ),
    "delta of another item": (
        changed(TEXT, "response.output_text.delta", item_id="msg_2"),
        "item_id of response.output_text.delta",
    ),
    "delta at another output index": (
        changed(TEXT, "response.output_text.delta", output_index=1),
        "output_index of response.output_text.delta",
    ),
    "delta at another content index": (
        changed(TEXT, "response.output_text.delta", content_index=1),
        "content_index: found 1, expected 0",
    ),
    "summary delta at another index": (
        changed(REASONED, "response.reasoning_summary_text.delta", summary_index=1),
        "summary_index: found 1, expected 0",
    ),
    "delta for another kind of item": (
        inserted(TEXT, 3, {**CALL[3], "item_id": "msg_1"}),
        "type of the item for response.function_call_arguments.delta",
    ),
    "delta for another kind of part": (
        changed(TEXT, "response.output_text.delta", type="response.refusal.delta"),
        "type of the part for response.refusal.delta",
    ),
    "delta after its done": (
        inserted(TEXT, find(TEXT, "response.output_text.done") + 1, TEXT[4]),
        "delta after its .done",
    ),
    "second done of a text": (
        doubled(TEXT, "response.output_text.done"),
        "second .done for one text",
    ),
    "lost text delta": (
        without(TEXT, "response.output_text.delta"),
        "text of .done against its deltas",
    ),
    "lost refusal delta": (
        without(REFUSED, "response.refusal.delta"),
        "text of .done against its deltas",
    ),
    "lost reasoning delta": (
        without(REASONED, "response.reasoning_text.delta"),
        "text of .done against its deltas",
    ),
    "lost summary delta": (
        without(REASONED, "response.reasoning_summary_text.delta"),
        "text of .done against its deltas",
    ),
    "lost arguments delta": (
        without(CALL, "response.function_call_arguments.delta"),
        "text of .done against its deltas",
    ),
    "lost input delta": (
        without(CUSTOM, "response.custom_tool_call_input.delta"),
        "text of .done against its deltas",
    ),
    # Errors and steering
    "error with a negative number": (
        [error_frame(sequence_number=-1)],
        "sequence_number of an error: -1",
    ),
    "error with a null number": (
        [error_frame(sequence_number=None)],
        "sequence_number of an error: None",
    ),
    "error with a null lane": ([error_frame(stream_id=None)], "stream_id is not a string"),
    "answer to steering not counted": (
        [*TEXT[:3], steer("accepted", 0), *TEXT[3:]],
        "sequence_number: found 0, expected 3",
    ),
    "answer to steering on another lane": (
        [*TEXT[:3], steer("accepted", 3, stream_id="a")],
        "lane of the steered response",
    ),
    "unknown response accepts steering": (
        [steer("accepted", 0)],
        "answer to steering an unknown response",
    ),
    "finished response accepts steering": (
        [*TEXT, steer("accepted", len(TEXT))],
        "answer to steering a finished response",
    ),
    "steering is pending too early": (
        [*TEXT[:3], steer("pending", 3)],
        "steering is pending before its response is over",
    ),
    "number of steering runs back": ([*TEXT, steer("pending", 2)], "sequence_number runs back"),
    "pending with one number twice": (
        [*CALL, steer("pending", 8), steer("pending", 8)],
        "sequence_number runs back",
    ),
}


@pytest.mark.parametrize(("events", "complaint"), VIOLATIONS.values(), ids=VIOLATIONS)
def test_an_invalid_sequence_is_reported(events: Events, complaint: str) -> None:
    with complains(complaint):
        see_all(events)


@pytest.mark.parametrize(
    "kind",
    [
        "mcp_call.in_progress",
        "mcp_list_tools.in_progress",
        "web_search_call.searching",
        "file_search_call.searching",
        "code_interpreter_call.interpreting",
        "image_generation_call.generating",
        "compaction.compacting",
    ],
)
def test_progress_belongs_to_an_item_of_its_kind(kind: str) -> None:
    event = {**PROGRESS, "type": f"response.{kind}"}
    with complains(f"type of the item for response.{kind}"):
        see_all(inserted(TEXT, 3, event))


# Hosted calls ------------------------------------------------------------------------------------


def test_hosted_calls_run_while_other_items_are_written() -> None:
    whole = turn(MCP_CALL, FAILED_MCP_CALL, message())
    one, two = item_events(MCP_CALL, 0), item_events(FAILED_MCP_CALL, 1)
    again = {"type": "slipring.mcp_call.progress", "item_id": "mcp_1", "output_index": 0, "progress": 1.0}
    events = [
        *whole[:2],
        *one[:-2],
        *two[:-2],
        one[1],
        {**again, "total": None, "message": None},
        *two[-2:],
        *item_events(message(), 2),
        *one[-2:],
        whole[-1],
    ]
    see_all(numbered(events))
    check_frame(json.dumps(numbered(events)[-len(item_events(message(), 2)) - 6]))


def test_a_warmup_lists_tools_and_is_never_in_progress() -> None:
    warm = turn(MCP_LIST)
    del warm[1]
    usage = {**warm[-1]["response"]["usage"], "output_tokens": 0}
    usage["total_tokens"] = usage["input_tokens"]
    usage["output_tokens_details"] = {"reasoning_tokens": 0}
    warm[-1]["response"]["usage"] = usage
    see_all(numbered(warm))


def test_a_call_whose_process_died_has_failed() -> None:
    failed = turn(status="failed", output=[FAILED_MCP_CALL])[-1:]
    see_all(numbered([*turn(FAILED_MCP_CALL)[:7], *failed]))
    with complains("a lost call has not failed"):
        see_all(numbered([*turn(MCP_CALL)[:7], *turn(status="failed", output=[MCP_CALL])[-1:]]))


# Compaction --------------------------------------------------------------------------------------

COMPACTED = turn(COMPACTION, message())


def test_a_compaction_reports_its_progress() -> None:
    kinds = [event["type"] for event in COMPACTED]
    at = kinds.index("response.compaction.compacting")
    with complains("progress of a compaction"):
        see_all(numbered([*COMPACTED[:at], *COMPACTED[at + 1 :]]))
    with complains("progress of a compaction"):
        see_all(inserted(COMPACTED, at, COMPACTED[at]))


def test_a_compaction_must_have_content() -> None:
    events = turn({**COMPACTION, "encrypted_content": ""})
    with complains("a finished compaction holds nothing"):
        see_all(events)


KEPT = {
    "type": "message",
    "id": "msg_1",
    "status": "completed",
    "role": "user",
    "content": [{"type": "input_text", "text": "hello"}],
}
WINDOW: Json = {
    "id": "resp_1",
    "object": "response.compaction",
    "created_at": 1,
    "output": [KEPT, COMPACTION],
    "usage": usage(),
}


def test_a_window_has_user_messages_and_a_compaction() -> None:
    assert check_window(WINDOW) == WINDOW


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"output": [KEPT]}, "not a valid CompactedResponse"),
        ({"output": [COMPACTION, message()]}, "type of the last item of a window"),
        ({"output": [{**KEPT, "role": "developer"}, COMPACTION]}, "role of a message in a window"),
        ({"output": [{**KEPT, "content": "hello"}, COMPACTION]}, "not a valid ResponseInputMessageItem"),
        ({"output": [{**COMPACTION, "encrypted_content": ""}]}, "a compaction holds nothing"),
        ({"output": [KEPT, KEPT, COMPACTION]}, "share an id"),
        ({"usage": {**usage(), "total_tokens": 6}}, "usage.total_tokens"),
        ({"object": "response"}, "not a valid CompactedResponse"),
        ({"surprise": 1}, "not a valid CompactedResponse"),
    ],
)
def test_an_invalid_window_is_refused(changes: Json, complaint: str) -> None:
    with complains(complaint):
        check_window({**WINDOW, **changes})
