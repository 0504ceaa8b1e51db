"""Items and tools of the engine's own server: what clients get of them, and what the engine gets."""

import json
from typing import Any

import pytest
from msgspec import UNSET, structs

from slipring.base.errors import ModelNotFound
from slipring.core.betas import Betas
from slipring.core.generation import (
    CallArguments,
    CallStarted,
    Delta,
    Model,
    Text,
    UpstreamItemEnded,
    UpstreamItemEvent,
    UpstreamItemStarted,
)
from slipring.core.turn.output.output_events import Output
from slipring.protocol import events, wire
from slipring.protocol.items.items import Item, read_item
from tests.core.connection import ABLE, PLAIN, Connection, Json, Server

CALL = {"type": "mcp_call", "id": "mcp_up", "server_label": "s", "name": "f", "arguments": "{}"}
BEGUN = {**CALL, "arguments": "", "status": "in_progress"}
SERVER = {
    **{"type": "mcp", "server_label": "s", "server_url": "https://s.example", "require_approval": "never"},
    **{"authorization": "secret-1", "headers": {"X-Key": "secret-2"}},
}
FUNCTION = {"type": "function", "name": "g", "parameters": {"type": "object"}}


class UpstreamModels:
    """A model whose server runs hosted tools, one that refuses them, and one of this server."""

    def find(self, name: str | None) -> Model:
        if name == "up":
            return structs.replace(ABLE, name="up", is_upstream=True, hosted_tools="upstream")
        if name == "none":
            return structs.replace(PLAIN, name="none", hosted_tools="refuse")
        if name in (None, "m"):
            return PLAIN
        raise ModelNotFound(name, ["up", "none", "m"])


def connection(betas: Betas | None = None) -> Connection:
    server = Server()
    server.models = UpstreamModels()  # type: ignore[assignment]
    return server.connect(betas=betas) if betas is not None else server.connect()


def item(fields: Json) -> Item:
    return read_item(json.dumps(fields).encode(), "item")


def started(fields: Json, key: int = 0) -> Delta:
    return UpstreamItemStarted(key, item(fields))


def ended(fields: Json, key: int = 0) -> Delta:
    return UpstreamItemEnded(key, item(fields))


def told(kind: type[events.CallEvent], key: int = 0, **fields: Any) -> Delta:
    return UpstreamItemEvent(key, kind, fields)


def fed(output: Output, *deltas: Delta) -> list[Json]:
    output.response_id = "resp_1"
    return [json.loads(wire.encode(event)) for event in output.feed(list(deltas))]


# What clients get.


def test_items_keep_their_ids_and_get_the_numbers_of_the_response() -> None:
    output = Output(lambda prefix: f"{prefix}_1", UNSET)
    sent = fed(
        output,
        Text("a"),
        started(BEGUN),
        told(events.McpCallArgumentsDelta, delta="{}"),
        Text("b"),
        told(events.McpCallArgumentsDone, arguments="{}"),
        ended(CALL),
        Text("c"),
    )
    assert [event["sequence_number"] for event in sent] == list(range(len(sent)))
    about_call = [event for event in sent if event["output_index"] == 1]
    assert [event["type"].removeprefix("response.") for event in about_call] == [
        "output_item.added",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
        "output_item.done",
    ]
    assert {event.get("item_id", "mcp_up") for event in about_call} == {"mcp_up"}
    assert (about_call[0]["item"], about_call[-1]["item"]) == (BEGUN, CALL)
    output.finish("completed")
    assert [each.type for each in output.items] == ["message", "mcp_call", "message"]
    assert [each.type for each in output.end_step()] == ["message", "mcp_call", "message"]


def test_an_item_without_an_id_gets_one() -> None:
    unnamed = {name: value for name, value in CALL.items() if name != "id"}
    output = Output(lambda prefix: f"{prefix}_1", UNSET)
    first, last = fed(output, started(unnamed), ended(unnamed))
    assert first["item"]["id"] == last["item"]["id"] == output.items[0].id
    assert first["item"]["id"].startswith("mcp_1")


@pytest.mark.parametrize(
    ("begun", "kind", "fields"),
    [
        (BEGUN, events.McpCallArgumentsDelta, {"status": "incomplete", "arguments": "ab"}),
        (
            {"type": "code_interpreter_call", "id": "ci", "status": "in_progress", "code": ""},
            events.CodeInterpreterCallCodeDelta,
            {"status": "incomplete", "code": "ab"},
        ),
        ({"type": "web_search_call", "id": "ws", "status": "in_progress"}, None, {"status": "failed"}),
        ({"type": "mcp_list_tools", "id": "l", "server_label": "s", "tools": []}, None, {}),
    ],
)
def test_an_item_that_does_not_end_is_cut_off(
    begun: Json, kind: type[events.CallEvent] | None, fields: Json
) -> None:
    output = Output(lambda prefix: f"{prefix}_1", UNSET)
    pieces = (told(kind, delta="a"), told(kind, delta="b")) if kind is not None else ()
    fed(output, started(begun), *pieces)
    (done,) = output.finish("completed")
    assert json.loads(wire.encode(done))["item"] == {**begun, **fields}


def test_a_call_of_the_clients_tool_needs_its_output() -> None:
    client = connection()
    shell: Json = {"type": "shell_call", "id": "sh", "call_id": "c", "status": "completed"}
    shell["action"] = {"commands": ["ls"]}
    client.create(model="up")
    output = client.session.running_and_queued()[0].output
    assert not output.calls
    fed(output, started({**shell, "status": "in_progress"}), ended(shell))
    assert output.calls


# What the engine gets.


def test_the_engine_gets_tools_with_secrets_that_nothing_keeps() -> None:
    client = connection()
    include = ["web_search_call.results", "message.output_text.logprobs"]
    client.create(model="up", tools=[SERVER, FUNCTION], tool_choice="required", include=include)
    job = client.job()
    passed = job.upstream_tools
    assert passed is not None
    assert json.loads(passed.tools) == [SERVER, FUNCTION]
    assert (passed.secrets, passed.choice) == (("secret-1", "secret-2"), b'"required"')
    assert passed.include == ("web_search_call.results",)
    assert "secret" not in repr(job) + repr(passed)
    assert b"secret" not in job.head.tools.raw + bytes(job.head.tools.echo)
    assert [tool.name for tool in job.offer.tools] == ["g"]
    response = client.complete()
    assert response["tool_choice"] == "required"


def test_tools_of_the_client_alone_take_the_usual_way() -> None:
    client = connection()
    client.create(model="up", tools=[FUNCTION], tool_choice="required")
    assert client.job().upstream_tools is None
    assert client.job().offer.required
    client.complete()


def test_a_malformed_choice_is_refused() -> None:
    (error,) = connection().create(model="up", tools=[SERVER], tool_choice="sometimes")
    assert error["error"]["param"] == "tool_choice"


def test_the_engines_server_judges_what_only_it_supports() -> None:
    client = connection()
    tool = {"type": "mcp", "server_label": "s", "tunnel_id": "x", "allowed_callers": ["programmatic"]}
    client.create(model="up", tools=[tool])
    passed = client.job().upstream_tools
    assert passed is not None
    assert json.loads(passed.tools) == [tool]
    client.complete()


def test_a_steered_response_passes_its_tools_on_to_its_successor() -> None:
    client = connection()
    client.create(model="up", tools=[SERVER])
    before = client.job().upstream_tools
    client.generate(Text("One."))
    client.steer("resp_1")
    client.finish(reason="steered")
    assert client.job().upstream_tools is before
    client.complete()


@pytest.mark.parametrize(("choice", "later"), [("required", None), ("none", b'"none"')])
def test_a_required_call_is_required_once(choice: str, later: bytes | None) -> None:
    client = connection(Betas(rollout=True))
    client.create(model="up", tools=[SERVER, FUNCTION], tool_choice=choice, rollout=True)
    client.finish(CallStarted("function", "g"), CallArguments("{}"))
    client.append("resp_1", {"type": "function_call_output", "call_id": "call_1", "output": "x"})
    passed = client.job().upstream_tools
    assert passed is not None
    assert (passed.choice, json.loads(passed.tools)) == (later, [SERVER, FUNCTION])
    client.complete()


def test_another_model_of_the_chain_knows_nothing_of_the_upstreams_approvals() -> None:
    client = connection()
    client.create(model="up", tools=[SERVER])
    request = {**CALL, "type": "mcp_approval_request", "id": "mcpr_up"}
    client.finish(started(request), ended(request))
    state = client.cache.find("resp_1")
    assert state is not None
    assert [each.opened for each in state.output] == [None]
    assert not state.carry.approvals
    answer = {"type": "mcp_approval_response", "approval_request_id": "mcpr_up", "approve": True}
    client.create(model="up", previous="resp_1", tools=[SERVER], input=[answer])
    assert [each.type for each in client.job().input] == ["mcp_approval_response"]
    client.complete()
    client.create(model="m", previous="resp_1", lane="other", input=[answer])
    assert client.events[-1]["error"]["param"] == "input[0].approval_request_id"


# Nobody runs them.


@pytest.mark.parametrize(
    ("tool", "noun"),
    [
        (SERVER, "'mcp' (server 's')"),
        ({"type": "web_search"}, "'web_search'"),
        ({"type": "shell", "environment": {"type": "container_auto"}}, "'shell'"),
    ],
)
def test_a_model_without_hosted_tools_names_the_tool(tool: Json, noun: str) -> None:
    (error,) = connection().create(model="none", tools=[FUNCTION, tool])
    assert (error["status"], error["error"]["param"]) == (400, "tools[1].type")
    assert noun in error["error"]["message"]


def test_a_model_without_hosted_tools_takes_those_of_the_client() -> None:
    client = connection()
    client.create(model="none", tools=[FUNCTION])
    assert client.complete()["status"] == "completed"
