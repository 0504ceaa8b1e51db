"""Real MCP servers behind slipring, called by the embedded model. Run by ``make test-mcp``.

The model is too small to choose well, so each request requires a call. Grammars make its arguments valid.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from slipring.config.tables import McpRegistration
from tests.harness import Running
from tests.mcp.real_servers import RealServers, running, sdk
from tests.model import ServeModel

pytestmark = pytest.mark.mcp

Json = dict[str, Any]


@pytest.fixture(scope="module")
def servers() -> RealServers:
    return RealServers()


def ask(text: str, *tools: str, **fields: Any) -> Json:
    """A request that calls one tool of the server ``real`` and then answers."""
    server = {
        "type": "mcp",
        "server_label": "real",
        "require_approval": "never",
        "allowed_tools": list(tools),
    }
    choice: Json | str = "required" if len(tools) > 1 else {"type": "mcp", "server_label": "real"}
    bounds = {"temperature": 0, "max_output_tokens": 160, "max_tool_calls": 1, "parallel_tool_calls": False}
    return {"input": text, "tools": [{**server, **fields}], "tool_choice": choice, **bounds}


def the_call(response: Json) -> Json:
    """The one call of a response, which lists the tools before it and goes on after it."""
    kinds = [item["type"] for item in response["output"]]
    assert kinds[:2] == ["mcp_list_tools", "mcp_call"], kinds
    assert kinds[2:] == ["message"]
    call: Json = response["output"][1]
    return call


async def check_sum(served: Running) -> None:
    async with served.connect() as socket:
        response = await socket.response(**ask("What is 2 plus 3?", "get-sum", "echo"))
    call = the_call(response)
    numbers = json.loads(call["arguments"])
    assert call["name"] == "get-sum"
    assert call["output"] == f"The sum of {numbers['a']} and {numbers['b']} is {numbers['a'] + numbers['b']}."
    assert call["output"] == "The sum of 2 and 3 is 5."


async def test_everything_over_stdio(smollm2: ServeModel, servers: RealServers) -> None:
    everything = McpRegistration("real", command=servers.everything("stdio"))
    async with smollm2(slots=1, context=2048, mcp=(everything,)) as served:
        await check_sum(served)


async def test_everything_over_http_at_a_url_of_the_clients_own(
    smollm2: ServeModel, servers: RealServers
) -> None:
    async with (
        running(servers.everything("streamableHttp")) as url,
        smollm2(slots=1, context=2048, mcp_urls="any") as served,
    ):
        request = ask("What is 2 plus 3?", "get-sum", server_url=url)
        status, response = await served.post(**request)
    assert status == 200
    assert the_call(response)["output"] == "The sum of 2 and 3 is 5."


async def test_progress_of_everything_reaches_the_client(smollm2: ServeModel, servers: RealServers) -> None:
    slow = McpRegistration("real", command=servers.everything("stdio"))
    tool = "trigger-long-running-operation"
    async with smollm2(slots=1, context=2048, mcp=(slow,)) as served:
        text = "Run the operation: 1 second, 3 steps."
        events = await served.stream(**ask(text, tool))
    reports = [event for event in events if event["type"] == "response.mcp_call.in_progress"]
    assert len(reports) > 1
    assert the_call(events[-1]["response"])["status"] == "completed"


async def test_the_time_server(smollm2: ServeModel, servers: RealServers) -> None:
    clock = McpRegistration("real", command=servers.reference("time"))
    async with smollm2(slots=1, context=2048, mcp=(clock,)) as served:
        request = ask("Call get_current_time with timezone Europe/Oslo", "get_current_time")
        status, response = await served.post(**request)
    assert status == 200
    call = the_call(response)
    assert json.loads(call["output"])["timezone"] == json.loads(call["arguments"])["timezone"]


@asynccontextmanager
async def page() -> AsyncIterator[str]:
    """A page for the fetch server."""
    app = web.Application()
    text = "<html><body><article><h1>Harbour</h1><p>The harbour is open.</p></article></body></html>"

    async def show(request: web.Request) -> web.Response:
        return web.Response(text=text, content_type="text/html")

    app.router.add_get("/", show)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


async def test_the_fetch_server(smollm2: ServeModel, servers: RealServers) -> None:
    flags = ("--ignore-robots-txt", "--allow-private-ips")
    fetch = McpRegistration("real", command=(*servers.reference("fetch"), *flags))
    async with page() as url, smollm2(slots=1, context=2048, mcp=(fetch,)) as served:
        status, response = await served.post(**ask(f"Fetch the URL {url}", "fetch"))
    assert status == 200
    call = the_call(response)
    assert json.loads(call["arguments"])["url"] == url
    assert "harbour is open" in call["output"]


@pytest.mark.parametrize("mode", ["stdio", "http"])
async def test_the_official_sdk_in_the_newer_revision(smollm2: ServeModel, mode: str) -> None:
    if mode == "stdio":
        registration = McpRegistration("real", command=sdk("stdio"))
        async with smollm2(slots=1, context=2048, mcp=(registration,)) as served:
            status, response = await served.post(**ask("What is 2 plus 3?", "add"))
    else:
        async with running(sdk("http")) as url:
            registration = McpRegistration("real", url=url)
            async with smollm2(slots=1, context=2048, mcp=(registration,)) as served:
                status, response = await served.post(**ask("What is 2 plus 3?", "add"))
    assert status == 200
    assert the_call(response)["output"] == "5"
