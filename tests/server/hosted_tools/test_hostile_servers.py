"""Attacks on hosted tools, from callers and from servers, through everything between a request and a socket.

What the MCP client alone repels is tested with it. Here: that nothing in front of it opens a way around.
"""

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from slipring.base.errors import ApiError, ExternalConnectorError, InvalidRequest
from slipring.config.settings import Config
from slipring.config.tables import McpRegistration
from slipring.core.hosted_tools import CallProgress
from slipring.core.limits import Limits
from slipring.mcp.transports.addresses import Reach
from slipring.protocol.items.hosted_items import HttpError, ProtocolError
from slipring.protocol.tools.mcp_tools import McpTool
from slipring.server.hosted_tools.permitted_servers import Registry, ServerRefused
from slipring.server.hosted_tools.runner import ToolRunner
from tests.mcp.fakes import ADD, Exchange, FakeServer, Reply, error, event, result, serving, text
from tests.mcp.test_servers import Names
from tests.server.hosted_tools.running import OPERATOR, call, find, registered, resolve, running

TOKEN = "sk-very-secret-token-of-the-caller"
HEADER = "another-secret-of-the-caller"
URL_SECRET = "secret-in-the-query"
SECRETS = (TOKEN, HEADER, OPERATOR, URL_SECRET)
STDIO = Path(__file__).parents[2] / "mcp" / "stdio_server.py"


@pytest.fixture
async def fake() -> AsyncIterator[FakeServer]:
    async with serving(FakeServer(modern=True)) as fake:
        yield fake


# --- Addresses --------------------------------------------------------------------------------


def resolving(runner: ToolRunner, names: Names, reach: Reach = Reach.PUBLIC) -> None:
    """Resolve the names of servers that clients name by ``names``, every time anew."""
    connector = runner.pool._web.session(reach).connector
    assert connector is not None
    connector._resolver, connector._use_dns_cache = names, False  # type: ignore[attr-defined]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:10.0.0.1", "169.254.169.254"])
async def test_a_public_name_that_leads_inside_is_not_connected_to(address: str) -> None:
    names = Names(address)
    async with running(urls="public") as runner:
        resolving(runner, names)
        with pytest.raises(ExternalConnectorError) as caught:
            await resolve(runner, McpTool("x", server_url="https://attacker.example/mcp"))
    assert names.asked == 1
    assert caught.value.message.endswith("'x': The MCP server's address is not public.")


async def test_a_name_that_is_rebound_after_the_list_is_not_called() -> None:
    """The request is admitted while the name is public; the call meets another address."""
    names = Names("127.0.0.1")
    async with running(urls="public") as runner:
        resolving(runner, names)
        tool = McpTool("x", server_url="https://attacker.example/mcp")
        server = find(runner, tool)["x"]
        outcome = await call(runner, server)
    assert outcome.error == ProtocolError(-32600, "The MCP server's address is not public.")


@pytest.mark.parametrize("method", ["tools/list", "server/discover"])
async def test_a_redirect_inside_is_not_followed(fake: FakeServer, method: str) -> None:
    async with serving(FakeServer(modern=True)) as inside:

        async def redirect(exchange: Exchange) -> Reply:
            return web.Response(status=307, headers={"Location": inside.url})

        fake.on[method] = redirect
        async with running(urls="any") as runner:
            with pytest.raises(ExternalConnectorError) as caught:
                await resolve(runner, McpTool("x", server_url=fake.url))
        assert not inside.seen
        assert inside.url not in caught.value.message


async def test_a_private_server_is_reached_by_its_registration_only(fake: FakeServer) -> None:
    for urls in ("registered", "public"):
        async with running(urls=urls) as runner:
            with pytest.raises(InvalidRequest) as caught:
                await resolve(runner, McpTool("x", server_url=fake.url))
            assert caught.value.param == "tools[1].server_url"
        async with running(registered(fake), urls=urls) as runner:
            assert await resolve(runner, McpTool("x", server_url=fake.url))
    assert fake.count("tools/list") == 2


async def test_a_url_of_a_client_gets_no_headers_of_the_operator(fake: FakeServer) -> None:
    async with running(registered(fake), urls="any") as runner:
        await resolve(runner, McpTool("x", server_url=f"{fake.url}/"), McpTool("y", server_url=fake.url))
    sent = {seen.headers.get("X-Key") for seen in fake.seen if seen.method == "tools/list"}
    assert sent == {None, OPERATOR}


# --- Rules of registrations -------------------------------------------------------------------

RESERVED = "a registered MCP server is at this address: name it by its registered name or URL"
ODD_HOSTS = ("localhost.", "127.0.0.1.", "127.1", "2130706433", "0x7f.0.0.1", "0", "017700000001")
RULES: list[dict[str, Any]] = [
    {"approval": "always"},
    {"allowed_tools": ("add",)},
    {"parallel": 1},
    {"timeout_s": 5.0},
]


def other_urls(fake: FakeServer) -> list[str]:
    """URLs that lead to the same server."""
    port = fake.url.rpartition(":")[2].partition("/")[0]
    paths = ["/mcp?x=1", "/mcp/", "/MCP", "//mcp", "/%256dcp", "/mcp;x", "", "/mcp/.?y"]
    hosts = [
        *ODD_HOSTS,
        *(
            "localhost",
            "LocalHost",
            "127.0.0.2",
            "0.0.0.0",
            "[::ffff:127.0.0.1]",
            "[::ffff:7f00:1]",
        ),
    ]
    same_host = [f"http://127.0.0.1:{port}{path}" for path in paths]
    return [*same_host, *(f"http://{host}:{port}/mcp" for host in hosts), f"HTTP://localhost:{port}/mcp?x=1"]


@pytest.mark.parametrize("rules", RULES, ids=lambda rules: next(iter(rules)))
async def test_no_other_url_of_a_registered_server_avoids_its_rules(
    fake: FakeServer, rules: dict[str, Any]
) -> None:
    async with running(registered(fake, **rules), urls="any") as runner:
        for url in other_urls(fake):
            with pytest.raises(ApiError) as caught:
                await resolve(runner, McpTool("x", server_url=url))
            # Some spellings of addresses are refused as URLs, or not resolved.
            is_odd = any(f"//{host}:" in url for host in ODD_HOSTS)
            assert is_odd or RESERVED[1:] in caught.value.message, url
        assert not fake.seen


async def test_other_spellings_of_a_registered_url_are_the_registered_server(fake: FakeServer) -> None:
    async with running(registered(fake, approval="always", allowed_tools=("add",)), urls="any") as runner:
        paths = ("/mcp", "/mcp?", "/a/../mcp", "/%6dcp")
        for url in (fake.url.replace("http", "HTTP"), *(fake.url.replace("/mcp", path) for path in paths)):
            server = (await resolve(runner, McpTool("x", server_url=url)))["x"]
            assert (server.server.always_approve, server.server.permitted) == (True, {"add"}), url


@pytest.mark.parametrize("listen", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::"])
async def test_a_name_that_leads_to_a_registered_server_is_not_connected_to(
    fake: FakeServer, listen: str
) -> None:
    names = Names(listen)
    port = fake.url.rpartition(":")[2]
    async with running(registered(fake, approval="always"), urls="any") as runner:
        resolving(runner, names, Reach.UNRESERVED)
        tool = McpTool("x", server_url=f"http://attacker.example:{port}")
        with pytest.raises(ExternalConnectorError) as caught:
            await resolve(runner, tool)
        assert caught.value.message.endswith(f"{RESERVED[1:]}.")
        # Neither is one that is bound to it between the list and the call.
        server = find(runner, tool)["x"]
        outcome = await call(runner, server)
    assert isinstance(outcome.error, ProtocolError)
    assert not fake.seen


async def test_a_registered_name_is_looked_up_for_its_addresses(fake: FakeServer) -> None:
    """The registration has a name, and the client an address."""
    named = McpRegistration("fake", url=fake.url.replace("127.0.0.1", "localhost"), approval="always")
    async with running(named, urls="any") as runner:
        with pytest.raises(ExternalConnectorError) as caught:
            await resolve(runner, McpTool("x", server_url=fake.url))
        assert RESERVED[1:] in caught.value.message
        assert not fake.seen
        assert (await resolve(runner, "fake"))["fake"].tools


async def test_a_server_without_rules_and_other_ports_are_not_reserved(fake: FakeServer) -> None:
    async with (
        serving(FakeServer(modern=True)) as other,
        running(
            registered(fake, "free"), registered(other, "bound", approval="always"), urls="any"
        ) as runner,
    ):
        found = await resolve(runner, McpTool("x", server_url=f"{fake.url}/"))
    assert found["x"].tools
    assert not other.seen


async def test_the_default_ports_of_both_schemes_are_one() -> None:
    registration = McpRegistration("web", url="https://mcp.example.com/mcp", approval="always")
    registry = Registry(Config(mcp=(registration,), mcp_urls="any"), {})
    for url in ("http://mcp.example.com/x", "https://mcp.example.com:443/x", "http://MCP.example.com.:443/"):
        with pytest.raises(ServerRefused) as caught:
            registry.find(McpTool("x", server_url=url), None)
        assert (caught.value.field, caught.value.reason) == ("server_url", RESERVED)
    assert registry.find(McpTool("x", server_url="https://mcp.example.com:8443/x"), None).name is None


# --- Secrets ----------------------------------------------------------------------------------


def said(exchange: Exchange) -> str:
    headers = exchange.request.headers
    query = exchange.request.query.get("k", "")
    return f"{headers['Authorization']} {headers['X-Secret']} {headers['X-Key']} {query}"


async def in_an_error(exchange: Exchange) -> Reply:
    return web.json_response(error(exchange.id, -32602, said(exchange)), status=200)


async def in_a_body(exchange: Exchange) -> Reply:
    return web.Response(status=403, text=said(exchange))


async def in_broken_json(exchange: Exchange) -> Reply:
    return web.Response(text=f'{{"{said(exchange)}', content_type="application/json")


async def in_a_reason(exchange: Exchange) -> Reply:
    return web.Response(status=500, reason=said(exchange))


async def in_a_tool_error(exchange: Exchange) -> Reply:
    return text(said(exchange), isError=True)


async def in_a_result(exchange: Exchange) -> Reply:
    return {"content": [], "structuredContent": {"echo": said(exchange)}}


async def in_progress(exchange: Exchange) -> Reply:
    stream = await exchange.stream()
    await stream.write(event(exchange.progress(1, message=said(exchange))))
    await stream.write(event(result(exchange.id, text("done"))))
    return stream


async def in_a_list(exchange: Exchange) -> Reply:
    echo = said(exchange)
    schema = {"type": "object", "properties": {"a": {"const": echo}}}
    return {"tools": [{"name": "add", "description": echo, "inputSchema": schema}]}


async def reset(exchange: Exchange) -> Reply:
    assert exchange.request.transport is not None
    exchange.request.transport.abort()
    return {}


async def silent(exchange: Exchange) -> Reply:
    await asyncio.Event().wait()
    return {}


ECHOES = [in_an_error, in_a_body, in_broken_json, in_a_reason, reset]


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize(
    ("method", "behaviour"),
    [
        *(("tools/list", each) for each in (*ECHOES, in_a_list)),
        *(("server/discover", each) for each in ECHOES),
        *(("tools/call", each) for each in (*ECHOES, in_a_tool_error, in_progress, silent)),
    ],
)
async def test_no_answer_and_no_log_has_a_secret(
    fake: FakeServer, method: str, behaviour: Any, goes_on: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    fake.on[method] = behaviour
    fake.url += f"?k={URL_SECRET}"
    tool = McpTool("fake", authorization=TOKEN, headers={"X-Secret": HEADER})
    shown: list[Any] = [repr(tool)]
    progress: list[CallProgress] = []
    settings: dict[str, Any] = {
        "on_list_error": "continue" if goes_on else "fail",
        "timeout_s": 1.0 if behaviour is silent else 120.0,
    }
    async with running(registered(fake, **settings)) as runner:
        try:
            server = (await resolve(runner, tool))["fake"]
            shown += [repr(server), server.tools, server.error]
            outcome = await call(runner, server, progress=progress)
            shown += [repr(outcome), outcome.error]
        except ApiError as failed:
            context = None if failed.__suppress_context__ else failed.__context__
            shown += [failed.message, failed.param, repr(failed), repr(context)]
    assert any(seen.headers.get("Authorization") == f"Bearer {TOKEN}" for seen in fake.seen)
    everything = msgspec.json.encode([*shown, progress]).decode() + caplog.text
    for secret in SECRETS:
        assert secret not in everything


async def test_a_result_of_a_process_has_no_credentials(tmp_path: Path) -> None:
    environ = {
        "STDIO_LOG": str(tmp_path / "log"),
        "WIKI_TOKEN": "a-token-of-the-operator",
        "WIKI_STORE": "postgres://wiki:a-password-of-the-operator@db.example/wiki",
        "WIKI_PLACE": "https://wiki.example.com/pages",
    }
    process = McpRegistration("wiki", command=(sys.executable, str(STDIO), "calm"), env=tuple(environ))
    runner = ToolRunner(Registry(Config(mcp=(process,)), environ), Limits())
    try:
        outcome = await call(runner, find(runner, "wiki")["wiki"], "env", "{}")
    finally:
        await runner.close()
    assert outcome.output is not None
    shown = json.loads(outcome.output)
    assert shown["WIKI_TOKEN"] == "[redacted]"
    assert shown["WIKI_STORE"] == "postgres://wiki:[redacted]@db.example/wiki"
    assert shown["WIKI_PLACE"] == environ["WIKI_PLACE"]


async def test_a_result_has_no_credentials(fake: FakeServer) -> None:
    fake.calls["add"] = in_a_result
    tool = McpTool("fake", authorization=TOKEN, headers={"X-Secret": HEADER})
    async with running(registered(fake)) as runner:
        outcome = await call(runner, find(runner, tool)["fake"])
    assert outcome.output is not None
    assert "[redacted]" in outcome.output
    assert not [secret for secret in SECRETS if secret in outcome.output]


async def test_tenants_and_credentials_do_not_share_lists(fake: FakeServer) -> None:
    async def listing(exchange: Exchange) -> Reply:
        return {
            "tools": [{**ADD, "name": exchange.request.headers.get("Authorization", "none")[7:]}],
            "ttlMs": 10**6,
        }

    fake.on["tools/list"] = listing
    async with running(registered(fake)) as runner:
        for token in ("a", "b", "a"):
            server = (await resolve(runner, McpTool("fake", authorization=token)))["fake"]
            assert [tool.name for tool in server.tools or ()] == [token]
    assert fake.count("tools/list") == 2


# --- Processes --------------------------------------------------------------------------------


async def test_a_process_that_dies_in_a_call_leaves_its_outcome_unknown(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    process = McpRegistration("files", command=(sys.executable, str(STDIO), "crash"), env=("STDIO_LOG",))
    runner = ToolRunner(Registry(Config(mcp=(process,)), {"STDIO_LOG": str(log)}), Limits())
    try:
        server = (await resolve(runner, "files"))["files"]
        outcome = await call(runner, server, "crash", "{}")
        again = await call(runner, server, "crash", "{}")
    finally:
        await runner.close()
    for each in (outcome, again):
        assert isinstance(each.error, HttpError)
        assert each.error.code == 502
        assert each.error.message.endswith("Outcome unknown: the call may have run.")
    assert log.read_text().count("tools/call") == 2


async def test_no_request_can_name_a_command(fake: FakeServer) -> None:
    for url in ("stdio:///bin/sh", "file:///bin/sh", "unix:///run/docker.sock", "npx mcp-server"):
        async with running(registered(fake), urls="any") as runner:
            with pytest.raises(InvalidRequest) as caught:
                await resolve(runner, McpTool("x", server_url=url))
        assert caught.value.param == "tools[1].server_url"
        assert url not in caught.value.message
