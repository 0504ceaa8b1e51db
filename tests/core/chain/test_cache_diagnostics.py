"""What a response says about the context that its client compares it with."""

from typing import Any

import pytest

from slipring.core.chain import cache_diagnostics
from slipring.core.generation import Text
from tests.core.connection import Connection, Json, function, message

TOOLS = [function("f")]


def turn(connection: Connection, *, compared: str | None = None, **fields: Any) -> Json:
    """Create a response and answer; returns the response object."""
    if compared is not None:
        fields["prompt_cache_options"] = {"comparison_response_id": compared}
    connection.create(**fields)
    if connection.loads:
        connection.load()
    connection.finish(Text("ok"))
    if connection.saves:
        connection.save()
    response: Json = connection.order.responses[-1]
    return response


def diagnosed(connection: Connection, compared: str, **fields: Any) -> Json:
    found: Json = turn(connection, compared=compared, **fields)["prompt_cache_diagnostics"]
    return found


def test_a_response_that_is_compared_with_none_has_no_diagnostics():
    assert "prompt_cache_diagnostics" not in turn(Connection())


def test_a_continued_response_is_a_hit():
    connection = Connection()
    first = turn(connection)
    assert diagnosed(connection, first["id"], previous=first["id"]) == {"type": "cache_hit"}


def test_a_resent_history_is_a_hit_and_where_it_departs_a_miss():
    connection = Connection()
    asked = [message("one"), message("two")]
    first = turn(connection, input=asked, instructions="Be kind.")
    again = {"instructions": "Be kind.", "input": [*asked, *first["output"], message("three")]}
    assert diagnosed(connection, first["id"], **again) == {"type": "cache_hit"}
    changed = {"instructions": "Be kind.", "input": [asked[0], message("another"), message("three")]}
    found = diagnosed(connection, first["id"], **changed)
    assert (found["type"], found["reason"]) == ("cache_miss", "input_changed")
    assert found["comparison_reusable_tokens"] > 0
    assert found["cache_missed_tokens"] > 0


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tools": TOOLS}, "tools_changed"),
        ({"text": {"format": {"type": "json_object"}}}, "text_format_changed"),
        ({"reasoning": {"effort": "high"}}, "reasoning_effort_changed"),
        ({"instructions": "Another."}, "input_changed"),
    ],
)
def test_the_first_thing_that_differs_is_the_reason(fields: Json, reason: str):
    connection = Connection()
    first = turn(connection, input="hello")
    found = diagnosed(connection, first["id"], input="hello", **fields)
    assert (found["type"], found["reason"]) == ("cache_miss", reason)
    assert found["comparison_reusable_tokens"] == 0


def test_another_model_is_the_reason():
    connection = Connection()
    first = turn(connection, input="hello")
    assert diagnosed(connection, first["id"], input="hello", model="able")["reason"] == "model_changed"


def test_a_key_that_changes_no_prompt_is_no_reason():
    connection = Connection()
    first = turn(connection, input="hello", prompt_cache_key="one")
    assert diagnosed(connection, first["id"], input="hello", prompt_cache_key="two")["type"] == "cache_hit"


def test_a_stored_response_is_loaded_and_an_unknown_one_is_not_found():
    connection = Connection()
    first = turn(connection, input="hello", store=True)
    other = Connection(connection.server)
    assert diagnosed(other, first["id"], input="hello")["type"] == "cache_hit"
    assert diagnosed(other, "resp_unknown", input="hello") == {"type": "comparison_response_not_found"}


def test_a_context_that_the_engine_has_not_reused_is_unavailable():
    connection = Connection()
    connection.cached_tokens = 0
    first = turn(connection, input="hello")
    assert diagnosed(connection, first["id"], input="hello") == {"type": "unavailable"}


def test_long_contexts_are_not_compared(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache_diagnostics, "_MOST_ITEMS", 1)
    connection = Connection()
    first = turn(connection, input=[message("one"), message("two")])
    assert diagnosed(connection, first["id"], input="hello") == {"type": "unavailable"}


def test_large_items_are_compared_only_if_they_are_other_objects(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache_diagnostics, "_MOST_BYTES", 2000)
    connection = Connection()
    asked = message("a" * 1200)
    first = turn(connection, input=[asked])
    assert diagnosed(connection, first["id"], input=[asked]) == {"type": "cache_hit"}
    again = {**asked, "id": "msg_1"}
    assert diagnosed(connection, first["id"], input=[again]) == {"type": "unavailable"}
    other = turn(connection, previous=first["id"], input="one")
    found = diagnosed(connection, other["id"], previous=first["id"], input="two")
    assert (found["type"], found["reason"]) == ("cache_miss", "input_changed")
