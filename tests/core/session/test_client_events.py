"""Frames that cannot be served: each is answered once, in its place, and the connection goes on."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipring.core.generation import Text
from tests.core.stage import Stage, World, only_error, types


def refusal(stage: Stage, frame: bytes | str) -> tuple[int, str, str | None]:
    """The status, code and param of the answer to a frame that belongs to no lane."""
    told = only_error(stage.receive(frame))
    assert "stream_id" not in told
    return told["status"], told["error"]["code"], told["error"]["param"]


MALFORMED = {
    "nothing": "",
    "blank": "  ",
    "prose": "hello",
    "half an object": '{"type": "response.create", "stream_id": "a", ',
    "two objects": "{}{}",
    "an array": "[]",
    "a number": "1",
    "a string": '"response.create"',
    "null": "null",
    "true": "true",
    "not UTF-8": b'{"type": "response.create", "input": "\xff"',
    "binary": b"\x00\x01\x02",
    "nested too deeply": '{"type": "response.create", "x": ' + "[" * 100_000,
    "a lone surrogate": '{"type": "response.create", "user": "\\ud800"}',
}


@pytest.mark.parametrize("frame", MALFORMED.values(), ids=MALFORMED)
def test_what_is_no_json_object_is_an_error_of_the_connection(frame):
    stage = Stage()
    assert refusal(stage, frame) == (400, "invalid_json", None)
    assert stage.respond()["status"] == "completed"


def test_bytes_are_read_like_text():
    stage = Stage()
    assert types(stage.receive(b'{"type": "response.create", "input": "h\xc3\xa9"}')) == [
        "created",
        "in_progress",
    ]
    assert json.loads(stage.job().input[0].raw)["content"] == "hé"


def test_bytes_that_are_not_utf8_are_refused_on_their_lane():
    """The decoder lets broken text pass where a field stays raw; it must not get further than here."""
    told = only_error(Stage().receive(b'{"type": "response.create", "stream_id": "a", "input": "\xff"}'))
    assert (told["error"]["code"], told["stream_id"]) == ("invalid_json", "a")


@pytest.mark.parametrize("kind", ["response.cancel", "response.append", "session.update", "", "ping"])
def test_an_unknown_type_is_refused_by_name(kind):
    stage = Stage()
    assert refusal(stage, json.dumps({"type": kind})) == (400, "unsupported_event_type", "type")
    assert repr(kind) in stage.events[-1]["error"]["message"]


@pytest.mark.parametrize("frame", ["{}", '{"type": null}', '{"input": "hi"}'])
def test_a_missing_type_is_refused(frame):
    assert refusal(Stage(), frame) == (400, "unsupported_event_type", "type")


@pytest.mark.parametrize("kind", [1, 1.5, True, [], ["response.create"], {}, {"a": [1]}])
def test_a_type_that_is_no_text_is_refused(kind):
    """It may not even be hashable."""
    stage = Stage()
    assert refusal(stage, json.dumps({"type": kind})) == (400, "unsupported_event_type", "type")
    assert stage.respond()["status"] == "completed"


def test_an_unknown_type_is_refused_as_such_though_its_body_is_wrong_too():
    frame = json.dumps({"type": "response.append", "input": 5, "temperature": "hot"})
    assert refusal(Stage(), frame) == (400, "unsupported_event_type", "type")


def test_response_processed_is_ignored():
    stage = Stage()
    stage.create()
    assert stage.receive('{"type": "response.processed", "response_id": "resp_1"}') == []
    assert stage.complete()["status"] == "completed"


def test_unknown_fields_are_let_through():
    stage = Stage()
    assert types(stage.create(x_future={"a": 1}, client_metadata={"k": 1}, stream=True)) == [
        "created",
        "in_progress",
    ]


INVALID_BODIES = {
    "temperature": ({"temperature": "hot"}, "temperature", "invalid_type"),
    "temperature's range": ({"temperature": 3}, "temperature", "invalid_value"),
    "top_p": ({"top_p": 2}, "top_p", "invalid_value"),
    "max_output_tokens": ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
    "top_logprobs": ({"top_logprobs": 21}, "top_logprobs", "invalid_value"),
    "previous_response_id": ({"previous_response_id": 5}, "previous_response_id", "invalid_type"),
    "model": ({"model": 5}, "model", "invalid_type"),
    "instructions": ({"instructions": []}, "instructions", "invalid_type"),
    "reasoning.effort": ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "invalid_value"),
    "text.verbosity": ({"text": {"verbosity": "loud"}}, "text.verbosity", "invalid_value"),
    "store": ({"store": "yes"}, "store", "invalid_type"),
    "truncation": ({"truncation": "maybe"}, "truncation", "invalid_value"),
    "include": ({"include": [1]}, "include[0]", "invalid_type"),
    "input": ({"input": 5}, "input", "invalid_type"),
    "an item": ({"input": [5]}, "input[0]", "invalid_type"),
    "an item's type": ({"input": [{"type": "nope"}]}, "input[0].type", "invalid_value"),
    "an item's field": (
        {"input": ["ok", {"type": "message", "role": "user"}][1:]},
        "input[0].content",
        "missing_required_parameter",
    ),
    "tools": ({"tools": {}}, "tools", "invalid_type"),
    "a tool": ({"tools": [{"type": "function"}]}, "tools[0].name", "missing_required_parameter"),
    "tool_choice": ({"tool_choice": "perhaps"}, "tool_choice", "invalid_value"),
    "stream": ({"stream": False}, "stream", "unsupported_parameter"),
}


@pytest.mark.parametrize(("fields", "param", "code"), INVALID_BODIES.values(), ids=INVALID_BODIES)
def test_a_wrong_field_is_named_on_the_lane_of_its_create(fields, param, code):
    stage = Stage()
    told = only_error(stage.create("a", **fields))
    assert (told["status"], told["stream_id"]) == (400, "a")
    assert (told["error"]["param"], told["error"]["code"]) == (param, code)
    assert stage.respond("a")["status"] == "completed"


@pytest.mark.parametrize("fields", [{"temperature": "hot"}, {"stream": False}, {"input": 5}])
def test_a_wrong_body_is_refused_in_its_place_in_the_lane(fields):
    """The client counts answers on a lane: an early error would be taken for the running response's."""
    stage = Stage()
    stage.create("a")
    assert stage.create("a", **fields) == []
    assert stage.create("a") == []
    assert types(stage.say(Text("x"), lane="a"))[-1] == "output_text.delta"
    events = stage.finish(lane="a")
    assert types(events)[-4:] == ["completed", "error", "created", "in_progress"]


def test_a_wrong_body_counts_in_the_queue():
    stage = Stage(World(max_queued=1))
    stage.create()
    stage.create(temperature="hot")
    assert only_error(stage.create())["status"] == 429


def test_a_wrong_body_with_a_wrong_stream_id_is_about_the_stream_id():
    assert refusal(
        Stage(), json.dumps({"type": "response.create", "stream_id": "", "temperature": "hot"})
    ) == (400, "invalid_stream_id", "stream_id")


# Whatever arrives.

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_FIELDS = [
    *("stream_id", "generate", "model", "input", "previous_response_id", "conversation", "instructions"),
    *("tools", "tool_choice", "reasoning", "text", "include", "store", "metadata", "prompt", "temperature"),
    *("prompt_cache_options", "service_tier", "stream", "background", "multi_agent", "client_metadata"),
]
_KINDS = [
    *("message", "function_call", "function_call_output", "reasoning", "item_reference", "additional_tools"),
    *("configuration_update", "function", "custom", "namespace", "allowed_tools", "json_schema", None),
]
_KEYS = ["role", "content", "id", "call_id", "name", "arguments", "output", "tools", "schema", "format"]
_things = st.builds(
    lambda kind, rest: {"type": kind, **rest},
    st.sampled_from(_KINDS),
    st.dictionaries(st.sampled_from(_KEYS), _json, max_size=4),
)
_creates = st.dictionaries(
    st.sampled_from(_FIELDS), _json | _things | st.lists(_things, max_size=3), max_size=3
).map(lambda fields: {"type": "response.create", **fields})


@given(_creates)
def test_no_create_can_do_more_than_be_refused(frame):
    """Whatever the fields hold, the answer is one error or one response, in frames that are valid."""
    stage = Stage()
    stage.receive(json.dumps(frame))
    for turn in list(stage.loads):
        stage.load(turn.lane)
    for turn in list(stage.starts):
        stage.complete(turn.lane)
    assert len(stage.order.responses) + len(stage.order.errors) == 1
    stage.order.finish()


@given(st.binary(max_size=60) | st.text(max_size=60) | _json.map(json.dumps))
def test_no_frame_can_break_a_connection(frame):
    stage = Stage()
    assert set(types(stage.receive(frame))) <= {"error"}
    assert stage.respond()["status"] == "completed"
