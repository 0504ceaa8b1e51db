"""What a response says about the context that its client compares it with."""

from typing import Any

import pytest

from slipring.core.chain import cache_diagnostics
from slipring.core.generation import Accepted, CallArguments, CallStarted, Delta, Text, Thought
from tests.core import connection as connections
from tests.core.connection import Json, function, message

TOOLS = [function("f")]


class Connection(connections.Connection):
    """One to an engine that has most of each prompt in its cache."""

    cached_tokens = 6


def turn(
    connection: Connection,
    *,
    compared: str | None = None,
    accepted: Accepted | None = None,
    says: tuple[Delta, ...] = (Text("ok"),),
    **fields: Any,
) -> Json:
    """Create a response and answer; returns the response object."""
    if compared is not None:
        fields["prompt_cache_options"] = {"comparison_response_id": compared}
    connection.accepted = accepted or Accepted()
    connection.create(**fields)
    if connection.loads:
        connection.load()
    connection.finish(*says)
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
    # What is estimated is not more than what was counted: seven tokens, each time.
    long = {"instructions": "Be kind.", "input": [asked[0], message("another " * 500), message("three")]}
    assert diagnosed(connection, first["id"], **long)["cache_missed_tokens"] == 7
    assert found["comparison_reusable_tokens"] <= 7


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
    assert (found["cache_missed_tokens"], found["comparison_reusable_tokens"]) == (7, 0)


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


def test_a_context_of_which_the_engine_has_kept_little_is_unavailable():
    connection = Connection()
    first = turn(connection, input="hello")
    connection.cached_tokens = 3
    assert diagnosed(connection, first["id"], previous=first["id"]) == {"type": "unavailable"}


def test_a_setting_that_changes_no_token_of_a_context_is_no_reason():
    """An effort that the template writes only where the answer begins, for example."""
    connection = Connection()
    first = turn(connection, input="hello")
    fields = {"previous": first["id"], "reasoning": {"effort": "high"}}
    again = {**fields, "accepted": Accepted(rendered_tokens=3, fallback="the effort changed")}
    assert diagnosed(connection, first["id"], **again)["reason"] == "reasoning_effort_changed"
    appended = {**fields, "accepted": Accepted(rendered_tokens=3)}
    assert diagnosed(connection, first["id"], **appended) == {"type": "cache_hit"}


def test_a_context_without_its_oldest_items_is_another_one():
    connection = Connection()
    first = turn(connection, input=[message("one"), message("two")])
    found = diagnosed(connection, first["id"], previous=first["id"], accepted=Accepted(dropped_items=2))
    assert (found["type"], found["reason"]) == ("cache_miss", "input_changed")
    assert found["comparison_reusable_tokens"] == 0


def test_a_compaction_is_the_reason_in_its_turn_and_after_it():
    connection = Connection()
    first = turn(connection, input=[message("one"), message("two")])
    connection.create(
        previous=first["id"],
        input=[message("three")],
        context_management=[{"type": "compaction", "compact_threshold": 1}],
        prompt_cache_options={"comparison_response_id": first["id"]},
    )
    connection.weigh(1000)
    connection.finish(Text("A summary."))
    connection.finish(Text("ok"))
    second: Json = connection.order.responses[-1]
    assert second["prompt_cache_diagnostics"]["reason"] == "context_compacted"
    assert diagnosed(connection, first["id"], previous=second["id"])["reason"] == "context_compacted"
    assert diagnosed(connection, second["id"], previous=second["id"]) == {"type": "cache_hit"}
    later = turn(connection, previous=second["id"])
    assert diagnosed(connection, second["id"], previous=later["id"]) == {"type": "cache_hit"}
    items = {"input": [second["output"][0], message("another"), message("more")]}
    assert diagnosed(connection, later["id"], **items)["reason"] == "input_changed"


def test_thoughts_that_only_one_of_two_contexts_has_are_a_changed_input():
    connection = Connection()
    first = turn(
        connection,
        tools=TOOLS,
        says=(Thought("Hm."), CallStarted("function", "f"), CallArguments("{}")),
    )
    thought, call = first["output"]
    answered = {"type": "function_call_output", "call_id": call["call_id"], "output": "1"}
    second = turn(connection, tools=TOOLS, previous=first["id"], input=[answered])
    dropped = Accepted(fallback="thoughts", withheld_thoughts=(thought["id"],))
    asked = {"tools": TOOLS, "previous": second["id"], "accepted": dropped}
    third = turn(connection, compared=second["id"], **asked)
    assert third["input_transformations"] == [
        {"id": thought["id"], "type": "reasoning", "action": "removed", "reason": "turn_boundary"}
    ]
    assert third["reasoning"]["context"] == "current_turn"
    found = third["prompt_cache_diagnostics"]
    assert (found["type"], found["reason"]) == ("cache_miss", "input_changed")
    assert found["comparison_reusable_tokens"] > 0
    again = {**asked, "previous": third["id"]}
    assert diagnosed(connection, third["id"], **again) == {"type": "cache_hit"}
    first_of_all = diagnosed(connection, first["id"], **asked)
    assert first_of_all == {"type": "cache_hit"}, "its answer has the thought, and its prompt has not"


def test_a_client_that_leaves_thoughts_out_gets_no_list_of_them():
    connection = Connection()
    connection.accepted = Accepted(withheld_thoughts=("rs_1",))
    connection.post()
    connection.finish(Text("ok"))
    assert "input_transformations" not in connection.order.responses[-1]


def test_lists_of_hosted_tools_are_no_changed_tools():
    connection = Connection()
    hosted: Json = {"tools": [{"type": "mcp", "server_label": "s", "server_url": "https://s.example"}]}
    connection.create(**hosted)
    connection.resolve()
    connection.finish(Text("ok"))
    first: Json = connection.order.responses[-1]
    connection.create(**hosted, prompt_cache_options={"comparison_response_id": first["id"]})
    connection.resolve()
    connection.finish(Text("ok"))
    assert connection.order.responses[-1]["prompt_cache_diagnostics"] == {"type": "cache_hit"}


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
