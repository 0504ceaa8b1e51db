"""slipring's MCP client: a pool of connections to MCP servers, for tools that the server runs itself.

    async with slipring.mcp.pool.Pool() as pool:
        server = HttpServer("weather", parse_url("https://mcp.example.com/mcp"))
        for tool in (await pool.tools(server)).tools: ...
        result = await pool.call(server, "forecast", {"city": "Oslo"}, progress=print)

From the bottom up: ``protocol`` is the protocol without I/O, ``transports`` drives it, ``servers`` decides
what may be called, ``pool`` keeps the connections. ``pool`` and what is below it are imported for the first
request with MCP tools: most servers get none.
"""

from slipring.mcp.failures import (
    ConnectionLost,
    HttpRejected,
    InputRequired,
    Malformed,
    McpFailure,
    Outcome,
    ProtocolFailure,
    RequestRefused,
    TimedOut,
    TooLarge,
    Unreachable,
    VersionMismatch,
)
from slipring.mcp.limits import McpLimits
from slipring.mcp.protocol.session import ProgressUpdate
from slipring.mcp.protocol.tools import (
    AudioContent,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    Tool,
    ToolList,
    ToolResult,
)
from slipring.mcp.redaction import Redaction
from slipring.mcp.servers import Credential, HttpServer, McpServer, StdioServer
from slipring.mcp.transports.address_policy import Reach, RegisteredAddresses
from slipring.mcp.url_policy import UrlPolicy, admit, parse_url

__all__ = [
    "AudioContent",
    "ConnectionLost",
    "ContentBlock",
    "Credential",
    "EmbeddedResource",
    "HttpRejected",
    "HttpServer",
    "ImageContent",
    "InputRequired",
    "Malformed",
    "McpFailure",
    "McpLimits",
    "McpServer",
    "Outcome",
    "ProgressUpdate",
    "ProtocolFailure",
    "Reach",
    "Redaction",
    "RegisteredAddresses",
    "RequestRefused",
    "ResourceLink",
    "StdioServer",
    "TextContent",
    "TimedOut",
    "TooLarge",
    "Tool",
    "ToolList",
    "ToolResult",
    "Unreachable",
    "UrlPolicy",
    "VersionMismatch",
    "admit",
    "parse_url",
]
