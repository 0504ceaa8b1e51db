"""The texts that checks inspect: every string of an item, as its reader gets it, without JSON escapes."""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from slipring.core.checks.verdicts import Kind, Side, Subject
from slipring.protocol import wire
from slipring.protocol.items.hosted_items import CallError
from slipring.protocol.items.item_digests import content_digest
from slipring.protocol.items.item_pictures import (
    BadPicture,
    attached,
    described,
    file_count,
    image_count,
    is_data,
    parts_of,
    pictures,
    role_of,
)
from slipring.protocol.items.items import (
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
    may_be_models,
    plain_text,
)
from slipring.protocol.tools.mcp_tools import ListedTool

_HIGH, _LOW = r"u[dD][89abAB][0-9a-fA-F]{2}", r"u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(rf'\\(?:{_HIGH}\\{_LOW}|u[0-9a-fA-F]{{4}}|["\\/bfnrt])')
_UNFINISHED = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_HIGH_ALONE = re.compile(rf"\\{_HIGH}")
_PART_OF_LOW = re.compile(r"(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?")
_SHORT = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_NO_CHARACTER = "\ufffd"
"""Stands for half of a surrogate pair without the other half."""
_json = msgspec.json.Decoder(Raw)


def unescaped(text: str) -> str:
    """A JSON text, or a part of one, with characters in place of escapes."""
    return _ESCAPE.sub(_character, text) if "\\" in text else text


def as_read(text: str) -> str:
    """A text that a reader takes as JSON. If it is not, the reader may take it as it is: then both forms are
    returned."""
    if "\\" not in text:
        return text
    return unescaped(text) if _is_json(text) else f"{text}\n{unescaped(text)}"


def as_read_if_json(text: str) -> str:
    """A text that may be JSON, such as the output of a tool."""
    return unescaped(text) if "\\" in text and _is_json(text) else text


def _is_json(text: str) -> bool:
    try:
        _json.decode(text)
    except (ValueError, RecursionError):
        return False
    return True


def _character(escape: re.Match[str]) -> str:
    spelled = escape[0]
    if spelled[1] != "u":
        return _SHORT[spelled[1]]
    code = int(spelled[2:6], 16)
    if len(spelled) > _LENGTH:
        return chr(0x10000 + ((code - 0xD800) << 10) + int(spelled[8:12], 16) - 0xDC00)
    return _NO_CHARACTER if 0xD800 <= code <= 0xDFFF else chr(code)


_LENGTH = len(r"\u0000")


class _Escapes(Struct, frozen=True):
    """A piece with escapes: where it begins and ends, as it is read and as it was written."""

    read_from: int
    read_to: int
    written_from: int
    written_to: int


class GrowingJson:
    """A JSON text that is still being written. Pieces may end within an escape."""

    __slots__ = ("_ahead", "_pieces", "_read", "_unfinished", "_written")

    def __init__(self) -> None:
        self._unfinished = ""
        """The beginning of an escape at the end of what was written."""
        self._read = self._written = 0
        """Lengths, both without what is unfinished."""
        self._pieces: deque[_Escapes] = deque()
        self._ahead = 0
        """How much longer than what is read is what was written, before the first of the pieces."""

    def add(self, written: str) -> str:
        """The text has grown: returns what can be read now."""
        if not self._unfinished and "\\" not in written:
            self._read += len(written)
            self._written += len(written)
            return written
        text = self._unfinished + written
        end = _finished_end(text)
        self._unfinished = text[end:]
        return self._take(text[:end])

    def close(self) -> str:
        """The text has ended: returns the rest of it."""
        rest, self._unfinished = self._unfinished, ""
        return self._take(rest)

    def _take(self, written: str) -> str:
        read = unescaped(written)
        read_to, written_to = self._read + len(read), self._written + len(written)
        if written:
            self._pieces.append(_Escapes(self._read, read_to, self._written, written_to))
        self._read, self._written = read_to, written_to
        return read

    def written_before(self, position: int) -> int:
        """How long the text as written is that only this position of what is read depends on: pieces with
        escapes count as a whole, or not at all. Positions may not become smaller from call to call."""
        pieces = self._pieces
        while pieces and pieces[0].read_to <= position:
            passed = pieces.popleft()
            self._ahead = passed.written_to - passed.read_to
        if pieces and pieces[0].read_from <= position:
            return pieces[0].written_from
        return position + self._ahead


def _finished_end(text: str) -> int:
    """Where an escape begins at the end of a text that is not finished, or may be half of a pair; the length
    of the text if none does."""
    end, last = 0, ""
    for escape in _ESCAPE.finditer(text):
        end, last = escape.end(), escape[0]
    if _HIGH_ALONE.fullmatch(last) and _PART_OF_LOW.fullmatch(text, end):
        return end - len(last)
    begun = text.rfind("\\", end)
    return begun if begun >= 0 and _UNFINISHED.fullmatch(text, begun) else len(text)


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
_encode_subject = msgspec.msgpack.Encoder().encode
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
    return sha256(_encode_subject([part.text for part in summary])).digest() if summary else b""


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
