"""The options of the responses engine: ``responses:URL[,name=value…]``.

URL is the base of a Responses API, as clients are given it: ``/v1`` is added where there is no path. A query
is kept and goes with every request.
"""

from dataclasses import dataclass

from slipring.base.errors import StartupError
from slipring.engines.addresses_and_options import option, read_address, read_pairs
from slipring.engines.remote.upstream import UpstreamOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesOptions(UpstreamOptions):
    """The options of one server of the Responses API."""

    model: str = option(
        "", "the model's name at the server; empty: all that the server lists, the first by default"
    )
    transport: str = option(
        "auto",
        "websocket, sse, or auto: a WebSocket, or SSE from the moment the server refuses one",
        choices=("auto", "websocket", "sse"),
    )
    max_sockets: int = option(
        256, "WebSockets open at once, at least `max_jobs`; the one idle longest is closed first", least=1
    )
    socket_idle_s: float = option(600.0, "seconds after which an idle WebSocket is closed")
    socket_max_age_s: float = option(3300.0, "seconds after which an open WebSocket takes no more turns")
    lanes: bool = option(True, "whether forks share their parent's WebSocket, each on a `stream_id`")
    chain: bool = option(
        False, "whether the server stores responses, so that turns send only new items also by SSE"
    )
    reasoning: str = option(
        "drop",
        "earlier reasoning when the whole context is sent: drop, encrypted (requested and kept) or text",
        choices=("drop", "encrypted", "text"),
    )
    summary: str = option(
        "",
        "the reasoning summary to request: auto, concise or detailed",
        choices=("", "auto", "concise", "detailed"),
    )
    hosted_tools: str = option(
        "here",
        "who runs hosted tools such as `mcp` and `web_search`: here (slipring), upstream (the server), or"
        " refuse (nobody: 400)",
        choices=("here", "upstream", "refuse"),
    )


def read_options(text: str) -> ResponsesOptions:
    """Parse what follows ``responses:``. Raises ``StartupError`` with one line."""
    address, pairs = read_address("responses", text, "https://host/v1", path="/v1")
    options = ResponsesOptions(**address._asdict(), **read_pairs("responses", ResponsesOptions, pairs))
    if options.max_sockets < options.max_jobs:
        raise StartupError("--engine responses: option 'max_sockets' must not be less than 'max_jobs'")
    return options
