"""Every bound on what an MCP server can make slipring spend: time, bytes, counts."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class McpLimits:
    """Bounds for one server. A server that exceeds one gets its request, or its connection, ended."""

    connect_timeout_s: float = 10.0
    """For a TCP and TLS connection."""
    probe_timeout_s: float = 10.0
    """After this much silence, a process that was asked for its protocol version is taken for an old one."""
    handshake_timeout_s: float = 30.0
    """For everything before the first request, the start of a process included."""
    list_timeout_s: float = 30.0
    """For all pages of a list of tools."""
    call_timeout_s: float = 120.0
    """For a call without news of it; every progress notification begins it again."""
    call_total_s: float = 600.0
    """For a call in all, whatever progress it reports."""
    close_grace_s: float = 2.0
    """For a process to exit after its input was closed, and again after SIGTERM."""

    max_message_bytes: int = 8 * 2**20
    """One JSON-RPC message, one event of an event stream, one line of a process."""
    max_stream_bytes: int = 32 * 2**20
    """All of one response, with everything that the server sends before the answer."""
    max_arguments_bytes: int = 2**20
    """The arguments of one call."""
    max_result_bytes: int = 4 * 2**20
    """The result of one call."""
    max_list_bytes: int = 4 * 2**20
    """All pages of a list of tools."""
    max_schema_bytes: int = 256 * 2**10
    """The schema of one tool. A tool with a larger one is left out of the list."""
    max_tools: int = 1000
    max_pages: int = 32
    max_input_rounds: int = 8
    """How often one call may ask for input before it fails."""
    max_stream_resumes: int = 8
    """How often in a row a response stream is resumed without receiving anything."""
    max_pending_replies: int = 32
    """Replies to requests of the server that are not yet sent."""
    max_junk_lines: int = 100
    """Lines of a process that are no messages: what programs print by mistake."""

    default_ttl_s: float = 300.0
    """How long a list is fresh if its server speaks a protocol without that hint."""
    max_ttl_s: float = 3600.0
    idle_s: float = 300.0
    """An unused connection is closed after this."""
    max_connections: int = 256
    """Connections of a pool. The one that was unused for longest makes room."""


DEFAULT_LIMITS = McpLimits()
