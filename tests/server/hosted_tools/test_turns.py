"""Hosted calls inside responses, over real sockets: a scripted model, and MCP servers in this process."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from slipring.core.chain.hosted_items_in_context import UNKNOWN_OUTCOME
from slipring.core.generation import CallArguments, CallEnded, CallStarted, Text
from slipring.core.limits import Limits
from slipring.engines.catalog import open_engine
from slipring.protocol.items.item_pictures import base64_of, pictures
from slipring.server.background.cancelled_and_orphaned_runs import Claim, fail_abandoned
from tests.api import Api
from tests.harness import PuppetEngine, Running, serve
from tests.mcp.fakes import ADD, Exchange, FakeServer, Reply, event, result, serving, text
from tests.pictures import data_url, png
from tests.server.hosted_tools.running import OPERATOR, registered
from tests.server.hosted_tools.turns import (
    TRANSPORTS,
    Json,
    accumulated,
    approval,
    call,
    kinds,
    respond,
    scripted,
    server,
    types,
)
from tests.server.raw import until

ASKING = server(require_approval=None)
SECRET = "token-of-the-request"
KEY = {"Authorization": "Bearer test-key"}


@pytest.fixture(autouse=True)
def operator_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPERATOR_KEY", OPERATOR)


@asynccontextmanager
async def hosting(
    engine: Any, fake: FakeServer | None = None, **settings: Any
) -> AsyncIterator[tuple[FakeServer, Running]]:
    """A server with a registered MCP server."""
    async with (
        serving(fake or FakeServer(modern=True)) as served,
        serve(engine, mcp=(registered(served),), **settings) as running,
    ):
        yield served, running


def waiting_server() -> tuple[FakeServer, asyncio.Event]:
    """An MCP server whose tool ``wait`` returns once the event is set."""
    fake, go_on = FakeServer(modern=True), asyncio.Event()

    async def wait(exchange: Exchange) -> Reply:
        await go_on.wait()
        return text("waited")

    fake.tools = [*fake.tools, {"name": "wait", "inputSchema": {"type": "object"}}]
    fake.calls["wait"] = wait
    return fake, go_on


async def called(fake: FakeServer, times: int = 1) -> None:
    """Wait until the MCP server has got so many calls."""
    await until(lambda: fake.count("tools/call") >= times)


HALF, ZERO, NONE = "cut \ud83d", "zero \x00", "cut \N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_text_that_is_hard_to_keep_is_kept(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """A half of a surrogate pair, which UTF-8 cannot have, and U+0000, which not every database takes."""

    async def odd(exchange: Exchange) -> Reply:
        kind = exchange.arguments["kind"]
        odd = HALF if kind == "half" else ZERO
        return {**text(odd, isError=kind == "error"), "structuredContent": {odd: odd}}

    fake = FakeServer(modern=True)
    fake.tools = [{"name": "odd", "inputSchema": {"type": "object", "title": HALF}, "description": HALF}]
    fake.calls["odd"] = odd
    kinds_ = ("half", "zero", "error")
    steps = [[call("odd", kind=kind)] for kind in kinds_]
    engine = scripted(tmp_path, *steps, [{"text": "ok"}], [{"text": "again"}])
    database = f"sqlite:{tmp_path / 'store.db'}"
    if kind == "postgresql":
        database = request.getfixturevalue("postgres_url")
    async with hosting(engine, fake, store=database) as (_, running):
        first = await respond(running, "post", input="go", tools=[server()])
        listed, half, zero, failed, _ = first["output"]
        assert listed["tools"][0]["description"] == listed["tools"][0]["input_schema"]["title"] == NONE
        assert (half["output"], zero["output"]) == (NONE, ZERO)
        assert failed["error"]["content"][0]["text"] == ZERO
        again = await respond(running, "post", input="on", previous_response_id=first["id"])
        assert again["output"][0]["content"][0]["text"] == "again"
        for reference in ("\x00", "resp_\x00"):
            status, refusal = await running.post(input="on", previous_response_id=reference)
            assert (status, refusal["error"]["code"]) == (400, "previous_response_not_found")
            item = {"type": "item_reference", "id": reference}
            status, refusal = await running.post(input=[item])
            assert (status, refusal["error"]["param"]) == (400, "input[0].id")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_calls_run_inside_one_response(tmp_path: Path, transport: str) -> None:
    first = [{"text": "Let me see."}, call(a=1, b=2), call(a=3, b=4)]
    engine = scripted(tmp_path, first, [call(a="x", b=1)], [{"text": "It is 3 and 7."}])
    async with hosting(engine) as (fake, running):
        response = await respond(running, transport, input="1 + 2, 3 + 4?", tools=[server()])
    assert kinds(response) == ["mcp_list_tools", "message", *["mcp_call"] * 3, "message"]
    calls = response["output"][2:5]
    assert [(item["output"], item["status"]) for item in calls[:2]] == [
        ("3", "completed"),
        ("7", "completed"),
    ]
    assert (calls[2]["output"], calls[2]["status"]) == (None, "failed")
    assert (fake.count("tools/list"), fake.count("tools/call")) == (1, 3)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_approved_call_runs_and_an_approval_is_good_once(tmp_path: Path, transport: str) -> None:
    engine = scripted(tmp_path, [call(a=1, b=2)], [{"text": "It is 3."}])
    async with hosting(engine) as (fake, running):
        asked = await respond(running, transport, input="1 + 2?", tools=[ASKING])
        assert (asked["status"], fake.count("tools/call")) == ("completed", 0)
        answer = {"previous_response_id": asked["id"], "input": [approval(asked)], "tools": [ASKING]}
        response = await respond(running, transport, **answer)
        assert kinds(response) == ["mcp_call", "message"]
        assert response["output"][0]["output"] == "3"
        status, again = await running.post(**answer)
        assert (status, again["error"]["param"]) == (400, "input")
        assert fake.count("tools/call") == 1


@pytest.mark.parametrize("joined", ["chain", "conversation"])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_answer_that_is_sent_again_changes_nothing(
    tmp_path: Path, transport: str, joined: str
) -> None:
    """As Vercel's AI SDK does it: a reference to the request, and the answer, with every later turn."""
    engine = scripted(
        tmp_path, [call(a=1, b=2)], [{"text": "It is 3."}], [{"text": "Yes."}], [{"text": "No."}]
    )
    async with hosting(engine, store=f"sqlite:{tmp_path}/slipring.db") as (fake, running):
        api = Api(running)
        place: Json = {}
        if joined == "conversation":
            _, conversation = await api.call("POST", "/conversations", json={})
            place = {"conversation": conversation["id"]}
        last = asked = await respond(running, transport, input="1 + 2?", tools=[ASKING], **place)
        repeated = [{"type": "item_reference", "id": asked["output"][-1]["id"]}, approval(asked)]
        for text, expected in ((None, "It is 3."), ("Sure?", "Yes."), ("And 5?", "No.")):
            items = [*repeated, {"role": "user", "content": text}] if text else repeated
            if joined == "chain":
                place = {"previous_response_id": last["id"]}
            last = await respond(running, transport, input=items, tools=[ASKING], **place)
            assert last["output"][-1]["content"][0]["text"] == expected
        assert fake.count("tools/call") == 1
        refused = {"input": [approval(asked, approve=False)], "tools": [ASKING], **place}
        if joined == "chain":
            refused["previous_response_id"] = last["id"]
        status, body = await running.post(**refused)
        assert (status, body["error"]["param"]) == (400, "input[0].approval_request_id")
        if joined == "conversation":
            path = f"/conversations/{place['conversation']}/items?order=asc"
            _, page = await api.call("GET", path)
            assert [item["type"] for item in page["data"]] == [
                *("message", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "mcp_call"),
                *("message",) * 5,
            ]


async def test_the_sdk_streams_hosted_calls(tmp_path: Path) -> None:
    engine = scripted(
        tmp_path, [{"text": "Let me see."}, call(a=1, b=2), call(a=3, b=4)], [{"text": "3 and 7."}]
    )
    async with hosting(engine) as (_, running):
        client = AsyncOpenAI(base_url=running.url, api_key="test-key", max_retries=0)
        tools: Any = [server()]
        async with client, client.responses.stream(model="simulated", input="?", tools=tools) as stream:
            kinds_seen = [event.type async for event in stream]
            final = await stream.get_final_response()
        assert final.output_text == "Let me see.3 and 7."
        assert [item.type for item in final.output][2:4] == ["mcp_call", "mcp_call"]
        assert kinds_seen.count("response.mcp_call.completed") == 2


async def test_a_call_starts_while_the_model_writes(tmp_path: Path) -> None:
    engine = PuppetEngine()
    fake, go_on = waiting_server()
    async with hosting(engine, fake) as (_, running), running.connect() as socket:
        await socket.create(input="hi", tools=[server()])
        performance = await engine.next()
        performance.emit(CallStarted("function", "wait", "fake"), CallArguments("{}"), CallEnded())
        await called(fake)
        performance.emit(CallStarted("function", "add", "fake"), CallArguments('{"a":1,"b":1}'), CallEnded())
        await socket.until("response.mcp_call.completed")
        performance.emit(Text("Wait."))
        performance.finish()
        go_on.set()
        performance = await engine.next()
        outputs = [json.loads(item.raw)["output"] for item in performance.job.input]
        assert outputs == ["waited", "2"]
        performance.finish()
        (done,) = (await socket.until("response.completed"))[-1:]
        assert kinds(done["response"]) == ["mcp_list_tools", "mcp_call", "mcp_call", "message"]


@pytest.mark.parametrize("detailed", [True, False])
@pytest.mark.parametrize("transport", ["websocket", "sse"])
async def test_progress_reaches_the_client(tmp_path: Path, transport: str, detailed: bool) -> None:
    async def slow(exchange: Exchange) -> Reply:
        stream = await exchange.stream()
        await stream.write(event(exchange.progress(1, total=2, message=f"half, {SECRET}")))
        await stream.write(event(result(exchange.id, text("done"))))
        return stream

    fake = FakeServer(modern=True)
    fake.calls["add"] = slow
    engine = scripted(tmp_path, [call(a=1, b=2)], [{"text": "ok"}])
    headers = {"OpenAI-Beta": "slipring_tool_progress=v1"} if detailed else {}
    body: Json = {"input": "hi", "tools": [server(authorization=SECRET)]}
    async with hosting(engine, fake) as (_, running):
        if transport == "websocket":
            async with running.connect(headers=headers) as socket:
                events = await socket.turn(**body)
        else:
            running.http.headers.update(headers)
            events = await running.stream(**body)
    assert types(events).count("mcp_call.in_progress") == 2
    details = [each for each in events if each["type"] == "slipring.mcp_call.progress"]
    assert len(details) == int(detailed)
    for each in details:
        assert (each["progress"], each["total"]) == (1, 2)
        assert SECRET not in each["message"]
    known = [each for each in events if not each["type"].startswith("slipring.")]
    assert accumulated(known) == events[-1]["response"]["output"]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_server_that_cannot_be_listed_fails_the_response(tmp_path: Path, transport: str) -> None:
    fake = FakeServer(modern=True)
    del fake.on["tools/list"]
    engine = scripted(tmp_path, [{"text": "ok"}])
    async with hosting(engine, fake) as (_, running):
        if transport == "post":
            status, body = await running.post(input="hi", tools=[server()])
            error = body["error"]
            assert (status, error["type"], error["param"]) == (424, "external_connector_error", "tools")
        else:
            response = await respond(running, transport, input="hi", tools=[server()])
            assert (response["status"], kinds(response)) == ("failed", ["mcp_list_tools"])
            assert response["output"][0]["error"] == "The MCP server answered with error -32601."
            error = response["error"]
            assert error["code"] == "server_error"
    assert "'fake'" in error["message"]


def slow_lists(fake: FakeServer) -> asyncio.Event:
    """The server does not list its tools before the event that is returned is set."""
    go_on = asyncio.Event()

    async def listing(exchange: Exchange) -> Reply:
        await go_on.wait()
        return {"tools": fake.tools}

    fake.on["tools/list"] = listing
    return go_on


async def streamed(running: Running, **body: Any) -> AsyncIterator[Json]:
    """The events of a POST, each as it arrives."""
    async with running.http.post(f"{running.url}/responses", json=body, headers=KEY) as reply:
        async for line in reply.content:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])


@pytest.mark.parametrize("transport", ["websocket", "sse", "background"])
async def test_a_response_is_created_while_its_lists_are_fetched(tmp_path: Path, transport: str) -> None:
    """The client has these events before the server has answered."""
    fake = FakeServer(modern=True)
    go_on = slow_lists(fake)
    engine = scripted(tmp_path, [{"text": "ok"}])
    before = ["created", *(["queued"] if transport == "background" else []), "in_progress"]
    before += ["output_item.added", "mcp_list_tools.in_progress"]
    async with hosting(engine, fake) as (_, running):
        fields: Json = {"input": "hi", "tools": [server()]}
        events: list[Json] = []
        if transport == "websocket":
            async with running.connect() as socket:
                await socket.create(**fields)
                while len(events) < len(before):
                    events.append(await socket.receive())
                go_on.set()
                events += await socket.until("response.completed")
        else:
            fields |= {"background": True} if transport == "background" else {}
            async for sent in streamed(running, stream=True, **fields):
                events.append(sent)
                if len(events) == len(before):
                    go_on.set()
        assert types(events)[: len(before) + 2] == [*before, "mcp_list_tools.completed", "output_item.done"]
        assert accumulated(events) == events[-1]["response"]["output"]
        assert kinds(events[-1]["response"]) == ["mcp_list_tools", "message"]


async def test_a_background_response_that_fails_at_once_has_failed_for_that_reason(tmp_path: Path) -> None:
    async with hosting(scripted(tmp_path, [{"text": "ok"}])) as (_, running):
        api = Api(running)
        first = await api.ended((await api.begin(input="hi", tools=[server()]))["id"])
        history = [*first["output"], {"role": "user", "content": "more"}]
        failed = await api.ended((await api.begin(input=history, tools=[server()]))["id"])
        assert failed["error"]["message"].startswith("The script has ended")
        assert types(await api.events(failed["id"]))[-1] == "failed"


async def test_a_background_response_is_cancelled_while_its_list_is_fetched(tmp_path: Path) -> None:
    fake = FakeServer(modern=True)
    slow_lists(fake)
    async with hosting(scripted(tmp_path, [{"text": "ok"}]), fake) as (_, running):
        api = Api(running)
        begun = await api.begin(input="hi", tools=[server()])
        await until(lambda: fake.count("tools/list") == 1)
        assert (await api.cancel(begun["id"]))["status"] == "cancelled"
        assert (await api.ended(begun["id"]))["status"] == "cancelled"


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_another_server_under_the_same_label_lists_its_own_tools(
    tmp_path: Path, transport: str
) -> None:
    """The chain is continued with another URL: by a new connection, from the store."""
    old, new = FakeServer(modern=True), FakeServer(modern=True)
    new.tools = [{**ADD, "name": "other"}]
    engine = scripted(tmp_path, *([{"text": word}] for word in ("one", "two", "three", "four")))
    async with serving(new), hosting(engine, old, mcp_urls="any") as (_, running):
        ask: Json = {"input": "hi", "tools": [server("s", server_url=old.url)]}
        first = await respond(running, transport, **ask)
        ask |= {"tools": [server("s", server_url=new.url)], "previous_response_id": first["id"]}
        second = await respond(running, transport, **ask)
        assert [tool["name"] for tool in second["output"][0]["tools"]] == ["other"]
        ask |= {"tools": [server("s", server_url=new.url)], "previous_response_id": second["id"]}
        assert kinds(await respond(running, transport, **ask)) == ["message"]
        resent = [*first["output"], {"role": "user", "content": "more"}]
        ask = {"input": resent, "tools": [server("s", server_url=old.url)]}
        assert kinds(await respond(running, transport, **ask)) == ["message"]


async def test_a_client_that_disconnects_cancels_the_call() -> None:
    engine = PuppetEngine()
    fake, _ = waiting_server()
    async with hosting(engine, fake) as (_, running):
        async with running.connect(abandoned=True) as socket:
            await socket.create(input="hi", tools=[server()])
            performance = await engine.next()
            performance.emit(CallStarted("function", "wait", "fake"), CallArguments("{}"), CallEnded())
            performance.finish()
            await called(fake)
        await asyncio.wait_for(fake.disconnected.wait(), 300)


def contents(folder: Path) -> str:
    """All bytes of a database, as text."""
    return "".join(path.read_bytes().decode("latin-1") for path in folder.glob("slipring.db*"))


async def test_secrets_are_never_echoed_stored_or_logged(tmp_path: Path, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    database = tmp_path / "slipring.db"
    fake = FakeServer(modern=True)

    async def tells(exchange: Exchange) -> Reply:
        sent = exchange.request.headers
        return text(
            f"{sent['Authorization']} {sent['X-Mine']} {sent['X-Key']}", isError=exchange.arguments["a"] == 2
        )

    fake.calls["add"] = tells
    mine = server(authorization=SECRET, headers={"X-Mine": "header-of-the-request"})
    engine = scripted(
        tmp_path, [call(a=1, b=1), call(a=2, b=1)], [{"text": "ok"}], [call(a=1, b=1)], [{"text": "ok"}]
    )
    said: list[str] = []
    async with hosting(engine, fake, store=f"sqlite:{database}") as (_, running):
        for transport in ("websocket", "background"):
            response = await respond(running, transport, input="hi", tools=[mine])
            said.append(json.dumps(response))
        del fake.on["tools/list"]
        status, failed = await running.post(input="hi", tools=[{**mine, "server_label": "fake"}])
        said.append(f"{status} {json.dumps(failed)}")
        status, refused = await running.post(input="hi", tools=[{**mine, "server_url": "https://x.example"}])
        assert status == 400
        said.append(json.dumps(refused))
    assert fake.last("tools/call").headers["Authorization"] == f"Bearer {SECRET}"
    said.append(caplog.text)
    rows = contents(tmp_path)
    assert "mcp_list_tools" in rows
    said.append(rows)
    for secret in (SECRET, "header-of-the-request", OPERATOR):
        assert not [text[:200] for text in said if secret in text]


async def test_approvals_of_stored_chains_go_on_after_a_restart(tmp_path: Path) -> None:
    engine = scripted(tmp_path, [call(a=1, b=2), call(a=2, b=2)])
    store = f"sqlite:{tmp_path}/slipring.db"
    async with hosting(engine, store=store) as (_, running):
        asked = await respond(running, "websocket", input="?", tools=[ASKING])
    one, two = [item["id"] for item in asked["output"][1:]]
    answers = [
        {"type": "mcp_approval_response", "approval_request_id": one, "approve": True},
        {"type": "mcp_approval_response", "approval_request_id": two, "approve": False},
    ]
    body: Json = {"previous_response_id": asked["id"], "input": answers, "tools": [ASKING]}
    async with hosting(scripted(tmp_path, [{"text": "3."}]), store=store) as (fake, running):
        response = await respond(running, "sse", **body)
        assert (kinds(response), response["output"][0]["output"]) == (["mcp_call", "message"], "3")
        assert fake.count("tools/call") == 1
    async with hosting(PuppetEngine(), store=store) as (fake, running):
        status, refused = await running.post(**body)
        assert (status, refused["error"]["param"]) == (400, "input")
        history = [{"role": "user", "content": "?"}, *asked["output"], *answers]
        status, refused = await running.post(input=history, tools=[ASKING])
        assert status == 400
        assert fake.count("tools/call") == 0


async def test_a_stored_chain_continues_with_the_same_context(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path}/slipring.db"
    first = [call(a=1, b=2), call(a=3, b=4), {"text": "Both."}]
    async with hosting(scripted(tmp_path, first, [{"text": "3 and 7."}]), store=store) as (_, running):
        response = await respond(running, "websocket", input="?", tools=[server()])
    engine = PuppetEngine()
    async with hosting(engine, store=store) as (fake, running):
        answer = asyncio.create_task(
            running.post(previous_response_id=response["id"], input="more", tools=[server()])
        )
        performance = await engine.next()
        context = [json.loads(item.raw) for item in performance.job.context()]
        assert [item["type"] for item in context] == [
            *("message", "function_call", "function_call", "message"),
            *("function_call_output", "function_call_output", "message", "message"),
        ]
        assert [item["output"] for item in context if "output" in item] == ["3", "7"]
        performance.finish()
        await answer
        assert fake.count("tools/list") == 0


async def recorded(running: Running, response_id: str, mark: bytes) -> None:
    """Wait until the store has an event with this text, and the end of its item."""
    runs = running.service.store.runs
    async with asyncio.timeout(300):
        while True:
            data = [each.data for each in await runs.events("default", response_id, after=-1, limit=500)]
            if any(mark in each for each in data[:-1]):
                return
            await asyncio.sleep(0.01)


async def test_a_call_that_had_begun_when_its_server_died_has_failed() -> None:
    engine = PuppetEngine()
    fake, _ = waiting_server()
    # The owner renews its lease often, and so finds out soon that it has lost the run.
    async with hosting(engine, fake, limits=Limits(run_lease_s=1.5)) as (_, running):
        api = Api(running)
        begun = await api.begin(tools=[server()])
        performance = await engine.next()
        performance.emit(CallStarted("function", "wait", "fake"), CallArguments('{"n":1}'), CallEnded())
        performance.emit(CallStarted("function", "add", "fake"), CallArguments('{"a":1,"b":1}'), CallEnded())
        await called(fake, 2)
        runs = running.service.store.runs
        await recorded(running, begun["id"], b"response.mcp_call.completed")
        # Another node takes the run over, as it does when the lease of the owner has expired.
        run = await runs.read("default", begun["id"])
        await fail_abandoned(
            running.service.store,
            run,
            Claim("other", run.lease_until, running.service.seal),
        )
        failed = await api.read(begun["id"])
        assert failed["status"] == "failed"
        wait, add = failed["output"][1:]
        assert (wait["status"], wait["arguments"], wait["error"]["message"]) == (
            "failed",
            '{"n":1}',
            UNKNOWN_OUTCOME,
        )
        assert (add["status"], add["output"]) == ("completed", "2")
        assert types(await api.events(begun["id"]))[-1] == "failed"
        assert fake.count("tools/call") == 2


async def test_a_cancelled_background_response_cancels_its_calls() -> None:
    engine = PuppetEngine()
    fake, _ = waiting_server()
    async with hosting(engine, fake) as (_, running):
        api = Api(running)
        begun = await api.begin(tools=[server()])
        performance = await engine.next()
        performance.emit(CallStarted("function", "wait", "fake"), CallArguments("{}"), CallEnded())
        performance.finish()
        await called(fake)
        cancelled = await api.cancel(begun["id"])
        await asyncio.wait_for(fake.disconnected.wait(), 300)
        assert (cancelled["status"], cancelled["output"][-1]["status"]) == ("cancelled", "failed")


async def test_tokens_are_counted_with_the_tools_of_servers(tmp_path: Path) -> None:
    async with hosting(scripted(tmp_path, [{"text": "ok"}])) as (_, running):
        counts = []
        for tools in ([], [server()]):
            url = f"{running.url}/responses/input_tokens"
            async with running.http.post(url, json={"input": "hi", "tools": tools}, headers=KEY) as answer:
                counts.append((await answer.json())["input_tokens"])
        assert counts[0] < counts[1]


@pytest.mark.parametrize("approves", [False, True], ids=["at once", "approved"])
async def test_the_model_sees_the_images_of_a_result_in_this_turn_and_the_next(
    tmp_path: Path, approves: bool
) -> None:
    url = data_url(png(80, 60))

    async def look(exchange: Exchange) -> Reply:
        return {"content": [{"type": "image", "data": base64_of(url), "mimeType": "image/png"}]}

    fake = FakeServer(modern=True)
    fake.tools = [{"name": "look", "inputSchema": {"type": "object"}}]
    fake.calls["look"] = look
    script = scripted(tmp_path, [call("look")], [{"text": "A cat."}], [{"text": "Still."}])
    store, seen = f"sqlite:{tmp_path}/s.db", []

    def watched() -> Any:
        engine = open_engine(script)
        generate = engine.generate

        async def noted(job: Any, emit: Any) -> None:
            seen.append([each.width for item in job.context() for each in pictures(item)])
            await generate(job, emit)

        engine.generate = noted  # type: ignore[method-assign]
        return engine

    tools = [ASKING if approves else server()]
    async with hosting(watched(), fake, store=store) as (_, running):
        first = await respond(running, "post", input="?", tools=tools)
        if approves:
            answer = {"previous_response_id": first["id"], "input": [approval(first)], "tools": tools}
            first = await respond(running, "post", **answer)
        (made,) = [item for item in first["output"] if item["type"] == "mcp_call"]
        assert made["output"] == "[PNG picture, 80 × 60]"
        assert seen == [[], [80]]
    async with hosting(watched(), fake, store=store) as (_, running):
        await respond(running, "post", input="Still?", previous_response_id=first["id"])
        assert seen[2:] == [[80]], "it is stored with the response"
