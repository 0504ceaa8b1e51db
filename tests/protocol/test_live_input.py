"""Steers and appends: a malformed event is a value with its error and its input as received."""

import json
from typing import Any

import pytest

from slipring.base.errors import InvalidJson
from slipring.protocol import wire
from slipring.protocol.items.items import MOST_ITEMS
from slipring.protocol.live_input import Append, Steer, read_append, read_steer

MESSAGE = {"role": "user", "content": "wait"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "42"}
TOO_MANY = [{"x": "y" * (wire.LONG_BYTES // MOST_ITEMS)}] * (MOST_ITEMS + 1)


def steer(**fields: object) -> Steer:
    frame = json.dumps({"type": "response.steer", "previous_response_id": "resp_1", **fields})
    return read_steer(frame, len(frame))


def append(**fields: object) -> Append:
    frame = json.dumps({"type": "response.append", "response_id": "resp_1", **fields})
    return read_append(frame, len(frame), injects=False)


def received(event: Steer | Append) -> Any:
    return json.loads(bytes(event.input))


@pytest.mark.parametrize("sent", ["wait", [MESSAGE], [{**MESSAGE, "type": "message"}]])
def test_a_steer_is_read(sent: object) -> None:
    event = steer(input=sent)
    assert (event.target, event.error, received(event)) == ("resp_1", None, sent)
    assert [item.type for item in event.items] == ["message"]


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ("", "input"),
        ([], "input"),
        (5, "input"),
        ([MESSAGE, {"role": "system", "content": "x"}], "input[1].role"),
        ([{**MESSAGE, "id": "msg_1"}], "input[0].id"),
        (TOO_MANY, "input"),
    ],
    ids=["empty text", "no items", "number", "role", "unknown key", "too many"],
)
def test_an_invalid_steer_names_the_field_and_keeps_its_input(sent: object, param: str) -> None:
    event = steer(input=sent)
    assert event.error is not None
    assert (event.error.param, event.target, event.items) == (param, "resp_1", ())
    assert received(event) == sent


def test_a_steer_without_input_returns_an_empty_text() -> None:
    event = steer()
    assert event.error is not None
    assert (event.error.param, received(event)) == ("input", "")


def test_an_append_is_read() -> None:
    event = append(input=[OUTPUT])
    assert (event.target, event.error, event.is_malformed) == ("resp_1", None, False)
    assert received(event) == [OUTPUT]
    assert [item.call_id for item in event.items] == ["c"]


def test_a_long_append_is_read() -> None:
    assert append(input=[{**OUTPUT, "output": "x" * wire.LONG_BYTES}]).error is None


def test_an_append_without_input_returns_an_empty_list() -> None:
    event = append()
    assert (event.is_malformed, received(event)) == (True, [])


@pytest.mark.parametrize(
    ("sent", "is_malformed", "param"),
    [
        ([], True, "input"),
        ([{"type": "nope"}], True, "input[0].type"),
        (TOO_MANY, True, "input"),
        ([OUTPUT, {"type": "message", **MESSAGE}], False, "input[1].type"),
        ([{"type": "tool_search_output", "tools": []}], False, "input[0].call_id"),
    ],
    ids=["no items", "unknown type", "too many", "message", "no call_id"],
)
def test_an_invalid_append_names_the_field_and_keeps_its_input(
    sent: list[Any], is_malformed: bool, param: str
) -> None:
    event = append(input=sent)
    assert event.error is not None
    assert (event.error.param, event.is_malformed) == (param, is_malformed)
    assert received(event) == sent


def test_a_long_append_without_input_is_malformed() -> None:
    assert append(x="y" * wire.LONG_BYTES).is_malformed


@pytest.mark.parametrize(
    ("fields", "target"), [({"response_id": 5}, ""), ({"response_id": "r", "x": 1}, "r")]
)
def test_a_malformed_append_keeps_the_response_id_if_it_has_one(fields: Any, target: str) -> None:
    event = append(input=[OUTPUT], **fields)
    assert (event.is_malformed, event.target) == (True, target)


def test_an_event_without_a_response_id_has_an_empty_target() -> None:
    assert read_steer('{"type": "response.steer", "input": "x"}', 40).target == ""
    assert read_append('{"type": "response.append", "input": []}', 40, injects=True).target == ""


@pytest.mark.parametrize("frame", ["", "[]", "nope"])
def test_a_frame_that_is_not_a_json_object_raises(frame: str) -> None:
    with pytest.raises(InvalidJson):
        read_steer(frame, len(frame))
    with pytest.raises(InvalidJson):
        read_append(frame, len(frame), injects=False)
