"""Lanes: order within a lane, concurrency between lanes, and the connection's limits."""

import json

import pytest

from slipring.base.errors import LaneLimitReached
from slipring.core.session.lanes import Lanes
from slipring.core.turn.stages import Stages
from slipring.core.turn.turn import Asked, Turn
from slipring.protocol.requests import CreateRequest
from tests.core.connection import Connection, Server, only_error, types

PORTS = Server().ports


def turn_on(lane: str | None, size_bytes: int = 10) -> Turn:
    stages = Stages(lambda: 0.0)
    asked = Asked(request=CreateRequest(), tenant="t", lane=lane, size_bytes=size_bytes)
    return Turn(asked, PORTS, stages)


# The queue itself.


def test_a_turn_leaves_the_queue_with_its_bytes():
    lanes = Lanes(max_in_flight=1, max_lanes=1)
    first, second = turn_on(None, 10), turn_on(None, 7)
    lanes.enqueue(first, lanes.open(first.asked.lane))
    lanes.enqueue(second, lanes.open(second.asked.lane))
    assert (lanes.waiting, lanes.waiting_bytes) == (2, 17)
    assert lanes.next() is first
    assert (lanes.waiting, lanes.waiting_bytes, lanes.in_flight) == (1, 7, 1)
    lanes.release(first)
    assert lanes.next() is second
    assert (lanes.waiting, lanes.waiting_bytes, lanes.in_flight) == (0, 0, 1)


def test_lanes_get_a_free_slot_in_the_order_they_became_ready():
    lanes = Lanes(max_in_flight=1, max_lanes=3)
    a1, b1, a2, c1 = turn_on("a"), turn_on("b"), turn_on("a"), turn_on("c")
    for turn in (a1, b1, a2, c1):
        lanes.enqueue(turn, lanes.open(turn.asked.lane))
    served = []
    while (ready := lanes.next()) is not None:
        served.append(ready)
        lanes.release(ready)
    assert served == [a1, b1, c1, a2]


def test_only_the_running_turn_of_a_lane_can_be_released():
    lanes = Lanes(max_in_flight=1, max_lanes=1)
    waiting = turn_on("a")
    lanes.enqueue(waiting, lanes.open(waiting.asked.lane))
    with pytest.raises(AssertionError):
        lanes.release(waiting)


def test_a_create_opens_its_lane_once(monkeypatch):
    opened, open_lane = [], Lanes.open

    def recorded(lanes: Lanes, lane: str | None) -> object:
        opened.append(lane)
        return open_lane(lanes, lane)

    monkeypatch.setattr(Lanes, "open", recorded)
    connection = Connection()
    connection.create("a")
    connection.create("a")
    assert opened == ["a", "a"]
    connection.finish(lane="a")
    connection.finish(lane="a")
    assert opened == ["a", "a"]


def test_running_and_queued_turns_are_listed():
    lanes = Lanes(max_in_flight=4, max_lanes=2)
    first, second, third = turn_on("a"), turn_on("a"), turn_on("b")
    for turn in (first, second, third):
        lanes.enqueue(turn, lanes.open(turn.asked.lane))
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
    connection = Connection()
    assert types(connection.create("a")) == ["created", "in_progress"]
    assert connection.create("a") == []
    assert types(connection.finish(lane="a")) == ["completed", "created", "in_progress"]


def test_second_create_on_the_default_lane_waits_too():
    connection = Connection()
    connection.create()
    assert connection.create() == []
    assert types(connection.finish()) == ["completed", "created", "in_progress"]


def test_lanes_run_concurrently():
    connection = Connection()
    for lane in ("a", "b", None):
        assert types(connection.create(lane)) == ["created", "in_progress"]
    assert connection.session.in_flight == 3
    assert [event["stream_id"] for event in connection.finish(lane="b")] == ["b"]
    assert types(connection.finish()) == ["completed"]
    assert types(connection.finish(lane="a")) == ["completed"]


def test_every_event_of_a_named_lane_echoes_it_and_the_default_lane_has_no_key():
    connection = Connection()
    connection.respond("a")
    assert all(event["stream_id"] == "a" for event in connection.events)
    before = len(connection.events)
    connection.respond()
    assert all("stream_id" not in event for event in connection.events[before:])


def test_null_stream_id_is_the_default_lane():
    connection = Connection()
    connection.create()
    assert connection.create(stream_id=None) == []
    events = connection.finish()
    assert types(events) == ["completed", "created", "in_progress"]
    assert all("stream_id" not in event for event in events)


def test_sixteen_run_and_the_seventeenth_waits_for_a_slot():
    connection = Connection()
    for number in range(16):
        assert types(connection.create(f"lane{number}")) == ["created", "in_progress"]
    assert connection.create("late") == []
    assert (connection.session.in_flight, connection.session.waiting) == (16, 1)
    events = connection.finish(lane="lane3")
    assert types(events) == ["completed", "created", "in_progress"]
    assert [event["stream_id"] for event in events] == ["lane3", "late", "late"]
    assert (connection.session.in_flight, connection.session.waiting) == (16, 0)


def test_the_default_lane_counts_as_in_flight():
    connection = Connection(Server(max_in_flight=2))
    connection.create()
    connection.create("a")
    assert connection.create("b") == []


def test_a_refusal_frees_its_slot_at_once():
    """Queued refusals must not need further events to be processed."""
    connection = Connection(Server(max_in_flight=1))
    connection.create("a")
    connection.create("b", model="unknown")
    connection.create("c", model="unknown")
    connection.create("b")
    events = connection.finish(lane="a")
    assert types(events) == ["completed", "error", "error", "created", "in_progress"]
    assert [event["stream_id"] for event in events] == ["a", "b", "c", "b", "b"]


def test_a_long_queue_of_refusals_is_processed_without_recursion():
    connection = Connection(Server(max_queued=5000))
    connection.create()
    for _ in range(5000):
        assert connection.create(model="unknown") == []
    assert types(connection.finish()) == ["completed"] + ["error"] * 5000
    assert (connection.session.in_flight, connection.session.waiting) == (0, 0)


def test_the_thirty_third_named_lane_is_refused_by_its_documented_frame():
    connection = Connection()
    for number in range(1, 33):
        connection.respond(f"agent_{number}")
    assert only_error(connection.create("agent_33")) == {
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
    connection.respond("agent_7")


def test_the_default_lane_does_not_count_as_a_named_lane():
    connection = Connection(Server(max_lanes=2))
    connection.respond()
    connection.respond("a")
    connection.respond("b")
    connection.respond()
    assert only_error(connection.create("c"))["error"]["code"] == "websocket_stream_limit_reached"


def test_a_refused_create_still_opens_its_lane():
    connection = Connection(Server(max_lanes=1))
    only_error(connection.create("a", model="unknown"))
    assert only_error(connection.create("b"))["error"]["code"] == "websocket_stream_limit_reached"


@pytest.mark.parametrize("stream_id", ["", 123, "x" * 257, "bad name!", "ümlaut", "a\n", [], {}, True, 1.5])
def test_invalid_stream_id_is_refused_without_echo(stream_id):
    connection = Connection(Server(max_lanes=0))
    assert only_error(connection.create(stream_id=stream_id)) == {
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
def test_valid_stream_ids_are_accepted(stream_id):
    assert Connection().respond(stream_id)["status"] == "completed"


def test_a_create_beyond_the_queue_is_a_429_and_the_queue_continues():
    connection = Connection(Server(max_queued=2))
    connection.create("a")
    assert connection.create("a") == []
    assert connection.create("a") == []
    refused = only_error(connection.create("a"))
    assert refused["status"] == 429
    assert refused["stream_id"] == "a"
    assert refused["error"]["type"] == "rate_limit_error"
    assert refused["error"]["code"] == "rate_limit_exceeded"
    assert refused["error"]["headers"] == {"retry-after": "1"}
    for _ in range(3):
        connection.complete("a")
    assert [response["status"] for response in connection.order.responses] == ["completed"] * 3
    assert types(connection.create("a")) == ["created", "in_progress"]


def test_a_create_that_need_not_wait_is_accepted_though_the_queue_is_full():
    connection = Connection(Server(max_queued=1, max_in_flight=2))
    connection.create("a")
    connection.create("a")
    assert types(connection.create("b")) == ["created", "in_progress"]
    assert only_error(connection.create("c"))["status"] == 429


def test_a_create_beyond_the_bytes_of_the_queue_is_a_429():
    frame = json.dumps({"type": "response.create", "input": "x" * 1000, "store": False})
    connection = Connection(Server(max_queued_bytes=2500))
    assert types(connection.receive(frame)) == ["created", "in_progress"]
    assert connection.receive(frame) == []
    assert connection.receive(frame) == []
    assert only_error(connection.receive(frame))["status"] == 429
    connection.complete()
    assert connection.receive(frame) == []


def test_a_refused_create_of_one_lane_does_not_affect_other_lanes():
    connection = Connection()
    connection.create("a")
    only_error(connection.create("b", model="unknown"))
    assert connection.complete("a")["status"] == "completed"


def test_a_create_that_can_start_at_once_needs_no_room_in_the_queue() -> None:
    connection = Connection(Server(max_queued_bytes=100, max_queued=1))
    connection.create("a", instructions="x" * 200)
    assert connection.starts


@pytest.mark.parametrize(("size", "refused"), [(0, False), (200, True)])
def test_a_create_that_must_wait_needs_room_in_the_queue(size: int, refused: bool) -> None:
    connection = Connection(Server(max_queued_bytes=200))
    connection.create("a")
    events = connection.create("a", instructions="x" * size)
    assert [event["status"] for event in events] == ([429] if refused else [])
