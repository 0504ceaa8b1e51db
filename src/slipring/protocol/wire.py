"""JSON at the border: the one encoder, and decoding that explains itself in the API's terms.

Owns how a decoding failure becomes an error that names the field. Knows nothing of any particular field.
"""

import re
from itertools import count
from typing import Any, Protocol, TypeVar

import msgspec

from slipring.errors import InvalidJson, InvalidRequest

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_encoder = msgspec.json.Encoder()
encode = _encoder.encode

_LONGEST = 300  # of what the decoder says: it may repeat a client's own words
_SHORT_BYTES = 64 * 1024
LONG_BYTES = 256 * 1024
"""Shorter arrays are decoded in some milliseconds, however many entries they have."""
_AT = re.compile(r" - at (?:`key` in )?`\$([^`]*)`$")
_MISSING = re.compile(r"^Object missing required field `([^`]+)`")
_UNKNOWN_INDEX = re.compile(r"\[\.\.\.\]")


class Decoder(Protocol[T_co]):
    """Reads JSON; raises what msgspec raises."""

    def decode(self, data: bytes | str, /) -> T_co: ...


def decode(decoder: Decoder[T], data: bytes | str, *, where: str = "") -> T:
    """Decode, or raise the error that names the offending field below ``where``."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise explain(str(error), where) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InvalidJson(f"The request is not valid JSON: {error}.") from None
    except RecursionError:
        raise InvalidJson("The request's JSON is nested too deeply.") from None


def require_few(data: msgspec.Raw | bytes, most: int, where: str, noun: str) -> None:
    """Refuse an array that has more than ``most`` objects, or something else than objects in it.

    An array of any length is decoded in one step, in which nobody else can do anything. So the objects of a
    long one are counted first, and not further than they may be many.
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
    """Refuse a field that is large for no good reason, before it is decoded."""
    if len(sent) > most_bytes:
        raise InvalidRequest(f"Invalid '{where}': more than {most_bytes} bytes.", param=where)


def too_many(most: int, where: str, noun: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid '{where}': more than {most} {noun}.", param=where)


class _TooMany(Exception):
    """Counting has come to its end."""


def require_text(data: bytes) -> bytes:
    """Refuse bytes that are not UTF-8: the decoder lets them pass inside raw fields."""
    try:
        data.decode()
    except UnicodeDecodeError:
        raise InvalidJson("The request is not valid UTF-8.") from None
    return data


def explain(text: str, where: str = "") -> InvalidRequest:
    """Turn a validation failure's text into an API error with ``param``."""
    at = _AT.search(text)
    path = _UNKNOWN_INDEX.sub("", at.group(1)) if at else ""
    what = text[: at.start()] if at else text
    missing = _MISSING.match(what)
    if missing:
        path = f"{path}.{missing.group(1)}"
        param = join(where, path)
        return InvalidRequest(
            f"Missing required parameter: '{param}'.",
            param=param,
            code="missing_required_parameter",
        )
    param = join(where, path)
    code = "invalid_type" if ", got " in what else "invalid_value"
    what = what[:1].lower() + what[1:_LONGEST]
    if not param:
        return InvalidJson(f"The request must be a JSON object: {what}.")
    return InvalidRequest(f"Invalid '{param}': {what}.", param=param, code=code)


def join(where: str, path: str) -> str:
    """``input[2]`` and ``.content`` make ``input[2].content``; no leading dot."""
    return (where + path).lstrip(".")


NULL = msgspec.Raw(b"null")
"""What an optional raw field holds when the key is absent and must still be sent."""


def given(value: msgspec.Raw | msgspec.UnsetType) -> msgspec.Raw | None:
    """A raw field's value, or None when it was absent or null (the API treats both alike)."""
    if isinstance(value, msgspec.UnsetType) or bytes(value) in (b"null", b""):
        return None
    return value


def require_object(value: msgspec.Raw | msgspec.UnsetType, where: str) -> None:
    """Refuse a raw field that holds anything but an object or null."""
    sent = given(value)
    if sent is not None and not bytes(sent).startswith(b"{"):
        raise InvalidRequest(f"Invalid '{where}': expected an object.", param=where, code="invalid_type")


def raw(value: Any) -> msgspec.Raw:
    """A value encoded once, to be spliced wherever it is sent again."""
    return msgspec.Raw(_encoder.encode(value))
