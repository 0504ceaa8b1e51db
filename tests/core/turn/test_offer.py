"""What is on offer when a chain brings tools of its own, and what room a create needs."""

import pytest

from tests.core.stage import Stage, World

LOOK = {"type": "function", "name": "look", "description": "old", "parameters": {"type": "object"}}
NEWER = {**LOOK, "description": "new"}


def test_an_added_tool_takes_the_place_of_its_namesake_in_the_head() -> None:
    stage = Stage()
    stage.create(
        tools=[LOOK],
        input=[
            {"type": "additional_tools", "role": "developer", "tools": [NEWER]},
            {"role": "user", "content": "hi"},
        ],
    )
    (tool,) = stage.job().offer.tools
    assert tool.definition.description == "new"


def test_optional_keys_of_a_tool_may_be_null() -> None:
    stage = Stage()
    tool = {**LOOK, "allowed_callers": None, "defer_loading": None, "strict": None, "async": None}
    custom = {"type": "custom", "name": "run", "description": None, "format": None}
    stage.create(tools=[tool, custom])
    assert [tool.name for tool in stage.job().offer.tools] == ["look", "run"]


def test_an_effort_that_the_chain_carries_is_echoed() -> None:
    stage = Stage()
    update = {"type": "configuration_update", "reasoning": {"effort": "high"}}
    first = stage.respond(input=[update, {"role": "user", "content": "hi"}])
    assert first["reasoning"]["effort"] == "high"
    second = stage.respond(previous=first["id"])
    assert second["reasoning"]["effort"] == "high"
    assert stage.respond(previous=second["id"], reasoning={"effort": "low"})["reasoning"]["effort"] == "low"


def test_a_create_that_can_start_at_once_needs_no_room_in_the_queue() -> None:
    stage = Stage(World(max_queued_bytes=100, max_queued=1))
    stage.create("a", instructions="x" * 200)
    assert stage.starts


@pytest.mark.parametrize(("size", "refused"), [(0, False), (200, True)])
def test_a_create_that_has_to_wait_needs_room_in_the_queue(size: int, refused: bool) -> None:
    stage = Stage(World(max_queued_bytes=200))
    stage.create("a")
    events = stage.create("a", instructions="x" * size)
    assert [event["status"] for event in events] == ([429] if refused else [])
