"""Subjects of items: what checks inspect of the input of a turn, and of a finished output.

Checks inspect texts. Images and files are not inspected, and neither are items that contain no text.
"""

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256

import msgspec

from slipring.core.checks.verdicts import Kind, Side, Subject
from slipring.protocol import wire
from slipring.protocol.hosted.mcp_items import McpListTools
from slipring.protocol.item_digests import content_digest
from slipring.protocol.items import (
    AdditionalTools,
    CallOutput,
    Compaction,
    CompactionTrigger,
    ConfigurationUpdate,
    CustomToolCall,
    FunctionCall,
    Item,
    ItemReference,
    Message,
    Reasoning,
    computed_once,
    in_context,
    plain_text,
)

_HOSTED_RESULTS = frozenset(
    {
        "code_interpreter_call",
        "file_search_call",
        "image_generation_call",
        "mcp_call",
        "web_search_call",
    }
)
"""Items with which hosted tools report what they found."""
_WITHOUT_TEXT = (Compaction, CompactionTrigger, ConfigurationUpdate, ItemReference)
_encode = msgspec.msgpack.Encoder().encode


def subject_of(item: Item, side: Side, name_of: Callable[[str], str | None]) -> Subject | None:
    """What is inspected of an item that is not sealed; None if nothing is. ``name_of``: finds the name of a
    called tool by its ``call_id``."""
    body = item.body()
    if isinstance(body, Message):
        kind: Kind = "answer" if body.role == "assistant" else "message"
        return _subject(side, kind, plain_text(body.content), role=body.role)
    if isinstance(body, CallOutput):
        return _subject(side, "tool_output", plain_text(body.output), name=name_of(body.call_id))
    if isinstance(body, FunctionCall):
        return Subject(side, "call", body.arguments, name=body.name)
    if isinstance(body, CustomToolCall):
        return Subject(side, "call", body.input, name=body.name)
    if isinstance(body, Reasoning):
        summary = "\n".join(part.text for part in body.summary)
        return _subject(side, "reasoning", f"{summary}\n{body.thought}".strip())
    if isinstance(body, AdditionalTools):
        return _subject(side, "instructions", bytes(body.tools).decode())
    if isinstance(body, McpListTools):
        return _subject(side, "instructions", wire.encode(body.tools).decode())
    if isinstance(body, _WITHOUT_TEXT):
        return None
    return Subject(side, _carried_kind(item.type), item.raw.decode())


def verdict_key(item: Item, digest: bytes | None = None) -> bytes:
    """Identifies what checks see of an item alone: items of which they inspect different texts, or different
    kinds of subjects, have different keys. ``digest``: that of its content, if it is known."""
    digest = digest or content_digest(item)
    if item.type != "reasoning":
        return digest
    # The digest of a thought leaves out its summary, which no model reads, but checks do.
    body = item.body()
    assert isinstance(body, Reasoning)
    return sha256(digest + _encode([part.text for part in body.summary])).digest() if body.summary else digest


def _subject(
    side: Side, kind: Kind, text: str, *, role: str | None = None, name: str | None = None
) -> Subject | None:
    return Subject(side, kind, text, role, name) if text else None


def _carried_kind(item_type: str) -> Kind:
    if item_type.endswith("_output") or item_type in _HOSTED_RESULTS:
        return "tool_output"
    return "call" if item_type.endswith("_call") else "message"


def is_models(item: Item) -> bool:
    """Whether the item says that a model has written it."""
    if item.type == "message":
        body = item.body() if b'"assistant"' in item.raw else None
        return isinstance(body, Message) and body.role == "assistant"
    return item.type == "reasoning" or item.type.endswith("_call")


def called_names(items: Iterable[Item]) -> Iterator[tuple[str, str]]:
    """The names of the tools that items call, with the ids of the calls."""
    for item in in_context(items):
        if item.call_id is not None and item.type.endswith("_call") and (name := _called_name(item)):
            yield item.call_id, name


@computed_once
def _called_name(item: Item) -> str | None:
    body = item.body()
    return body.name if isinstance(body, FunctionCall | CustomToolCall) else None
