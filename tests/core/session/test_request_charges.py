"""The bytes of requests: counted per tenant and in all for as long as they wait or run, in every path."""

import json

import pytest

from slipring.core.betas import Betas
from slipring.core.generation import CallArguments, CallStarted
from slipring.errors import Unavailable
from tests.core.stage import Json, Stage, World, call_output, only_error, types

ROLLOUT = Betas(rollout=True)


def frame_of(size_bytes: int, **fields: object) -> str:
    """A create of this size."""
    frame = {"type": "response.create", "model": "m", "store": False, "input": "", **fields}
    frame["input"] = "x" * (size_bytes - len(json.dumps(frame)))
    return json.dumps(frame)


def test_a_create_is_counted_until_its_response_is_over() -> None:
    stage = Stage()
    stage.receive(frame_of(500))
    assert stage.world.requests.used_by("tenant") == 500
    stage.receive(frame_of(300))
    assert stage.world.requests.used_by("tenant") == 800, "one runs, one waits"
    stage.complete()
    assert stage.world.requests.used_by("tenant") == 300
    stage.complete()
    assert stage.world.requests.used_bytes == 0


def test_bytes_and_not_characters_are_counted() -> None:
    stage = Stage()
    frame = json.dumps({"type": "response.create", "model": "m", "input": "äöü"}, ensure_ascii=False)
    stage.receive(frame)
    assert stage.world.requests.used_bytes == len(frame) + 3


def test_a_create_at_the_tenants_bound_is_taken_and_one_past_it_is_a_429() -> None:
    world = World(tenant_request_bytes=1000)
    first, second = world.connect(), world.connect()
    assert "created" in types(first.receive(frame_of(500)))
    assert "created" in types(second.receive(frame_of(500)))
    first.complete()
    first.receive(frame_of(500))
    error = only_error(second.receive(frame_of(1, stream_id="a")))
    assert (error["status"], error["error"]["code"]) == (429, "rate_limit_exceeded")
    assert "1000 bytes" in error["error"]["message"]
    assert error["stream_id"] == "a"
    assert world.requests.used_bytes == 1000
    assert "created" in types(world.connect("other").receive(frame_of(500))), "nobody else is refused"


def test_a_create_past_the_bound_of_the_process_is_a_503() -> None:
    world = World(tenant_request_bytes=1000, request_bytes=1500)
    world.connect("one").receive(frame_of(1000))
    stage = world.connect("two")
    error = only_error(stage.receive(frame_of(501)))
    assert (error["status"], error["error"]["code"]) == (503, "service_unavailable")
    assert "created" in types(stage.receive(frame_of(500)))


def test_a_refused_create_leaves_nothing() -> None:
    stage = Stage(World(max_lanes=1))
    stage.create("a", model="nobody")
    stage.create("one_too_many")
    stage.create("not a lane")
    stage.create("a", temperature="hot")
    stage.create("a", previous="resp_unknown")
    stage.load("a")
    assert stage.world.requests.used_bytes == 0


def test_a_response_that_fails_leaves_nothing() -> None:
    stage = Stage()
    stage.create()
    stage.fail()
    assert stage.world.requests.used_bytes == 0


def test_a_client_that_leaves_leaves_nothing() -> None:
    stage = Stage(betas=ROLLOUT)
    for lane in ("a", "b"):
        stage.create(lane, rollout=lane == "a")
        stage.create(lane, store=True)
    stage.steer(stage.events[0]["response"]["id"], "wait")
    stage.finish(lane="b")
    assert stage.world.requests.used_bytes > 0
    stage.hang_up()
    assert stage.world.requests.used_bytes == 0


def test_a_connection_that_winds_down_leaves_nothing() -> None:
    stage = Stage()
    stage.create()
    stage.create()
    stage.end(Unavailable("The server stops."), grace_s=10.0)
    stage.tick(11.0)
    assert stage.world.requests.used_bytes == 0


# Steers.


def steered(world: World, size_bytes: int) -> tuple[Stage, Json]:
    """A response, and the answer to a steer of this size."""
    stage = world.connect()
    response_id = stage.create()[0]["response"]["id"]
    frame = {"type": "response.steer", "previous_response_id": response_id, "input": ""}
    frame["input"] = "x" * (size_bytes - len(json.dumps(frame)))
    (answer,) = stage.receive(json.dumps(frame))
    return stage, answer


def create_bytes() -> int:
    stage = Stage()
    stage.create()
    return stage.world.requests.used_bytes


@pytest.mark.parametrize("bound", ["tenant_request_bytes", "request_bytes"])
def test_a_steer_is_held_to_the_bounds(bound: str) -> None:
    most = create_bytes() + 200
    _, answer = steered(World(**{bound: most}), 200)
    assert answer["type"] == "response.steer.accepted"
    stage, answer = steered(World(**{bound: most}), 201)
    assert answer["type"] == "response.steer.failed"
    assert answer["error"]["code"] == "too_many_pending_steers"
    assert "too large together" in answer["error"]["message"]
    stage.complete()
    assert stage.world.requests.used_bytes == 0


def test_a_steer_is_counted_until_the_response_that_it_led_to_is_over() -> None:
    stage, _ = steered(World(), 200)
    stage.finish(reason="steered")
    assert stage.world.requests.used_bytes == 200
    stage.complete()
    assert stage.world.requests.used_bytes == 0


def test_a_steer_that_waits_for_the_client_is_counted() -> None:
    stage, _ = steered(World(), 200)
    told = stage.finish(CallStarted(kind="function", name="f"), CallArguments("{}"))
    assert "steer.pending" in types(told)
    assert stage.world.requests.used_bytes == 200
    previous = stage.order.responses[-1]
    stage.create(None, previous["id"], input=[call_output(previous["output"][-1]["call_id"])])
    assert stage.world.requests.used_bytes > 200
    stage.complete()
    assert stage.world.requests.used_bytes == 0


# Appends.


def paused(world: World) -> tuple[Stage, str, str]:
    """A rollout that waits: its id, and that of its call."""
    stage = world.connect(betas=ROLLOUT)
    response_id = stage.create(rollout=True)[0]["response"]["id"]
    told = stage.finish(CallStarted(kind="function", name="f"), CallArguments("{}"))
    return stage, response_id, told[-1]["required_input"][0]["call_id"]


@pytest.mark.parametrize("bound", ["tenant_request_bytes", "request_bytes"])
def test_an_append_is_held_to_the_bounds(bound: str) -> None:
    stage, response_id, call_id = paused(World())
    before = stage.world.requests.used_bytes
    frame = stage.append_frame(response_id, call_output(call_id))
    stage.receive(frame)
    most = before + len(frame)
    assert stage.world.requests.used_bytes == most
    stage.complete()
    assert stage.world.requests.used_bytes == 0
    stage, response_id, call_id = paused(World(**{bound: most}))
    assert "append.failed" not in types(stage.append(response_id, call_output(call_id)))
    stage, response_id, call_id = paused(World(**{bound: most - 1}))
    (refused,) = stage.append(response_id, call_output(call_id))
    assert (refused["type"], refused["error"]["code"]) == ("response.append.failed", "too_much_pending_input")
    assert stage.world.requests.used_bytes == before
