"""Placeholders: what a model reads instead of an item that a safety check has refused.

A placeholder has the type of the item, its role and the id of its call, so that a history with placeholders
is as valid as it was before. It names the check, and contains nothing else of the item.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from slipring.protocol import wire
from slipring.protocol.items import Item, read_item

_NAME = "withheld"
"""Stands for names of tools and of files."""

_Fields = dict[str, Any]


_OF_CALLS: dict[str, Callable[[str], _Fields]] = {
    "function_call": lambda text: {"name": _NAME, "arguments": _arguments(text)},
    "function_call_output": lambda text: {"output": text},
    "custom_tool_call": lambda text: {"name": _NAME, "input": text},
    "custom_tool_call_output": lambda text: {"output": text},
    "shell_call": lambda text: {"action": {"commands": [text]}},
    "shell_call_output": lambda text: {
        "output": [{"stdout": text, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
    },
    "local_shell_call": lambda text: {"action": {"type": "exec", "command": [text], "env": {}}},
    "local_shell_call_output": lambda text: {"output": text},
    "apply_patch_call": lambda text: {"operation": {"type": "update_file", "path": _NAME, "diff": text}},
    "apply_patch_call_output": lambda text: {"status": "failed", "output": text},
    "computer_call": lambda text: {"actions": [{"type": "type", "text": text}]},
    "tool_search_call": lambda text: {"arguments": {_NAME: text}, "execution": "client"},
    "tool_search_output": lambda text: {"tools": [], "execution": "client"},
}
"""The content of calls that a client answers, and of its answers."""


def _arguments(text: str) -> str:
    return wire.encode({_NAME: text}).decode()


class _Kept(Struct):
    """What a placeholder keeps of a message or of a call."""

    role: str | None = None
    status: str | None = None
    asynchronous: bool | None = msgspec.field(name="async", default=None)


class _KeptOfHosted(Struct):
    """What a placeholder keeps of a hosted call: whose result it is, and what had approved it."""

    id: str | None = None
    server_label: str = ""
    name: str = ""
    status: str | None = None
    approval_request_id: str | None = None


def placeholder(item: Item, check: str) -> Item | None:
    """What stands for an item that this check has refused; None if nothing can."""
    content = _content(item, f"[Withheld: the safety check '{check}' has refused this content.]")
    if content is None:
        return None
    given = {name: value for name, value in content.items() if value is not None}
    return read_item(wire.encode({"type": item.type, **given}), "input")


def _content(item: Item, text: str) -> _Fields | None:
    if item.type == "message":
        kept = msgspec.json.decode(item.raw, type=_Kept)
        return {"role": kept.role, "content": text}
    if item.type == "reasoning":
        return {"summary": [], "content": [{"type": "reasoning_text", "text": text}]}
    if item.type == "mcp_call":
        hosted = msgspec.json.decode(item.raw, type=_KeptOfHosted)
        return {**msgspec.structs.asdict(hosted), "arguments": _arguments(text), "output": text}
    if item.type not in _OF_CALLS or item.call_id is None:
        return None
    kept = msgspec.json.decode(item.raw, type=_Kept)
    status = {"status": kept.status, "async": kept.asynchronous} if item.type.endswith("_call") else {}
    return {"call_id": item.call_id, **status, **_OF_CALLS[item.type](text)}
