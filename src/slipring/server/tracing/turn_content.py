"""The content of a turn, as the messages of the GenAI conventions. Used only if content is switched on.

A turn has its new items only, not those of the responses before it: their spans have them.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from slipring.protocol.items import (
    CallOutput,
    CustomToolCall,
    FunctionCall,
    InputFile,
    InputImage,
    Item,
    Message,
    Part,
    Reasoning,
    Refusal,
)
from slipring.server.observation.ended_turns import TurnContent

MOST_BYTES = 65_536
"""Of the JSON of the items of an input, of those of an output, and of instructions: for each."""
_MOST_ITEMS = 256


class Excerpt(Struct, frozen=True):
    """What fits of the content of a turn."""

    instructions: str | None
    input: list[Item]
    output: list[Item]
    omitted: int
    """Items that were left out; instructions count as one."""
    size_bytes: int


def excerpt(content: TurnContent) -> Excerpt:
    """The latest items that fit, without decoding any. Those that are too long for the room are left out."""
    instructions = content.request.instructions
    told = len(instructions) if instructions is not None else 0  # characters: encoding it would copy it
    given, given_bytes = _latest(content.input)
    made, made_bytes = _latest(content.output)
    return Excerpt(
        instructions=instructions if told <= MOST_BYTES else None,
        input=given,
        output=made,
        omitted=len(content.input) - len(given) + len(content.output) - len(made) + (told > MOST_BYTES),
        size_bytes=given_bytes + made_bytes + (told if told <= MOST_BYTES else 0),
    )


def _latest(items: Sequence[Item]) -> tuple[list[Item], int]:
    chosen: list[Item] = []
    room = MOST_BYTES
    for item in reversed(items[-_MOST_ITEMS:]):
        if len(item.raw) <= room:
            room -= len(item.raw)
            chosen.append(item)
    chosen.reverse()
    return chosen, MOST_BYTES - room


def instructions_json(text: str) -> str:
    """The value of ``gen_ai.system_instructions``."""
    return _json([_text(text)])


def input_json(items: Iterable[Item]) -> str:
    """The value of ``gen_ai.input.messages``: one message for each item."""
    messages = []
    for item in items:
        role, parts = _message(item, "user")
        messages.append({"role": role, "parts": parts})
    return _json(messages)


def output_json(items: Iterable[Item]) -> str:
    """The value of ``gen_ai.output.messages``: one message, because a response is one choice."""
    return _json([{"role": "assistant", "parts": [part for item in items for part in _message(item, "")[1]]}])


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _message(item: Item, author: str) -> tuple[str, list[dict[str, Any]]]:
    """The role and the parts of an item. ``author``: the role of items that have none by their type."""
    body = item.body()
    if isinstance(body, Message):
        return body.role, _parts(body.content)
    if isinstance(body, FunctionCall):
        return "assistant", [_call(body, _decoded(body.arguments))]
    if isinstance(body, CustomToolCall):
        return "assistant", [_call(body, body.input)]
    if isinstance(body, CallOutput):
        answer = body.output if isinstance(body.output, str) else _parts(body.output)
        return "tool", [{"type": "tool_call_response", "id": body.call_id, "response": answer}]
    if isinstance(body, Reasoning):
        thought = body.thought or "".join(part.text for part in body.summary)
        return "assistant", [{"type": "reasoning", "content": thought}]
    return author, [{"type": item.type}]


def _call(call: FunctionCall | CustomToolCall, arguments: object) -> dict[str, Any]:
    return {"type": "tool_call", "id": call.call_id, "name": call.name, "arguments": arguments}


def _decoded(arguments: str) -> object:
    """Arguments as JSON, or as they are: a model may write anything."""
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return arguments


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "content": text}


def _parts(content: str | list[Part]) -> list[dict[str, Any]]:
    return [_text(content)] if isinstance(content, str) else [_part(part) for part in content]


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, InputImage):
        return _attached("image", part.file_id, part.image_url)
    if isinstance(part, InputFile):
        return _attached("document", part.file_id, part.file_url or part.file_data)
    if isinstance(part, Refusal):
        return {"type": "refusal", "content": part.refusal}
    return _text(part.text)


def _attached(modality: str, file_id: str | None, url: str | None) -> dict[str, Any]:
    """A file by its id or its URL; bytes that were sent within the item."""
    if file_id is not None:
        return {"type": "file", "modality": modality, "file_id": file_id}
    head, comma, encoded = (url or "").partition(",")
    if comma and head.startswith("data:"):
        kind = head.removeprefix("data:").partition(";")[0]
        return {"type": "blob", "modality": modality, "mime_type": kind, "content": encoded}
    return {"type": "uri", "modality": modality, "uri": url or ""}
