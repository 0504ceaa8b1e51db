"""Translates the names of fields in errors of the core into those of the Messages API.

The core names a field of the create request, such as ``input[3].content[0].text``. The client reads the name
of the field that it has sent: ``messages.1.content.0.text``.
"""

import re
from collections.abc import Callable

from slipring.protocol.messages.history import Place

_RENAMED = {
    "input": "messages",
    "instructions": "system",
    "max_output_tokens": "max_tokens",
    "stop": "stop_sequences",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "reasoning": "thinking",
    "reasoning.effort": "thinking",
    "safety_identifier": "metadata.user_id",
}
_IN_ITEM = {
    "call_id": "tool_use_id",
    "arguments": "input",
    "encrypted_content": "signature",
    "server_label": "server_name",
    "output": "content",
}
_IN_PART = {".image_url": ".source", ".file_id": ".source"}
_IN_TOOL = {
    "parameters": "input_schema",
    "server_label": "name",
    "server_url": "url",
    "authorization": "authorization_token",
    "allowed_tools": "tool_configuration.allowed_tools",
}
_IN_TOOLSET = {"server_label": "mcp_server_name", "server_url": "mcp_server_name", "allowed_tools": "configs"}
_ENTRY = re.compile(r"(input|tools)\[(\d+)\](?:\.(\w+)(?:\[(\d+)\])?)?(.*)", re.DOTALL)
_QUOTED = re.compile(r"'([a-z_]+(?:\[\d+\])?(?:\.[a-z_]+(?:\[\d+\])?)*)'")
_MISSING = re.compile(r"Missing required parameter: '([^']*)'\.?")
_NAMED = re.compile(r"(?:Invalid|Unknown parameter:|Unsupported (?:parameter|value):) '([^']*)'[:.]? *")


def dotted(path: str) -> str:
    """``messages[2].content[0]`` as ``messages.2.content.0``."""
    return path.replace("[", ".").replace("]", "")


class Fields:
    """The fields of one request."""

    def __init__(self) -> None:
        self.items: list[Place] = []
        """Where each item comes from."""
        self.tools: list[str] = []
        """The field of each tool."""
        self.format = "output_config.format"
        """The field of the answer's format."""

    def name(self, path: str) -> str:
        """The client's name for a field of the create request."""
        if path in _RENAMED:
            return _RENAMED[path]
        if path.startswith("text.format"):
            return dotted(self.format + path.removeprefix("text.format"))
        found = _ENTRY.fullmatch(path)
        if found is None:
            return dotted(path)
        where, number, field, part, rest = found.groups()
        index = int(number)
        if where == "input":
            return self._in_item(index, field or "", part, rest) if index < len(self.items) else "messages"
        if index >= len(self.tools):
            return "tools"
        inner = f"[{part}]" if part is not None else ""
        return _in_tool(self.tools[index], field or "", f"{inner}{rest}")

    def _in_item(self, index: int, field: str, part: str | None, rest: str) -> str:
        place = self.items[index]
        message = f"messages[{place.message}].content"
        if not place.blocks:
            return dotted(message)
        if field == "tools" and part is not None:
            name, _, inner = rest.removeprefix(".").partition(".")
            return _in_tool(place.tools[int(part)], name, f".{inner}" if inner else "")
        if field == "content" and part is not None:
            at = int(part)
            block = place.blocks[at] if at < len(place.blocks) else place.blocks[-1]
            return dotted(f"{message}[{block}]{_IN_PART.get(rest, rest)}")
        if field == "content":
            return dotted(f"{message}[{place.blocks[0]}]")
        return dotted(f"{message}[{place.blocks[0]}].{_IN_ITEM.get(field, field)}".rstrip("."))


def _in_tool(where: str, field: str, rest: str) -> str:
    renamed = _IN_TOOL.get(field, field)
    if not where.startswith("mcp_servers"):
        renamed = _IN_TOOLSET.get(field, renamed)
    return dotted(f"{where}.{renamed}{rest}".rstrip("."))


def styled_message(message: str, name: Callable[[str], str], param: str | None = None) -> str:
    """A message in the style of the API: it begins with the field that it is about. ``name``: the client's
    name for a field. Beside ``param``, only places in lists are fields for certain: other words in quotes may
    be the client's own, as the name of a tool."""

    def in_client_terms(found: re.Match[str]) -> str:
        path = found.group(1)
        return f"'{name(path)}'" if path == param or "[" in path else found.group(0)

    def renamed(text: str) -> str:
        return _QUOTED.sub(in_client_terms, text)

    if (missing := _MISSING.match(message)) is not None:
        return f"{name(missing.group(1))}: Field required{renamed(message[missing.end() :])}"
    if (named := _NAMED.match(message)) is not None and named.end() < len(message):
        return f"{name(named.group(1))}: {renamed(message[named.end() :])}"
    return renamed(message)
