"""Grammars of clients are compiled in other processes, without an effect on other clients."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from slipring.core.limits import Limits
from slipring.engines.constraints import grammar_checks, sample_values
from slipring.sandbox.sandbox import TASKS
from tests.harness import FAST, PuppetEngine, Running, serve
from tests.sandbox.holding import HOLD

Json = dict[str, Any]
KEYS = ("mallory:hers", "alice:mine")
OPTIONAL = "a?" * 20_000 + "a" * 20_000
AMBIGUOUS = 'start: ("a"?){20000} "a"{20000}'
LARGE_ENUM = {"type": "object", "properties": {"v": {"enum": [f"value {n}" for n in range(300_000)]}}}


def tool(definition: str, syntax: str = "regex", name: str = "t") -> Json:
    format = {"type": "grammar", "syntax": syntax, "definition": definition}
    return {"type": "custom", "name": name, "format": format}


def format_of(schema: Json, *, strict: bool = False) -> Json:
    return {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": strict}}


ATTACKS: dict[str, tuple[Json, str, str]] = {
    "optional letters": (
        {"tools": [tool(OPTIONAL)], "tool_choice": "required"},
        "tools[0].format.definition",
        "",
    ),
    "an ambiguous grammar": (
        {"tools": [tool(AMBIGUOUS, "lark")], "tool_choice": "required"},
        "tools[0].format.definition",
        "max_grammar_states",
    ),
    "many grammars": (
        {"tools": [tool("a", name=f"t{n}") for n in range(1000)]},
        "tools[64].format.definition",
        "max_grammars",
    ),
    "a large enum": ({"text": format_of(LARGE_ENUM)}, "text.format.schema", "max_schema_bytes"),
    "large parameters": (
        {"tools": [{"type": "function", "name": "f", "parameters": LARGE_ENUM}]},
        "tools[0].parameters",
        "max_schema_bytes",
    ),
    "a large output schema": (
        {"tools": [{"type": "function", "name": "f", "output_schema": LARGE_ENUM}]},
        "tools[0].output_schema",
        "max_schema_bytes",
    ),
    "a large grammar": ({"tools": [tool("a" * 65_537)]}, "tools[0].format.definition", "max_grammar_bytes"),
    "grammars in items": (
        {
            "input": [
                {"type": "message", "role": "user", "content": "x"},
                {"type": "additional_tools", "role": "developer", "tools": [tool(AMBIGUOUS, "lark")]},
            ]
        },
        "input[1].tools[0].format.definition",
        "max_grammar_states",
    ),
}


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A pipe. The compilation of a grammar that names it blocks until the test writes to it."""
    monkeypatch.setitem(TASKS, "check_grammar", "tests.sandbox.holding")
    path = tmp_path / "held"
    os.mkfifo(path)
    return path


def holding(path: Path) -> Json:
    return tool(f"{HOLD}{path}")


@asynccontextmanager
async def begun(path: Path) -> AsyncIterator[None]:
    """Run the block while the grammar is being compiled."""
    pipe = await asyncio.to_thread(path.open, "w")
    try:
        yield
    finally:
        pipe.close()


@asynccontextmanager
async def shared(engine: Any = FAST, **limits: Any) -> AsyncIterator[Running]:
    """A server with two tenants."""
    async with serve(engine, api_key=KEYS, limits=Limits(**limits)) as server:
        yield server


def pids(server: Running) -> list[int]:
    found: list[int] = server.service.sandbox.pids
    return found


@pytest.mark.parametrize("name", ATTACKS)
async def test_an_expensive_grammar_is_refused_by_name_and_compiled_once(name: str) -> None:
    fields, param, limit = ATTACKS[name]
    async with shared() as server, server.connect(key="hers") as hers:
        seen = []
        for _ in range(2):
            refused = await hers.error(**{"input": "x", **fields})
            assert (refused["status"], refused["error"]["param"]) == (400, param)
            assert limit in refused["error"]["message"]
            seen.append(pids(server))
        assert seen[0] == seen[1], "it was compiled twice"
        if limit not in ("", "max_grammar_states"):
            assert pids(server) == [], "an oversized grammar was compiled"
        assert (await server.post(key="mine", input="x", tools=[tool("a+")]))[0] == 200


async def test_other_requests_are_served_during_a_compilation(held: Path) -> None:
    async with shared() as server, server.connect(key="hers") as hers, server.connect(key="mine") as mine:
        await hers.create(input="x", tools=[holding(held)], stream_id="slow")
        async with begun(held):
            assert (await mine.response(input="x", store=False))["status"] == "completed"
            assert (await hers.response(input="x", store=False))["status"] == "completed"
            status, _ = await server.post(key="mine", input="x")
            assert status == 200
            assert server.server.service.clients
        events = await hers.until("response.completed", lane="slow")
        assert [event["type"] for event in events][:2] == ["response.created", "response.in_progress"]


async def test_the_turns_of_a_lane_wait_for_a_compilation(held: Path) -> None:
    async with shared() as server, server.connect(key="hers") as hers:
        await hers.create(input="x", tools=[holding(held)], metadata={"n": "1"}, store=False)
        await hers.create(input="x", metadata={"n": "2"}, store=False)
        async with begun(held):
            pass
        found = [(await hers.until("response.completed"))[-1]["response"]["metadata"]["n"] for _ in "12"]
        assert found == ["1", "2"]


async def test_a_crash_of_the_compiler_refuses_the_request(held: Path) -> None:
    async with shared() as server:
        status, body = await server.post(key="hers", input="x", tools=[tool("crash")])
        assert (status, body["error"]["param"]) == (400, "tools[0].format.definition")
        assert (await server.post(key="mine", input="x", tools=[tool("a+")]))[0] == 200


async def test_each_tenant_has_its_own_compile_queue(held: Path) -> None:
    async with shared(max_compiles_waiting=1) as server, server.connect(key="hers") as hers:
        calm = {"input": "x", "tool_choice": "none", "store": False}  # only the grammars are compiled
        await hers.create(tools=[holding(held)], stream_id="1", **calm)
        async with begun(held):
            await hers.create(tools=[tool("b")], stream_id="2", **calm)
            refused = await hers.error(tools=[tool("c")], stream_id="3", **calm)
            assert (refused["status"], refused["error"]["code"]) == (429, "rate_limit_exceeded")
            assert (await hers.response(input="x", store=False))["status"] == "completed"
            waiting = asyncio.create_task(server.post(key="mine", input="x", tools=[tool("d")]))
        assert (await waiting)[0] == 200
        seen: list[str] = []
        while seen.count("response.completed") < 2:
            seen.append((await hers.receive())["type"])


async def test_a_disconnect_does_not_cancel_a_shared_compilation(held: Path) -> None:
    async with shared() as server:
        async with server.connect(key="hers", abandoned=True) as hers:
            await hers.create(input="x", tools=[holding(held)])
            async with begun(held):
                await hers.ws.close()
        assert (await server.post(key="mine", input="x", tools=[tool("a+")]))[0] == 200


async def test_compiler_processes_end_with_the_server(held: Path) -> None:
    async with shared() as server:
        assert (await server.post(key="mine", input="x", tools=[tool("a+")]))[0] == 200
        (pid,) = pids(server)
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_nothing_is_compiled_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither to check grammars and follow them, nor to generate inputs and documents."""
    threads: list[int] = []
    compile = grammar_checks._compile

    def compile_recorded(text: str, max_states: int) -> Any:
        threads.append(threading.get_ident())
        return compile(text, max_states)

    def here(*_: Any) -> Any:
        raise AssertionError("compiled in the process that serves")

    monkeypatch.setattr(grammar_checks, "_compile", compile_recorded)
    monkeypatch.setattr(grammar_checks, "check_grammar", here)
    monkeypatch.setattr(grammar_checks, "syntax_error", here)
    monkeypatch.setattr(sample_values, "sample_document", here)
    monkeypatch.setattr(sample_values, "sample_input", here)
    async with shared() as server:
        status, body = await server.post(
            key="mine", input="x", tools=[tool("[0-9]{3}")], tool_choice="required"
        )
        assert status == 200
        assert len(body["output"][0]["input"]) == 3
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        status, body = await server.post(key="mine", input="x", text=format_of(schema))
        assert status == 200
    assert threads, "the input was not checked against its grammar"
    assert threading.get_ident() not in threads


async def test_ordinary_requests_start_no_compiler_process() -> None:
    async with shared() as server, server.connect(key="mine") as mine:
        function = {"type": "function", "name": "f", "parameters": {"type": "object"}}
        custom = {"type": "custom", "name": "t", "format": {"type": "text"}}
        await mine.response(input="x", tools=[function, custom], tool_choice="none", store=False)
        await mine.response(input="x", tools=[custom], tool_choice="required", store=False)
        await mine.response(input="x", generate=False, store=False)
        assert pids(server) == []


async def test_every_engine_compiles_in_the_servers_sandbox() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        assert engine.compiler is server.service.compiler


async def test_an_invalid_grammar_of_a_background_response_is_refused_at_once() -> None:
    async with shared() as server:
        fields = {"tools": [tool(AMBIGUOUS, "lark")], "background": True}
        status, body = await server.post(key="hers", input="x", **fields)
        assert (status, body["error"]["param"]) == (400, "tools[0].format.definition")


async def test_grammars_of_conversation_items_are_compiled_before_they_are_stored() -> None:
    async with shared() as server:
        item = {"type": "additional_tools", "role": "developer", "tools": [tool(AMBIGUOUS, "lark")]}
        headers = {"Authorization": "Bearer hers"}
        url = f"{server.url}/conversations"
        async with server.http.post(url, json={"items": [item]}, headers=headers) as answer:
            assert answer.status == 400
            error = (await answer.json())["error"]
        assert error["param"] == "items[0].tools[0].format.definition"
        assert len(pids(server)) == 1


async def test_grammars_of_appended_tools_are_compiled_first(held: Path) -> None:
    header = {"OpenAI-Beta": "slipring_rollout=v1"}
    search = {"type": "tool_search", "execution": "client"}
    async with shared() as server, server.connect(key="hers", headers=header, abandoned=True) as hers:
        await hers.create(
            input="x", tools=[search], tool_choice="required", rollout=True, stream_id="a", store=False
        )
        done = (await hers.until("response.done", lane="a"))[-1]
        (owed,) = done["required_input"]

        async def append(definition: str, syntax: str = "regex") -> None:
            item = {**owed, "tools": [tool(definition, syntax)]}
            await hers.send(type="response.append", response_id=done["response_id"], input=[item])

        await append(AMBIGUOUS, "lark")
        failed = (await hers.until("response.append.failed", lane="a"))[-1]
        assert failed["error"]["param"] == "input[0].tools[0].format.definition"
        await append(f"{HOLD}{held}")
        async with begun(held):
            assert (await hers.response(input="x", store=False))["status"] == "completed"
        taken = (await hers.until("response.output_item.done", lane="a"))[-1]
        assert taken["item"]["type"] == "tool_search_output"
