"""The OpenAPI document: it is valid, it covers every route, and the server keeps to it."""

import json
import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from jsonschema import Draft202012Validator

from slipring.commands.cli import main
from slipring.commands.openapi import OPERATIONS, Operation
from slipring.protocol.items.items import CARRIED_TYPES, TOOL_SEARCH
from slipring.protocol.tools import client_tools
from slipring.protocol.tools.tool_types import BuiltinKind
from slipring.server import peers
from tests.described import DOCUMENT, check_answer, complaints, validator
from tests.harness import WEATHER, Running, serve
from tests.protocol.items.test_items import GOOD

METHODS = {"GET", "HEAD", "POST", "DELETE"}
OPEN_FIELDS = {("CreateRequest", name) for name in ("type", "stream_id", "prompt")}
"""Fields with any content: the server ignores them, or refuses every value."""


def schema(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def within(value: object) -> Iterator[dict[str, Any]]:
    """Every object in a document."""
    if isinstance(value, dict):
        yield value
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from within(inner)


# It is valid.


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["openapi"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed) == DOCUMENT
    assert DOCUMENT["openapi"] == "3.1.0"


def test_every_schema_is_a_schema_and_every_reference_resolves() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    for found in schemas.values():
        Draft202012Validator.check_schema(found)
    for found in within(DOCUMENT):
        if isinstance(found.get("$ref"), str):
            assert found["$ref"].removeprefix("#/components/schemas/") in schemas


def test_tools_without_a_schema_are_named_with_who_runs_them() -> None:
    described = DOCUMENT["components"]["schemas"]["OtherTool"]["description"]
    by_client, by_server, *_ = described.split(". ")[1:]
    assert all(kind in by_client for kind in (*client_tools.PARAMETERS, TOOL_SEARCH))
    assert all(kind in by_server for kind in get_args(BuiltinKind))


def test_every_schema_is_used() -> None:
    used = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(DOCUMENT)))
    assert set(DOCUMENT["components"]["schemas"]) == used


def test_operations_have_unique_ids_and_the_parameters_of_their_paths() -> None:
    ids = []
    for path, methods in DOCUMENT["paths"].items():
        for operation in methods.values():
            ids.append(operation["operationId"])
            named = [each["name"] for each in operation["parameters"] if each["in"] == "path"]
            assert named == re.findall(r"\{(\w+)\}", path)
    assert len(ids) == len(set(ids))


# That it knows everything.


async def test_every_route_is_described_and_every_description_has_a_route() -> None:
    async with serve() as server:
        assert server.server._runner is not None
        routes = {
            (route.method, route.resource.canonical)
            for route in server.server._runner.app.router.routes()
            if route.resource is not None
        }
    routes.remove(("*", "/"))  # HEAD tells clients that there is a server; nothing else is there
    # Between nodes only: for everybody else there is no such path.
    routes.remove(("*", f"{peers.PATH}/{{response_id}}"))
    described = {(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    twins = {(method, path.removeprefix("/v1")) for method, path in described}
    assert routes == described | twins


def test_no_field_is_left_open() -> None:
    """Finds raw fields whose schema has not been defined by hand."""
    found = {
        (name, field)
        for name, each in DOCUMENT["components"]["schemas"].items()
        for field, inner in each.get("properties", {}).items()
        if not inner.keys() - {"default"} or inner.get("items") == {} or inner == {"type": "array"}
    }
    assert found == OPEN_FIELDS


# The server keeps to it.


@pytest.mark.parametrize("item", GOOD, ids=lambda item: item["type"])
def test_decoded_items_match_the_schema(item: dict[str, Any]) -> None:
    assert complaints(schema("Item"), item) == []
    assert complaints(schema("CreateRequest"), {"input": [item]}) == []


@pytest.mark.parametrize("kind", sorted(CARRIED_TYPES))
def test_items_that_are_kept_unchanged_match_the_schema(kind: str) -> None:
    assert complaints(schema("Item"), {"type": kind, "id": "x", "anything": [1]}) == []


@pytest.mark.parametrize(
    "body",
    [
        {"input": 5},
        {"input": [5]},
        {"input": [{"type": "no_such_item"}]},
        {"input": [{"role": "critic", "content": ""}]},
        {"tools": [{"type": "function"}]},
        {"tools": {}},
        {"tool_choice": "perhaps"},
        {"text": {"format": {"type": "json_schema", "name": "no good", "schema": {}}}},
        {"temperature": 3},
        {"context_management": [{"type": "truncation"}]},
        {"conversation": {}},
    ],
)
def test_malformed_requests_do_not_match_the_schema(body: dict[str, Any]) -> None:
    assert complaints(schema("CreateRequest"), body)


async def call(server: Running, operation_id: str, status: int, **given: Any) -> Any:
    """Call an operation; check the answer against the document, and its status."""
    operation = named(operation_id)
    path = operation.path.format(**{name: given.pop(name) for name in re.findall(r"{(\w+)}", operation.path)})
    url = server.url.removesuffix("/v1") + path
    async with server.http.request(operation.method, url, **given) as answer:
        body = await answer.read()
        check_answer(operation, answer.status, answer.content_type, body)
        assert answer.status == status, body
        return json.loads(body) if answer.content_type == "application/json" else body.decode()


def named(operation_id: str) -> Operation:
    return next(operation for operation in OPERATIONS if operation.id == operation_id)


async def test_answers_match_the_schema() -> None:
    async with serve("simulated:tokens_per_s=0,output_tokens=5,tool_calls=1") as server:
        body = {"input": "hello", "tools": [WEATHER, {"type": "web_search"}], "tool_choice": "auto"}
        first = await call(server, "createResponse", 200, json=body)
        stream = await call(server, "createResponse", 200, json={"input": "hello", "stream": True})
        for line in re.findall(r"^data: (\{.*)$", stream, re.MULTILINE):
            assert complaints(schema("ServerEvent"), json.loads(line)) == []
        tool = {"type": "function", "function": {"name": "f"}}
        body = {"messages": [{"role": "user", "content": "hello"}], "tools": [tool]}
        assert complaints(schema("ChatRequest"), body) == []
        await call(server, "createChatCompletion", 200, json=body)
        stream = await call(server, "createChatCompletion", 200, json={**body, "stream": True})
        for line in re.findall(r"^data: (\{.*)$", stream, re.MULTILINE):
            assert complaints(schema("ChatChunk"), json.loads(line)) == []
        await call(server, "createChatCompletion", 400, json={})
        body = {
            "model": "simulated",
            "max_tokens": 1000,
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
            "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        }
        assert complaints(schema("MessagesRequest"), body) == []
        await call(server, "createMessage", 200, json=body)
        stream = await call(server, "createMessage", 200, json={**body, "stream": True})
        for line in re.findall(r"^data: (\{.*)$", stream, re.MULTILINE):
            assert complaints(schema("MessagesEvent"), json.loads(line)) == []
        await call(server, "createMessage", 400, json={})
        await call(server, "countMessageTokens", 200, json=body)
        later = await call(server, "createResponse", 200, json={"input": "hello", "background": True})
        await call(server, "cancelResponse", 200, response_id=later["id"])
        await call(server, "getResponse", 200, response_id=first["id"])
        await call(server, "listInputItems", 200, response_id=first["id"])
        await call(server, "countInputTokens", 200, json={"input": "hello"})
        await call(server, "compactResponse", 200, json={"model": "simulated", "input": "hello"})
        await call(server, "deleteResponse", 200, response_id=first["id"])
        await call(server, "deleteResponse", 404, response_id=first["id"])
        await call(server, "createResponse", 400, json={"input": 5})
        await call(server, "createResponse", 404, json={"input": "hello", "model": "other"})
        await call(server, "connectResponses", 426)
        await call(server, "listModels", 200)
        await call(server, "getModel", 200, model="simulated")
        await call(server, "getHealth", 200)
        await call(server, "getReadiness", 200)
        await call(server, "getStoreReadiness", 200)
        async with server.connect() as socket:
            await socket.response(input="hello")
            assert (await call(server, "listTurns", 200))["data"]


async def test_conversations_match_the_schema() -> None:
    async with serve() as server:
        items = [{"role": "user", "content": "hello"}, {"type": "web_search_call", "id": "ws_1"}]
        made = await call(server, "createConversation", 200, json={"items": items, "metadata": {"a": "b"}})
        place = {"conversation_id": made["id"]}
        await call(server, "getConversation", 200, **place)
        await call(server, "updateConversation", 200, **place, json={"metadata": None})
        await call(server, "addConversationItems", 200, **place, json={"items": items[:1]})
        page = await call(server, "listConversationItems", 200, **place, params={"limit": "2"})
        await call(server, "getConversationItem", 200, **place, item_id=page["first_id"])
        await call(server, "deleteConversationItem", 200, **place, item_id=page["first_id"])
        await call(server, "deleteConversation", 200, **place)
        await call(server, "getConversation", 404, **place)
        await call(server, "createConversation", 200)


async def test_the_error_for_a_missing_key_matches_the_schema() -> None:
    async with serve(api_key=("right",)) as server:
        for operation in OPERATIONS:
            given = dict.fromkeys(re.findall(r"{(\w+)}", operation.path), "x")
            await call(server, operation.id, 200 if operation.is_open else 401, **given)


def test_a_mismatch_is_detected() -> None:
    assert not validator("#/components/schemas/ErrorAnswer").is_valid({"error": {"type": "x"}})
    with pytest.raises(AssertionError, match="not described"):
        check_answer(named("listModels"), 404, "application/json", b"{}")
    with pytest.raises(AssertionError, match="required"):
        check_answer(named("listModels"), 200, "application/json", b"{}")
