"""Sealed items are opened when their turn begins, or refused by name."""

from typing import Any

import pytest

from slipring.core.generation import Text, Thought, ThoughtSummary
from tests.core.connection import Connection, Json, Server, context_of, message, only_error

ENCRYPTED = ["reasoning.encrypted_content"]


def thought(connection: Connection, **fields: Any) -> Json:
    """Complete a response with reasoning; returns the response object."""
    connection.create(**fields)
    connection.generate(Thought("six times seven"), Text("42"))
    response: Json = connection.finish()[-1]["response"]
    return response


def test_reasoning_is_sealed_on_request() -> None:
    connection = Connection()
    item = thought(connection, include=ENCRYPTED)["output"][0]
    assert item["content"] == [{"type": "reasoning_text", "text": "six times seven"}]
    assert item["encrypted_content"]
    added = next(event for event in connection.events if event["type"] == "response.output_item.added")
    assert "encrypted_content" not in added["item"]


def test_reasoning_is_not_sealed_by_default() -> None:
    assert "encrypted_content" not in thought(Connection())["output"][0]


def test_sealed_reasoning_restores_content_that_the_client_dropped() -> None:
    server = Server()
    reasoning, answer = thought(server.connect(), include=ENCRYPTED)["output"]
    del reasoning["content"]
    connection = server.connect()
    connection.create(input=[message("6*7"), reasoning, answer, message("sure?")])
    sent = context_of(connection.job())[1]
    assert sent["content"] == [{"type": "reasoning_text", "text": "six times seven"}]
    assert "encrypted_content" not in sent


def test_sealed_content_overrides_the_plain_fields_beside_it() -> None:
    server = Server()
    reasoning, answer = thought(server.connect(), include=ENCRYPTED)["output"]
    reasoning["content"][0]["text"] = "something else"
    connection = server.connect()
    connection.create(input=[message("6*7"), reasoning, answer])
    assert context_of(connection.job())[1]["content"][0]["text"] == "six times seven"


def test_a_continuation_by_id_sees_the_reasoning_without_its_seal() -> None:
    connection = Connection()
    made = thought(connection, include=ENCRYPTED)
    connection.create(previous=made["id"])
    sent = context_of(connection.job())[1]
    assert sent["type"] == "reasoning"
    assert "encrypted_content" not in sent


def test_summaries_are_sealed_too() -> None:
    server = Server()
    connection = server.connect()
    connection.create(include=ENCRYPTED)
    connection.generate(ThoughtSummary("counted"), Text("42"))
    item = connection.finish()[-1]["response"]["output"][0]
    assert item["summary"] == [{"type": "summary_text", "text": "counted"}]
    (sealed,) = server.ports.seal.open("tenant", item["encrypted_content"])
    assert sealed.type == "reasoning"


def test_reasoning_without_a_seal_is_used_as_sent() -> None:
    connection = Connection()
    plain = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "so"}],
        "encrypted_content": None,
    }
    connection.create(input=[plain, message("go on")])
    assert context_of(connection.job())[0] == plain


@pytest.mark.parametrize("kind", ["compaction", "compaction_summary", "reasoning"])
def test_a_blob_that_cannot_be_opened_is_refused_by_name(kind: str) -> None:
    foreign = {"type": kind, "summary": [], "encrypted_content": "gAAAA"}
    refused = only_error(Connection().create(input=[message("hi"), foreign]))
    assert refused["status"] == 400
    assert refused["error"]["code"] == "invalid_encrypted_content"
    assert refused["error"]["param"] == "input[1].encrypted_content"


def test_a_tenant_cannot_open_blobs_of_another_tenant() -> None:
    server = Server()
    reasoning = thought(server.connect("alice"), include=ENCRYPTED)["output"][0]
    refused = only_error(server.connect("bob").create(input=[reasoning, message("hi")]))
    assert refused["error"]["code"] == "invalid_encrypted_content"


def test_a_compaction_blob_is_refused_in_a_reasoning_item() -> None:
    server = Server()
    made = server.connect().respond(input=[message("one"), {"type": "compaction_trigger"}], says="s")
    passed_off = {
        "type": "reasoning",
        "summary": [],
        "encrypted_content": made["output"][0]["encrypted_content"],
    }
    refused = only_error(server.connect().create(input=[passed_off, message("hi")]))
    assert refused["error"]["code"] == "invalid_encrypted_content"


def test_a_referenced_compaction_is_replaced_by_its_content() -> None:
    connection = Connection()
    made = connection.respond(input=[message("one"), {"type": "compaction_trigger"}], says="s", store=True)
    other = connection.server.connect()
    other.create(input=[{"type": "item_reference", "id": made["output"][0]["id"]}, message("two")])
    other.load()
    assert [item["content"] for item in context_of(other.job())][1:] == ["one", "two"]
