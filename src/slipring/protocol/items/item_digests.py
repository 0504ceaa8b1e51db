"""Digests of items: two items with the same digest are the same to a model.

A digest covers what engines write into a prompt: roles, texts, calls, outputs, thoughts, images and tools. It
leaves out what they do not read: ids, statuses, annotations, logprobs, summaries, the spelling of the JSON,
that of the arguments of a call included.
An item that clients send back after it was emitted therefore keeps its digest, whatever they do to the rest.
"""

from collections.abc import Iterable
from hashlib import blake2b
from math import inf
from zlib import crc32

import msgspec

from slipring.protocol.items.item_pictures import BadPicture, is_data, pictures
from slipring.protocol.items.items import (
    SEPARATOR,
    AdditionalTools,
    CallOutput,
    CustomToolCall,
    FunctionCall,
    InputFile,
    InputImage,
    Item,
    LoadedTools,
    Message,
    Part,
    Reasoning,
    computed_once,
    plain_text,
)

_encode = msgspec.msgpack.Encoder().encode
_DIGEST_BYTES = 32
_EXACT = 2**53
"""Whole numbers below are the same number whether they are written with a fraction or without."""


def digest_of(data: bytes) -> bytes:
    """The digest of bytes, by BLAKE2b: it takes half the time of SHA-256 on processors without instructions
    for the latter."""
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()


@computed_once
def content_digest(item: Item) -> bytes:
    """The digest of what a model reads of an item that is not sealed."""
    return digest_of(_content(item))


def joined_thoughts_digest(items: Iterable[Item]) -> bytes | None:
    """The digest of the thoughts among the items of an answer, which a client may send back as one thought;
    None if there are fewer than two."""
    bodies = [item.body() for item in items if item.type == "reasoning"]
    thoughts = [body.thought for body in bodies if isinstance(body, Reasoning)]
    return digest_of(_encode(("thought", SEPARATOR.join(thoughts)))) if len(thoughts) > 1 else None


def _content(item: Item) -> bytes:
    """What a model reads, in a form that differs if and only if that differs."""
    body = item.body()
    if isinstance(body, LoadedTools):
        return _encode(("tools found", body.call_id, bytes(body.tools)))
    if isinstance(body, CallOutput):
        return _encode(("output", body.call_id, _text_or_parts(item, body.output)))
    if isinstance(body, FunctionCall):
        return _encode(("call", body.call_id, body.namespace, body.name, _same_arguments(body.arguments)))
    if isinstance(body, Message):
        return _encode(("message", body.role, body.phase, _text_or_parts(item, body.content)))
    if isinstance(body, Reasoning):
        return _encode(("thought", body.thought))
    if isinstance(body, CustomToolCall):
        return _encode(("custom call", body.call_id, body.namespace, body.name, body.input))
    if isinstance(body, AdditionalTools):
        return _encode(("tools", bytes(body.tools)))
    return _encode(("other", item.raw))


OUTLINE_BYTES = 10
"""Type, role, name, call and text: one, one, two, two and four bytes."""
_TEXT_FIELDS = {
    "message": "content",
    "reasoning": "content",
    "function_call": "arguments",
    "custom_tool_call": "input",
    "additional_tools": "tools",
    "tool_search_output": "tools",
}


def item_outline(item: Item) -> bytes:
    """A few bytes that show which part of an item differs from another one. Those of the text are of the
    whole item: the others are compared before them."""
    if item.opened is not None:
        return _outlined(item.type, "", "", "", digest_of(b"".join(map(content_digest, item.opened))))
    return _own_outline(item)


@computed_once
def _own_outline(item: Item) -> bytes:
    body = item.body()
    role = body.role if isinstance(body, Message) else ""
    name = f"{body.namespace} {body.name}" if isinstance(body, FunctionCall | CustomToolCall) else ""
    return _outlined(item.type, role, name, item.call_id or "", content_digest(item))


def _outlined(kind: str, role: str, name: str, call_id: str, digest: bytes) -> bytes:
    parts = (kind, 1), (role, 1), (name, 2), (call_id, 2)
    return b"".join([crc32(part.encode()).to_bytes(4, "big")[:size] for part, size in parts]) + digest[:4]


def outlined_field(before: bytes, after: bytes, item: Item) -> str:
    """The first field in which two outlines differ; ``item`` is the one of ``after``."""
    if before[:1] != after[:1]:
        return "type"
    if before[1:2] != after[1:2]:
        return "role"
    if before[2:4] != after[2:4]:
        return "name"
    if before[4:6] != after[4:6]:
        return "call_id"
    return _TEXT_FIELDS.get(item.type, "output")


def _number(literal: str) -> int | float:
    """A number as JavaScript writes it: 1.0 and 1 are the same."""
    value = float(literal)
    if value in (inf, -inf):
        raise ValueError("JSON has no such number")
    return int(value) if abs(value) < _EXACT and value.is_integer() else value


_arguments = msgspec.json.Decoder(float_hook=_number)
_sorted = msgspec.json.Encoder(order="sorted").encode


def _same_arguments(arguments: str) -> bytes:
    """The arguments of a call, whatever their spelling. A client of another API has them as an object, and
    writes it anew. What is no JSON is itself."""
    try:
        return _sorted(_arguments.decode(arguments or "{}"))
    except (msgspec.DecodeError, RecursionError):
        return arguments.encode()


def _text_or_parts(item: Item, content: str | list[Part]) -> object:
    """A content as one text, which is how models read it, unless it has images or files. Pictures are known
    by their digests."""
    if isinstance(content, str) or not any(isinstance(part, InputImage | InputFile) for part in content):
        return plain_text(content)
    try:
        found = iter(pictures(item))
    except BadPicture:
        return content
    return [
        next(found)
        if isinstance(part, InputImage) and part.image_url is not None and is_data(part.image_url)
        else part
        for part in content
    ]
