"""Client frames: invalid ones get one error in their order, and the connection stays usable."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipring.core.betas import NO_BETAS, Betas
from slipring.core.generation import Text
from slipring.core.session import client_events
from tests.core.connection import Connection, Server, only_error, types


def refusal(
    connection: Connection, frame: bytes | str | client_events.ClientEvent | None
) -> tuple[int, str, str | None]:
    """Status, code and param of the error for a frame without a lane."""
    sent = only_error(connection.receive(frame))
    assert "stream_id" not in sent
    return sent["status"], sent["error"]["code"], sent["error"]["param"]


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
    "an escaped lone surrogate": '{"type": "response.create", "user": "\\ud800"}',
    "a lone surrogate": '{"type": "response.create", "user": "\ud800"}',
}


@pytest.mark.parametrize("frame", MALFORMED.values(), ids=MALFORMED)
def test_a_frame_that_is_not_a_json_object_is_an_error_without_a_lane(frame):
    connection = Connection()
    assert refusal(connection, frame) == (400, "invalid_json", None)
    assert connection.respond()["status"] == "completed"


def test_bytes_are_read_like_text():
    connection = Connection()
    assert types(connection.receive(b'{"type": "response.create", "input": "h\xc3\xa9"}')) == [
        "created",
        "in_progress",
    ]
    assert json.loads(connection.job().input[0].raw)["content"] == "hé"


def test_bytes_that_are_not_utf8_are_refused_on_their_lane():
    """The decoder does not validate the text of raw fields."""
    sent = only_error(Connection().receive(b'{"type": "response.create", "stream_id": "a", "input": "\xff"}'))
    assert (sent["error"]["code"], sent["stream_id"]) == ("invalid_json", "a")


@pytest.mark.parametrize("kind", ["response.cancel", "response.append", "session.update", "", "ping"])
def test_an_unknown_type_is_refused_by_name(kind):
    connection = Connection()
    assert refusal(connection, json.dumps({"type": kind})) == (400, "unsupported_event_type", "type")
    assert repr(kind) in connection.events[-1]["error"]["message"]


@pytest.mark.parametrize("frame", ["{}", '{"type": null}', '{"input": "hi"}'])
def test_a_missing_type_is_refused(frame):
    assert refusal(Connection(), frame) == (400, "unsupported_event_type", "type")


@pytest.mark.parametrize("kind", [1, 1.5, True, [], ["response.create"], {}, {"a": [1]}])
def test_a_type_that_is_not_a_string_is_refused(kind):
    """It may not even be hashable."""
    connection = Connection()
    assert refusal(connection, json.dumps({"type": kind})) == (400, "unsupported_event_type", "type")
    assert connection.respond()["status"] == "completed"


def test_an_unknown_type_is_reported_before_an_invalid_body():
    frame = json.dumps({"type": "response.append", "input": 5, "temperature": "hot"})
    assert refusal(Connection(), frame) == (400, "unsupported_event_type", "type")


def test_response_processed_is_ignored():
    connection = Connection()
    connection.create()
    assert connection.receive('{"type": "response.processed", "response_id": "resp_1"}') == []
    assert connection.complete()["status"] == "completed"


def test_unknown_fields_pass():
    connection = Connection()
    assert types(connection.create(x_future={"a": 1}, client_metadata={"k": 1}, stream=True)) == [
        "created",
        "in_progress",
    ]


INVALID_BODIES = {
    "temperature": ({"temperature": "hot"}, "temperature", "invalid_type"),
    "temperature's range": ({"temperature": 3}, "temperature", "decimal_above_max_value"),
    "top_p": ({"top_p": 2}, "top_p", "decimal_above_max_value"),
    "max_output_tokens": ({"max_output_tokens": 0}, "max_output_tokens", "integer_below_min_value"),
    "max_tool_calls": ({"max_tool_calls": 0}, "max_tool_calls", "integer_below_min_value"),
    "negative calls": ({"max_tool_calls": -1}, "max_tool_calls", "integer_below_min_value"),
    "max_tool_calls' type": ({"max_tool_calls": "3"}, "max_tool_calls", "invalid_type"),
    "top_logprobs": ({"top_logprobs": 21}, "top_logprobs", "integer_above_max_value"),
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
def test_an_invalid_field_is_reported_on_the_lane_of_its_create(fields, param, code):
    connection = Connection()
    sent = only_error(connection.create("a", **fields))
    assert (sent["status"], sent["stream_id"]) == (400, "a")
    assert (sent["error"]["param"], sent["error"]["code"]) == (param, code)
    assert connection.respond("a")["status"] == "completed"


@pytest.mark.parametrize("fields", [{"temperature": "hot"}, {"stream": False}, {"input": 5}])
def test_an_invalid_body_is_refused_in_the_order_of_its_lane(fields):
    """Clients match answers by order on a lane: an early error would seem to end the running response."""
    connection = Connection()
    connection.create("a")
    assert connection.create("a", **fields) == []
    assert connection.create("a") == []
    assert types(connection.generate(Text("x"), lane="a"))[-1] == "output_text.delta"
    events = connection.finish(lane="a")
    assert types(events)[-4:] == ["completed", "error", "created", "in_progress"]


def test_an_invalid_body_counts_in_the_queue():
    connection = Connection(Server(max_queued=1))
    connection.create()
    connection.create(temperature="hot")
    assert only_error(connection.create())["status"] == 429


def test_an_invalid_stream_id_is_reported_before_an_invalid_body():
    assert refusal(
        Connection(), json.dumps({"type": "response.create", "stream_id": "", "temperature": "hot"})
    ) == (400, "invalid_stream_id", "stream_id")


# Sizes.


class Frame(str):
    """Text that counts how often it is encoded."""

    __slots__ = ("encodings",)

    def __init__(self, _: str) -> None:
        self.encodings = 0

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        self.encodings += 1
        return super().encode(encoding, errors)


OUTPUT = {"type": "function_call_output", "call_id": "c"}


@pytest.mark.parametrize(
    "event",
    [
        {"type": "response.create", "input": "TEXT"},
        {"type": "response.create", "input": "TEXT", "temperature": "hot"},
        {"type": "response.steer", "previous_response_id": "resp_1", "input": "TEXT"},
        {"type": "response.append", "response_id": "resp_1", "input": [{**OUTPUT, "output": "TEXT"}]},
    ],
    ids=lambda event: f"{event['type']} {'invalid' if 'temperature' in event else 'valid'}",
)
def test_a_frame_is_never_encoded_only_to_measure_it(event):
    """Text that is not ASCII is encoded once, because the decoder needs bytes."""
    frame = Frame(json.dumps(event).replace("TEXT", "h\u00e9 \u65e5\u672c \U0001f642"))
    read = client_events.read(frame, Betas(rollout=True))
    assert read is not None
    assert frame.encodings == 1
    assert read.size_bytes == len(str(frame).encode())


@pytest.mark.parametrize("text", ["hello", "h\u00e9", "\u65e5\u672c", "\U0001f642"])
def test_the_size_of_a_frame_is_its_length_in_utf8(text):
    frame = json.dumps({"type": "response.create", "input": text}, ensure_ascii=False)
    for received in (frame, frame.encode()):
        read = client_events.read(received, NO_BETAS)
        assert read is not None
        assert read.size_bytes == len(frame.encode())


# Frames decoded in a thread.


def test_a_frame_that_is_read_ahead_has_its_items_decoded():
    event = client_events.read_ahead('{"type": "response.create", "input": "hi"}', NO_BETAS)
    assert isinstance(event, client_events.Create)
    assert "items" in event.request.__dict__
    connection = Connection()
    assert types(connection.receive(event)) == ["created", "in_progress"]


def test_invalid_items_that_are_read_ahead_are_refused_on_their_lane():
    frame = '{"type": "response.create", "stream_id": "a", "input": 5}'
    sent = only_error(Connection().receive(client_events.read_ahead(frame, NO_BETAS)))
    assert (sent["stream_id"], sent["error"]["param"]) == ("a", "input")


def test_an_invalid_create_that_is_read_ahead_keeps_its_first_error():
    frame = '{"type": "response.create", "temperature": "hot", "input": 5}'
    sent = only_error(Connection().receive(client_events.read_ahead(frame, NO_BETAS)))
    assert sent["error"]["param"] == "temperature"


def test_an_error_of_a_frame_that_is_read_ahead_is_sent():
    read = client_events.read_ahead("nope", NO_BETAS)
    assert refusal(Connection(), read) == (400, "invalid_json", None)


def test_other_events_can_be_read_ahead():
    frame = '{"type": "response.steer", "previous_response_id": "resp_9", "input": "wait"}'
    assert types(Connection().receive(client_events.read_ahead(frame, NO_BETAS))) == ["steer.failed"]
    assert client_events.read_ahead('{"type": "response.processed"}', NO_BETAS) is None


# Arbitrary frames.

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
def test_any_create_gets_one_error_or_one_response(frame):
    """Whatever the fields contain, all events are valid."""
    connection = Connection()
    connection.receive(json.dumps(frame))
    for turn in list(connection.loads):
        connection.load(turn.asked.lane)
    for turn in list(connection.starts):
        connection.complete(turn.asked.lane)
    assert len(connection.order.responses) + len(connection.order.errors) == 1
    connection.order.finish()


@given(st.binary(max_size=60) | st.text(max_size=60) | _json.map(json.dumps))
def test_any_frame_leaves_the_connection_usable(frame):
    connection = Connection()
    assert set(types(connection.receive(frame))) <= {"error"}
    assert connection.respond()["status"] == "completed"
