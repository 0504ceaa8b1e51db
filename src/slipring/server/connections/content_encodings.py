"""Which content encodings of request bodies are supported, and the errors about others.

Those that aiohttp decodes: ``br`` and ``zstd`` only if the packages for them are installed.
"""

from slipring.base.aiohttp_internals import DECODED, is_undecodable, is_undecoded
from slipring.base.errors import ApiError, InvalidJson, InvalidRequest

_NO_ENCODING = ("", "identity")


class UnsupportedEncoding(InvalidRequest):
    """A body has a content encoding that this server cannot decode."""

    status = 415
    code = "unsupported_content_encoding"

    def __init__(self) -> None:
        super().__init__(f"Unsupported Content-Encoding. This server supports: {', '.join(DECODED)}.")


class Undecodable(InvalidJson):
    """A body is not what its content encoding says."""

    def __init__(self) -> None:
        super().__init__("The request's body cannot be decompressed.")


def require_supported(encoding: str) -> None:
    """Raise ``UnsupportedEncoding`` for a ``Content-Encoding`` that this server does not know."""
    if encoding not in _NO_ENCODING and encoding not in DECODED:
        raise UnsupportedEncoding


def refusal_of(error: BaseException | None) -> ApiError | None:
    """What to answer if aiohttp could not decode a body; None if this is another error."""
    if is_undecoded(error):
        return UnsupportedEncoding()
    return Undecodable() if is_undecodable(error) else None
