"""Request bytes count per tenant and in total while requests wait or run, on every path."""

import json

import pytest

from slipring.base.errors import Unavailable
from slipring.core.betas import Betas
from slipring.core.generation import CallArguments, CallStarted
from tests.core.connection import Connection, Json, Server, call_output, only_error, types

ROLLOUT = Betas(rollout=True)


def frame_of(size_bytes: int, **fields: object) -> str:
    """A create of this size."""
    frame = {"type": "response.create", "model": "m", "store": False, "input": "", **fields}
    frame["input"] = "x" * (size_bytes - len(json.dumps(frame)))
    return json.dumps(frame)


def test_a_create_counts_until_its_response_ends() -> None:
    connection = Connection()
    connection.receive(frame_of(500))
    assert connection.server.requests.used_by("tenant") == 500
    connection.receive(frame_of(300))
    assert connection.server.requests.used_by("tenant") == 800, "one runs, one waits"
    connection.complete()
    assert connection.server.requests.used_by("tenant") == 300
    connection.complete()
    assert connection.server.requests.used_bytes == 0


def test_bytes_are_counted_and_not_characters() -> None:
    connection = Connection()
    frame = json.dumps({"type": "response.create", "model": "m", "input": "äöü"}, ensure_ascii=False)
    connection.receive(frame)
    assert connection.server.requests.used_bytes == len(frame) + 3


def test_a_create_at_the_tenants_limit_is_accepted_and_one_above_it_is_a_429() -> None:
    server = Server(tenant_request_bytes=1000)
    first, second = server.connect(), server.connect()
    assert "created" in types(first.receive(frame_of(500)))
    assert "created" in types(second.receive(frame_of(500)))
    first.complete()
    first.receive(frame_of(500))
    error = only_error(second.receive(frame_of(1, stream_id="a")))
    assert (error["status"], error["error"]["code"]) == (429, "rate_limit_exceeded")
    assert "1000 bytes" in error["error"]["message"]
    assert error["stream_id"] == "a"
    assert server.requests.used_bytes == 1000
    assert "created" in types(server.connect("other").receive(frame_of(500))), "other tenants are not refused"


def test_a_create_above_the_process_limit_is_a_503() -> None:
    server = Server(tenant_request_bytes=1000, request_bytes=1500)
    server.connect("one").receive(frame_of(1000))
    connection = server.connect("two")
    error = only_error(connection.receive(frame_of(501)))
    assert (error["status"], error["error"]["code"]) == (503, "service_unavailable")
    assert "created" in types(connection.receive(frame_of(500)))


def test_a_refused_create_releases_its_bytes() -> None:
    connection = Connection(Server(max_lanes=1))
    connection.create("a", model="unknown")
    connection.create("one_too_many")
    connection.create("not a lane")
    connection.create("a", temperature="hot")
    connection.create("a", previous="resp_unknown")
    connection.load("a")
    assert connection.server.requests.used_bytes == 0


def test_a_failed_response_releases_its_bytes() -> None:
    connection = Connection()
    connection.create()
    connection.fail()
    assert connection.server.requests.used_bytes == 0


def test_a_client_that_disconnects_releases_its_bytes() -> None:
    connection = Connection(betas=ROLLOUT)
    for lane in ("a", "b"):
        connection.create(lane, rollout=lane == "a")
        connection.create(lane, store=True)
    connection.steer(connection.events[0]["response"]["id"], "wait")
    connection.finish(lane="b")
    assert connection.server.requests.used_bytes > 0
    connection.hang_up()
    assert connection.server.requests.used_bytes == 0


def test_a_connection_that_winds_down_releases_its_bytes() -> None:
    connection = Connection()
    connection.create()
    connection.create()
    connection.end(Unavailable("The server stops."), grace_s=10.0)
    connection.tick(11.0)
    assert connection.server.requests.used_bytes == 0


# States that waiting forks pin.


def test_a_state_that_waiting_forks_pin_is_charged_once_until_the_last_of_them_ends() -> None:
    connection = Connection()
    requests = connection.server.requests
    first = connection.respond("a", input="x" * 500)
    state = connection.cache.find(first["id"])
    assert state is not None
    connection.create("b")
    running_bytes = requests.used_bytes
    connection.create("b", previous=first["id"])
    fork_bytes = requests.used_bytes - running_bytes - state.size_bytes
    assert 0 < fork_bytes < state.size_bytes
    connection.create("b", previous=first["id"])
    assert requests.used_bytes == running_bytes + 2 * fork_bytes + state.size_bytes
    connection.complete("b")
    assert requests.used_bytes == 2 * fork_bytes + state.size_bytes
    connection.complete("b")
    assert requests.used_bytes == fork_bytes + state.size_bytes
    connection.complete("b")
    assert requests.used_bytes == 0


def test_a_fork_whose_parent_does_not_fit_is_a_429_if_it_has_to_wait() -> None:
    connection = Connection(Server(tenant_request_bytes=2000))
    first = connection.respond("a", input="x" * 1000)
    connection.create("b")
    before = connection.server.requests.used_bytes
    error = only_error(connection.create("b", previous=first["id"]))
    assert (error["status"], error["error"]["code"]) == (429, "rate_limit_exceeded")
    assert connection.server.requests.used_bytes == before
    assert "created" in types(connection.create("c", previous=first["id"]))


def test_a_client_that_disconnects_releases_what_its_forks_pin() -> None:
    connection = Connection()
    first = connection.respond("a")
    connection.create("b")
    connection.create("b", previous=first["id"])
    connection.hang_up()
    assert connection.server.requests.used_bytes == 0


# Steers.


def steered(server: Server, size_bytes: int) -> tuple[Connection, Json]:
    """Start a response and steer it with a frame of this size; returns the steer's answer too."""
    connection = server.connect()
    response_id = connection.create()[0]["response"]["id"]
    frame = {"type": "response.steer", "previous_response_id": response_id, "input": ""}
    frame["input"] = "x" * (size_bytes - len(json.dumps(frame)))
    (answer,) = connection.receive(json.dumps(frame))
    return connection, answer


def create_bytes() -> int:
    connection = Connection()
    connection.create()
    return connection.server.requests.used_bytes


@pytest.mark.parametrize("bound", ["tenant_request_bytes", "request_bytes"])
def test_a_steer_above_the_limits_is_refused(bound: str) -> None:
    most = create_bytes() + 200
    _, answer = steered(Server(**{bound: most}), 200)
    assert answer["type"] == "response.steer.accepted"
    connection, answer = steered(Server(**{bound: most}), 201)
    assert answer["type"] == "response.steer.failed"
    assert answer["error"]["code"] == "too_many_pending_steers"
    assert "too large in total" in answer["error"]["message"]
    connection.complete()
    assert connection.server.requests.used_bytes == 0


def test_a_steer_counts_until_the_response_that_it_led_to_ends() -> None:
    connection, _ = steered(Server(), 200)
    connection.finish(reason="steered")
    assert connection.server.requests.used_bytes == 200
    connection.complete()
    assert connection.server.requests.used_bytes == 0


def test_a_steer_that_waits_for_the_client_counts() -> None:
    connection, _ = steered(Server(), 200)
    sent = connection.finish(CallStarted(kind="function", name="f"), CallArguments("{}"))
    assert "steer.pending" in types(sent)
    assert connection.server.requests.used_bytes == 200
    previous = connection.order.responses[-1]
    connection.create(None, previous["id"], input=[call_output(previous["output"][-1]["call_id"])])
    assert connection.server.requests.used_bytes > 200
    connection.complete()
    assert connection.server.requests.used_bytes == 0


# Appends.


def paused(server: Server) -> tuple[Connection, str, str]:
    """Start a rollout and pause it; returns its id and the call's id."""
    connection = server.connect(betas=ROLLOUT)
    response_id = connection.create(rollout=True)[0]["response"]["id"]
    sent = connection.finish(CallStarted(kind="function", name="f"), CallArguments("{}"))
    return connection, response_id, sent[-1]["required_input"][0]["call_id"]


@pytest.mark.parametrize("bound", ["tenant_request_bytes", "request_bytes"])
def test_an_append_above_the_limits_is_refused(bound: str) -> None:
    connection, response_id, call_id = paused(Server())
    before = connection.server.requests.used_bytes
    frame = connection.append_frame(response_id, call_output(call_id))
    connection.receive(frame)
    most = before + len(frame)
    assert connection.server.requests.used_bytes == most
    connection.complete()
    assert connection.server.requests.used_bytes == 0
    connection, response_id, call_id = paused(Server(**{bound: most}))
    assert "append.failed" not in types(connection.append(response_id, call_output(call_id)))
    connection, response_id, call_id = paused(Server(**{bound: most - 1}))
    (refused,) = connection.append(response_id, call_output(call_id))
    assert (refused["type"], refused["error"]["code"]) == ("response.append.failed", "too_much_pending_input")
    assert connection.server.requests.used_bytes == before
