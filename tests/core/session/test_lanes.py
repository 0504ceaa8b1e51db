"""Lanes: order within, concurrency across, and the three bounds of a connection."""

import json

import pytest

from slipring.core.session.lanes import Lanes
from slipring.core.turn.stages import Stages
from slipring.core.turn.turn import Turn
from slipring.errors import LaneLimitReached
from slipring.protocol.requests import CreateRequest
from tests.core.stage import Stage, World, only_error, types

MEANS = World().means


def turn_on(lane: str | None, size_bytes: int = 10) -> Turn:
    stages = Stages(lambda: 0.0)
    return Turn(CreateRequest(), tenant="t", lane=lane, size_bytes=size_bytes, means=MEANS, stages=stages)


# The queue itself.


def test_a_turn_leaves_the_queue_with_its_bytes():
    lanes = Lanes(max_in_flight=1, max_lanes=1)
    first, second = turn_on(None, 10), turn_on(None, 7)
    lanes.enqueue(first)
    lanes.enqueue(second)
    assert (lanes.waiting, lanes.waiting_bytes) == (2, 17)
    assert lanes.next() is first
    assert (lanes.waiting, lanes.waiting_bytes, lanes.in_flight) == (1, 7, 1)
    lanes.release(first)
    assert lanes.next() is second
    assert (lanes.waiting, lanes.waiting_bytes, lanes.in_flight) == (0, 0, 1)


def test_lanes_get_a_free_place_in_the_order_they_became_ready():
    lanes = Lanes(max_in_flight=1, max_lanes=3)
    a1, b1, a2, c1 = turn_on("a"), turn_on("b"), turn_on("a"), turn_on("c")
    for turn in (a1, b1, a2, c1):
        lanes.enqueue(turn)
    served = []
    while (ready := lanes.next()) is not None:
        served.append(ready)
        lanes.release(ready)
    assert served == [a1, b1, c1, a2]


def test_only_the_running_turn_of_a_lane_can_be_released():
    lanes = Lanes(max_in_flight=1, max_lanes=1)
    waiting = turn_on("a")
    lanes.enqueue(waiting)
    with pytest.raises(AssertionError):
        lanes.release(waiting)


def test_running_and_queued_list_what_they_say():
    lanes = Lanes(max_in_flight=4, max_lanes=2)
    first, second, third = turn_on("a"), turn_on("a"), turn_on("b")
    for turn in (first, second, third):
        lanes.enqueue(turn)
    assert {lanes.next(), lanes.next()} == {first, third}
    assert list(lanes.running()) == [first, third]
    assert list(lanes.queued()) == [second]


def test_a_known_lane_can_be_opened_again_at_the_limit():
    lanes = Lanes(max_in_flight=1, max_lanes=1)
    lane = lanes.open("a")
    with pytest.raises(LaneLimitReached):
        lanes.open("b")
    assert lanes.open("a") is lane
    assert lanes.open(None).id is None


# On the wire.


def test_second_create_on_a_lane_waits_for_the_first():
    stage = Stage()
    assert types(stage.create("a")) == ["created", "in_progress"]
    assert stage.create("a") == []
    assert types(stage.finish(lane="a")) == ["completed", "created", "in_progress"]


def test_second_create_on_the_default_lane_waits_too():
    stage = Stage()
    stage.create()
    assert stage.create() == []
    assert types(stage.finish()) == ["completed", "created", "in_progress"]


def test_lanes_run_side_by_side():
    stage = Stage()
    for lane in ("a", "b", None):
        assert types(stage.create(lane)) == ["created", "in_progress"]
    assert stage.session.in_flight == 3
    assert [event["stream_id"] for event in stage.finish(lane="b")] == ["b"]
    assert types(stage.finish()) == ["completed"]
    assert types(stage.finish(lane="a")) == ["completed"]


def test_every_event_of_a_named_lane_echoes_it_and_the_default_lane_has_no_key():
    stage = Stage()
    stage.respond("a")
    assert all(event["stream_id"] == "a" for event in stage.events)
    before = len(stage.events)
    stage.respond()
    assert all("stream_id" not in event for event in stage.events[before:])


def test_null_stream_id_is_the_default_lane():
    stage = Stage()
    stage.create()
    assert stage.create(stream_id=None) == []
    events = stage.finish()
    assert types(events) == ["completed", "created", "in_progress"]
    assert all("stream_id" not in event for event in events)


def test_sixteen_run_and_the_seventeenth_waits_for_a_place():
    stage = Stage()
    for number in range(16):
        assert types(stage.create(f"lane{number}")) == ["created", "in_progress"]
    assert stage.create("late") == []
    assert (stage.session.in_flight, stage.session.waiting) == (16, 1)
    events = stage.finish(lane="lane3")
    assert types(events) == ["completed", "created", "in_progress"]
    assert [event["stream_id"] for event in events] == ["lane3", "late", "late"]
    assert (stage.session.in_flight, stage.session.waiting) == (16, 0)


def test_the_default_lane_counts_as_in_flight():
    stage = Stage(World(max_in_flight=2))
    stage.create()
    stage.create("a")
    assert stage.create("b") == []


def test_a_refusal_gives_its_place_to_the_next_at_once():
    """A chain of refusals behind one place must not need further events to be worked off."""
    stage = Stage(World(max_in_flight=1))
    stage.create("a")
    stage.create("b", model="nobody")
    stage.create("c", model="nobody")
    stage.create("b")
    events = stage.finish(lane="a")
    assert types(events) == ["completed", "error", "error", "created", "in_progress"]
    assert [event["stream_id"] for event in events] == ["a", "b", "c", "b", "b"]


def test_a_long_queue_of_refusals_is_worked_off_without_recursion():
    stage = Stage(World(max_queued=5000))
    stage.create()
    for _ in range(5000):
        assert stage.create(model="nobody") == []
    assert types(stage.finish()) == ["completed"] + ["error"] * 5000
    assert (stage.session.in_flight, stage.session.waiting) == (0, 0)


def test_the_thirty_third_named_lane_is_refused_by_its_documented_frame():
    stage = Stage()
    for number in range(1, 33):
        stage.respond(f"agent_{number}")
    assert only_error(stage.create("agent_33")) == {
        "type": "error",
        "status": 400,
        "stream_id": "agent_33",
        "sequence_number": 0,
        "error": {
            "type": "invalid_request_error",
            "code": "websocket_stream_limit_reached",
            "message": "This WebSocket connection has reached its maximum number of distinct stream IDs"
            " (32). Reuse an existing stream_id or open a new WebSocket connection.",
            "param": "stream_id",
        },
    }
    stage.respond("agent_7")


def test_the_default_lane_is_no_named_lane():
    stage = Stage(World(max_lanes=2))
    stage.respond()
    stage.respond("a")
    stage.respond("b")
    stage.respond()
    assert only_error(stage.create("c"))["error"]["code"] == "websocket_stream_limit_reached"


def test_a_lane_is_taken_even_by_a_create_that_is_refused():
    stage = Stage(World(max_lanes=1))
    only_error(stage.create("a", model="nobody"))
    assert only_error(stage.create("b"))["error"]["code"] == "websocket_stream_limit_reached"


@pytest.mark.parametrize("stream_id", ["", 123, "x" * 257, "bad name!", "ümlaut", "a\n", [], {}, True, 1.5])
def test_invalid_stream_id_is_refused_without_echo(stream_id):
    stage = Stage(World(max_lanes=0))
    assert only_error(stage.create(stream_id=stream_id)) == {
        "type": "error",
        "status": 400,
        "sequence_number": 0,
        "error": {
            "type": "invalid_request_error",
            "code": "invalid_stream_id",
            "message": "The 'stream_id' field must be a non-empty string with at most 256 characters and may"
            " only contain letters, numbers, underscores, hyphens, and periods.",
            "param": "stream_id",
        },
    }


@pytest.mark.parametrize("stream_id", ["x", "x" * 256, "A-b_c.9", ".", "-"])
def test_valid_stream_ids_are_taken(stream_id):
    assert Stage().respond(stream_id)["status"] == "completed"


def test_a_create_beyond_the_queue_is_a_429_and_the_queue_goes_on():
    stage = Stage(World(max_queued=2))
    stage.create("a")
    assert stage.create("a") == []
    assert stage.create("a") == []
    refused = only_error(stage.create("a"))
    assert refused["status"] == 429
    assert refused["stream_id"] == "a"
    assert refused["error"]["type"] == "rate_limit_error"
    assert refused["error"]["code"] == "rate_limit_exceeded"
    for _ in range(3):
        stage.complete("a")
    assert [response["status"] for response in stage.order.responses] == ["completed"] * 3
    assert types(stage.create("a")) == ["created", "in_progress"]


def test_a_create_that_need_not_wait_is_taken_though_the_queue_is_full():
    stage = Stage(World(max_queued=1, max_in_flight=2))
    stage.create("a")
    stage.create("a")
    assert types(stage.create("b")) == ["created", "in_progress"]
    assert only_error(stage.create("c"))["status"] == 429


def test_a_create_beyond_the_bytes_of_the_queue_is_a_429():
    frame = json.dumps({"type": "response.create", "input": "x" * 1000, "store": False})
    stage = Stage(World(max_queued_bytes=2500))
    assert types(stage.receive(frame)) == ["created", "in_progress"]
    assert stage.receive(frame) == []
    assert stage.receive(frame) == []
    assert only_error(stage.receive(frame))["status"] == 429
    stage.complete()
    assert stage.receive(frame) == []


def test_a_refused_create_of_one_lane_leaves_other_lanes_alone():
    stage = Stage()
    stage.create("a")
    only_error(stage.create("b", model="nobody"))
    assert stage.complete("a")["status"] == "completed"
