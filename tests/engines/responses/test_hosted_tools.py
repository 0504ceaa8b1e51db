"""Hosted tools with the responses engine: run here, run by the upstream, or refused."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from slipring.base.errors import StartupError
from slipring.engines.responses.engine import ResponsesEngine
from slipring.engines.responses.options import ResponsesOptions, read_options
from tests.engines.fakes.responses import FakeResponsesServer
from tests.engines.fakes.server import Call, HangUp, Host, Refuse, Say, Stop, Think, in_front_of
from tests.harness import WEATHER, Running, serve
from tests.mcp.fakes import Exchange, FakeServer, Reply, serving
from tests.server.hosted_tools.running import OPERATOR, registered
from tests.server.issuing import issue, serve_stored

Json = dict[str, Any]
SECRETS = {"authorization": "token-of-the-client", "headers": {"X-Secret": "header-of-the-client"}}
SERVER = {"type": "mcp", "server_label": "fake", "require_approval": "never"}


def upstream(**options: Any) -> AbstractAsyncContextManager[tuple[FakeResponsesServer, Running]]:
    """A slipring in front of a fake that runs hosted tools."""
    return in_front_of(FakeResponsesServer("websocket"), hosted_tools="upstream", **options)


def scripted(folder: Path, *answers: list[Json]) -> str:
    path = folder / "script.jsonl"
    path.write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    return f"simulated:script={path}"


def add(a: int, b: int) -> Json:
    return {"function_call": {"name": "add", "namespace": "fake", "arguments": {"a": a, "b": b}}}


@asynccontextmanager
async def two(
    script: str, transport: str = "websocket"
) -> AsyncIterator[tuple[Running, Running, FakeServer]]:
    """A slipring in front of another one, which runs the tools of an MCP server; and that server."""
    async with (
        serving(FakeServer(modern=True)) as tools,
        serve(script, mcp=(registered(tools),)) as behind,
    ):
        options = ResponsesOptions(
            url=behind.url, retries=0, transport=transport, hosted_tools="upstream", model="simulated"
        )
        async with serve(ResponsesEngine(options)) as before:
            yield before, behind, tools


@pytest.fixture(autouse=True)
def _operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPERATOR_KEY", OPERATOR)


def types(events: list[Json]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def all_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


def without_ids(items: list[Json]) -> list[Json]:
    return [{name: value for name, value in item.items() if name != "id"} for item in items]


# Another slipring runs them.


@pytest.mark.parametrize("transport", ["websocket", "sse"])
async def test_a_call_run_upstream_looks_as_if_it_had_run_here(tmp_path: Path, transport: str) -> None:
    answers = [[{"text": "Let me see."}, add(1, 2)], [{"text": "It is 3."}]]
    script = scripted(tmp_path, *answers, *answers, [{"text": "Yes."}])
    asked = {"input": "1 + 2?", "tools": [SERVER], "store": False}
    async with two(script, transport) as (before, behind, tools):
        async with behind.connect() as socket:
            direct = await socket.turn(**asked)
        async with before.connect() as socket:
            passed = await socket.turn(**asked)
            response = passed[-1]["response"]
            assert types(passed) == types(direct)
            assert without_ids(response["output"]) == without_ids(direct[-1]["response"]["output"])
            (kept,) = response["tools"]
            assert kept["server_label"] == "fake"
            await socket.response(
                input="Sure?", tools=[SERVER], store=False, previous_response_id=response["id"]
            )
        assert tools.count("tools/call") == 2


@pytest.mark.parametrize("transport", ["websocket", "sse"])
@pytest.mark.parametrize("resends", [False, True])
@pytest.mark.parametrize("approve", [False, True])
async def test_approvals_reach_the_upstream(
    tmp_path: Path, transport: str, resends: bool, approve: bool
) -> None:
    script = scripted(tmp_path, [add(1, 2)], [{"text": "So be it."}])
    tool = {**SERVER, "require_approval": "always"}
    async with two(script, transport) as (before, _, tools), before.connect() as socket:
        first = await socket.response(input="1 + 2?", tools=[tool], store=False)
        assert [item["type"] for item in first["output"]] == ["mcp_list_tools", "mcp_approval_request"]
        request = first["output"][-1]
        answer = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve}
        history = [{"type": "message", "role": "user", "content": "1 + 2?"}, *first["output"]]
        asked = {"input": [*history, answer]} if resends else {"input": [answer]}
        if not resends:
            asked["previous_response_id"] = first["id"]
        second = await socket.response(**asked, tools=[tool], store=False)
        kinds = [item["type"] for item in second["output"]]
        assert kinds == (["mcp_call", "message"] if approve else ["message"])
        assert tools.count("tools/call") == int(approve)
        if approve:
            assert second["output"][0]["approval_request_id"] == request["id"]
            again = await socket.response(**asked, tools=[tool], store=False)
            assert "already been used" in again["error"]["message"]
            assert tools.count("tools/call") == 1


async def test_a_warmup_lists_upstream(tmp_path: Path) -> None:
    script = scripted(tmp_path, [add(1, 2)], [{"text": "It is 3."}])
    async with two(script) as (before, _, tools), before.connect() as socket:
        asked = {"tools": [SERVER], "store": False}
        warm = await socket.response(input=[], instructions="Add.", generate=False, **asked)
        assert [item["type"] for item in warm["output"]] == ["mcp_list_tools"]
        response = await socket.response(
            input="1 + 2?", instructions="Add.", previous_response_id=warm["id"], **asked
        )
        assert [item["type"] for item in response["output"]] == ["mcp_call", "message"]
        assert tools.count("tools/list") == 1


async def test_calls_that_run_at_once_come_through_as_they_end(tmp_path: Path) -> None:
    script = scripted(tmp_path, [add(1, 2), add(3, 4)], [{"text": "3 and 7."}])
    async with two(script) as (before, _, tools), before.connect() as socket:
        is_second_done = asyncio.Event()
        usual = tools.calls["add"]

        async def late(exchange: Exchange) -> Reply:
            if exchange.arguments["a"] == 1:
                await is_second_done.wait()
            return await usual(exchange)

        tools.calls["add"] = late
        await socket.create(input="1 + 2, 3 + 4?", tools=[SERVER], store=False)
        events = await socket.until("response.mcp_call.completed")
        assert events[-1]["output_index"] == 2
        is_second_done.set()
        events += await socket.until("response.completed")
        output = events[-1]["response"]["output"]
        assert [item["type"] for item in output] == ["mcp_list_tools", "mcp_call", "mcp_call", "message"]
        assert [item["output"] for item in output[1:3]] == ["3", "7"]


async def test_an_approval_of_nothing_is_refused_by_the_upstream(tmp_path: Path) -> None:
    answer = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    async with two(scripted(tmp_path)) as (before, _, _), before.connect() as socket:
        response = await socket.response(input=[answer], tools=[SERVER], store=False)
        assert "no approval request 'mcpr_1' waits" in response["error"]["message"]


# A scripted upstream runs them.

CALL = {
    **{"type": "mcp_call", "server_label": "fake", "name": "add", "arguments": '{"a":1}'},
    **{"status": "completed", "output": "1", "error": None, "approval_request_id": None},
}
CALLING = Host(
    CALL,
    {"status": "in_progress", "arguments": "", "output": None},
    (
        ("mcp_call.in_progress", {}),
        ("mcp_call_arguments.delta", {"delta": '{"a":1}'}),
        ("mcp_call_arguments.done", {"arguments": '{"a":1}'}),
        ("mcp_call.completed", {}),
    ),
)
LISTING = Host(
    {
        **{"type": "mcp_list_tools", "server_label": "fake"},
        "tools": [{"name": "add", "input_schema": {}, "annotations": {"read_only": False}}],
    },
    {"tools": []},
    (("mcp_list_tools.in_progress", {}), ("mcp_list_tools.completed", {})),
)
SEARCHING = Host(
    {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}},
    {"status": "in_progress"},
    tuple((f"web_search_call.{each}", {}) for each in ("in_progress", "searching", "completed")),
    later=("action",),
)
FINDING = Host(
    {"type": "file_search_call", "status": "completed", "queries": ["q"], "results": None},
    {"status": "in_progress", "queries": []},
    tuple((f"file_search_call.{each}", {}) for each in ("in_progress", "searching", "completed")),
)
COMPUTING = Host(
    {
        **{"type": "code_interpreter_call", "status": "completed", "code": "1+1", "container_id": "c"},
        "outputs": [{"type": "logs", "logs": "2"}],
    },
    {"status": "in_progress", "code": "", "outputs": None},
    (
        ("code_interpreter_call.in_progress", {}),
        ("code_interpreter_call_code.delta", {"delta": "1+"}),
        ("code_interpreter_call_code.delta", {"delta": "1"}),
        ("code_interpreter_call_code.done", {"code": "1+1"}),
        ("code_interpreter_call.interpreting", {}),
        ("code_interpreter_call.completed", {}),
    ),
)
DRAWING = Host(
    {"type": "image_generation_call", "status": "completed", "result": "aW1hZ2U="},
    {"status": "in_progress", "result": None},
    (
        ("image_generation_call.in_progress", {}),
        ("image_generation_call.generating", {}),
        ("image_generation_call.partial_image", {"partial_image_index": 0, "partial_image_b64": "aQ=="}),
        (
            "image_generation_call.partial_image",
            {"partial_image_index": 1, "partial_image_b64": "aW0=", "size": "1024x1024", "quality": "low"},
        ),
        ("image_generation_call.completed", {}),
    ),
)
HOSTED = (LISTING, CALLING, SEARCHING, FINDING, COMPUTING, DRAWING)
TOOLS = [
    {**SERVER, "server_url": "https://tools.example/mcp", **SECRETS},
    {"type": "web_search"},
    {"type": "file_search", "vector_store_ids": ["vs_1"]},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "image_generation"},
    WEATHER,
]


async def test_items_and_events_of_every_tool_come_through_in_order() -> None:
    include = ["web_search_call.action.sources", "file_search_call.results", "code_interpreter_call.outputs"]
    async with upstream() as (fake, server), server.connect() as socket:
        fake.script(Think(("Hm.",)), *HOSTED, Say(("Done.",)), Call("get_weather", "{}"), Stop())
        events = await socket.turn(input="Go.", tools=TOOLS, include=include, max_tool_calls=9, store=False)
        response = events[-1]["response"]
        told = [event for event in events if event["type"].split(".")[1] in EVENT_FAMILIES]
        scripted = [(kind, fields) for step in HOSTED for kind, fields in step.events]
        assert types(told) == [kind for kind, _ in scripted]
        assert all(fields.items() <= event.items() for event, (_, fields) in zip(told, scripted, strict=True))
        assert [item["type"] for item in response["output"]] == [
            *("reasoning", *(step.item["type"] for step in HOSTED), "message", "function_call")
        ]
        hosted = response["output"][1:-2]
        assert without_ids(hosted) == [step.item for step in HOSTED]
        assert all("upstream" in item["id"] for item in hosted)
        (sent,) = fake.requests
        assert sent["tools"] == TOOLS
        assert (sent["include"], sent["max_tool_calls"]) == (include, 9)

        call_id = response["output"][-1]["call_id"]
        output = {"type": "function_call_output", "call_id": call_id, "output": "sunny"}
        fake.peers[0].memory.clear()  # so that the whole context is sent
        await socket.response(input=[output], tools=TOOLS, previous_response_id=response["id"], store=False)
        whole = fake.requests[-1]["input"]
        assert whole[1:-3] == hosted


EVENT_FAMILIES = frozenset(kind.split(".")[0] for step in HOSTED for kind, _ in step.events)


async def test_secrets_reach_the_upstream_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    fake = FakeResponsesServer("websocket")
    await fake.start()
    try:
        async with (
            serve(
                fake.engine(hosted_tools="upstream"), store=f"sqlite:{tmp_path / 'responses.db'}"
            ) as server,
            server.connect() as socket,
        ):
            fake.script(CALLING, Say(("ok",)), Stop())
            events = await socket.turn(input="Go.", tools=TOOLS)
            first = events[-1]["response"]
            await socket.response(input="On.", tools=TOOLS, previous_response_id=first["id"])
    finally:
        await fake.close()
    assert [request["tools"] for request in fake.requests] == [TOOLS, TOOLS]
    stored = all_bytes(tmp_path)
    assert b"tools.example" in stored
    assert b"of-the-client" not in stored + json.dumps(events).encode() + caplog.text.encode()


@pytest.mark.parametrize(
    "limits", [{"mcp_servers": ("files",)}, {"mcp_servers": ()}, {"mcp_tools": ("files.read",)}]
)
async def test_a_key_with_limits_has_no_servers_called_upstream(tmp_path: Path, limits: Json) -> None:
    compact = [{"type": "compaction", "compact_threshold": 1000}]
    fake = FakeResponsesServer("websocket")
    await fake.start()
    try:
        async with (
            serve_stored(tmp_path, fake.engine(hosted_tools="upstream")) as server,
            server.connect(key=await issue(server, **limits)) as socket,
        ):
            error = await socket.error(input="Go.", tools=TOOLS)
            assert (error["status"], error["error"]["param"]) == (403, "tools")
            error = await socket.error(input="Go. " * 2000, context_management=compact, tools=TOOLS)
            assert error["status"] == 403
            assert not fake.requests
            await socket.response(input="Go.", tools=TOOLS[1:])
    finally:
        await fake.close()


@pytest.mark.parametrize("secret", ["token-of-the-client", "header-of-the-client"])
async def test_errors_of_the_upstream_lose_the_secrets(secret: str) -> None:
    async with upstream() as (fake, server), server.connect() as socket:
        fake.script(Refuse(424, f"cannot reach the server with {secret}"))
        response = await socket.response(input="Go.", tools=TOOLS, store=False)
        assert "cannot reach the server with (secret)" in response["error"]["message"]


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        "none",
        {"type": "mcp", "server_label": "fake"},
        {"type": "web_search_preview"},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "image_generation"}]},
    ],
)
async def test_the_upstream_applies_tool_choice(choice: Any) -> None:
    async with upstream() as (fake, server), server.connect() as socket:
        response = await socket.response(input="Go.", tools=TOOLS, tool_choice=choice, store=False)
        assert fake.requests[0]["tool_choice"] == choice == response["tool_choice"]


async def test_a_call_that_the_upstream_does_not_finish_is_incomplete() -> None:
    cut = Host(CALLING.item, CALLING.begun, CALLING.events[:2], ends=False)
    async with upstream() as (fake, server), server.connect() as socket:
        fake.script(LISTING, cut, HangUp())
        response = await socket.response(input="Go.", tools=TOOLS, store=False)
        assert response["status"] == "failed"
        call = response["output"][1]
        assert (call["status"], call["arguments"], call["output"]) == ("incomplete", '{"a":1}', None)


@pytest.mark.parametrize("transport", ["websocket", "sse"])
async def test_a_request_whose_tools_may_have_run_is_not_repeated(transport: str) -> None:
    options = {"hosted_tools": "upstream", "retries": 2}
    async with (
        in_front_of(FakeResponsesServer(transport), **options) as (fake, server),
        server.connect() as socket,
    ):
        fake.script(Say(()), HangUp())
        response = await socket.response(input="Go.", tools=TOOLS, store=False)
        assert (response["status"], len(fake.requests)) == ("failed", 1)
        fake.script(Say(()), HangUp())
        response = await socket.response(input="Go.", tools=[WEATHER], store=False)
        assert (response["status"], len(fake.requests)) == ("completed", 3)


async def test_a_context_is_compacted_without_tools() -> None:
    compact = [{"type": "compaction", "compact_threshold": 1000}]
    async with upstream() as (fake, server), server.connect() as socket:
        fake.script(Say(("A summary.",)), Stop())
        asked = {"tools": TOOLS, "tool_choice": "required", "context_management": compact, "store": False}
        response = await socket.response(input="Go. " * 2000, **asked)
        assert [item["type"] for item in response["output"]] == ["compaction", "message"]
        assert [request["tool_choice"] for request in fake.requests] == ["none", "required"]


@pytest.mark.parametrize("kind", ["programmatic_tool_calling", "quantum_search"])
async def test_a_tool_whose_items_cannot_come_through_is_refused(kind: str) -> None:
    async with upstream() as (fake, server), server.connect() as socket:
        error = await socket.error(input="Go.", tools=[WEATHER, {"type": kind}], store=False)
        assert (error["status"], error["error"]["param"]) == (400, "tools[1].type")
        assert not fake.requests


async def test_the_clients_shell_is_called_by_the_upstream() -> None:
    call = {
        **{"type": "shell_call", "call_id": "call_upstream1", "status": "completed"},
        **{"action": {"commands": ["ls"], "timeout_ms": None, "max_output_length": None}},
        "environment": {"type": "local"},
    }
    tool = {"type": "shell", "environment": {"type": "local"}}
    async with upstream() as (fake, server), server.connect() as socket:
        fake.script(Host(call, {"status": "in_progress"}), Stop())
        first = await socket.response(input="Go.", tools=[tool], store=False)
        output = {
            **{"type": "shell_call_output", "call_id": "call_upstream1"},
            "output": [{"stdout": "", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
        }
        await socket.response(input=[output], tools=[tool], previous_response_id=first["id"], store=False)
        assert fake.requests[1]["input"] == [output]


async def test_the_clients_computer_is_used_by_the_upstream() -> None:
    check = {"id": "cu_sc_1", "code": "sensitive_domain", "message": "Is this your bank?"}
    call = {
        **{"type": "computer_call", "call_id": "call_upstream1", "status": "completed"},
        **{"actions": [{"type": "wait"}], "pending_safety_checks": [check]},
    }
    tools = [{"type": "computer"}, WEATHER]
    async with upstream() as (fake, server), server.connect() as socket:
        fake.script(Host(call, {"status": "in_progress"}), Stop())
        first = await socket.response(
            input="Go.", tools=tools, tool_choice={"type": "computer_use"}, store=False
        )
        assert first["output"][0]["pending_safety_checks"] == [check]
        assert (fake.requests[0]["tools"], fake.requests[0]["tool_choice"]) == (tools, {"type": "computer"})
        output = {
            **{"type": "computer_call_output", "call_id": "call_upstream1"},
            "output": {"type": "computer_screenshot", "file_id": "file_1"},
            "acknowledged_safety_checks": [check],
        }
        await socket.response(input=[output], tools=tools, previous_response_id=first["id"], store=False)
        assert fake.requests[1]["input"] == [output]


# slipring runs them, or nobody.


async def test_an_upstream_gets_the_tools_that_run_here_as_functions() -> None:
    async with serving(FakeServer(modern=True)) as tools:
        fake = FakeResponsesServer("websocket")
        await fake.start()
        try:
            async with (
                serve(fake.engine(retries=0), mcp=(registered(tools),)) as server,
                server.connect() as socket,
            ):
                fake.script(Call("add", '{"a":1,"b":2}', namespace="fake"), Stop())
                asked = {**SERVER, "server_description": "Sums.", "authorization": "token-of-the-client"}
                response = await socket.response(input="1 + 2?", tools=[WEATHER, asked], store=False)
        finally:
            await fake.close()
    assert [item["type"] for item in response["output"]] == ["mcp_list_tools", "mcp_call", "message"]
    first, second = fake.requests
    weather, namespace = first["tools"]
    assert weather == WEATHER
    assert (namespace["type"], namespace["name"], namespace["description"]) == ("namespace", "fake", "Sums.")
    (function,) = namespace["tools"]
    assert (function["type"], function["name"]) == ("function", "add")
    (output,) = second["input"]
    assert (output["type"], output["output"]) == ("function_call_output", "3")
    assert output["call_id"].startswith("call_upstream")
    assert b"of-the-client" not in b"".join(fake.raw)
    assert tools.last("tools/call").headers["Authorization"] == "Bearer token-of-the-client"


@pytest.mark.parametrize("tool", [SERVER, {"type": "web_search"}, {"type": "image_generation"}])
async def test_a_model_without_hosted_tools_refuses_them_by_name(tool: Json) -> None:
    async with (
        in_front_of(FakeResponsesServer("websocket"), hosted_tools="refuse") as (fake, server),
        server.connect() as socket,
    ):
        error = await socket.error(input="Go.", tools=[WEATHER, tool], store=False)
        assert (error["status"], error["error"]["param"]) == (400, "tools[1].type")
        assert f"'{tool['type']}'" in error["error"]["message"]
        await socket.response(input="Go.", tools=[WEATHER], store=False)
        assert len(fake.requests) == 1


def test_the_option_is_checked() -> None:
    assert read_options("http://host,hosted_tools=upstream").hosted_tools == "upstream"
    with pytest.raises(StartupError, match="'hosted_tools' must be here, upstream or refuse"):
        read_options("http://host,hosted_tools=there")
