"""Sealed items: opened when their turn begins, or refused by name."""

from typing import Any

import pytest

from slipring.core.generation import Text, Thought, ThoughtSummary
from tests.core.stage import Json, Stage, World, context_of, message, only_error

ENCRYPTED = ["reasoning.encrypted_content"]


def thought(stage: Stage, **fields: Any) -> Json:
    """A response with a thought, and its reasoning item."""
    stage.create(**fields)
    stage.say(Thought("six times seven"), Text("42"))
    response: Json = stage.finish()[-1]["response"]
    return response


def test_reasoning_is_sealed_for_those_who_ask() -> None:
    stage = Stage()
    item = thought(stage, include=ENCRYPTED)["output"][0]
    assert item["content"] == [{"type": "reasoning_text", "text": "six times seven"}]
    assert item["encrypted_content"]
    added = next(event for event in stage.events if event["type"] == "response.output_item.added")
    assert "encrypted_content" not in added["item"]


def test_reasoning_is_not_sealed_for_others() -> None:
    assert "encrypted_content" not in thought(Stage())["output"][0]


def test_a_client_that_drops_the_content_gets_it_back_in_its_context() -> None:
    world = World()
    reasoning, said = thought(world.connect(), include=ENCRYPTED)["output"]
    del reasoning["content"]
    stage = world.connect()
    stage.create(input=[message("6*7"), reasoning, said, message("sure?")])
    told = context_of(stage.job())[1]
    assert told["content"] == [{"type": "reasoning_text", "text": "six times seven"}]
    assert "encrypted_content" not in told


def test_what_was_sealed_holds_against_what_stands_beside_it() -> None:
    world = World()
    reasoning, said = thought(world.connect(), include=ENCRYPTED)["output"]
    reasoning["content"][0]["text"] = "something else"
    stage = world.connect()
    stage.create(input=[message("6*7"), reasoning, said])
    assert context_of(stage.job())[1]["content"][0]["text"] == "six times seven"


def test_a_continuation_by_id_sees_the_reasoning_without_its_seal() -> None:
    stage = Stage()
    made = thought(stage, include=ENCRYPTED)
    stage.create(previous=made["id"])
    told = context_of(stage.job())[1]
    assert told["type"] == "reasoning"
    assert "encrypted_content" not in told


def test_summaries_are_sealed_too() -> None:
    world = World()
    stage = world.connect()
    stage.create(include=ENCRYPTED)
    stage.say(ThoughtSummary("counted"), Text("42"))
    item = stage.finish()[-1]["response"]["output"][0]
    assert item["summary"] == [{"type": "summary_text", "text": "counted"}]
    (sealed,) = world.means.seal.open("tenant", item["encrypted_content"])
    assert sealed.type == "reasoning"


def test_reasoning_without_a_seal_is_what_it_says() -> None:
    stage = Stage()
    plain = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "so"}],
        "encrypted_content": None,
    }
    stage.create(input=[plain, message("go on")])
    assert context_of(stage.job())[0] == plain


@pytest.mark.parametrize("kind", ["compaction", "compaction_summary", "reasoning"])
def test_what_cannot_be_opened_is_refused_by_name(kind: str) -> None:
    foreign = {"type": kind, "summary": [], "encrypted_content": "gAAAA"}
    refused = only_error(Stage().create(input=[message("hi"), foreign]))
    assert refused["status"] == 400
    assert refused["error"]["code"] == "invalid_encrypted_content"
    assert refused["error"]["param"] == "input[1].encrypted_content"


def test_nobody_opens_what_another_tenant_was_given() -> None:
    world = World()
    reasoning = thought(world.connect("alice"), include=ENCRYPTED)["output"][0]
    refused = only_error(world.connect("bob").create(input=[reasoning, message("hi")]))
    assert refused["error"]["code"] == "invalid_encrypted_content"


def test_a_compaction_is_no_reasoning() -> None:
    world = World()
    made = world.connect().respond(input=[message("one"), {"type": "compaction_trigger"}], says="s")
    passed_off = {
        "type": "reasoning",
        "summary": [],
        "encrypted_content": made["output"][0]["encrypted_content"],
    }
    refused = only_error(world.connect().create(input=[passed_off, message("hi")]))
    assert refused["error"]["code"] == "invalid_encrypted_content"


def test_an_item_that_is_referred_to_is_opened_already() -> None:
    stage = Stage()
    made = stage.respond(input=[message("one"), {"type": "compaction_trigger"}], says="s", store=True)
    other = stage.world.connect()
    other.create(input=[{"type": "item_reference", "id": made["output"][0]["id"]}, message("two")])
    other.load()
    assert [item["content"] for item in context_of(other.job())][1:] == ["one", "two"]
