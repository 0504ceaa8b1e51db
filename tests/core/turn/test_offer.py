"""Tools on offer when items add tools, and the room that a create needs in the queue."""

import pytest

from tests.core.connection import Connection, Server

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
