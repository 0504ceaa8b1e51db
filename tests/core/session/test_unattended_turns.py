"""Turns that the driver works on no longer: they fail, unless they have ended or wait for something else."""

from slipring.base.errors import ServerError
from slipring.core.betas import Betas
from slipring.core.checks.policies import Check, Policy
from slipring.core.generation import CallArguments, CallStarted, Finished, Text
from slipring.core.session.actions import Flush, Record
from slipring.core.turn.turn import Turn
from tests.core.connection import Connection, Json, Server, call_output, emitted, function, only_error, types

CALL = (CallStarted("function", "f"), CallArguments("{}"))


def checked(*, before: bool) -> Connection:
    server = Server()
    server.policy = Policy((Check("guard", action="block", mode="hold", on_error="closed", before=before),))
    return Connection(server)


def only_turn(connection: Connection) -> Turn:
    (turn,) = connection.session.running_and_queued()
    return turn


def unattend(connection: Connection) -> list[Json]:
    turns = connection.session.turns
    return connection._run(turns.unattended(only_turn(connection), connection.server.now))


def is_free(connection: Connection) -> bool:
    return connection.session.in_flight == 0 and connection.server.requests.used_bytes == 0


def test_a_response_that_is_made_fails():
    connection = Connection()
    connection.create()
    connection.generate(Text("he"))
    assert types(unattend(connection))[-1] == "failed"
    assert is_free(connection)


def test_a_request_whose_response_was_not_created_is_refused():
    for fields in ({"previous": "resp_9"}, {"tools": [{"type": "mcp", "server_label": "s"}]}):
        connection = Connection(accepts=lambda job: False)
        connection.create(**fields)
        assert only_error(unattend(connection))["error"]["code"] == "server_error"
        assert is_free(connection)


def test_a_response_that_is_saved_fails():
    connection = Connection()
    connection.create(store=True)
    connection.finish(Text("hello"))
    assert types(unattend(connection))[-1] == "failed"
    assert is_free(connection)


def test_a_turn_that_has_ended_has_ended():
    connection = Connection()
    connection.create()
    turn = only_turn(connection)
    connection.finish(Text("hello"))
    assert connection.session.turns.unattended(turn, connection.server.now) == []


def test_a_turn_whose_last_events_cannot_be_written_has_ended():
    connection = Connection()
    connection.create()
    _, work = connection.starts.popitem()
    emitted(
        connection.session,
        work,
        [Text("hello"), Finished("stop", input_tokens=1, cached_tokens=0, output_tokens=1)],
    )
    *_, flush = connection.session.turns.done(work, None, 0.0)
    assert isinstance(flush, Flush)
    (record,) = connection.session.turns.unattended(flush.turn, 0.0)
    assert isinstance(record, Record)
    assert record.report.status == "completed"
    assert is_free(connection)


def test_a_response_waits_for_verdicts_and_fails_without_them():
    connection = checked(before=False)
    connection.create()
    connection.finish(Text("hello"))
    assert unattend(connection) == []
    turn = only_turn(connection)
    sent = connection._run(connection.session.turns.broken(turn, connection.server.now))
    assert types(sent)[-1] == "failed"
    assert connection.cancelled == [turn]
    assert is_free(connection)


def test_a_request_waits_for_verdicts_before_its_response_is_created():
    connection = checked(before=True)
    connection.create()
    assert unattend(connection) == []
    sent = connection._run(connection.session.turns.broken(only_turn(connection), connection.server.now))
    assert only_error(sent)["error"]["code"] == "server_error"
    assert is_free(connection)


def test_a_rollout_waits_for_its_client_and_ends_if_it_is_not_resumed_then():
    connection = Connection(betas=Betas(rollout=True))
    connection.session.shared.asks_each_turn = True
    connection.create(rollout=True, tools=[function("f")])
    connection.load()
    done = connection.finish(*CALL)[-1]
    assert unattend(connection) == []
    connection.append(done["response_id"], call_output(done["required_input"][0]["call_id"], "sun"))
    assert types(unattend(connection))[-1] == "completed"
    assert is_free(connection)


def test_the_error_of_an_ending_connection_refers_to_no_turn() -> None:
    connection = Connection()
    connection.create()
    connection.create()
    error = ServerError("stop")
    connection.end(error)
    connection.finish(Text("hello"))
    assert connection.close is not None
    assert (error.__context__, error.__traceback__) == (None, None)
