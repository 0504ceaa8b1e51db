"""A turn: its job, and the changes of the response object."""

from typing import Any

import pytest

from slipring.base.errors import ServerError
from slipring.core.betas import Betas
from slipring.core.generation import Accepted, Finished, Text
from slipring.core.turn import delivery, endings
from slipring.core.turn.turn import Turn
from slipring.protocol.events import OutputItemDone
from tests.core.connection import PLAIN, Connection, mcp, message, only_error, types

DONE = Finished(reason="stop", input_tokens=1, cached_tokens=0, output_tokens=1)


def begun(*, short_events: bool = False, **fields: Any) -> Turn:
    """A turn whose engine has its job, and has not accepted it."""
    connection = Connection(accepts=lambda job: False, betas=Betas(short_events=short_events))
    connection.create("a", **fields)
    (turn,) = connection.session.running_and_queued()
    return turn


def test_a_job_has_its_response_id_tenant_and_model():
    turn = begun()
    job = turn.planned.job
    assert job is not None
    assert (job.response_id, job.tenant, job.model) == ("resp_1", "tenant", PLAIN)
    assert (job.parent, job.generate) == (None, True)
    assert turn.response is not None
    assert turn.response.created_at == 1000


def test_a_response_that_begins_is_in_progress_and_empty():
    response = begun().response
    assert response is not None
    assert (response.status, response.output, response.usage) == ("in_progress", [], None)
    assert (response.completed_at, response.error, response.incomplete_details) == (None, None, None)


def test_the_opening_events_share_one_response_object():
    opening: list[Any] = delivery.accept(begun(), [Accepted()])
    created, in_progress = opening
    assert created.response is in_progress.response
    assert (created.sequence_number, in_progress.sequence_number) == (0, 1)


def test_short_opening_events_share_one_response_object_too():
    turn = begun(instructions="Be kind.", short_events=True)
    opening: list[Any] = delivery.accept(turn, [Accepted()])
    created, in_progress = opening
    assert created.response is in_progress.response
    assert (bytes(created.response.instructions), bytes(created.response.tools)) == (b"null", b"[]")
    assert turn.response is not None
    assert bytes(turn.response.instructions) == b'"Be kind."'


def test_a_warmup_opens_with_created_alone():
    assert len(delivery.accept(begun(generate=False), [Accepted()])) == 1


def test_an_event_does_not_change_after_it_was_returned():
    """Events may be encoded after the turn has progressed."""
    turn = begun()
    opening: list[Any] = delivery.accept(turn, [Accepted()])
    created, in_progress = opening
    delivery.feed(turn, [Text("hi"), DONE])
    endings.finish(turn, now=9.0)
    assert created.response.status == in_progress.response.status == "in_progress"
    assert created.response.output == []


def test_open_items_are_closed_before_the_terminal_event():
    turn = begun()
    delivery.accept(turn, [Accepted()])
    delivery.feed(turn, [Text("hi"), DONE])
    closing, turn.ended = endings.finish(turn, now=9.7)
    assert [type(event).__name__ for event in closing] == [
        "OutputTextDone",
        "ContentPartDone",
        "OutputItemDone",
    ]
    terminal: Any = turn.terminal()
    assert terminal.response.completed_at == 9
    assert turn.ended.state is not None
    assert terminal.response is turn.ended.state.response


def test_finished_may_arrive_in_a_separate_batch():
    connection = Connection()
    connection.create()
    connection.generate(Text("x"))
    assert types(connection.finish())[-1] == "completed"


def test_an_empty_batch_yields_no_events():
    connection = Connection()
    connection.create()
    assert connection.generate() == []
    assert connection.complete()["status"] == "completed"


def test_finish_raises_without_a_finished_delta():
    turn = begun()
    delivery.feed(turn, [Text("x")])
    with pytest.raises(RuntimeError):
        endings.finish(turn, now=0.0)


@pytest.mark.parametrize("store", [None, True])
def test_storing_is_the_default(store):
    assert begun(store=store).stores
    assert not begun(store=False).stores


def test_a_failure_keeps_the_output_so_far():
    turn = begun()
    delivery.accept(turn, [Accepted()])
    delivery.feed(turn, [Text("half")])
    closing, turn.ended = endings.fail(turn, ServerError("Gone."), keeps_steps=False)
    assert isinstance(closing[-1], OutputItemDone)
    last: Any = turn.terminal()
    response = last.response
    assert (response.status, response.error.message, response.usage) == ("failed", "Gone.", None)
    assert b"half" in bytes(response.output[0])


def test_reasoning_is_repeated_in_the_response():
    connection = Connection()
    asked = {"effort": "low", "summary": "concise", "context": "all_turns", "mode": "standard"}
    assert connection.respond(reasoning=asked)["reasoning"] == asked
    assert connection.respond()["reasoning"] == {"effort": None, "summary": None}
    assert connection.respond(reasoning={"generate_summary": "auto"})["reasoning"]["summary"] == "auto"


@pytest.mark.parametrize(
    "text_format",
    [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "name": "n", "schema": {"a": [1]}, "strict": True, "description": "d"},
    ],
)
def test_the_format_is_repeated_in_the_response(text_format):
    response = Connection().respond(text={"format": text_format})
    assert response["text"] == {"format": text_format, "verbosity": "medium"}


# The offer and the settings of a job.

LOOK = {"type": "function", "name": "look", "description": "old", "parameters": {"type": "object"}}
NEWER = {**LOOK, "description": "new"}


def test_an_added_tool_replaces_one_of_the_same_name_in_the_head() -> None:
    connection = Connection()
    connection.create(
        tools=[LOOK],
        input=[
            {"type": "additional_tools", "role": "developer", "tools": [NEWER]},
            {"role": "user", "content": "hi"},
        ],
    )
    (tool,) = connection.job().offer.tools
    assert tool.definition.description == "new"


def test_mcp_servers_are_given_in_tools_and_not_added_by_items() -> None:
    added = {"type": "additional_tools", "role": "developer", "tools": [LOOK, mcp()]}
    error = only_error(Connection().create(input=[message("hi"), added]))["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "input[1].tools[1].type")


def test_optional_keys_of_a_tool_may_be_null() -> None:
    connection = Connection()
    tool = {**LOOK, "allowed_callers": None, "defer_loading": None, "strict": None, "async": None}
    custom = {"type": "custom", "name": "run", "description": None, "format": None}
    connection.create(tools=[tool, custom])
    assert [tool.name for tool in connection.job().offer.tools] == ["look", "run"]


def test_an_effort_from_the_carry_is_repeated_in_the_response() -> None:
    connection = Connection()
    update = {"type": "configuration_update", "reasoning": {"effort": "high"}}
    first = connection.respond(input=[update, {"role": "user", "content": "hi"}])
    assert first["reasoning"]["effort"] == "high"
    second = connection.respond(previous=first["id"])
    assert second["reasoning"]["effort"] == "high"
    assert (
        connection.respond(previous=second["id"], reasoning={"effort": "low"})["reasoning"]["effort"] == "low"
    )


# Responses in the background.


def test_a_background_response_is_created_and_queued_before_the_engine_accepts_it() -> None:
    connection = Connection(accepts=lambda job: False)
    created, queued = connection.create_in_background()
    assert types([created, queued]) == ["created", "queued"]
    assert (queued["response"]["status"], queued["response"]["background"]) == ("queued", True)
    (started,) = connection.generate(Accepted())
    assert (started["type"], started["response"]["status"]) == ("response.in_progress", "in_progress")
    assert connection.complete()["background"] is True


def test_a_background_response_that_the_engine_refuses_fails() -> None:
    connection = Connection(accepts=lambda job: False)
    connection.create_in_background()
    assert types(connection.fail()) == ["failed"]


@pytest.mark.parametrize("fields", [{"store": False}, {"generate": False}])
def test_a_background_response_must_be_stored_and_generate_something(fields: dict[str, bool]) -> None:
    (param,) = fields
    assert only_error(Connection().create_in_background(**fields))["error"]["param"] == param


def test_a_background_response_cannot_be_steered() -> None:
    connection = Connection()
    connection.create_in_background()
    answer = connection.steer("resp_1")
    assert answer["error"]["code"] == "steering_not_supported"
    assert "background" in answer["error"]["message"]
