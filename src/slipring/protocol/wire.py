"""JSON encoding and decoding. Decoding failures become API errors that name the offending field."""

import re
from itertools import count
from typing import Any, Protocol, TypeVar

import msgspec

from slipring.base.errors import InvalidJson, InvalidRequest

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_encoder = msgspec.json.Encoder()
_text = msgspec.json.Decoder(str)
encode = _encoder.encode

_LONGEST = 300  # characters of the decoder's message, which may quote the client's input
_SHORT_BYTES = 64 * 1024
LONG_BYTES = 256 * 1024
"""Arrays shorter than this are decoded in a few milliseconds, however many entries they have."""
_AT = re.compile(r" - at (?:`key` in )?`\$([^`]*)`$")
_MISSING = re.compile(r"^Object missing required field `([^`]+)`")
_UNKNOWN = re.compile(r"^Object contains unknown field `([^`]+)`")
_RANGE = re.compile(r"^Expected `(int|float)` ([<>])")
_NUMBERS = {"int": "integer", "float": "decimal"}
_BOUNDS = {">": "below_min_value", "<": "above_max_value"}
_TRUNCATED = "Input data was truncated"
_PAIR_CHARS = len(r"\ud83d\ude00")
_HALF_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")
_UNKNOWN_INDEX = re.compile(r"\[\.\.\.\]")


class Decoder(Protocol[T_co]):
    """Decodes JSON; raises msgspec's exceptions."""

    def decode(self, data: bytes | str, /) -> T_co: ...


def decode(decoder: Decoder[T], data: bytes | str, *, where: str = "") -> T:
    """Decode JSON. Raises ``InvalidRequest`` with the offending field below ``where`` as its param."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise explain(str(error), where) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InvalidJson(f"The request is not valid JSON: {_fault(str(error), data)}.") from None
    except RecursionError:
        raise InvalidJson("The request's JSON is nested too deeply.") from None


def _fault(message: str, data: bytes | str) -> str:
    """The decoder's message. It takes half of a surrogate pair shortly before the end for the end itself."""
    end = data[-_PAIR_CHARS:]
    if message == _TRUNCATED and _HALF_PAIR.search(end if isinstance(end, str) else end.decode("latin-1")):
        return "a string contains half of an escaped utf-16 surrogate pair"
    return message


class _Typed(msgspec.Struct):
    type: str


_typed = msgspec.json.Decoder(_Typed)


def type_of(data: bytes | msgspec.Raw, where: str = "") -> str:
    """The ``type`` of a JSON object. Raises ``InvalidRequest`` as ``decode`` does."""
    return decode(_typed, data, where=where).type


def require_few(data: msgspec.Raw | bytes, most: int, where: str, noun: str) -> None:
    """Refuse a long array that has more than ``most`` entries, or entries that are not objects.

    Decoding an array blocks the event loop however long it is, so long arrays are counted first; counting
    stops at the bound.
    """
    if len(data) < LONG_BYTES or bytes(memoryview(data)[:1]) != b"[":
        return
    seen = count(1)

    class Counted(msgspec.Struct):
        def __post_init__(self) -> None:
            if next(seen) > most:
                raise _TooMany

    try:
        decode(msgspec.json.Decoder(list[Counted]), data, where=where)
    except _TooMany:
        raise too_many(most, where, noun) from None


def require_short(sent: msgspec.Raw, where: str, most_bytes: int = _SHORT_BYTES) -> None:
    """Refuse a field longer than ``most_bytes`` before it is decoded."""
    if len(sent) > most_bytes:
        raise InvalidRequest.at(where, f"more than {most_bytes} bytes")


def too_many(most: int, where: str, noun: str) -> InvalidRequest:
    return InvalidRequest.at(where, f"more than {most} {noun}")


class _TooMany(Exception):
    """Raised inside the decoder to stop counting at the bound."""


def require_text(data: bytes) -> bytes:
    """Return ``data`` if it is UTF-8, else raise: msgspec does not check the text inside raw fields."""
    try:
        data.decode()
    except UnicodeDecodeError:
        raise InvalidJson("The request is not valid UTF-8.") from None
    return data


def missing(param: str) -> InvalidRequest:
    """The error for a field that a request must have."""
    return InvalidRequest(
        f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
    )


def explain(text: str, where: str = "") -> InvalidRequest:
    """Translate the message of a msgspec validation error into an API error with ``param``."""
    at = _AT.search(text)
    path = _UNKNOWN_INDEX.sub("", at.group(1)) if at else ""
    what = text[: at.start()] if at else text
    if (lacking := _MISSING.match(what)) is not None:
        return missing(join(where, f"{path}.{lacking.group(1)}"))
    if (unknown := _UNKNOWN.match(what)) is not None:
        param = join(where, f"{path}.{unknown.group(1)[:_LONGEST]}")
        return InvalidRequest(f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")
    param = join(where, path)
    code = "invalid_type" if ", got " in what else "invalid_value"
    if (out := _RANGE.match(what)) is not None:
        code = f"{_NUMBERS[out.group(1)]}_{_BOUNDS[out.group(2)]}"
    what = what[:1].lower() + what[1:_LONGEST]
    if not param:
        return InvalidJson(f"The request must be a JSON object: {what}.")
    return InvalidRequest.at(param, f"{what}", code=code)


def join(where: str, path: str) -> str:
    """``input[2]`` and ``.content`` make ``input[2].content``; no leading dot."""
    return (where + path).lstrip(".")


NULL = msgspec.Raw(b"null")
"""Default of raw fields that are always sent."""
_ABSENT = (NULL, msgspec.Raw(b""))


def given(value: msgspec.Raw | msgspec.UnsetType) -> msgspec.Raw | None:
    """The value of a raw field; None if it is absent or null, which the API treats alike."""
    if isinstance(value, msgspec.UnsetType) or value in _ABSENT:
        return None
    return value


def text_of(sent: msgspec.Raw | msgspec.UnsetType) -> str:
    """The string in a raw field of a malformed event; empty if it holds none."""
    try:
        return "" if isinstance(sent, msgspec.UnsetType) else _text.decode(sent)
    except msgspec.DecodeError:
        return ""


def require_object(value: msgspec.Raw | msgspec.UnsetType, where: str) -> None:
    """Refuse a raw field whose value is neither an object nor null."""
    sent = given(value)
    if sent is not None and not bytes(sent).startswith(b"{"):
        raise InvalidRequest.at(where, "expected an object", code="invalid_type")


def raw(value: Any) -> msgspec.Raw:
    """Encode a value once, to be spliced into several messages."""
    return msgspec.Raw(_encoder.encode(value))
