"""MCP servers as their users install them, from npm and PyPI, for the tests of ``make test-mcp``.

``SLIPRING_TEST_MCP`` names the directory that they are installed into. The official SDK of the development
environment answers in the newer revision of the protocol.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.clients.real.installing import Workshop
from tests.free_port import free_port

_SDK_SERVER = """
import os, sys
from mcp.server import MCPServer
server = MCPServer("sdk")

@server.tool()
def add(a: int, b: int) -> int:
    return a + b

if sys.argv[1] == "stdio":
    server.run("stdio")
else:
    server.run("streamable-http", host="127.0.0.1", port=int(os.environ["PORT"]))
"""


class RealServers:
    """Commands of the servers, which are installed when they are first asked for."""

    def __init__(self) -> None:
        self._workshop = Workshop(Path(os.environ["SLIPRING_TEST_MCP"]))

    def everything(self, mode: str) -> tuple[str, ...]:
        """The server of npm that has a tool of every kind; ``mode``: its transport."""
        self._workshop.install("mcp-everything")
        program = self._workshop.package("mcp-everything") / "dist" / "index.js"
        return (str(self._workshop.node), str(program), mode)

    def reference(self, name: str) -> tuple[str, ...]:
        """A reference server of PyPI, over stdio."""
        self._workshop.install("mcp-reference")
        return (str(self._workshop.python("mcp-reference")), "-m", f"mcp_server_{name}")


def sdk(mode: str) -> tuple[str, ...]:
    """A server of the official SDK, over ``stdio`` or ``http``."""
    return (sys.executable, "-c", _SDK_SERVER, mode)


@asynccontextmanager
async def running(command: tuple[str, ...], path: str = "/mcp") -> AsyncIterator[str]:
    """Run a server that listens on a port; yield its URL."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(*command, env={**os.environ, "PORT": str(port)})
    try:
        while True:
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            assert process.returncode is None
            await asyncio.sleep(0.1)
        yield f"http://127.0.0.1:{port}{path}"
    finally:
        # Not asked to end: it would wait for the stream on which it announces changes.
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
