"""The MCP client with servers as their users install them, from npm and PyPI. Run by ``make test-mcp``."""

import pytest

from slipring.mcp.failures import Unreachable
from slipring.mcp.pool import Pool
from slipring.mcp.protocol.session import ProgressUpdate
from slipring.mcp.protocol.tools import ImageContent, ResourceLink, TextContent, ToolResult
from slipring.mcp.servers import HttpServer, McpServer, StdioServer
from slipring.mcp.transports.addresses import Reach
from slipring.mcp.url_policy import parse_url
from tests.mcp.real_servers import RealServers, running, sdk

pytestmark = pytest.mark.mcp


@pytest.fixture(scope="module")
def servers() -> RealServers:
    return RealServers()


def at(url: str) -> HttpServer:
    return HttpServer("real", parse_url(url), reach=Reach.ALL)


def said(result: ToolResult) -> str:
    assert not result.is_error
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


async def exercise(pool: Pool, server: McpServer) -> None:
    """Use what server-everything has."""
    names = {tool.name for tool in (await pool.tools(server)).tools}
    assert {"echo", "get-sum", "trigger-long-running-operation", "get-tiny-image"} <= names
    assert "hello" in said(await pool.call(server, "echo", {"message": "hello"}))
    assert "5" in said(await pool.call(server, "get-sum", {"a": 2, "b": 3}))
    image = await pool.call(server, "get-tiny-image", {})
    assert any(isinstance(block, ImageContent) for block in image.content)
    links = await pool.call(server, "get-resource-links", {"count": 2})
    assert sum(isinstance(block, ResourceLink) for block in links.content) == 2
    structured = await pool.call(server, "get-structured-content", {"location": "New York"})
    assert structured.structured is not None
    reported: list[ProgressUpdate] = []
    slow = {"duration": 1, "steps": 3}
    await pool.call(server, "trigger-long-running-operation", slow, progress=reported.append)
    assert reported


async def test_everything_over_stdio(
    pool: Pool, servers: RealServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-slipring")
    server = StdioServer("everything", servers.everything("stdio"))
    await exercise(pool, server)
    assert "sk-of-slipring" not in said(await pool.call(server, "get-env", {}))


@pytest.mark.parametrize(("mode", "path"), [("streamableHttp", "/mcp"), ("sse", "/sse")])
async def test_everything_over_http(pool: Pool, servers: RealServers, mode: str, path: str) -> None:
    async with running(servers.everything(mode), path) as url:
        await exercise(pool, at(url))


@pytest.mark.parametrize("name", ["time", "fetch"])
async def test_reference_servers_of_pypi(pool: Pool, servers: RealServers, name: str) -> None:
    server = StdioServer(name, servers.reference(name))
    tools = await pool.tools(server)
    if name == "time":
        now = await pool.call(server, "get_current_time", {"timezone": "Europe/Oslo"})
        assert "Oslo" in said(now)
    else:
        assert tools.get("fetch") is not None


async def test_the_official_sdk_speaks_the_newer_revision(pool: Pool) -> None:
    async with running(sdk("http")) as url:
        server = at(url)
        modern = HttpServer(server.name, server.url, reach=Reach.ALL, is_modern=True)
        assert said(await pool.call(modern, "add", {"a": 2, "b": 3})) == "5"
        older = HttpServer(server.name, server.url, reach=Reach.ALL, is_modern=False, transport="streamable")
        assert said(await pool.call(older, "add", {"a": 2, "b": 3})) == "5"
    with pytest.raises(Unreachable):
        await pool.call(modern, "add", {"a": 2, "b": 3})


async def test_the_official_sdk_over_stdio(pool: Pool) -> None:
    for is_modern in (None, True, False):
        server = StdioServer(f"sdk {is_modern}", sdk("stdio"), is_modern=is_modern)
        assert said(await pool.call(server, "add", {"a": 2, "b": 3})) == "5"
