"""Turns of a conversation: their context, their references, and what errors name."""

from tests.core.connection import Connection, Json, context_of, message, only_error, types


def reference(item_id: str) -> Json:
    return {"type": "item_reference", "id": item_id}


def contents(connection: Connection) -> list[object]:
    return [item["content"] for item in context_of(connection.job())]


def test_the_items_of_a_conversation_precede_the_input() -> None:
    connection = Connection()
    connection.create(conversation="conv_1", input="now")
    sent = connection.load_conversation(message("before"))
    assert types(sent) == ["created", "in_progress"]
    assert sent[0]["response"]["conversation"] == {"id": "conv_1"}
    assert contents(connection) == ["before", "now"]


def test_a_conversation_continues_its_last_response() -> None:
    connection = Connection()
    last = connection.respond(input="first", store=True)
    connection.create(conversation="conv_1", input="now")
    connection.load_conversation(message("added"), tip=last["id"])
    assert [item["content"] for item in context_of(connection.job())][::2] == ["first", "added"]
    assert contents(connection)[-1] == "now"


def test_references_are_resolved_from_a_conversation_and_its_last_response() -> None:
    connection = Connection()
    last = connection.respond(store=True)
    answer = last["output"][0]["id"]
    connection.create(conversation="conv_1", input=[reference(answer), reference("msg_added")])
    connection.load_conversation({**message("added"), "id": "msg_added"}, tip=last["id"])
    *_, first, second = context_of(connection.job())
    assert (first["id"], second["id"]) == (answer, "msg_added")


def test_references_are_resolved_from_a_conversation_without_responses() -> None:
    connection = Connection()
    connection.create(conversation="conv_1", input=[reference("msg_added")])
    connection.load_conversation(message("other"), {**message("added"), "id": "msg_added"})
    assert contents(connection) == ["other", "added", "added"]


def test_an_error_names_the_index_in_the_input_and_not_in_the_conversation() -> None:
    connection = Connection()
    connection.create(conversation="conv_1", input=[message("hi"), reference("msg_none")])
    error = only_error(connection.load_conversation(message("before")))["error"]
    assert error["param"] == "input[1].id"


def test_an_error_about_an_item_of_the_conversation_names_the_conversation() -> None:
    connection = Connection()
    connection.create(conversation="conv_1")
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
    error = only_error(connection.load_conversation(message([image])))["error"]
    assert error["param"] == "conversation"


def test_a_response_of_a_conversation_is_saved_though_it_is_not_stored() -> None:
    connection = Connection()
    connection.create(conversation="conv_1", store=False)
    connection.load_conversation()
    connection.finish()
    assert len(connection.saves) == 1
    assert types(connection.save()) == ["completed"]


def test_a_response_of_a_conversation_cannot_be_steered() -> None:
    connection = Connection()
    connection.create(conversation="conv_1")
    connection.load_conversation()
    answer = connection.steer("resp_1")
    assert answer["error"]["code"] == "steering_not_supported"
    assert "conversation" in answer["error"]["message"]
