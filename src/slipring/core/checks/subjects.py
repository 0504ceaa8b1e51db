"""Subjects of items: what checks inspect of the input of a turn, and of a finished output.

Checks inspect texts: what a model reads of an item, and whatever else is written in it (``item_texts``). Of
an image they read that it is there; its content, and that of files, is not inspected.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256

import msgspec

from slipring.core.checks.item_texts import other_texts, others_digest, texts_in
from slipring.core.checks.json_text import as_read, as_read_if_json, unescaped
from slipring.core.checks.verdicts import Kind, Side, Subject
from slipring.protocol import wire
from slipring.protocol.hosted.hosted_items import CallError
from slipring.protocol.hosted.mcp_tools import ListedTool
from slipring.protocol.item_digests import content_digest
from slipring.protocol.items import (
    AdditionalTools,
    CallOutput,
    CustomToolCall,
    FunctionCall,
    Item,
    LoadedTools,
    Message,
    Reasoning,
    computed_once,
    in_context,
    plain_text,
)
from slipring.protocol.pictures.item_pictures import (
    BadPicture,
    attached,
    described,
    file_count,
    image_count,
    may_be_models,
    parts_of,
    pictures,
    role_of,
)

_CARRIED_KINDS: dict[str, Kind] = {
    "agent_message": "message",
    "code_interpreter_call": "tool_output",
    "compaction": "message",
    "compaction_summary": "message",
    "compaction_trigger": "message",
    "configuration_update": "instructions",
    "file_search_call": "tool_output",
    "image_generation_call": "tool_output",
    "item_reference": "message",
    "mcp_approval_request": "call",
    "mcp_approval_response": "message",
    "mcp_call": "tool_output",
    "mcp_list_tools": "instructions",
    "multi_agent_call": "call",
    "multi_agent_call_output": "tool_output",
    "program": "call",
    "program_output": "tool_output",
    "web_search_call": "tool_output",
}
"""The kinds of items that have no text of their own for a model, or of which no model reads any."""
_RESULTS = frozenset({"output", "error", "outputs", "results", "result", "sources"})
"""The fields in which a call that a server has run shows its result."""
UPSTREAM_KINDS: tuple[tuple[Side, Kind, str], ...] = (
    ("output", "call", ""),
    ("input", "instructions", ""),
    ("input", "tool_output", ""),
)
"""What an item can contain that an engine's server has made."""
_encode = msgspec.msgpack.Encoder().encode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def subject_of(item: Item, side: Side, name_of: Callable[[str], str | None]) -> Subject | None:
    """What is inspected of an item that is not sealed; None if nothing is. ``name_of``: finds the name of a
    called tool by its ``call_id``."""
    if (kind := _CARRIED_KINDS.get(item.type)) is not None:
        return _subject(side, kind, texts_in(item.raw))
    if attached(item).parts:
        return _subject_beside(item, side, name_of)
    body, others = item.body(), other_texts(item)
    if isinstance(body, Message):
        kind = "answer" if body.role == "assistant" else "message"
        return _subject(side, kind, [plain_text(body.content), *others], role=body.role)
    if isinstance(body, LoadedTools):
        return _subject(
            side, "tool_output", [as_read(plain_text(body.output)), *others], name=name_of(body.call_id)
        )
    if isinstance(body, CallOutput):
        text = as_read_if_json(plain_text(body.output))
        return _subject(side, "tool_output", [text, *others], name=name_of(body.call_id))
    if isinstance(body, FunctionCall):
        text = call_text(body.namespace, body.name, as_read(body.arguments))
        return _subject(side, "call", [text, *others], name=body.name)
    if isinstance(body, CustomToolCall):
        text = call_text(body.namespace, body.name, body.input)
        return _subject(side, "call", [text, *others], name=body.name)
    if isinstance(body, Reasoning):
        summary = "\n".join(part.text for part in body.summary)
        return _subject(side, "reasoning", [summary, body.thought, *others])
    if isinstance(body, AdditionalTools):
        return _subject(side, "instructions", [definition_text(body.tools), *others])
    return _subject(side, "call", texts_in(item.raw))  # a search for tools that a server has run


def _subject_beside(item: Item, side: Side, name_of: Callable[[str], str | None]) -> Subject | None:
    """What is inspected of an item with images or files."""
    (text, others), role = _texts_beside(item), attached(item).role
    texts = [text, *_attachment_notes(item), *others]
    if role is not None:
        return _subject(side, "answer" if role == "assistant" else "message", texts, role=role)
    return _subject(side, "tool_output", texts, name=name_of(item.call_id or ""))


@computed_once
def _texts_beside(item: Item) -> tuple[str, tuple[str, ...]]:
    """The text of an item with images or files, and its other texts. Takes time in proportion to those."""
    text = plain_text(parts_of(item))
    return text if item.type == "message" else as_read_if_json(text), tuple(other_texts(item))


def prepare(item: Item) -> None:
    """Work out what checks read of an item with images or files, and keep it with the item. For a thread."""
    if attached(item).parts:
        _texts_beside(item)
        others_digest(item)


def _attachment_notes(item: Item) -> list[str]:
    """What checks read of each image and file of an item: that it is there, and which image."""
    files = ["[file: not inspected]"] * file_count(item)
    if not image_count(item):
        return files
    try:
        found = [f"[{described(picture)}: not inspected]" for picture in pictures(item)]
    except BadPicture:
        found = []
    return found + ["[image: not inspected]"] * (image_count(item) - len(found)) + files


def call_text(namespace: str | None, name: str, text: str) -> str:
    """A call as checks inspect it: which tool is called, and with what."""
    return "\n".join(filter(None, (namespace, name, text)))


def list_text(label: str, tools: Sequence[ListedTool], error: str | None) -> str:
    """What is inspected of a list of tools that was fetched: the same as of its item."""
    listed = wire.encode({"server_label": label, "tools": tools, "error": error})
    return "\n".join(texts_in(listed))


def definition_text(definition: bytes | msgspec.Raw) -> str:
    """What is inspected of definitions of tools, or of a format, in JSON."""
    return unescaped(bytes(definition).decode())


def result_text(output: str | None, error: CallError | None) -> str:
    """What is inspected of the result of a hosted call: what a model or a client can see of it."""
    shown = [] if error is None else texts_in(wire.encode(error))
    return "\n".join([*([] if output is None else [as_read_if_json(output)]), *shown])


def upstream_subjects(items: Sequence[Item], streamed: Sequence[str]) -> list[Subject]:
    """What is inspected of an item that an engine's server has made: what it calls, and what it shows of the
    result. ``items``: the forms of the item. ``streamed``: texts that were sent besides."""
    written: dict[str, None] = dict.fromkeys(map(as_read, streamed))
    returned: dict[str, None] = {}
    for item in items:
        fields = _fields.decode(item.raw)
        # A search shows what it has found with what it has searched for.
        shown = _RESULTS | {"action"} if item.type == "web_search_call" else _RESULTS
        results = {name: value for name, value in fields.items() if name in shown}
        rest = {name: value for name, value in fields.items() if name not in _RESULTS}
        written |= dict.fromkeys(texts_in(wire.encode(rest)))
        returned |= dict.fromkeys(texts_in(wire.encode(results)))
    called, listed, result = UPSTREAM_KINDS
    side, kind, _ = listed if items[0].type == "mcp_list_tools" else called
    found = _subject(side, kind, written), _subject(*result[:2], returned)
    return [subject for subject in found if subject is not None]


def verdict_key(item: Item, digest: bytes | None = None) -> bytes:
    """Identifies what checks see of an item alone: items of which they inspect different texts, or different
    kinds of subjects, have different keys. ``digest``: that of its content, if it is known."""
    digest = digest or content_digest(item)
    if others := others_digest(item):
        digest = sha256(digest + others).digest()
    if unread := _unread_digest(item):
        digest = sha256(digest + unread).digest()
    return digest


@computed_once
def _unread_digest(item: Item) -> bytes:
    """Identifies what checks see of an item and the digest of its content leaves out; empty if that is
    nothing: the summary of a thought, which no model reads, and the spelling of the arguments of a call, in
    which a name may stand twice."""
    if item.type != "reasoning" and not item.type.endswith("_call"):
        return b""
    body = item.body()
    if isinstance(body, FunctionCall):
        return sha256(body.arguments.encode()).digest()
    summary = body.summary if isinstance(body, Reasoning) else ()
    return sha256(_encode([part.text for part in summary])).digest() if summary else b""


def _subject(
    side: Side, kind: Kind, texts: Iterable[str], *, role: str | None = None, name: str | None = None
) -> Subject | None:
    text = "\n".join(filter(None, texts))
    return Subject(side, kind, text, role, name) if text else None


def is_models(item: Item) -> bool:
    """Whether the item says that a model has written it."""
    if item.type == "message":
        return may_be_models(item) and role_of(item) == "assistant"
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
