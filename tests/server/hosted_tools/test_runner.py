"""Lists and calls of hosted tools: what they bring, how they fail, and what is reported of them."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any, get_args

import pytest
from aiohttp import web

from slipring.base.errors import ExternalConnectorError, InvalidRequest
from slipring.core.hosted_tools import CallOutcome, CallProgress, ResolvedServer
from slipring.core.limits import Limits
from slipring.mcp.credentials import Credential
from slipring.mcp.servers import StdioServer
from slipring.observation import metric_table as table
from slipring.protocol.items.hosted_items import HttpError, ProtocolError
from slipring.protocol.tools.mcp_tools import McpTool, ToolHints
from slipring.server.access.auth import Caller
from slipring.server.hosted_tools.permitted_servers import Target
from slipring.server.hosted_tools.runner import EndedCall, Ending
from tests.harness import serve
from tests.mcp.fakes import ADD, Exchange, FakeServer, Reply, error, event, result, serving, text
from tests.observation.snapshot_values import value_of
from tests.server.hosted_tools.running import OPERATOR, call, find, registered, resolve, running
from tests.stores.samples import key


@pytest.fixture
async def fake() -> AsyncIterator[FakeServer]:
    async with serving(FakeServer(modern=True)) as fake:
        yield fake


# --- Lists ------------------------------------------------------------------------------------


async def test_the_lists_of_all_servers_are_fetched_at_once(fake: FakeServer) -> None:
    both = asyncio.Barrier(2)

    async def listing(exchange: Exchange) -> Reply:
        await both.wait()
        return {"tools": [{**ADD, "name": "slow"}]}

    async with serving(FakeServer(modern=False)) as other:
        fake.on["tools/list"] = other.on["tools/list"] = listing
        async with running(registered(fake, "a"), registered(other, "b")) as runner:
            found = await resolve(runner, "a", "b")
    for server in found.values():
        assert server.tools is not None
        assert [tool.name for tool in server.tools] == ["slow"]


async def test_a_list_has_what_operator_and_key_permit_in_the_servers_order(fake: FakeServer) -> None:
    fake.tools = [{**ADD, "name": name} for name in ("d", "b", "a", "c")]
    bound = Caller("t", key("k", mcp_tools=("fake.c", "fake.d", "fake.a", "fake.x")))
    async with running(registered(fake, allowed_tools=("a", "b", "c", "x"), approval="always")) as runner:
        server = (await resolve(runner, "fake", caller=bound))["fake"]
    assert server.tools is not None
    assert [tool.name for tool in server.tools] == ["a", "c"]
    assert server.server.permitted == {"a", "c", "x"}
    assert server.server.always_approve


async def test_tools_are_listed_as_the_api_shows_them(fake: FakeServer) -> None:
    pretty = json.dumps({"type": "object", "properties": {"x\n": {"type": "string"}}}, indent=1)
    hidden = '{"name": "b", "inputSchema": {"type": "object"}, "annotations": {"destructiveHint": true}}'

    async def listing(exchange: Exchange) -> Reply:
        hints = '{"readOnlyHint": false}'
        add = f'{{"name": "a", "description": "d", "inputSchema": {pretty}, "annotations": {hints}}}'
        body = f'{{"jsonrpc": "2.0", "id": {exchange.id}, "result": {{"tools": [{add}, {hidden}]}}}}'
        return web.Response(text=body, content_type="application/json")

    fake.on["tools/list"] = listing
    async with running(registered(fake)) as runner:
        server = (await resolve(runner, "fake"))["fake"]
    assert server.tools is not None
    first, second = server.tools
    assert (first.name, first.description, first.is_read_only) == ("a", "d", False)
    assert first.annotations == second.annotations == ToolHints(read_only=False)
    # Event streams end a value at a line break.
    assert b"\n" not in bytes(first.input_schema)
    assert json.loads(bytes(first.input_schema)) == json.loads(pretty)


async def test_a_server_that_is_found_is_asked_nothing(fake: FakeServer) -> None:
    async with running(registered(fake)) as runner:
        server = find(runner, "fake")["fake"]
        assert not fake.seen
        assert (await call(runner, server)).output == "3"


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        (McpTool("x", server_url="https://example.com/"), "tools[3].server_url"),
        (McpTool("x"), "tools[3].server_label"),
        (McpTool("fake2", connector_id="no"), "tools[3].connector_id"),
        (McpTool("fake2", connector_id="fake", headers={"Host": "x"}), "tools[3].headers"),
    ],
)
async def test_a_server_that_may_not_be_used_is_named_by_its_place(
    fake: FakeServer, tool: McpTool, param: str
) -> None:
    async with running(registered(fake)) as runner:
        with pytest.raises(InvalidRequest) as caught:
            await resolve(runner, "fake", tool)
    assert (caught.value.param, caught.value.status) == (param, 400)
    assert caught.value.message.startswith(f"Invalid '{param}': ")
    assert not fake.seen


async def rejecting(exchange: Exchange) -> Reply:
    return web.Response(status=503)


async def test_a_list_that_fails_fails_the_request(fake: FakeServer) -> None:
    fake.on["tools/list"] = rejecting
    async with running(registered(fake)) as runner:
        with pytest.raises(ExternalConnectorError) as caught:
            await resolve(runner, "fake")
    failed = caught.value
    assert (failed.status, failed.type, failed.code) == (424, "external_connector_error", "http_error")
    assert failed.param == "tools"
    assert failed.message == (
        "Error retrieving the tool list of the MCP server 'fake':"
        " The MCP server answered with HTTP status 503."
    )


async def test_a_request_can_go_on_without_a_list(fake: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    fake.on["tools/list"] = rejecting
    async with serving(FakeServer(modern=True)) as other:
        servers = (registered(fake, on_list_error="continue"), registered(other, "other"))
        async with running(*servers) as runner:
            found = await resolve(runner, "fake", "other")
    assert (found["fake"].tools, len(found["other"].tools or ())) == ((), 1)
    assert found["fake"].error == HttpError(503, "The MCP server answered with HTTP status 503.")
    assert "list tenant=t server=fake: The MCP server answered with HTTP status 503." in caplog.text


async def test_a_list_that_fails_does_not_wait_for_the_others(fake: FakeServer) -> None:
    began = asyncio.Event()

    async def hanging(exchange: Exchange) -> Reply:
        began.set()
        await asyncio.Event().wait()
        return {}

    async def failing(exchange: Exchange) -> Reply:
        await began.wait()
        return web.Response(status=503)

    async with serving(FakeServer(modern=True)) as other:
        fake.on["tools/list"], other.on["tools/list"] = hanging, failing
        async with running(registered(fake), registered(other, "other")) as runner:
            with pytest.raises(ExternalConnectorError, match="'other'"):
                await resolve(runner, "fake", "other")


@pytest.mark.parametrize("limits", [{}, {"max_frame_bytes": 10_000}])
async def test_lists_are_bounded_together(fake: FakeServer, limits: dict[str, Any]) -> None:
    many = 900 if not limits else 20
    fake.tools = [{**ADD, "name": f"t{number}", "description": "d" * 100} for number in range(many)]
    names = ["a", "b", "c"]
    async with running(*(registered(fake, name) for name in names), **limits) as runner:
        with pytest.raises(InvalidRequest, match="Name fewer servers") as caught:
            await resolve(runner, *names)
        assert caught.value.param == "tools"
        assert len(await resolve(runner, *names[:2])) == 2


# --- Calls ------------------------------------------------------------------------------------


def answering(value: dict[str, Any]) -> Any:
    async def behaviour(exchange: Exchange) -> Reply:
        return value

    return behaviour


def rejected(status: int, code: int | None = None) -> Any:
    async def behaviour(exchange: Exchange) -> Reply:
        if code is None:
            return web.Response(status=status, text="secret body")
        return web.json_response(error(exchange.id, code, "wrong unit"), status=status)

    return behaviour


async def reset(exchange: Exchange) -> Reply:
    assert exchange.request.transport is not None
    exchange.request.transport.abort()
    return {}


async def silent(exchange: Exchange) -> Reply:
    await asyncio.Event().wait()
    return {}


async def garbage(exchange: Exchange) -> Reply:
    return web.Response(text="{", content_type="application/json")


UNKNOWN = " Outcome unknown: the call may have run."


@pytest.mark.parametrize(
    ("behaviour", "expected", "ending"),
    [
        (answering(text("fine")), CallOutcome(output="fine"), "completed"),
        (rejected(200, -32602), ProtocolError(-32602, "wrong unit"), "failed"),
        (rejected(403), HttpError(403, "The MCP server answered with HTTP status 403."), "failed"),
        (rejected(500), HttpError(500, f"The MCP server answered with HTTP status 500.{UNKNOWN}"), "unknown"),
        (
            reset,
            HttpError(502, f"The connection to the MCP server ended before the answer.{UNKNOWN}"),
            "unknown",
        ),
        (silent, HttpError(504, f"The MCP server did not answer in time.{UNKNOWN}"), "unknown"),
        (
            answering(text("x" * 3000)),
            ProtocolError(-32603, f"The tool's result has more than 2000 bytes.{UNKNOWN}"),
            "unknown",
        ),
        (
            answering(
                {"resultType": "input_required", "inputRequests": {"q": {"method": "sampling/createMessage"}}}
            ),
            None,
            "failed",
        ),
        (garbage, None, "unknown"),
    ],
)
async def test_a_call_ends_in_one_outcome(
    fake: FakeServer, behaviour: Any, expected: Any, ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    fake.calls["add"] = behaviour
    ended: list[EndedCall] = []
    timeout_s = 0.2 if behaviour is silent else 120.0
    async with running(registered(fake, timeout_s=timeout_s), max_tool_result_bytes=2000) as runner:
        runner.observers.append(ended.append)
        server = find(runner, "fake")["fake"]
        outcome = await call(runner, server)
    if isinstance(expected, CallOutcome):
        assert outcome == expected
    else:
        assert outcome.output is None
        assert outcome.error == expected or (expected is None and isinstance(outcome.error, ProtocolError))
    assert fake.count("tools/call") == 1
    (call_,) = ended
    assert (call_.tenant, call_.server, call_.tool, call_.ending) == ("t", "fake", "add", ending)
    assert f"call tenant=t server=fake label=fake tool=add ending={ending} ms=" in caplog.text
    assert '"a"' not in caplog.text


async def test_a_server_that_is_not_there_was_not_sent_the_call() -> None:
    async with serving(FakeServer(modern=True)) as fake:
        gone = registered(fake)
    async with running(gone) as runner:
        outcome = await call(runner, find(runner, "fake")["fake"])
    assert outcome.error == HttpError(502, "The MCP server does not accept connections.")


@pytest.mark.parametrize(
    "arguments", ["[1]", "5", '"x"', "{", '{"a": ', "null", '{"a": "\ud800"}', "[" * 5000]
)
async def test_arguments_that_are_no_object_are_not_sent(fake: FakeServer, arguments: str) -> None:
    async with running(registered(fake)) as runner:
        server = find(runner, "fake")["fake"]
        outcome = await call(runner, server, arguments=arguments)
    assert outcome.error == ProtocolError(-32602, "The arguments are not a JSON object.")
    assert not fake.seen


@pytest.mark.parametrize("arguments", ["", " \n", "{}"])
async def test_no_arguments_are_an_empty_object(fake: FakeServer, arguments: str) -> None:
    fake.calls["add"] = answering(text("ok"))
    async with running(registered(fake)) as runner:
        server = find(runner, "fake")["fake"]
        assert (await call(runner, server, arguments=arguments)).output == "ok"
    assert fake.last("tools/call").message["params"]["arguments"] == {}


async def test_a_tool_that_is_not_permitted_is_not_called(fake: FakeServer) -> None:
    async with running(registered(fake, allowed_tools=("other",))) as runner:
        server = find(runner, "fake")["fake"]
        outcome = await call(runner, server)
    assert outcome.error == ProtocolError(-32602, "There is no tool of this name.")
    assert not fake.seen


async def test_progress_reaches_the_turn(fake: FakeServer) -> None:
    async def working(exchange: Exchange) -> Reply:
        stream = await exchange.stream()
        await stream.write(event(exchange.progress(1, total=4, message="x" * 5000)))
        await stream.write(event(result(exchange.id, text("done"))))
        return stream

    fake.calls["add"] = working
    progress: list[CallProgress] = []
    async with running(registered(fake)) as runner:
        server = find(runner, "fake")["fake"]
        outcome = await call(runner, server, progress=progress)
    assert outcome.output == "done"
    assert progress == [CallProgress(1, 4, "x" * 1000)]


async def test_a_cancelled_call_is_cancelled_at_the_server(fake: FakeServer) -> None:
    began = asyncio.Event()

    async def hanging(exchange: Exchange) -> Reply:
        began.set()
        await asyncio.Event().wait()
        return {}

    fake.calls["add"] = hanging
    ended: list[EndedCall] = []
    async with running(registered(fake)) as runner:
        runner.observers.append(ended.append)
        server = find(runner, "fake")["fake"]
        task = asyncio.create_task(call(runner, server))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await fake.disconnected.wait()
    assert [each.ending for each in ended] == ["cancelled"]


async def test_the_calls_of_one_tenant_do_not_hold_up_another(fake: FakeServer) -> None:
    began, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def waiting(exchange: Exchange) -> Reply:
        began.release()
        await go_on.wait()
        return text(str(exchange.arguments["a"]))

    fake.calls["add"] = waiting
    async with running(registered(fake), tenant_tool_calls=1) as runner:
        server = find(runner, "fake")["fake"]
        first = asyncio.create_task(call(runner, server, arguments='{"a": 1}'))
        await began.acquire()
        second = asyncio.create_task(call(runner, server, arguments='{"a": 2}'))
        foreign = asyncio.create_task(call(runner, server, arguments='{"a": 3}', tenant="u"))
        await began.acquire()
        assert [
            seen.message["params"]["arguments"]["a"] for seen in fake.seen if seen.method == "tools/call"
        ] == [1, 3]
        go_on.set()
        assert [(await each).output for each in (first, second, foreign)] == ["1", "2", "3"]


async def test_what_nobody_expected_fails_the_call_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    impossible = Target(StdioServer("odd", (3,)), Credential(), "odd", None)  # type: ignore[arg-type]
    async with running() as runner:
        outcome = await call(runner, ResolvedServer(impossible))
    assert outcome.error == ProtocolError(-32603, f"The call failed.{UNKNOWN}")
    assert "a call of a tool failed unexpectedly" in caplog.text


# --- In a server ------------------------------------------------------------------------------


async def test_a_server_counts_calls_and_closes_its_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPERATOR_KEY", OPERATOR)
    async with serving(FakeServer(modern=False)) as fake:
        async with serve(mcp=(registered(fake),), limits=Limits()) as server:
            runner = server.server.service.tool_runner
            resolved = (await resolve(runner, "fake"))["fake"]
            await call(runner, resolved)
            fake.calls["add"] = answering(text("no", isError=True))
            await call(runner, resolved)
            snapshot = server.server.metrics.snapshot()
            assert fake.sessions
            for ending, count in {"completed": 1, "tool_error": 1, "unknown": 0}.items():
                assert value_of(snapshot, table.TOOL_CALLS, {"server": "fake", "ending": ending}) == count
        assert not fake.sessions


def test_the_endings_are_those_of_the_table() -> None:
    assert get_args(Ending) == table.TOOL_ENDINGS
