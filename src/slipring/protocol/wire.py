"""JSON at the border: the one encoder, and decoding that explains itself in the API's terms.

Owns how a decoding failure becomes an error that names the field. Knows nothing of any particular field.
"""

import re
from typing import Any, Protocol, TypeVar

import msgspec

from slipring.errors import InvalidJson, InvalidRequest

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_encoder = msgspec.json.Encoder()
encode = _encoder.encode

_LONGEST = 300  # of what the decoder says: it may repeat a client's own words
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
