"""Reads chunks that differ from the API's form: takes what they mean, and loses nothing else of the answer.

Content comes as an object, as a list of strings or as a number, a finish reason as `false`, arguments as an
object, one call without a list around it. Only the frame has to be right: choices are objects in a list, and
deltas and calls are objects. A character may be split between two chunks, and an error may be in the place of
one.
"""

import json
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from slipring.base.surrogates import repaired
from slipring.engines.chat.chunks import CallPiece, Choice, Chunk, ChunkDelta, ContentPart, FunctionPiece
from slipring.engines.remote.upstream_errors import reported

_SURROGATE = b"\\ud"
_OTHER_ERRORS = (b"[{", b'"')
"""How errors begin that are no object: a list of objects, a text."""
_NULL = Raw(b"null")
_DEEPEST = 4
"""How many objects and lists may be around a text."""
_TEXTS = ("text", "value", "content")
"""The fields of an object that may be its text."""


class _OddFunction(Struct):
    name: Any = None
    arguments: Raw = _NULL


class _OddCall(Struct):
    index: Any = None
    id: Any = None
    function: _OddFunction | None = None
    extra_content: Raw | UnsetType = UNSET
    provider_specific_fields: Raw | UnsetType = UNSET


class _OddDelta(Struct):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None
    refusal: Any = None
    tool_calls: list[_OddCall] | _OddCall | None = None
    extra_content: Raw | UnsetType = UNSET
    provider_specific_fields: Raw | UnsetType = UNSET


class _OddChoice(Struct):
    index: Any = 0
    delta: _OddDelta | None = None
    message: _OddDelta | None = None
    finish_reason: Any = None
    logprobs: Any = None


class _OddChunk(Struct):
    choices: list[_OddChoice] | None = None
    usage: Any = None
    error: Any = None


class _BareError(Struct):
    """What a payload without choices may be: an error that is not in a field of its own."""

    object: Any = None
    type: Any = None
    message: Any = None
    detail: Any = None
    error_message: Any = None

    @property
    def is_error(self) -> bool:
        return "error" in (self.object, self.type) or bool(self.message or self.detail or self.error_message)


_odd = msgspec.json.Decoder(_OddChunk)
_bare_error = msgspec.json.Decoder(_BareError)
_string: msgspec.json.Decoder[str | None] = msgspec.json.Decoder(str | None)


def is_error(payload: bytes) -> bool:
    """Whether a payload without choices is an error that is not in a field of its own."""
    return _bare_error.decode(repaired(payload)).is_error


class OddChunks:
    """Those of one answer."""

    __slots__ = ("halves",)

    def __init__(self) -> None:
        self.halves: dict[str, str] = {}
        """The first halves of surrogate pairs that a server has split between two chunks, by their place
        in the chunk before."""

    def read(self, payload: bytes, error: msgspec.DecodeError) -> Chunk:
        """Read what is no chunk as it is: one with fields of other types or with half of a surrogate pair.
        Raises the error that comes in its place, or ``msgspec.DecodeError``."""
        if isinstance(error, msgspec.ValidationError):
            if payload.startswith(_OTHER_ERRORS):
                raise reported(payload)
            return _read_chunk(payload)
        if _SURROGATE not in payload.lower():
            raise error
        earlier, self.halves = self.halves, {}
        try:
            parsed = json.loads(payload)
        except ValueError:
            raise error from None
        return _read_chunk(msgspec.json.encode(self._joined(parsed, "", earlier)))

    def _joined(self, value: Any, place: str, earlier: dict[str, str]) -> Any:
        """The same value without lone surrogates: halves that belong together are joined, others replaced.
        ``earlier``: the halves of the chunk before."""
        if isinstance(value, dict):
            return {name: self._joined(each, f"{place}.{name}", earlier) for name, each in value.items()}
        if isinstance(value, list):
            return [self._joined(each, f"{place}.{index}", earlier) for index, each in enumerate(value)]
        if not isinstance(value, str):
            return value
        text = earlier.get(place, "") + value
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self.halves[place] = text[:-1], text[-1]
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _read_chunk(payload: bytes) -> Chunk:
    """Decode a chunk. Raises ``msgspec.ValidationError`` if its frame is wrong."""
    odd = _odd.decode(payload)
    return Chunk([_choice(each) for each in odd.choices or ()], odd.usage, odd.error)


def _choice(odd: _OddChoice) -> Choice:
    return Choice(
        index=_number(odd.index),
        delta=_delta(odd.delta),
        message=_delta(odd.message),
        finish_reason=_reason(odd.finish_reason),
        logprobs=odd.logprobs,
    )


def _delta(odd: _OddDelta | None) -> ChunkDelta | None:
    if odd is None:
        return None
    calls = [odd.tool_calls] if isinstance(odd.tool_calls, _OddCall) else odd.tool_calls
    return ChunkDelta(
        content=_content(odd.content),
        reasoning_content=_text(odd.reasoning_content),
        reasoning=_text(odd.reasoning),
        reasoning_details=odd.reasoning_details,
        refusal=_text(odd.refusal),
        tool_calls=[_call(each) for each in calls] if calls else None,
        extra_content=odd.extra_content,
        provider_specific_fields=odd.provider_specific_fields,
    )


def _content(value: Any) -> str | list[ContentPart] | None:
    """Parts, if some of them may be thinking; else the text."""
    parts = value if isinstance(value, list) else [value]
    if not any(isinstance(part, dict) and part.get("thinking") for part in parts):
        return _text(value)
    return [
        ContentPart(thinking=_text(part["thinking"]))
        if isinstance(part, dict) and part.get("thinking")
        else ContentPart(_text(part))
        for part in parts
    ]


def _text(value: Any, depth: int = 0) -> str | None:
    """The text of a value: itself, that of an object, those of a list together; a number's digits."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if depth == _DEEPEST:
        return None
    if isinstance(value, list):
        return "".join(_text(each, depth + 1) or "" for each in value)
    if isinstance(value, dict):
        return next(filter(None, (_text(value.get(name), depth + 1) for name in _TEXTS)), None)
    return None


def _call(odd: _OddCall) -> CallPiece:
    function = odd.function
    return CallPiece(
        index=odd.index if isinstance(odd.index, str) else _number(odd.index),
        id=odd.id if isinstance(odd.id, str) else _number(odd.id),
        function=FunctionPiece(_text(function.name), _arguments(function.arguments)) if function else None,
        extra_content=odd.extra_content,
        provider_specific_fields=odd.provider_specific_fields,
    )


def _arguments(raw: Raw) -> str | None:
    """A piece of the arguments' JSON; some servers send the object itself."""
    try:
        return _string.decode(raw)
    except msgspec.ValidationError:
        return bytes(raw).decode()


def _number(value: Any) -> int | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and value == value // 1 else None


def _reason(value: Any) -> str | None:
    """A finish reason; none while a server states nothing by it: `false`, `0`, an empty object."""
    if not value:
        return None
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
