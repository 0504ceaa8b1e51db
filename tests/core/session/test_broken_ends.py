"""A turn whose end fails itself: it holds nothing then, its client gets one last event, its lane goes on."""

from collections.abc import Callable
from typing import Any

import pytest

from slipring.base.errors import ContextLengthExceeded, ServerError
from slipring.core.generation import Text
from slipring.core.session.session_state import SessionState
from slipring.core.turn import endings, turn_reports
from tests.core.connection import Connection, Json, types

ENDS = ("completed", "incomplete", "failed")


class Broken(Exception):
    pass


def breaks(*args: Any, **kwargs: Any) -> Any:
    raise Broken


def refuse(connection: Connection) -> None:
    connection.create(previous="resp_none")
    connection.create(input="next", metadata={"n": "2"})
    connection.load()


def complete(connection: Connection) -> None:
    connection.create()
    connection.create(input="next", metadata={"n": "2"})
    connection.steer("resp_1", "and then?")
    connection.finish(Text("ok"))


def fail(connection: Connection) -> None:
    connection.create()
    connection.create(input="next", metadata={"n": "2"})
    connection.generate(Text("hal"))
    connection.steer("resp_1", "and then?")
    connection.fail(error=ServerError())


BROKEN: dict[str, tuple[object, str, Callable[[Connection], None]]] = {
    "refusal": (turn_reports, "cut_off_stage", refuse),
    "report of a refusal": (turn_reports, "report", refuse),
    "failure": (endings, "fail", fail),
    "memory": (SessionState, "remember", complete),
    "report": (turn_reports, "report", complete),
}


@pytest.mark.parametrize("which", BROKEN)
def test_a_turn_whose_end_fails_leaves_nothing(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, end = BROKEN[which]
    connection = Connection()
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, breaks)
        with pytest.raises(Broken):
            end(connection)
    (turn,) = connection.session.running_and_queued()
    assert turn.asked.request.metadata == {"n": "2"}, "the next turn of the lane does not run"
    last = [e for e in connection.events if e["type"] == "error" or types([e])[0] in ENDS]
    assert len(last) == 1
    steers = [event for event in connection.events if event["type"].startswith("response.steer.")]
    assert types(steers) in ([], ["steer.accepted", "steer.failed"])
    charged = [holder for holder in connection.session.shared.charges._held if holder is not turn]
    assert not charged
    after: Json = connection.complete()
    assert after["status"] == "completed"
    assert connection.session.in_flight == 0
    assert connection.server.requests.used_bytes == 0
    connection.order.finish()


def test_a_successor_whose_refusal_fails_returns_its_steers_and_sends_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusal = ContextLengthExceeded(2, 1)
    connection = Connection(
        refuses=lambda job: refusal if any(b"too long" in item.raw for item in job.input) else None
    )
    connection.create()
    connection.steer("resp_1", "too long")
    monkeypatch.setattr(turn_reports, "cut_off_stage", breaks)
    with pytest.raises(Broken):
        connection.finish(Text("ok"))
    assert types(connection.events[-2:]) == ["completed", "steer.failed"]
    assert connection.session.in_flight == 0
    assert connection.server.requests.used_bytes == 0
