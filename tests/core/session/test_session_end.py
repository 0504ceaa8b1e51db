"""How a connection ends: by age, idleness, shutdown, or because the client is gone."""

import pytest

from slipring.core.generation import Finished, Text
from slipring.core.session.actions import Close
from slipring.core.session.loaded import Loaded
from slipring.errors import ServerError, Unavailable
from tests.core.stage import Stage, World, only_error, types

HOUR = 3600.0
DONE = Finished(reason="stop", input_tokens=1, cached_tokens=0, output_tokens=1)


def old_connection(**limits: float) -> Stage:
    return Stage(World(max_age_s=HOUR, age_grace_s=60.0, **limits))


# Age.


def test_an_old_connection_is_told_by_its_documented_frame_and_closed():
    stage = old_connection()
    stage.respond()
    assert stage.tick(HOUR - 1) == []
    assert stage.close is None
    assert only_error(stage.tick(1)) == {
        "type": "error",
        "status": 400,
        "sequence_number": 0,
        "error": {
            "type": "invalid_request_error",
            "code": "websocket_connection_limit_reached",
            "message": "Responses websocket connection limit reached (60 minutes)."
            " Create a new websocket connection to continue.",
            "param": None,
        },
    }
    assert stage.close == Close(1000, "websocket_connection_limit_reached")


def test_the_text_says_the_limit_that_is_set():
    stage = Stage(World(max_age_s=90.0))
    assert "(1.5 minutes)" in only_error(stage.tick(90))["error"]["message"]


def test_running_responses_finish_before_the_notice():
    """An error without a lane would be taken for the end of what the client is reading."""
    stage = old_connection()
    stage.create("a")
    stage.create()
    assert stage.tick(HOUR) == []
    assert types(stage.say(Text("x"), lane="a"))[-1] == "output_text.delta"
    assert types(stage.finish(lane="a"))[-1] == "completed"
    assert stage.close is None
    assert types(stage.finish()) == ["completed", "error"]
    assert stage.close == Close(1000, "websocket_connection_limit_reached")


def test_waiting_creates_are_refused_in_their_order():
    stage = old_connection(max_in_flight=1)
    stage.create("a")
    stage.create("b")
    stage.create("a")
    assert stage.tick(HOUR) == []
    events = stage.finish(lane="a")
    assert types(events) == ["completed", "error", "error", "error"]
    assert [event.get("stream_id") for event in events] == ["a", "b", "a", None]
    assert {event["error"]["code"] for event in events[1:]} == {"websocket_connection_limit_reached"}


def test_creates_that_come_too_late_are_refused():
    stage = old_connection()
    stage.create("a")
    stage.tick(HOUR)
    told = only_error(stage.create("b"))
    assert (told["stream_id"], told["error"]["code"]) == ("b", "websocket_connection_limit_reached")
    assert stage.create("a") == []
    events = stage.finish(lane="a")
    assert types(events) == ["completed", "error", "error"]
    assert [event.get("stream_id") for event in events] == ["a", "a", None]


def test_a_load_may_still_become_a_response():
    world = World(max_age_s=HOUR)
    first = world.connect().respond(store=True)
    stage = world.connect()
    stage.create(previous=first["id"])
    stage.tick(HOUR)
    assert types(stage.load()) == ["created", "in_progress"]
    assert types(stage.finish()) == ["completed", "error"]


def test_what_is_finished_in_the_grace_is_stored():
    stage = old_connection()
    stage.create(store=True)
    stage.tick(HOUR)
    assert stage.finish() == []
    assert stage.close is None
    assert types(stage.save()) == ["completed", "error"]


def test_when_the_grace_is_over_running_responses_fail_and_are_cancelled():
    stage = old_connection()
    stage.create("a")
    stage.say(Text("half"), lane="a")
    stage.create("b", previous="resp_unknown")
    turns = {*stage.starts, *stage.loads}
    assert len(turns) == 2
    assert stage.tick(HOUR) == []
    assert stage.tick(59) == []
    events = stage.tick(1)
    assert set(stage.cancelled) == turns
    answers = {event.get("stream_id"): event for event in events}
    assert answers["a"]["type"] == "response.failed"
    assert answers["a"]["response"]["error"]["code"] == "server_error"
    assert (answers["b"]["type"], answers["b"]["status"]) == ("error", 500)
    assert events[-1] == answers[None]
    assert answers[None]["error"]["code"] == "websocket_connection_limit_reached"
    assert stage.close == Close(1000, "websocket_connection_limit_reached")
    stage.order.finish()


def test_when_the_grace_is_over_what_is_being_saved_is_still_saved():
    stage = old_connection()
    stage.create("a", store=True)
    stage.finish(lane="a")
    stage.tick(HOUR)
    assert stage.tick(61) == []
    assert stage.cancelled == []
    events = stage.save(lane="a")
    assert types(events) == ["completed", "error"]
    assert stage.close == Close(1000, "websocket_connection_limit_reached")


def test_when_the_grace_is_over_waiting_creates_are_refused_too():
    stage = old_connection(max_in_flight=1)
    stage.create("a")
    stage.create("a")
    stage.create("b")
    stage.tick(HOUR)
    events = stage.tick(60)
    assert types(events) == ["failed", "error", "error", "error"]
    assert [event.get("stream_id") for event in events] == ["a", "b", "a", None]


def test_a_closed_connection_says_nothing_more():
    stage = old_connection()
    stage.tick(HOUR)
    assert stage.create() == []
    assert stage.receive("garbage") == []
    assert stage.tick(HOUR) == []
    assert stage.end(ServerError()) == []


# Idleness.


def test_an_idle_connection_is_closed():
    stage = Stage(World(idle_timeout_s=10.0))
    assert stage.tick(9) == []
    assert stage.close is None
    assert stage.tick(1) == []
    assert stage.close == Close(1000, "idle")
    assert stage.create() == []


def test_without_a_timeout_idleness_is_no_reason():
    stage = Stage(World(idle_timeout_s=0.0, max_age_s=1e9))
    stage.tick(1e6)
    assert stage.close is None


def test_a_connection_with_a_running_response_is_not_idle():
    stage = Stage(World(idle_timeout_s=10.0))
    stage.create()
    stage.tick(100)
    assert stage.close is None


@pytest.mark.parametrize("frame", ["garbage", '{"type": "response.processed"}'])
def test_any_frame_breaks_the_silence(frame):
    stage = Stage(World(idle_timeout_s=10.0))
    stage.tick(9)
    stage.receive(frame)
    stage.tick(9)
    assert stage.close is None
    stage.tick(1)
    assert stage.close is not None


def test_silence_begins_when_the_last_response_ends():
    """A client that reads a long answer must get its time to think about it."""
    stage = Stage(World(idle_timeout_s=10.0))
    stage.create()
    stage.tick(100)
    stage.complete()
    stage.tick(9)
    assert stage.close is None
    stage.tick(1)
    assert stage.close == Close(1000, "idle")


@pytest.mark.parametrize("how", [Stage.load, Stage.fail])
def test_silence_begins_when_a_refusal_is_out(how):
    stage = Stage(World(idle_timeout_s=10.0))
    stage.create(previous="resp_slow_to_load")
    stage.tick(100)
    how(stage)
    stage.tick(9)
    assert stage.close is None


# Shutdown.


def test_shutdown_refuses_what_is_new_and_closes_with_1001():
    stage = Stage()
    stage.create("a")
    assert stage.end(Unavailable("The server is shutting down."), code=1001) == []
    told = only_error(stage.create("b"))
    assert (told["status"], told["error"]["code"]) == (503, "service_unavailable")
    assert types(stage.finish(lane="a")) == ["completed", "error"]
    assert stage.close == Close(1001, "service_unavailable")


def test_shutdown_of_an_idle_connection_closes_at_once():
    stage = Stage()
    assert only_error(stage.end(Unavailable("bye"), code=1001))["status"] == 503
    assert stage.close == Close(1001, "service_unavailable")


def test_shutdown_fails_what_outlasts_its_grace():
    stage = Stage()
    stage.create()
    stage.end(Unavailable("bye"), grace_s=5.0)
    assert stage.tick(4.9) == []
    assert types(stage.tick(0.1)) == ["failed", "error"]
    assert stage.close == Close(1001, "service_unavailable")


def test_a_connection_that_is_already_ending_ends_as_it_began():
    stage = old_connection()
    stage.create()
    stage.tick(HOUR)
    assert stage.end(Unavailable("bye")) == []
    stage.finish()
    assert stage.close == Close(1000, "websocket_connection_limit_reached")


# The client is gone.


def test_when_the_client_is_gone_work_is_cancelled_but_not_what_is_being_saved():
    stage = Stage()
    stage.create("a")
    stage.create("b", previous="resp_unknown")
    stage.create("c", store=True)
    stage.finish(lane="c")
    running, loading = [*stage.starts, *stage.loads]
    stage.hang_up()
    assert stage.cancelled == [running, loading]
    assert stage.saves
    # What is finished counts, whether somebody reads of it or not.
    (record,) = stage.reports
    assert (record.lane, record.report.status) == ("c", "completed")
    assert record.report.tokens


def test_reports_after_the_client_is_gone_are_ignored():
    stage = Stage()
    stage.create("a")
    stage.create("b", previous="resp_unknown")
    stage.create("c", store=True)
    stage.finish(lane="c")
    running, loading, saving = [*stage.starts, *stage.loads, *stage.saves]
    stage.hang_up()
    session = stage.session
    assert session.deltas(running, [Text("x"), DONE]) == []
    assert session.finished(running, 0.0) == []
    assert session.loaded(loading, Loaded(), 0.0) == []
    assert session.saved(saving, 0.0) == []
    for turn in (running, loading, saving):
        assert session.failed(turn, ServerError(), 0.0) == []
    assert session.tick(1e9) == []
    assert session.end(ServerError(), code=1001, grace_s=0.0, now=0.0) == []
    assert session.receive('{"type": "response.create"}', 0.0) == []


def test_waiting_creates_are_not_begun_for_a_client_that_is_gone():
    stage = Stage()
    stage.create()
    stage.create()
    stage.hang_up()
    assert len(stage.cancelled) == 1
    assert not stage.starts


def test_the_memory_of_a_connection_goes_with_it():
    world = World()
    stage, other = world.connect(), world.connect()
    stage.respond("a")
    stage.respond("b")
    other.respond()
    assert stage.cache.used_bytes > 0
    stage.hang_up()
    assert (len(stage.cache), stage.cache.used_bytes) == (0, 0)
    assert world.scopes.process.used_bytes == other.cache.used_bytes
    other.hang_up()
    assert world.scopes.process.used_bytes == 0
    assert world.scopes.process.used_bytes == 0
    assert not world.scopes.process.latest
    assert not world.scopes.process.superseded


def test_a_stored_response_outlives_its_connection():
    world = World()
    stage = world.connect()
    first = stage.respond(store=True)
    stage.hang_up()
    other = world.connect()
    other.create(previous=first["id"])
    assert types(other.load()) == ["created", "in_progress"]
