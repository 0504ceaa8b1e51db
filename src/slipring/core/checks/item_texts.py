"""The texts in the JSON of an item: every string, the keys of free objects, and unknown fields.

What an item carries is stored and sent with it, whether a model reads it or not. So all of it is inspected,
except what ``NOT_INSPECTED`` names: a field that is added to the API is inspected without being listed here.
"""

import re
from hashlib import sha256
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from slipring.core.checks.json_text import as_read
from slipring.protocol import wire
from slipring.protocol.items import Item, computed_once
from slipring.protocol.pictures.item_pictures import is_data

NOT_INSPECTED = frozenset(
    {
        *("id", "call_id", "approval_request_id", "file_id", "container_id", "vector_store_id", "caller_id"),
        *("created_by", "prompt_cache_breakpoint", "encrypted_content", "logprobs"),
        *("file_data", "partial_image_b64"),
    }
)
"""Fields without a readable text: ids, sealed content, data of files; and the tokens of a text
that is inspected itself, with their alternatives."""
_DATA = frozenset({"image_url", "file_url", "result"})
"""Fields with a URL that may contain the data itself, or with the data of an image."""
LABELS = frozenset(
    {
        *("type", "status", "role", "phase", "detail", "execution", "environment", "effort", "button"),
        *("background", "quality", "size", "output_format"),
    }
)
"""Fields whose value is a word of the API, in all items that are in order. Any other value is inspected."""
WORDS = frozenset(
    {
        *("in_progress", "completed", "incomplete", "failed", "calling", "searching", "interpreting"),
        *("generating", "queued", "cancelled", "user", "assistant", "system", "developer", "commentary"),
        *("final_answer", "client", "server", "auto", "low", "medium", "high", "original", "none", "minimal"),
        *("xhigh", "max", "left", "right", "wheel", "back", "forward", "exec", "exit", "timeout", "local"),
        *("create_file", "update_file", "delete_file", "click", "double_click", "drag", "keypress", "move"),
        *("screenshot", "scroll", "type", "wait", "computer_screenshot", "search", "open_page", "url"),
        *("find_in_page", "logs", "image", "http_error", "mcp_protocol_error", "mcp_tool_execution_error"),
        *("input_text", "input_image", "input_file", "output_text", "refusal", "summary_text"),
        *("reasoning_text", "url_citation", "file_citation", "container_file_citation", "file_path", "text"),
        *("resource", "resource_link", "audio", "direct", "program"),
    }
)
NAMES = frozenset(
    {
        *NOT_INSPECTED,
        *_DATA,
        *LABELS,
        *("acknowledged_safety_checks", "action", "actions", "annotations", "approve", "arguments", "async"),
        *("attributes", "bytes", "caller", "code", "command", "commands", "content", "description", "diff"),
        *("end_index", "env", "error", "exit_code", "file_path", "filename", "format", "index", "input"),
        *("input_schema", "keys", "logprob", "logs", "max_output_length", "message", "mimeType", "name"),
        *("namespace", "operation", "outcome", "output", "outputs", "path", "pending_safety_checks"),
        *("queries", "query", "read_only", "reason", "reasoning", "refusal", "results", "revised_prompt"),
        *("score", "scroll_x", "scroll_y", "server_label", "sources", "start_index", "stderr", "stdout"),
        *("summary", "text", "timeout_ms", "title", "token", "tools", "top_logprobs", "uri", "url", "user"),
        *("working_directory", "x", "y"),
    }
)
"""The names of fields in the API, which say nothing. Other keys are inspected."""
_JSON = ("arguments",)
"""Fields with JSON in a string."""
_PARTS = frozenset({("content", "text"), ("content", "refusal"), ("output", "text"), ("output", "refusal")})
"""The texts in lists of parts."""
_READ: dict[str, frozenset[tuple[str, ...]]] = {
    "message": _PARTS | {("content",)},
    "reasoning": frozenset({("summary", "text"), ("content", "text")}),
    "function_call": frozenset({("name",), ("namespace",), ("arguments",)}),
    "function_call_output": _PARTS | {("output",)},
    "custom_tool_call": frozenset({("name",), ("namespace",), ("input",)}),
    "custom_tool_call_output": _PARTS | {("output",)},
    "shell_call": frozenset({("action", "commands")}),
    "shell_call_output": frozenset({("output", "stdout"), ("output", "stderr")}),
    "local_shell_call": frozenset(
        ("action", name) for name in ("command", "env", "user", "working_directory")
    ),
    "local_shell_call_output": frozenset({("output",)}),
    "apply_patch_call": frozenset({("operation", "path"), ("operation", "diff")}),
    "apply_patch_call_output": frozenset({("output",)}),
    "computer_call": frozenset({("action",), ("actions",)}),
    "computer_call_output": frozenset(),
    "tool_search_call": frozenset({("arguments",)}),
    "tool_search_output": frozenset({("tools",)}),
    "additional_tools": frozenset({("tools",)}),
}
"""By type of item: the fields of which a model reads the texts, as paths. Items of other types have no text
of their own for a model."""
_WITHOUT_TEXT = ("input_image", "input_file")
_BASE64 = re.compile(r"[A-Za-z0-9+/]{64,}={0,2}")

_Path = tuple[str, ...]


def texts_in(raw: bytes) -> list[str]:
    """All texts of a JSON value: of an item, or of a part of one."""
    return _texts(raw, frozenset())


def other_texts(item: Item) -> list[str]:
    """The texts of an item besides those that a model reads of it."""
    return _texts(item.raw, _READ.get(item.type, frozenset()))


@computed_once
def others_digest(item: Item) -> bytes:
    """Identifies ``other_texts``; empty if there are none, or if they identify the item already."""
    if item.type not in _READ or _is_plain(item):
        return b""
    others = other_texts(item)
    return sha256(_encode(others)).digest() if others else b""


def _is_plain(item: Item) -> bool:
    """Whether an item has certainly no other texts: a fraction of the work of looking for them."""
    decoder = _PLAIN.get(item.type)
    try:
        return decoder is not None and decoder.decode(item.raw) is not None
    except (ValueError, RecursionError):
        return False


def remainder_of(item: Item) -> Item | None:
    """The texts of an item that is opened besides those of the items that it stands for, as an item of their
    own; None if there are none."""
    inside = {text for inner in item.opened or () for text in texts_in(inner.raw)}
    others = [text for text in texts_in(item.raw) if text not in inside]
    if not others:
        return None
    if item.type == "reasoning":
        thought = {"type": "reasoning_text", "text": "\n".join(others)}
        return Item("reasoning", wire.encode({"type": "reasoning", "summary": [], "content": [thought]}))
    return Item("program_output", wire.encode({"type": "program_output", "output": others}))


def _texts(raw: bytes, read: frozenset[_Path]) -> list[str]:
    """The texts of a JSON value, without those at the paths in ``read``."""
    try:
        value = msgspec.json.decode(raw)
    except RecursionError:
        return [raw.decode()]  # it is inspected as a whole
    found: list[str] = []
    waiting: list[tuple[_Path, Any]] = [((), value)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, str):
            if value:
                found.append(as_read(value) if path[-1:] == _JSON else value)
        elif isinstance(value, list):
            waiting += ((path, each) for each in reversed(value))
        elif isinstance(value, dict):
            found += (name for name in value if name not in NAMES)
            fields = ((name, (*path, name), inner) for name, inner in reversed(value.items()))
            waiting += (
                (below, inner)
                for name, below, inner in fields
                if not (below in read and _is_read(below, value, inner)) and not _says_nothing(below, inner)
            )
    return found


def _is_read(path: _Path, owner: dict[str, Any], value: Any) -> bool:
    """Whether the field at a path that may be read is. Of a list of parts, the texts are; of images and files
    nothing is."""
    if path in _PARTS:
        kind = owner.get("type")
        return kind not in _WITHOUT_TEXT and (kind == "refusal") == (path[-1] == "refusal")
    return path not in (("content",), ("output",)) or isinstance(value, str)


def _says_nothing(path: _Path, value: Any) -> bool:
    """Whether a field has no text to inspect."""
    name = path[-1]
    if name in NOT_INSPECTED or path == ("type",):
        return True
    if not isinstance(value, str):
        return False
    return (name in LABELS and value in WORDS) or (name in _DATA and _is_data(name, value))


def _is_data(name: str, value: str) -> bool:
    return is_data(value) or (name == "result" and _BASE64.fullmatch(value) is not None)


_encode = msgspec.msgpack.Encoder().encode


_Status = Literal["in_progress", "completed", "incomplete"]


class _InputText(Struct, tag_field="type", tag="input_text", forbid_unknown_fields=True):
    text: str


class _OutputText(Struct, tag_field="type", tag="output_text", forbid_unknown_fields=True):
    text: str
    annotations: Annotated[list[Raw], Meta(max_length=0)] = []
    logprobs: Raw = Raw(b"[]")


class _PlainItem(Struct, forbid_unknown_fields=True):
    type: str
    id: str | None = None
    status: _Status | None = None


class _PlainMessage(_PlainItem, kw_only=True, forbid_unknown_fields=True):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[_InputText | _OutputText]


class _PlainCall(_PlainItem, kw_only=True, forbid_unknown_fields=True):
    call_id: str
    name: str
    arguments: str


class _PlainOutput(_PlainItem, kw_only=True, forbid_unknown_fields=True):
    call_id: str
    output: str


_PLAIN: dict[str, msgspec.json.Decoder[Any]] = {
    "message": msgspec.json.Decoder(_PlainMessage),
    "function_call": msgspec.json.Decoder(_PlainCall),
    "function_call_output": msgspec.json.Decoder(_PlainOutput),
}
"""The usual forms of the most frequent items."""
