"""Types of tools: who runs a tool of a type, the client or a server, and how many tools a list may have."""

from collections.abc import Iterator
from typing import Literal

import msgspec
from msgspec import Raw, Struct, UnsetType

from slipring.base.errors import UnsupportedParameter, quoted
from slipring.protocol import wire

BuiltinKind = Literal["web_search", "file_search", "code_interpreter"]

KIND_OF_TYPE: dict[str, BuiltinKind] = {
    "web_search": "web_search",
    "web_search_2025_08_26": "web_search",
    "web_search_preview": "web_search",
    "web_search_preview_2025_03_11": "web_search",
    "file_search": "file_search",
    "code_interpreter": "code_interpreter",
}
"""The versions of each tool."""
MOST_TOOLS = 2000
"""Per list, including tools inside namespaces. Reading more would block the event loop for too long."""
CLIENT_TYPES = frozenset(
    {
        *("apply_patch", "computer", "computer_use_preview", "custom", "function", "local_shell"),
        *("namespace", "shell", "tool_search"),
    }
)
"""Tools that clients run; ``shell`` only without a container."""
ALWAYS_CLIENT_TYPES = CLIENT_TYPES - {"shell"}
_PASSED_ON = frozenset({*KIND_OF_TYPE, "image_generation", "mcp"})
"""Tools of other servers whose items and events clients get as they are."""


class _Environment(Struct):
    type: str = ""


class _ToolHead(Struct):
    type: str
    server_label: str | None = None
    environment: _Environment | None = None

    @property
    def is_hosted(self) -> bool:
        runs_in_container = self.environment is not None and self.environment.type.startswith("container")
        return self.type not in CLIENT_TYPES or (self.type == "shell" and runs_in_container)

    @property
    def noun(self) -> str:
        label = f" (server {quoted(self.server_label)})" if self.server_label is not None else ""
        return f"{quoted(self.type)}{label}"


_tools = msgspec.json.Decoder(list[Raw])
_outline = msgspec.json.Decoder(_ToolHead)


def refuse_hosted(tools: Raw | UnsetType) -> None:
    """Refuse a request with a tool that a server runs."""
    for where, outline in _hosted(tools):
        raise UnsupportedParameter.at(
            f"{where}.type",
            f"{outline.noun} is a tool that a server runs, and no server runs it for this model",
        )


def passes_on(tools: Raw | UnsetType) -> bool:
    """Whether the list has tools for another server to run. Raises ``UnsupportedParameter`` for one whose
    items slipring cannot pass on."""
    found = False
    for where, outline in _hosted(tools):
        found = True
        if outline.type not in _PASSED_ON:
            raise UnsupportedParameter.at(
                f"{where}.type", f"{outline.noun} is a tool whose output this server cannot pass on"
            )
    return found


def _hosted(tools: Raw | UnsetType) -> Iterator[tuple[str, _ToolHead]]:
    """The tools that a server runs, each with its place as errors name it."""
    sent = wire.given(tools)
    if sent is None:
        return
    wire.require_few(sent, MOST_TOOLS, "tools", "tools")
    for index, raw in enumerate(wire.decode(_tools, sent, where="tools")):
        where = f"tools[{index}]"
        outline = wire.decode(_outline, raw, where=where)
        if outline.is_hosted:
            yield where, outline
