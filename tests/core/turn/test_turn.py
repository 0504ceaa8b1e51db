"""A turn: what the engine is asked, and how the response object changes."""

from typing import Any

import pytest

from slipring.core.generation import Accepted, Finished, Text
from slipring.core.limits import Limits
from slipring.core.session.turn_setup import intake_of
from slipring.core.turn.stages import Stages
from slipring.core.turn.turn import Turn
from slipring.errors import ServerError
from slipring.protocol.items import user_message
from slipring.protocol.requests import CreateRequest
from tests.core.stage import PLAIN, Stage, World, types

DONE = Finished(reason="stop", input_tokens=1, cached_tokens=0, output_tokens=1)


def turn_on(lane: str | None = None, **fields: Any) -> Turn:
    stages = Stages(lambda: 0.0)
    return Turn(
        CreateRequest(**fields), tenant="t", lane=lane, size_bytes=0, means=World().means, stages=stages
    )


def begun(**fields: Any) -> Turn:
    turn = turn_on(**fields)
    turn.begin("resp_1", PLAIN, (user_message("hi"),), 5.9, intake_of(Limits()))
    return turn


def test_a_job_says_who_asks_for_what():
    turn = turn_on("a")
    job = turn.begin("resp_1", PLAIN, (user_message("hi"),), 5.9, intake_of(Limits()))
    assert (job.response_id, job.tenant, job.model) == ("resp_1", "t", PLAIN)
    assert (job.parent, job.generate) == (None, True)
    assert turn.response is not None
    assert turn.response.created_at == 5


def test_a_response_that_begins_is_in_progress_and_empty():
    response = begun().response
    assert response is not None
    assert (response.status, response.output, response.usage) == ("in_progress", [], None)
    assert (response.completed_at, response.error, response.incomplete_details) == (None, None, None)


def test_the_opening_events_share_one_response_object():
    opening: list[Any] = begun().accept([Accepted()])
    created, in_progress = opening
    assert created.response is in_progress.response
    assert (created.sequence_number, in_progress.sequence_number) == (0, 1)


def test_a_warmup_opens_with_created_alone():
    assert len(begun(generate=False).accept([Accepted()])) == 1


def test_an_event_that_was_said_does_not_change_later():
    """Frames may be encoded after the turn has moved on."""
    turn = begun()
    opening: list[Any] = turn.accept([Accepted()])
    created, in_progress = opening
    turn.feed([Text("hi"), DONE])
    turn.finish(now=9.0)
    assert created.response.status == in_progress.response.status == "in_progress"
    assert created.response.output == []


def test_finishing_closes_what_is_open_before_the_terminal_event():
    turn = begun()
    turn.accept([Accepted()])
    turn.feed([Text("hi"), DONE])
    closing, state = turn.finish(now=9.7)
    assert [type(event).__name__ for event in closing] == [
        "OutputTextDone",
        "ContentPartDone",
        "OutputItemDone",
    ]
    terminal: Any = turn.terminal()
    assert terminal.response.completed_at == 9
    assert terminal.response is state.response


def test_finished_may_come_in_a_batch_of_its_own():
    stage = Stage()
    stage.create()
    stage.say(Text("x"))
    assert types(stage.finish())[-1] == "completed"


def test_an_empty_batch_says_nothing():
    stage = Stage()
    stage.create()
    assert stage.say() == []
    assert stage.complete()["status"] == "completed"


def test_a_response_that_was_never_finished_cannot_be():
    turn = begun()
    turn.feed([Text("x")])
    with pytest.raises(RuntimeError):
        turn.finish(now=0.0)


@pytest.mark.parametrize("store", [None, True])
def test_storing_is_the_default(store):
    assert begun(store=store).stores
    assert not begun(store=False).stores


def test_a_failure_keeps_what_was_said():
    turn = begun()
    turn.accept([Accepted()])
    turn.feed([Text("half")])
    events = turn.fail(ServerError("Gone."))
    last: Any = events[-1]
    response = last.response
    assert (response.status, response.error.message, response.usage) == ("failed", "Gone.", None)
    assert b"half" in bytes(response.output[0])


def test_reasoning_is_echoed_as_asked():
    stage = Stage()
    asked = {"effort": "low", "summary": "concise", "context": "all_turns", "mode": "standard"}
    assert stage.respond(reasoning=asked)["reasoning"] == asked
    assert stage.respond()["reasoning"] == {"effort": None, "summary": None}
    assert stage.respond(reasoning={"generate_summary": "auto"})["reasoning"]["summary"] == "auto"


@pytest.mark.parametrize(
    "text_format",
    [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "name": "n", "schema": {"a": [1]}, "strict": True, "description": "d"},
    ],
)
def test_the_format_is_echoed_as_asked(text_format):
    response = Stage().respond(text={"format": text_format})
    assert response["text"] == {"format": text_format, "verbosity": "medium"}
