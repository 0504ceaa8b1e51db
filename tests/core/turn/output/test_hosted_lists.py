"""Lists of tools: whose they are along chains and histories, and what happens while they are fetched."""

import json
from typing import Any

import pytest

from slipring.base.errors import ContextLengthExceeded, ServerError
from slipring.core.betas import Betas
from slipring.core.hosted_tools import FetchedList
from tests.core.connection import (
    Connection,
    Json,
    Server,
    call_output,
    function,
    listed,
    mcp,
    message,
    only_error,
    types,
)
from tests.core.hosted_turns import HOSTED, begin, end_only, hosted, kinds

OLD, NEW = "https://old.example/mcp", "https://new.example/mcp"
BEGUN = ["created", "in_progress", "output_item.added", "mcp_list_tools.in_progress"]


def fetched(connection: Connection) -> set[str]:
    """The labels of the servers whose lists are being fetched."""
    return {label for asked in connection.listings.values() for label in asked.servers}


def offered(connection: Connection, lane: str | None = None) -> list[str]:
    return [tool.name for tool in connection.job(lane).offer.tools]


def answered(connection: Connection, previous: str | None = None, **fields: Any) -> Json:
    """A response with hosted tools."""
    begin(connection, None, previous, **fields)
    return connection.complete()


def ways_on(first: Json) -> list[Json]:
    """The ways in which a client continues a response."""
    return [
        {"previous": first["id"], "input": "more"},
        {"input": [message("hi"), *first["output"], message("more")]},
    ]


def steer(connection: Connection, response_id: str) -> list[Json]:
    frame = {"type": "response.steer", "previous_response_id": response_id, "input": "stop"}
    return connection.receive(json.dumps(frame))


# Whose a list is.


@pytest.mark.parametrize("way", [0, 1])
def test_another_server_under_the_same_label_lists_its_own_tools(way: int) -> None:
    connection = Connection()
    first = answered(connection, tools=[mcp(server_url=OLD)])
    connection.server.lists["s"] = (listed("other"),)
    connection.create(**ways_on(first)[way], tools=[mcp(server_url=NEW)])
    connection.find_servers()
    assert fetched(connection) == {"s"}
    connection.list_tools()
    assert offered(connection) == ["other"]
    second = connection.complete()
    assert kinds(second) == ["mcp_list_tools", "message"]
    # The latest list of a label counts.
    connection.create(previous=second["id"], tools=[mcp(server_url=NEW)])
    connection.resolve()
    assert offered(connection) == ["other"]
    assert kinds(connection.complete()) == ["message"]
    connection.create(previous=first["id"], tools=[mcp(server_url=OLD)])
    connection.resolve()
    assert offered(connection) == ["f", "g"]
    assert kinds(connection.complete()) == ["message"]


def test_a_list_of_other_credentials_is_not_used() -> None:
    connection = Connection()
    first = answered(connection)
    connection.create(previous=first["id"], tools=HOSTED)
    connection.find_servers(identity="the same server, another user")
    assert fetched(connection) == {"s"}


def test_a_list_of_another_tenant_is_not_used() -> None:
    server = Server()
    first = answered(Connection(server))
    other = Connection(server, "other")
    other.create(input=[message("hi"), *first["output"], message("more")], tools=HOSTED)
    other.find_servers()
    assert fetched(other) == {"s"}


ALLOWED = [
    ({"allowed_tools": ["f"]}, {"allowed_tools": ["f", "g"]}, True),
    ({"allowed_tools": ["f"]}, {}, True),
    ({"allowed_tools": ["f"]}, {"allowed_tools": {"read_only": True}}, True),
    ({"allowed_tools": {"read_only": True}}, {"allowed_tools": ["g"]}, True),
    ({"allowed_tools": ["f", "g"]}, {"allowed_tools": ["g"]}, False),
    ({"allowed_tools": ["f", "g"]}, {"allowed_tools": {"tool_names": ["g"]}}, False),
    ({"allowed_tools": ["f", "unknown"]}, {"allowed_tools": ["f", "unknown"]}, False),
    ({}, {"allowed_tools": ["f", "unknown"]}, False),
    ({}, {"allowed_tools": {"read_only": True}}, False),
    ({"allowed_tools": {"read_only": True}}, {"allowed_tools": {"read_only": True}}, False),
]


@pytest.mark.parametrize(("before", "after", "is_wider"), ALLOWED)
@pytest.mark.parametrize("way", [0, 1])
def test_a_list_is_fetched_again_if_more_of_it_is_allowed(
    before: Json, after: Json, is_wider: bool, way: int
) -> None:
    server = Server()
    server.lists["s"] = (listed("f", read_only=True), listed("g"))
    connection = Connection(server)
    first = answered(connection, tools=[mcp(**before)])
    connection.create(**ways_on(first)[way], tools=[mcp(**after)])
    connection.find_servers()
    assert fetched(connection) == ({"s"} if is_wider else set())
    if is_wider:
        connection.list_tools()
    fresh = Connection(server)
    begin(fresh, tools=[mcp(**after)])
    assert offered(connection) == offered(fresh)


def test_a_list_is_fetched_again_if_operator_and_key_permit_something_else() -> None:
    connection = Connection()
    connection.create(tools=HOSTED)
    connection.resolve(permitted=frozenset({"f"}))
    connection.server.lists["s"] = (listed("f"),)
    first = connection.complete()
    connection.server.lists["s"] = (listed("f"), listed("g"))
    connection.create(previous=first["id"], tools=HOSTED)
    connection.find_servers(permitted=frozenset({"f", "g"}))
    assert fetched(connection) == {"s"}


def test_a_list_from_elsewhere_is_what_its_client_says() -> None:
    connection = Connection()
    tools = [{"name": "far", "input_schema": {"type": "object"}}]
    for item_id in ({}, {"id": "mcpl_68e4"}):
        known = {"type": "mcp_list_tools", "server_label": "s", "tools": tools, **item_id}
        connection.create(input=[known, message("hi")], tools=HOSTED)
        connection.resolve()
        assert offered(connection) == ["far"]
        assert kinds(connection.complete()) == ["message"]


def test_a_stored_list_keeps_its_server() -> None:
    server = Server()
    connection = Connection(server)
    begin(connection, tools=[mcp(server_url=OLD)], store=True)
    first = connection.complete()
    for url, again in ((OLD, set()), (NEW, {"s"})):
        later = Connection(server)
        later.create(previous=first["id"], tools=[mcp(server_url=url)])
        later.load()
        later.find_servers()
        assert fetched(later) == again


# While lists are fetched.


def test_everything_that_no_list_can_change_is_refused_before_the_response_is_created() -> None:
    connection = Connection()
    invalid: list[Json] = [
        {"tools": [*HOSTED, {"type": "function", "name": "own", "parameters": 5}]},
        {"tool_choice": {"type": "mcp", "server_label": "unknown"}},
        {"tool_choice": {"type": "function", "name": "missing"}},
        {"tool_choice": {"type": "custom", "name": "own", "namespace": "unknown"}},
        {"include": ["nonsense"]},
        {"input": []},
    ]
    for fields in invalid:
        connection.create(**{"tools": HOSTED, **fields})
        error = only_error(connection.find_servers())
        assert error["status"] == 400
        assert not connection.listings


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "mcp", "server_label": "s", "name": "missing"},
        {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "mcp", "server_label": "s", "name": "x"}],
        },
    ],
)
def test_a_choice_that_the_list_does_not_have_fails_the_response(choice: Json) -> None:
    connection = Connection()
    connection.create(tools=HOSTED, tool_choice=choice)
    assert types(connection.find_servers()) == BEGUN
    sent = connection.list_tools()
    assert types(sent) == ["mcp_list_tools.completed", "output_item.done", "failed"]
    assert sent[-1]["response"]["error"]["code"] == "invalid_prompt"


def test_a_choice_that_the_list_has_is_applied() -> None:
    connection = Connection()
    choice = {"type": "namespace", "name": "s"}
    allowed = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [choice, {"type": "function", "name": "own"}],
    }
    connection.create(tools=[*HOSTED, function("own"), function("other")], tool_choice=allowed)
    connection.resolve()
    assert sorted(offered(connection)) == ["f", "g", "own"]


def test_an_engine_that_refuses_the_job_fails_the_response() -> None:
    connection = Connection()
    begin(connection)
    sent = connection.fail(error=ContextLengthExceeded(9, 8))
    assert types(sent) == ["failed"]
    assert kinds(sent[0]["response"]) == ["mcp_list_tools"]


def test_a_list_that_fails_unexpectedly_fails_the_response() -> None:
    connection = Connection()
    connection.create(tools=HOSTED)
    connection.find_servers()
    assert types(connection.fail(error=ServerError())) == [
        "mcp_list_tools.failed",
        "output_item.done",
        "failed",
    ]


@pytest.mark.parametrize("store", [False, True])
def test_a_steer_ends_a_response_that_waits_for_lists(store: bool) -> None:
    connection = Connection()
    connection.create(tools=HOSTED, store=store)
    (created, *_) = connection.find_servers()
    sent = steer(connection, created["response"]["id"])
    if store:
        sent += connection.save()
    assert types(sent)[:3] == ["steer.accepted", "mcp_list_tools.failed", "output_item.done"]
    assert "incomplete" in types(sent)
    assert len(connection.cancelled) == 1
    # The response that follows fetches the list itself.
    assert types(sent)[-4:] == BEGUN
    connection.list_tools()
    assert offered(connection) == ["f", "g"]
    assert kinds(connection.complete()) == ["mcp_list_tools", "message"]


def test_a_steer_reaches_a_response_whose_lists_are_there() -> None:
    connection = Connection()
    response_id = begin(connection)
    assert types(steer(connection, response_id)) == ["steer.accepted"]
    assert connection.job().stop.asked


def test_nothing_can_be_appended_while_lists_are_fetched() -> None:
    connection = Connection(betas=Betas(rollout=True))
    connection.create(tools=HOSTED, rollout=True)
    (created, *_) = connection.find_servers()
    sent = connection.append(created["response"]["id"], call_output("call_1", "42"))
    assert [event["error"]["code"] for event in sent] == ["invalid_input"]
    connection.list_tools()
    assert kinds(connection.complete()) == ["mcp_list_tools", "message"]


def test_a_disconnect_cancels_lists() -> None:
    connection = Connection()
    connection.create(tools=HOSTED)
    connection.find_servers()
    (asked,) = connection.listings.values()
    connection.hang_up()
    assert connection.cancelled == [asked.turn]
    assert connection.reports[-1].report.status == "cancelled"
    turns = connection.session.turns
    assert turns.listed(asked, "s", FetchedList(), 0.0) == []
    assert turns.done(asked, None, 0.0) == []


def test_a_background_response_is_in_progress_while_its_lists_are_fetched() -> None:
    connection = Connection()
    connection.create_in_background(tools=HOSTED)
    sent = connection.find_servers()
    assert types(sent) == [
        "created",
        "queued",
        "in_progress",
        "output_item.added",
        "mcp_list_tools.in_progress",
    ]
    connection.list_tools()
    assert connection.complete()["status"] == "completed"


def test_lists_are_fetched_for_a_count_without_a_response() -> None:
    connection = Connection()
    connection.session.shared.counts_only = True
    connection.create(tools=HOSTED)
    assert connection.find_servers() == []
    assert connection.list_tools() == []
    connection.weigh(5)
    assert connection.counted == [5]


def test_a_count_is_refused_if_a_list_fails() -> None:
    connection = Connection()
    connection.session.shared.counts_only = True
    connection.create(tools=HOSTED)
    connection.find_servers()
    refused = FetchedList(refusal=ServerError("No."))
    assert only_error(connection.end_list("s", fetched=refused))["status"] == 500


def test_lists_and_hosted_calls_are_items_of_one_response() -> None:
    connection = Connection(betas=Betas(timing=True))
    begin(connection)
    connection.generate(*hosted())
    connection.finish()
    end_only(connection)
    response = connection.complete()
    assert kinds(response) == ["mcp_list_tools", "mcp_call", "message"]
    stages = [stage.name for stage in connection.reports[-1].report.stages]
    assert stages[:5] == ["decode", "queue", "resolve", "validate", "list"]
