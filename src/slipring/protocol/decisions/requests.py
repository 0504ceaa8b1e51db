"""The body of ``POST /v1/decisions``: decodes it, and refuses by name what is not supported.

Unknown fields pass. ``input`` and ``questions`` stay raw until their length is known: decoding a huge list
would block the event loop.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from slipring.base.errors import InvalidRequest
from slipring.protocol import wire
from slipring.protocol.client_tools import ImageDetail
from slipring.protocol.requests import PromptCacheOptions

MOST_QUESTIONS = 400
MOST_OPTIONS = 20
"""Choices or levels of a question. The API allows 255 choices; the probabilities are read from the most
likely tokens of an engine, of which servers name 20."""
_MOST_ITEMS = 20_000
_MOST_JSON_BYTES = 256 * 1024
_MOST_VALUES = 10_000
_MOST_LEVELS = 32
_ITEM_TYPES = frozenset(
    {"message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"}
)
_NOTHING = (b"[]", b'""')


class QuestionText(Struct, tag_field="type", tag="input_text"):
    text: str


class QuestionImage(Struct, tag_field="type", tag="input_image"):
    image_url: str
    detail: ImageDetail | None = None


class QuestionJson(Struct, tag_field="type", tag="input_json"):
    data: Raw


Part = QuestionText | QuestionImage | QuestionJson


class ChoiceOption(Struct):
    """One of the choices of a question."""

    value: str | bool
    description: str | None = None


class ScoreLevel(Struct):
    """One of the levels of a question, which are ordered."""

    label: str
    description: str | None = None


class PredicateQuestion(Struct, tag_field="type", tag="predicate"):
    """How likely is it that a statement is true?"""

    instructions: str | list[Part]
    name: str | None = None


class ChoiceQuestion(Struct, tag_field="type", tag="choice"):
    """Which of several options is it?"""

    instructions: str | list[Part]
    choices: Annotated[list[ChoiceOption], Meta(min_length=2, max_length=MOST_OPTIONS)]
    name: str | None = None


class ScoreQuestion(Struct, tag_field="type", tag="score"):
    """Where on a scale is it?"""

    instructions: str | list[Part]
    levels: Annotated[list[ScoreLevel], Meta(min_length=2, max_length=MOST_OPTIONS)]
    name: str | None = None


Asked = PredicateQuestion | ChoiceQuestion | ScoreQuestion


class DecisionRequest(Struct):
    """Questions about one input."""

    input: Raw
    questions: Raw
    model: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None


class _Item(Struct):
    type: str = "message"
    call_id: object = None


_request = msgspec.json.Decoder(DecisionRequest)
_raw_list = msgspec.json.Decoder(list[Raw])
_asked: msgspec.json.Decoder[Asked] = msgspec.json.Decoder(Asked)
_item = msgspec.json.Decoder(_Item)
_fields = msgspec.json.Decoder(dict[str, Raw])
_json_part = msgspec.json.Decoder(QuestionJson)
_any = msgspec.json.Decoder()


def read_request(body: bytes) -> DecisionRequest:
    """Decode a request; errors name the field."""
    return wire.decode(_request, wire.require_text(body))


def read_questions(sent: Raw) -> list[Asked]:
    """Decode ``questions``; errors name the question."""
    wire.require_few(sent, MOST_QUESTIONS, "questions", "questions")
    entries = wire.decode(_raw_list, sent, where="questions")
    if not entries:
        raise InvalidRequest.at("questions", "there is none")
    if len(entries) > MOST_QUESTIONS:
        raise wire.too_many(MOST_QUESTIONS, "questions", "questions")
    asked = [wire.decode(_asked, entry, where=f"questions[{index}]") for index, entry in enumerate(entries)]
    for index, question in enumerate(asked):
        _require_words(question, f"questions[{index}]")
    return asked


def _require_words(question: Asked, where: str) -> None:
    """Refuse a question that asks nothing, or whose options cannot be told apart."""
    instructions = question.instructions
    texts = (
        [instructions]
        if isinstance(instructions, str)
        else [getattr(each, "text", "…") for each in instructions]
    )
    if not any(map(str.strip, texts)):
        raise wire.missing(f"{where}.instructions")
    if isinstance(question, PredicateQuestion):
        return
    if isinstance(question, ChoiceQuestion):
        place, field, options = "choices", "value", [each.value for each in question.choices]
    else:
        place, field, options = "levels", "label", [each.label for each in question.levels]
    for index, option in enumerate(options):
        if isinstance(option, str) and not option.strip():
            raise InvalidRequest.at(f"{where}.{place}[{index}].{field}", "it is empty")
    if len({(type(option), option) for option in options}) < len(options):
        raise InvalidRequest.at(f"{where}.{place}", f"a {field} occurs twice")


def read_input(sent: Raw) -> Raw:
    """``input`` as the Responses API takes it: with text for ``input_json``."""
    if bytes(sent) in _NOTHING:
        raise wire.missing("input")
    if not bytes(sent).startswith(b"["):
        return sent
    wire.require_few(sent, _MOST_ITEMS, "input", "items")
    entries = wire.decode(_raw_list, sent, where="input")
    open_calls: dict[object, None] = {}
    read = [_read_item(entry, f"input[{index}]", open_calls) for index, entry in enumerate(entries)]
    if open_calls:
        raise InvalidRequest(
            f"No tool output found for function call {next(iter(open_calls))}.", param="input"
        )
    return wire.raw(read)


def _read_item(entry: Raw, where: str, open_calls: dict[object, None]) -> Raw:
    """An item as the Responses API takes it. ``open_calls``: the ids of calls that have no output so far."""
    item_type = wire.decode(_item, entry, where=where)
    kind = item_type.type
    if isinstance(item_type.call_id, str):
        if kind.endswith("_call"):
            open_calls[item_type.call_id] = None
        else:
            open_calls.pop(item_type.call_id, None)
    if kind not in _ITEM_TYPES:
        raise InvalidRequest.at(
            f"{where}.type", f"'{kind[:64]}' is no item of an input for decisions", code="invalid_value"
        )
    if b'"input_json"' not in bytes(entry):
        return entry
    item = wire.decode(_fields, entry, where=where)
    parts = item.get("content", Raw(b"null"))
    if not bytes(parts).startswith(b"["):
        return entry
    wire.require_few(parts, _MOST_ITEMS, f"{where}.content", "parts")
    content = wire.decode(_raw_list, parts, where=f"{where}.content")
    written = [_read_part(part, f"{where}.content[{index}]") for index, part in enumerate(content)]
    return wire.raw({**item, "content": written})


def _read_part(part: Raw, where: str) -> Raw:
    if wire.decode(_item, part, where=where).type != "input_json":
        return part
    text = json_text(wire.decode(_json_part, part, where=where).data, f"{where}.data")
    return wire.raw({"type": "input_text", "text": text})


def json_text(data: Raw, where: str) -> str:
    """What a model reads of JSON: an object, or an array of objects."""
    wire.require_short(data, where, _MOST_JSON_BYTES)
    value = wire.decode(_any, data, where=where)
    entries = value if isinstance(value, list) else [value]
    if not all(isinstance(entry, dict) for entry in entries):
        raise InvalidRequest.at(where, "expected an object, or an array of objects", code="invalid_type")
    if _is_large(value):
        raise InvalidRequest.at(where, f"more than {_MOST_LEVELS} levels or {_MOST_VALUES} values")
    return wire.encode(value).decode()


def _is_large(value: object) -> bool:
    """Whether JSON has too many levels or values."""
    level, count = [value], 0
    for _ in range(_MOST_LEVELS + 1):
        count += len(level)
        inner: list[object] = []
        for each in level:
            if isinstance(each, dict | list):
                inner += each.values() if isinstance(each, dict) else each
        if count + len(inner) > _MOST_VALUES:
            return True
        level = inner
    return bool(level)
