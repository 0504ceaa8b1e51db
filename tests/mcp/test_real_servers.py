"""Servers as their users install them, from npm and PyPI. Run by ``make test-mcp``.

``SLIPRING_TEST_MCP`` names the directory that they are installed into. The official SDK of the development
environment answers in the newer revision.
"""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from slipring.mcp import (
    HttpServer,
    ImageContent,
    McpServer,
    Pool,
    ProgressUpdate,
    ResourceLink,
    StdioServer,
    TextContent,
    ToolResult,
    Unreachable,
    parse_url,
)
from tests.clients.real.installing import Workshop

pytestmark = pytest.mark.mcp

SDK_SERVER = """
import sys
from mcp.server import MCPServer
server = MCPServer("sdk")

@server.tool()
def add(a: int, b: int) -> int:
    return a + b

if sys.argv[1] == "stdio":
    server.run("stdio")
else:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def workshop() -> Workshop:
    return Workshop(Path(os.environ["SLIPRING_TEST_MCP"]))


def everything(workshop: Workshop) -> tuple[str, ...]:
    workshop.install("mcp-everything")
    return (str(workshop.node), str(workshop.package("mcp-everything") / "dist" / "index.js"))


def said(result: ToolResult) -> str:
    assert not result.is_error
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def running(*command: str, path: str, port: int) -> AsyncIterator[HttpServer]:
    """Run a server that listens on a port."""
    process = await asyncio.create_subprocess_exec(*command, env={**os.environ, "PORT": str(port)})
    try:
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            assert process.returncode is None
            await asyncio.sleep(0.1)
        yield HttpServer("real", parse_url(f"http://127.0.0.1:{port}{path}"), public_only=False)
    finally:
        # Not asked to end: it would wait for the stream on which it announces changes.
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


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


async def test_everything_over_stdio(pool: Pool, workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-slipring")
    server = StdioServer("everything", (*everything(workshop), "stdio"))
    await exercise(pool, server)
    assert "sk-of-slipring" not in said(await pool.call(server, "get-env", {}))


@pytest.mark.parametrize(("mode", "path"), [("streamableHttp", "/mcp"), ("sse", "/sse")])
async def test_everything_over_http(pool: Pool, workshop: Workshop, mode: str, path: str) -> None:
    port = free_port()
    async with running(*everything(workshop), mode, path=path, port=port) as server:
        await exercise(pool, server)


@pytest.mark.parametrize("name", ["time", "fetch"])
async def test_reference_servers_of_pypi(pool: Pool, workshop: Workshop, name: str) -> None:
    workshop.install("mcp-reference")
    python = str(workshop.python("mcp-reference"))
    server = StdioServer(name, (python, "-m", f"mcp_server_{name}"))
    tools = await pool.tools(server)
    if name == "time":
        now = await pool.call(server, "get_current_time", {"timezone": "Europe/Oslo"})
        assert "Oslo" in said(now)
    else:
        assert tools.get("fetch") is not None


async def test_the_official_sdk_speaks_the_newer_revision(pool: Pool) -> None:
    port = free_port()
    command = (sys.executable, "-c", SDK_SERVER, str(port))
    async with running(*command, path="/mcp", port=port) as server:
        modern = HttpServer(server.name, server.url, public_only=False, is_modern=True)
        assert said(await pool.call(modern, "add", {"a": 2, "b": 3})) == "5"
        older = HttpServer(
            server.name, server.url, public_only=False, is_modern=False, transport="streamable"
        )
        assert said(await pool.call(older, "add", {"a": 2, "b": 3})) == "5"
    with pytest.raises(Unreachable):
        await pool.call(modern, "add", {"a": 2, "b": 3})


async def test_the_official_sdk_over_stdio(pool: Pool) -> None:
    for is_modern in (None, True, False):
        command = (sys.executable, "-c", SDK_SERVER, "stdio")
        server = StdioServer(f"sdk {is_modern}", command, is_modern=is_modern)
        assert said(await pool.call(server, "add", {"a": 2, "b": 3})) == "5"
