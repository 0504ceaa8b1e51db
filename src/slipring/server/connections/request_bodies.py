"""Bodies of requests: read whole, within a deadline and within the bytes that a tenant may have under way."""

import asyncio

from aiohttp import web

from slipring.errors import ApiError, InvalidJson, InvalidRequest, RateLimited, Unavailable
from slipring.server.access.auth import Caller
from slipring.server.connections.http_connection import RequestTimeout
from slipring.server.connections.registry import PROGRESS_BYTES
from slipring.server.service import Service


async def read_body(service: Service, request: web.Request, caller: Caller) -> bytes:
    """The body of a request, whatever is in it."""
    most = service.config.limits.max_frame_bytes
    if request.content_length is not None and request.content_length > most:
        raise _too_large()
    reader = _Reader(service, request, caller.tenant)
    try:
        return await reader.read(most)
    except web.RequestPayloadError:
        raise InvalidJson("The request's body cannot be decompressed.") from None
    finally:
        reader.release()


class _Reader:
    """Reads one body, and counts its bytes as those of a request for as long as it is read."""

    def __init__(self, service: Service, request: web.Request, tenant: str) -> None:
        self._timeout_s = service.config.limits.body_timeout_s
        self._ledger = service.requests
        self._content = request.content
        self._tenant = tenant
        self._charged = 0

    async def read(self, most: int) -> bytes:
        clock = asyncio.get_running_loop().time
        chunks: list[bytes] = []
        deadline, progress = clock() + self._timeout_s, 0
        while chunk := await self._next(deadline):
            chunks.append(chunk)
            self._charge(len(chunk))
            if self._charged > most:
                raise _too_large()
            progress += len(chunk)
            if progress >= PROGRESS_BYTES:
                deadline, progress = clock() + self._timeout_s, 0
            # A compressed body may be there at once, all of it: others are served between its parts.
            await asyncio.sleep(0)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def release(self) -> None:
        if self._charged:
            self._ledger.remove(self._tenant, self._charged)
            self._charged = 0

    async def _next(self, deadline: float) -> bytes:
        try:
            async with asyncio.timeout_at(deadline):
                return await self._content.readany()
        except TimeoutError:
            raise RequestTimeout("The body of the request did not come in time.") from None

    def _charge(self, size_bytes: int) -> None:
        if not self._ledger.fits_tenant(self._tenant, size_bytes):
            raise RateLimited(
                "Too many requests are being sent at once: their bodies are too large, together."
            )
        if not self._ledger.fits(size_bytes):
            raise Unavailable("The server receives as much as it may. Try again later.")
        self._ledger.add(self._tenant, size_bytes)
        self._charged += size_bytes


def _too_large() -> ApiError:
    error = InvalidRequest("The request body is too large.", code="request_too_large")
    error.status = 413
    return error
