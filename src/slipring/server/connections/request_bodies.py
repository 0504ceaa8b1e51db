"""Reads request bodies within a deadline and within a tenant's limit on bytes that are being received."""

import asyncio
import io

from aiohttp import web

from slipring.base.aiohttp_internals import DECODED
from slipring.base.errors import OVERLOAD_RETRY_S, ApiError, InvalidRequest, RateLimited, Unavailable
from slipring.server.access.auth import Caller
from slipring.server.connections.client_connection import RequestTimeout, Undecodable, UnsupportedEncoding
from slipring.server.connections.slow_clients import PROGRESS_BYTES
from slipring.server.service import Service

_NO_ENCODING = ("", "identity")


async def read_body(service: Service, request: web.Request, caller: Caller) -> bytes:
    """Read the body of a request. Raises ``ApiError`` if it is too large, too slow or cannot be decoded."""
    encoding = ", ".join(request.headers.getall("Content-Encoding", ())).lower()
    if encoding not in _NO_ENCODING and encoding not in DECODED:
        raise UnsupportedEncoding
    limit_bytes = service.config.limits.max_frame_bytes
    if request.content_length is not None and request.content_length > limit_bytes:
        raise _too_large()
    reader = _Reader(service, request, caller.tenant)
    try:
        return await reader.read(limit_bytes)
    except web.RequestPayloadError:
        raise Undecodable from None
    finally:
        reader.release()


class _Reader:
    """Reads one body, and counts its bytes in the ledger of requests until ``release``."""

    def __init__(self, service: Service, request: web.Request, tenant: str) -> None:
        self._timeout_s = service.config.limits.body_timeout_s
        self._ledger = service.requests
        self._content = request.content
        self._tenant = tenant
        self._charged = 0

    async def read(self, limit_bytes: int) -> bytes:
        clock = asyncio.get_running_loop().time
        # Its memory grows in place, and is what ``getvalue`` returns: joining all parts at the end would hold
        # the event loop, and in a thread, memory that is not returned to the system would be used.
        body = io.BytesIO()
        deadline, progress = clock() + self._timeout_s, 0
        while chunk := await self._next(deadline):
            body.write(chunk)
            self._charge(len(chunk))
            if self._charged > limit_bytes:
                raise _too_large()
            progress += len(chunk)
            if progress >= PROGRESS_BYTES:
                deadline, progress = clock() + self._timeout_s, 0
            # All of a compressed body may be available at once: let others run between its parts.
            await asyncio.sleep(0)
        return body.getvalue()

    def release(self) -> None:
        if self._charged:
            self._ledger.remove(self._tenant, self._charged)
            self._charged = 0

    async def _next(self, deadline: float) -> bytes:
        try:
            async with asyncio.timeout_at(deadline):
                return await self._content.readany()
        except TimeoutError:
            raise RequestTimeout("The body of the request did not arrive in time.") from None

    def _charge(self, size_bytes: int) -> None:
        if not self._ledger.fits_tenant(self._tenant, size_bytes):
            raise RateLimited(
                "The request bodies that this tenant is sending are too large in total.",
                retry_after_s=OVERLOAD_RETRY_S,
            )
        if not self._ledger.fits(size_bytes):
            raise Unavailable(
                "The server is receiving too many bytes at once. Try again later.",
                retry_after_s=OVERLOAD_RETRY_S,
            )
        self._ledger.add(self._tenant, size_bytes)
        self._charged += size_bytes


def _too_large() -> ApiError:
    error = InvalidRequest("The request body is too large.", code="request_too_large")
    error.status = 413
    return error
