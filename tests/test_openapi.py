"""The OpenAPI document: that it is one, that it knows every route, and that it is true."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from slipring.cli import main
from slipring.openapi.operations import OPERATIONS, Operation
from slipring.protocol.items import CARRIED_TYPES
from slipring.server.cluster import peers
from tests.described import DOCUMENT, check_answer, complaints, validator
from tests.harness import WEATHER, Running, serve
from tests.protocol.test_items import GOOD

METHODS = {"GET", "HEAD", "POST", "DELETE"}
OPEN_FIELDS = {("CreateRequest", name) for name in ("type", "stream_id", "prompt", "moderation")}
"""What may hold anything: it is not looked at, or refused whatever it is."""


def schema(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def within(value: object) -> Iterator[dict[str, Any]]:
    """Every object in a document."""
    if isinstance(value, dict):
        yield value
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from within(inner)


# That it is one.


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["openapi"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed) == DOCUMENT
    assert DOCUMENT["openapi"] == "3.1.0"


def test_every_schema_is_a_schema_and_every_reference_leads_somewhere() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    for found in schemas.values():
        Draft202012Validator.check_schema(found)
    for found in within(DOCUMENT):
        if isinstance(found.get("$ref"), str):
            assert found["$ref"].removeprefix("#/components/schemas/") in schemas


def test_every_schema_is_used() -> None:
    used = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(DOCUMENT)))
    assert set(DOCUMENT["components"]["schemas"]) == used


def test_operations_have_names_of_their_own_and_parameters_that_are_in_their_paths() -> None:
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
    # Between nodes only: for everybody else there is no such path.
    routes.remove(("*", f"{peers.PATH}/{{response_id}}"))
    described = {(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    twins = {(method, path.removeprefix("/v1")) for method, path in described}
    assert routes == described | twins


def test_no_field_is_left_open() -> None:
    """A field that is raw in the code has to be described by hand: this finds one that was not."""
    found = {
        (name, field)
        for name, each in DOCUMENT["components"]["schemas"].items()
        for field, inner in each.get("properties", {}).items()
        if not inner.keys() - {"default"} or inner.get("items") == {} or inner == {"type": "array"}
    }
    assert found == OPEN_FIELDS


# That it is true.


@pytest.mark.parametrize("item", GOOD, ids=lambda item: item["type"])
def test_items_that_are_read_are_described(item: dict[str, Any]) -> None:
    assert complaints(schema("Item"), item) == []
    assert complaints(schema("CreateRequest"), {"input": [item]}) == []


@pytest.mark.parametrize("kind", sorted(CARRIED_TYPES))
def test_items_that_are_carried_are_described(kind: str) -> None:
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
def test_what_is_refused_for_its_form_is_not_described(body: dict[str, Any]) -> None:
    assert complaints(schema("CreateRequest"), body)


async def called(server: Running, operation_id: str, status: int, **given: Any) -> Any:
    """Call an operation; its answer must be described, and have this status."""
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


async def test_answers_are_as_described() -> None:
    async with serve("simulated:tokens_per_s=0,output_tokens=5,tool_calls=1") as server:
        body = {"input": "hello", "tools": [WEATHER, {"type": "web_search"}], "tool_choice": "auto"}
        first = await called(server, "createResponse", 200, json=body)
        stream = await called(server, "createResponse", 200, json={"input": "hello", "stream": True})
        for line in re.findall(r"^data: (\{.*)$", stream, re.MULTILINE):
            assert complaints(schema("ServerEvent"), json.loads(line)) == []
        later = await called(server, "createResponse", 200, json={"input": "hello", "background": True})
        await called(server, "cancelResponse", 200, response_id=later["id"])
        await called(server, "getResponse", 200, response_id=first["id"])
        await called(server, "listInputItems", 200, response_id=first["id"])
        await called(server, "countInputTokens", 200, json={"input": "hello"})
        await called(server, "compactResponse", 200, json={"model": "simulated", "input": "hello"})
        await called(server, "deleteResponse", 200, response_id=first["id"])
        await called(server, "deleteResponse", 404, response_id=first["id"])
        await called(server, "createResponse", 400, json={"input": 5})
        await called(server, "createResponse", 404, json={"input": "hello", "model": "other"})
        await called(server, "connectResponses", 426)
        await called(server, "listModels", 200)
        await called(server, "getModel", 200, model="simulated")
        await called(server, "getHealth", 200)
        async with server.connect() as socket:
            await socket.response(input="hello")
            assert (await called(server, "listTurns", 200))["data"]


async def test_conversations_are_as_described() -> None:
    async with serve() as server:
        items = [{"role": "user", "content": "hello"}, {"type": "web_search_call", "id": "ws_1"}]
        made = await called(server, "createConversation", 200, json={"items": items, "metadata": {"a": "b"}})
        place = {"conversation_id": made["id"]}
        await called(server, "getConversation", 200, **place)
        await called(server, "updateConversation", 200, **place, json={"metadata": None})
        await called(server, "addConversationItems", 200, **place, json={"items": items[:1]})
        page = await called(server, "listConversationItems", 200, **place, params={"limit": "2"})
        await called(server, "getConversationItem", 200, **place, item_id=page["first_id"])
        await called(server, "deleteConversationItem", 200, **place, item_id=page["first_id"])
        await called(server, "deleteConversation", 200, **place)
        await called(server, "getConversation", 404, **place)
        await called(server, "createConversation", 200)


async def test_who_has_no_key_is_refused_as_described() -> None:
    async with serve(api_key=("right",)) as server:
        for operation in OPERATIONS:
            given = dict.fromkeys(re.findall(r"{(\w+)}", operation.path), "x")
            await called(server, operation.id, 200 if operation.is_open else 401, **given)


def test_a_description_that_is_not_met_is_noticed() -> None:
    assert not validator("#/components/schemas/ErrorAnswer").is_valid({"error": {"type": "x"}})
    with pytest.raises(AssertionError, match="not described"):
        check_answer(named("listModels"), 404, "application/json", b"{}")
    with pytest.raises(AssertionError, match="required"):
        check_answer(named("listModels"), 200, "application/json", b"{}")
