"""The bodies of requests: which content encodings they may have, and the deadline and the limits within which
they are read.

A client must send some more bytes within every ``body_timeout_s``. The bytes that are being received are
counted per tenant and in total. aiohttp decodes bodies: ``br`` and ``zstd`` only if the packages for them are
installed.
"""

import asyncio
import io
from typing import TYPE_CHECKING

from aiohttp import web

from slipring.base.aiohttp_internals import DECODED, is_undecodable, is_undecoded
from slipring.base.errors import (
    OVERLOAD_RETRY_S,
    ApiError,
    InvalidJson,
    InvalidRequest,
    RateLimited,
    Unavailable,
)
from slipring.core.byte_ledger import Ledger
from slipring.server.connections.slow_clients import PROGRESS_BYTES

if TYPE_CHECKING:  # a supervisor has connections too, but no service
    from slipring.server.access.auth import Caller
    from slipring.server.service import Service

_NO_ENCODING = ("", "identity")


class RequestTimeout(InvalidRequest):
    """A request, its head or its body, did not arrive within its deadline."""

    status = 408
    code = "request_timeout"


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


async def read_body(service: "Service", request: web.Request, caller: "Caller") -> bytes:
    """Read the body of a request. Raises ``ApiError`` if it is too large, too slow or cannot be decoded."""
    encoding = ", ".join(request.headers.getall("Content-Encoding", ())).lower()
    require_supported(encoding)
    limit_bytes = service.config.limits.max_frame_bytes
    if request.content_length is not None and request.content_length > limit_bytes:
        raise _too_large()
    clock, timeout_s = asyncio.get_running_loop().time, service.config.limits.body_timeout_s
    # Its memory grows in place, and is what ``getvalue`` returns: joining all parts at the end would hold the
    # event loop, and in a thread, memory that is not returned to the system would be used.
    body = io.BytesIO()
    counted = progress = 0
    deadline = clock() + timeout_s
    try:
        while chunk := await _next(request, deadline):
            body.write(chunk)
            _count(service.requests, caller.tenant, len(chunk))
            counted += len(chunk)
            if counted > limit_bytes:
                raise _too_large()
            progress += len(chunk)
            if progress >= PROGRESS_BYTES:
                deadline, progress = clock() + timeout_s, 0
            # All of a compressed body may be available at once: let others run between its parts.
            await asyncio.sleep(0)
    except web.RequestPayloadError:
        raise Undecodable from None
    finally:
        if counted:
            service.requests.remove(caller.tenant, counted)
    return body.getvalue()


async def _next(request: web.Request, deadline: float) -> bytes:
    try:
        async with asyncio.timeout_at(deadline):
            return await request.content.readany()
    except TimeoutError:
        raise RequestTimeout("The body of the request did not arrive in time.") from None


def _count(requests: Ledger, tenant: str, size_bytes: int) -> None:
    """Count bytes of a body. Raises ``RateLimited`` or ``Unavailable`` if they do not fit."""
    if not requests.fits_tenant(tenant, size_bytes):
        raise RateLimited(
            "The request bodies that this tenant is sending are too large in total.",
            retry_after_s=OVERLOAD_RETRY_S,
        )
    if not requests.fits(size_bytes):
        raise Unavailable(
            "The server is receiving too many bytes at once. Try again later.",
            retry_after_s=OVERLOAD_RETRY_S,
        )
    requests.add(tenant, size_bytes)


def _too_large() -> ApiError:
    error = InvalidRequest("The request body is too large.", code="request_too_large")
    error.status = 413
    return error
