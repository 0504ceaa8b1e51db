"""The end of a connection: by age, idleness, shutdown, or because the client disconnected."""

import pytest
from msgspec import UNSET

from slipring.base.errors import ServerError, Unavailable
from slipring.core.generation import Finished, Text
from slipring.core.session.actions import Close, Loaded
from tests.core.connection import Connection, Server, emitted, only_error, types

HOUR = 3600.0
DONE = Finished(reason="stop", input_tokens=1, cached_tokens=0, output_tokens=1)


def old_connection(**limits: float) -> Connection:
    return Connection(Server(max_age_s=HOUR, age_grace_s=60.0, **limits))


# Age.


def test_an_old_connection_gets_the_documented_error_and_is_closed():
    connection = old_connection()
    connection.respond()
    assert connection.tick(HOUR - 1) == []
    assert connection.close is None
    assert only_error(connection.tick(1)) == {
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
    assert connection.close == Close(1000, "websocket_connection_limit_reached")


def test_the_message_contains_the_configured_limit():
    connection = Connection(Server(max_age_s=90.0))
    assert "(1.5 minutes)" in only_error(connection.tick(90))["error"]["message"]


def test_running_responses_finish_before_the_notice():
    """Clients take an error without a lane as the end of the response that they are reading."""
    connection = old_connection()
    connection.create("a")
    connection.create()
    assert connection.tick(HOUR) == []
    assert types(connection.generate(Text("x"), lane="a"))[-1] == "output_text.delta"
    assert types(connection.finish(lane="a"))[-1] == "completed"
    assert connection.close is None
    assert types(connection.finish()) == ["completed", "error"]
    assert connection.close == Close(1000, "websocket_connection_limit_reached")


def test_waiting_creates_are_refused_in_their_order():
    connection = old_connection(max_in_flight=1)
    connection.create("a")
    connection.create("b")
    connection.create("a")
    assert connection.tick(HOUR) == []
    events = connection.finish(lane="a")
    assert types(events) == ["completed", "error", "error", "error"]
    assert [event.get("stream_id") for event in events] == ["a", "b", "a", None]
    assert {event["error"]["code"] for event in events[1:]} == {"websocket_connection_limit_reached"}


def test_creates_after_the_end_was_announced_are_refused():
    connection = old_connection()
    connection.create("a")
    connection.tick(HOUR)
    sent = only_error(connection.create("b"))
    assert (sent["stream_id"], sent["error"]["code"]) == ("b", "websocket_connection_limit_reached")
    assert connection.create("a") == []
    events = connection.finish(lane="a")
    assert types(events) == ["completed", "error", "error"]
    assert [event.get("stream_id") for event in events] == ["a", "a", None]


def test_a_load_in_progress_may_still_lead_to_a_response():
    server = Server(max_age_s=HOUR)
    first = server.connect().respond(store=True)
    connection = server.connect()
    connection.create(previous=first["id"])
    connection.tick(HOUR)
    assert types(connection.load()) == ["created", "in_progress"]
    assert types(connection.finish()) == ["completed", "error"]


def test_responses_that_finish_within_the_grace_period_are_stored():
    connection = old_connection()
    connection.create(store=True)
    connection.tick(HOUR)
    assert connection.finish() == []
    assert connection.close is None
    assert types(connection.save()) == ["completed", "error"]


def test_after_the_grace_period_running_responses_are_cancelled_and_fail():
    connection = old_connection()
    connection.create("a")
    connection.generate(Text("half"), lane="a")
    connection.create("b", previous="resp_unknown")
    turns = {*connection.starts, *connection.loads}
    assert len(turns) == 2
    assert connection.tick(HOUR) == []
    assert connection.tick(59) == []
    events = connection.tick(1)
    assert set(connection.cancelled) == turns
    answers = {event.get("stream_id"): event for event in events}
    assert answers["a"]["type"] == "response.failed"
    assert answers["a"]["response"]["error"]["code"] == "server_error"
    assert (answers["b"]["type"], answers["b"]["status"]) == ("error", 500)
    assert events[-1] == answers[None]
    assert answers[None]["error"]["code"] == "websocket_connection_limit_reached"
    assert connection.close == Close(1000, "websocket_connection_limit_reached")
    connection.order.finish()


def test_after_the_grace_period_saves_in_progress_finish():
    connection = old_connection()
    connection.create("a", store=True)
    connection.finish(lane="a")
    connection.tick(HOUR)
    assert connection.tick(61) == []
    assert connection.cancelled == []
    events = connection.save(lane="a")
    assert types(events) == ["completed", "error"]
    assert connection.close == Close(1000, "websocket_connection_limit_reached")


def test_after_the_grace_period_waiting_creates_are_refused_too():
    connection = old_connection(max_in_flight=1)
    connection.create("a")
    connection.create("a")
    connection.create("b")
    connection.tick(HOUR)
    events = connection.tick(60)
    assert types(events) == ["failed", "error", "error", "error"]
    assert [event.get("stream_id") for event in events] == ["a", "b", "a", None]


def test_a_closed_connection_sends_nothing():
    connection = old_connection()
    connection.tick(HOUR)
    assert connection.create() == []
    assert connection.receive("garbage") == []
    assert connection.tick(HOUR) == []
    assert connection.end(ServerError()) == []


# Idleness.


def test_an_idle_connection_is_closed():
    connection = Connection(Server(idle_timeout_s=10.0))
    assert connection.tick(9) == []
    assert connection.close is None
    assert connection.tick(1) == []
    assert connection.close == Close(1000, "idle")
    assert connection.create() == []


def test_without_a_timeout_an_idle_connection_stays_open():
    connection = Connection(Server(idle_timeout_s=0.0, max_age_s=1e9))
    connection.tick(1e6)
    assert connection.close is None


def test_a_connection_with_a_running_response_is_not_idle():
    connection = Connection(Server(idle_timeout_s=10.0))
    connection.create()
    connection.tick(100)
    assert connection.close is None


@pytest.mark.parametrize("frame", ["garbage", '{"type": "response.processed"}'])
def test_any_frame_resets_the_idle_timeout(frame):
    connection = Connection(Server(idle_timeout_s=10.0))
    connection.tick(9)
    connection.receive(frame)
    connection.tick(9)
    assert connection.close is None
    connection.tick(1)
    assert connection.close is not None


def test_the_idle_timeout_begins_when_the_last_response_ends():
    """The time in which a client reads a long answer does not count."""
    connection = Connection(Server(idle_timeout_s=10.0))
    connection.create()
    connection.tick(100)
    connection.complete()
    connection.tick(9)
    assert connection.close is None
    connection.tick(1)
    assert connection.close == Close(1000, "idle")


@pytest.mark.parametrize("how", [Connection.load, Connection.fail])
def test_the_idle_timeout_begins_when_a_refusal_is_sent(how):
    connection = Connection(Server(idle_timeout_s=10.0))
    connection.create(previous="resp_slow_to_load")
    connection.tick(100)
    how(connection)
    connection.tick(9)
    assert connection.close is None


# Shutdown.


def test_shutdown_refuses_new_creates_and_closes_with_1001():
    connection = Connection()
    connection.create("a")
    assert connection.end(Unavailable("The server is shutting down."), code=1001) == []
    sent = only_error(connection.create("b"))
    assert (sent["status"], sent["error"]["code"]) == (503, "service_unavailable")
    assert types(connection.finish(lane="a")) == ["completed", "error"]
    assert connection.close == Close(1001, "service_unavailable")


def test_shutdown_of_an_idle_connection_closes_at_once():
    connection = Connection()
    assert only_error(connection.end(Unavailable("bye"), code=1001))["status"] == 503
    assert connection.close == Close(1001, "service_unavailable")


def test_shutdown_fails_responses_that_outlast_the_grace_period():
    connection = Connection()
    connection.create()
    connection.end(Unavailable("bye"), grace_s=5.0)
    assert connection.tick(4.9) == []
    assert types(connection.tick(0.1)) == ["failed", "error"]
    assert connection.close == Close(1001, "service_unavailable")


def test_a_second_end_does_not_change_the_first():
    connection = old_connection()
    connection.create()
    connection.tick(HOUR)
    assert connection.end(Unavailable("bye")) == []
    connection.finish()
    assert connection.close == Close(1000, "websocket_connection_limit_reached")


# The client disconnects.


def test_when_the_client_disconnects_work_is_cancelled_except_saves():
    connection = Connection()
    connection.create("a")
    connection.create("b", previous="resp_unknown")
    connection.create("c", store=True)
    connection.finish(lane="c")
    running, loading = [*connection.starts, *connection.loads]
    connection.hang_up()
    assert connection.cancelled == [running, loading]
    assert connection.saves
    # A finished response counts even if the client does not receive it.
    reports = {record.lane: record.report for record in connection.reports}
    assert {lane: report.status for lane, report in reports.items()} == {
        "a": "cancelled",
        "b": "cancelled",
        "c": "completed",
    }
    assert reports["c"].tokens
    assert reports["a"].tokens is UNSET


def test_results_after_the_client_disconnected_are_ignored():
    connection = Connection()
    connection.create("a")
    connection.create("b", previous="resp_unknown")
    connection.create("c", store=True)
    connection.finish(lane="c")
    (running,) = connection.starts.values()
    (loading,) = connection.loads.values()
    (saving,) = connection.saves.values()
    connection.hang_up()
    session = connection.session
    assert emitted(session, running, [Text("x"), DONE]) == []
    assert session.turns.done(running, None, 0.0) == []
    assert session.turns.done(loading, Loaded(), 0.0) == []
    assert session.turns.done(saving, None, 0.0) == []
    for work in (running, loading, saving):
        assert session.turns.failed(work, ServerError(), 0.0) == []
        assert session.turns.unattended(work.turn, 0.0) == []
        assert session.turns.broken(work.turn, 0.0) == []
    assert session.tick(1e9) == []
    assert session.end(ServerError(), code=1001, grace_s=0.0, now=0.0) == []
    assert session.receive('{"type": "response.create"}', 0.0) == []


def test_waiting_creates_do_not_begin_after_the_client_disconnected():
    connection = Connection()
    connection.create()
    connection.create()
    connection.hang_up()
    assert len(connection.cancelled) == 1
    assert not connection.starts
    assert [record.report.status for record in connection.reports] == ["cancelled", "cancelled"]


def test_a_closed_session_reports_each_turn_once():
    connection = Connection()
    connection.create()
    connection.hang_up()
    assert connection.session.closed() == []


def test_the_cache_of_a_connection_ends_with_it():
    server = Server()
    connection, other = server.connect(), server.connect()
    connection.respond("a")
    connection.respond("b")
    other.respond()
    assert connection.cache.used_bytes > 0
    connection.hang_up()
    assert (len(connection.cache), connection.cache.used_bytes) == (0, 0)
    assert server.scopes.process.used_bytes == other.cache.used_bytes
    other.hang_up()
    assert server.scopes.process.used_bytes == 0
    assert server.scopes.process.used_bytes == 0
    assert not server.scopes.process.latest
    assert not server.scopes.process.superseded


def test_a_stored_response_outlives_its_connection():
    server = Server()
    connection = server.connect()
    first = connection.respond(store=True)
    connection.hang_up()
    other = server.connect()
    other.create(previous=first["id"])
    assert types(other.load()) == ["created", "in_progress"]


def test_a_detached_cache_outlives_its_connection():
    connection = Connection()
    first = connection.respond()
    assert connection.session.recall(first["id"]) is not None
    cache = connection.session.detach_cache()
    assert connection.session.recall(first["id"]) is None
    connection.hang_up()
    assert first["id"] in cache


def test_a_closed_session_ignores_frames_and_ticks():
    connection = Connection()
    connection.hang_up()
    assert connection.create() == []
    assert connection.create_in_background() == []
    assert connection.tick(10 * HOUR) == []
    assert connection.close is None


def test_an_idle_connection_rests_until_its_first_deadline():
    server = Server(max_age_s=HOUR, idle_timeout_s=60.0)
    connection = server.connect()
    assert connection.session.rests_until == server.now + 60.0
    server.now += HOUR - 30.0
    connection.receive('{"type": "response.processed"}')
    assert connection.session.rests_until == server.now + 30.0


def test_without_an_idle_timeout_a_connection_rests_until_its_maximum_age():
    connection = old_connection(idle_timeout_s=0.0)
    assert connection.session.rests_until == connection.server.now + HOUR


def test_a_connection_that_runs_a_turn_or_has_ended_does_not_rest():
    connection = old_connection()
    connection.create()
    assert connection.session.rests_until is None
    connection.complete()
    assert connection.session.rests_until is not None
    connection.hang_up()
    assert connection.session.rests_until is None
