"""The tools of a job as an upstream gets them.

Tools that slipring runs itself are functions to the upstream, in the namespace of their server: it never gets
the address of a server, nor anything else that only slipring needs.
"""

import msgspec
from msgspec import Raw, Struct

from slipring.core.generation import Job
from slipring.protocol import wire
from slipring.protocol.hosted.tool_types import CLIENT_TYPES
from slipring.protocol.tools import Definition, Toolset


class _Kind(Struct):
    type: str


class _Named(Struct):
    name: str = ""


class _Entry(Struct):
    type: str
    name: str = ""
    tools: list[_Named] = []
    server_label: str = ""
    server_description: str | None = None

    def names(self) -> set[tuple[str | None, str]]:
        """The tools that it defines, by namespace and name."""
        if self.type == "namespace":
            return {(self.name, tool.name) for tool in self.tools}
        return {(None, self.name or self.type)}


_kinds = msgspec.json.Decoder(list[_Kind])
_tools = msgspec.json.Decoder(list[Raw])
_entry = msgspec.json.Decoder(_Entry)


def sent_tools(job: Job) -> bytes:
    """The ``tools`` of a request to the upstream, as JSON."""
    if job.upstream_tools is not None:
        return job.upstream_tools.tools
    return client_tools(job.head.tools)


def client_tools(tools: Toolset) -> bytes:
    """The tools as sent, if the client runs all of them; else with functions in place of the others."""
    if tools.are_clients or all(kind.type in CLIENT_TYPES for kind in _kinds.decode(tools.raw)):
        return tools.raw
    kept: list[object] = []
    defined: set[tuple[str | None, str]] = set()
    described: dict[str | None, str] = {}
    for raw in _tools.decode(tools.raw):
        entry = _entry.decode(raw)
        if entry.type in CLIENT_TYPES:
            kept.append(raw)
            defined |= entry.names()
        elif entry.server_description:
            described[entry.server_label] = entry.server_description
    hosted: dict[str | None, list[Definition]] = {}
    for tool in tools.callables:
        if (tool.namespace, tool.name) not in defined:
            hosted.setdefault(tool.namespace, []).append(tool.definition)
    kept += hosted.pop(None, [])
    for namespace, definitions in hosted.items():
        description = described.get(namespace, f"Tools of the server {namespace}.")
        kept.append(
            {"type": "namespace", "name": namespace, "description": description, "tools": definitions}
        )
    return wire.encode(kept)
