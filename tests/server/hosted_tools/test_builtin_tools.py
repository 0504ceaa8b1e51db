"""Built-in tools that registered tools answer, over real sockets."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from slipring.config.tables import BuiltinMapping
from tests.harness import Running, serve
from tests.mcp.fakes import Exchange, FakeServer, Reply, serving, text
from tests.server.hosted_tools.running import registered
from tests.server.hosted_tools.turns import scripted, types

Json = dict[str, Any]
FOUND = "See https://a.example/one, and (https://b.example/two). Again: https://a.example/one"
SEARCH = BuiltinMapping("web_search", "fake", "find", "q", (("search_context_size", "size"),))
FILES = BuiltinMapping("file_search", "fake", "files", "query", (("vector_store_ids", "stores"),))
CODE = BuiltinMapping("code_interpreter", "fake", "run", "code")
FILE_TOOL = {"type": "file_search", "vector_store_ids": ["vs_1"]}
CODE_TOOL = {"type": "code_interpreter", "container": {"type": "auto"}}


def call(kind: str, **arguments: Any) -> Json:
    return {"function_call": {"name": kind, "arguments": arguments}}


def say(words: str) -> Json:
    return {"text": words}


async def _find(exchange: Exchange) -> Reply:
    if exchange.arguments["q"] == "nothing":
        return text("no luck", isError=True)
    return text(FOUND)


async def _files(exchange: Exchange) -> Reply:
    return text(json.dumps([{"file_id": "f1", "filename": "a.txt", "score": 0.5, "text": "here", "rank": 1}]))


async def _run(exchange: Exchange) -> Reply:
    return text(f"ran {exchange.arguments['code']}")


@asynccontextmanager
async def answering(
    engine: str, *mappings: BuiltinMapping, **config: Any
) -> AsyncIterator[tuple[FakeServer, Running]]:
    fake = FakeServer(modern=True)
    fake.calls |= {"find": _find, "files": _files, "run": _run}
    async with (
        serving(fake) as served,
        serve(engine, mcp=(registered(served, headers=()),), builtin_tools=mappings, **config) as server,
    ):
        yield fake, server


def outputs(response: Json) -> list[str]:
    return [item["type"] for item in response["output"]]


async def test_a_web_search_runs_inside_one_response(tmp_path: Path) -> None:
    engine = scripted(tmp_path, [call("web_search", query="rings")], [say("Found it.")], [say("Yes.")])
    async with answering(engine, SEARCH) as (fake, server), server.connect() as socket:
        tool = {"type": "web_search", "search_context_size": "low"}
        events = await socket.turn(
            input="look", tools=[tool], include=["web_search_call.action.sources"], store=True
        )
        response = events[-1]["response"]
        assert types(events)[2:-1][:5] == [
            "output_item.added",
            "web_search_call.in_progress",
            "web_search_call.searching",
            "web_search_call.completed",
            "output_item.done",
        ]
        assert outputs(response) == ["web_search_call", "message"]
        assert response["tools"] == [tool], "the tool is echoed as sent"
        search = response["output"][0]
        assert search["status"] == "completed"
        assert search["action"] == {
            "type": "search",
            "query": "rings",
            "queries": ["rings"],
            "sources": [
                {"type": "url", "url": "https://a.example/one"},
                {"type": "url", "url": "https://b.example/two"},
            ],
        }
        asked = fake.last("tools/call").message["params"]
        assert (asked["name"], asked["arguments"]) == ("find", {"size": "low", "q": "rings"})
        again = await socket.response(input="sure?", previous_response_id=response["id"], tools=[tool])
        assert outputs(again) == ["message"]
        # The model reads the whole result, which the item does not show.
        state = await server.service.store.responses.load("default", response["id"])
        assert state is not None
        assert any(FOUND in item.raw.decode() for item in state.context())


async def test_sources_are_shown_only_if_they_are_included(tmp_path: Path) -> None:
    engine = scripted(tmp_path, [call("web_search", query="rings")], [say("Found it.")])
    async with answering(engine, SEARCH) as (_, server), server.connect() as socket:
        response = await socket.response(input="look", tools=[{"type": "web_search_preview"}])
    assert "sources" not in response["output"][0]["action"]


async def test_a_search_that_fails_is_read_by_the_model(tmp_path: Path) -> None:
    engine = scripted(tmp_path, [call("web_search", query="nothing")], [say("No.")])
    async with answering(engine, SEARCH) as (_, server), server.connect() as socket:
        response = await socket.response(input="look", tools=[{"type": "web_search"}])
        state = await server.service.store.responses.load("default", response["id"])
    assert [item["status"] for item in response["output"]] == ["failed", "completed"]
    assert state is not None
    assert any("no luck" in item.raw.decode() for item in state.context())


async def test_file_search_shows_its_results_if_they_are_included(tmp_path: Path) -> None:
    engine = scripted(tmp_path, [call("file_search", query="rings")], [say("There.")])
    async with answering(engine, FILES) as (fake, server), server.connect() as socket:
        events = await socket.turn(input="look", tools=[FILE_TOOL], include=["file_search_call.results"])
    assert types(events)[3:6] == [
        "file_search_call.in_progress",
        "file_search_call.searching",
        "file_search_call.completed",
    ]
    (search, _) = events[-1]["response"]["output"]
    assert search["queries"] == ["rings"]
    (found,) = search["results"]
    shown = {"file_id": "f1", "filename": "a.txt", "score": 0.5, "text": "here", "attributes": {}}
    assert found == shown
    assert fake.last("tools/call").message["params"]["arguments"] == {"stores": ["vs_1"], "query": "rings"}


async def test_code_is_run_and_its_output_shown_if_included(tmp_path: Path) -> None:
    engine = scripted(tmp_path, [call("code_interpreter", code="1 + 1")], [say("2")])
    async with answering(engine, CODE) as (_, server), server.connect() as socket:
        events = await socket.turn(input="add", tools=[CODE_TOOL], include=["code_interpreter_call.outputs"])
    assert types(events)[2:9] == [
        "output_item.added",
        "code_interpreter_call.in_progress",
        "code_interpreter_call_code.delta",
        "code_interpreter_call_code.done",
        "code_interpreter_call.interpreting",
        "code_interpreter_call.completed",
        "output_item.done",
    ]
    (ran, _) = events[-1]["response"]["output"]
    assert (ran["code"], ran["status"]) == ("1 + 1", "completed")
    assert ran["outputs"] == [{"type": "logs", "logs": "ran 1 + 1"}]
    assert ran["container_id"].startswith("cntr_")


async def test_a_call_past_the_budget_stays_once_as_if_it_ran(tmp_path: Path) -> None:
    calls = [call("web_search", query=word) for word in ("one", "two", "three")]
    engine = scripted(tmp_path, [*calls, call("code_interpreter", code="1")], [say("Done.")])
    async with answering(engine, SEARCH, CODE) as (fake, server):
        _, response = await server.post(
            input="look", tools=[{"type": "web_search"}, CODE_TOOL], max_tool_calls=1
        )
        statuses = [item["status"] for item in response["output"]]
        assert outputs(response) == ["web_search_call", "web_search_call", "message"]
        assert statuses == ["completed", "searching", "completed"]
        assert response["status"] == "completed"
        assert fake.count("tools/call") == 1


async def test_a_history_that_is_sent_again_has_what_the_items_show(tmp_path: Path) -> None:
    engine = scripted(tmp_path, [say("Yes.")])
    ran = {"id": "ci_1", "type": "code_interpreter_call", "code": "6*7", "container_id": "c"}
    history = [
        {"role": "user", "content": "6*7?"},
        {**ran, "status": "completed", "outputs": [{"type": "logs", "logs": "42"}]},
        {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search"}},
        {"role": "user", "content": "really?"},
    ]
    async with answering(engine, CODE) as (_, server), server.connect() as socket:
        response = await socket.response(input=history, tools=[CODE_TOOL])
        state = await server.service.store.responses.load("default", response["id"])
    assert state is not None
    context = [item.type for item in state.context()]
    assert context == ["message", "function_call", "function_call_output", "message", "message"]


async def test_a_required_search_is_called_by_its_type() -> None:
    engine = "simulated:tool_calls=1,tokens_per_s=0"
    async with answering(engine, SEARCH) as (_, server), server.connect() as socket:
        response = await socket.response(
            input="look",
            tools=[{"type": "web_search_preview"}],
            tool_choice={"type": "web_search_preview"},
        )
        assert outputs(response) == ["web_search_call", "message"]
        assert response["tool_choice"] == {"type": "web_search_preview"}


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        (FILE_TOOL, "tools[0].type"),
        ({"type": "image_generation"}, "tools[0].type"),
        ({"type": "slipring.builtin", "kind": "web_search", "sent": {}}, "tools[0].type"),
        ({"type": "web_search", "filters": {"allowed_domains": ["a.example"]}}, "tools[0].filters"),
    ],
)
async def test_what_nothing_answers_is_refused_by_name(tool: Json, param: str) -> None:
    async with answering("simulated", SEARCH) as (_, server), server.connect() as socket:
        refused = await socket.error(input="look", tools=[tool])
    assert (refused["error"]["code"], refused["error"]["param"]) == ("unsupported_parameter", param)


async def test_a_client_that_wants_no_search_outside_gets_none() -> None:
    """As Codex sends it by default."""
    tool = {"type": "web_search", "external_web_access": False}
    async with answering("simulated:tool_calls=1,tokens_per_s=0", SEARCH) as (fake, server):
        async with server.connect() as socket:
            response = await socket.response(input="look", tools=[tool])
        assert outputs(response) == ["message"]
        assert response["tools"] == [tool]
        assert fake.count("tools/call") == 0


async def test_ignored_tools_are_echoed_and_the_setting_says_which() -> None:
    search = {"type": "web_search"}
    async with serve() as server, server.connect() as socket:
        assert (await socket.response(input="look", tools=[search]))["tools"] == [search]
    async with serve(ignored_tool=()) as server, server.connect() as socket:
        refused = await socket.error(input="look", tools=[search])
        assert refused["error"]["param"] == "tools[0].type"
