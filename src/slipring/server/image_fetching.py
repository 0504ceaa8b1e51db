"""Fetches images that requests name by URL, from hosts that the operator allows by name.

The address rules are those of MCP servers that clients name: a connection goes to a public address or is not
made, whatever a name resolves to. A redirect is followed to an allowed host only. Bytes, time and the number
of images are bounded. What was fetched is kept for a while, so that a history that is sent again is the same.
"""

import asyncio
import base64
from collections.abc import Iterable
from hashlib import blake2b
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from slipring.base.errors import InvalidRequest, quoted
from slipring.base.tenant_slots import TenantSlots
from slipring.core.attachments import Fetched
from slipring.core.tenant_caches import TenantCache
from slipring.mcp.transports.addresses import public_socket
from slipring.protocol.items.item_pictures import BrokenImage, read_image_header

MOST_IMAGES = 16
_TOTAL_S, _CONNECT_S = 10.0, 3.0
_MOST_REDIRECTS = 3
_REDIRECTS = (301, 302, 303, 307, 308)
_PER_TENANT = 2
_CACHE_BYTES = 64 * 1024 * 1024
_PORTS = {"http": 80, "https": 443}
_TOO_LARGE = "it is too large, or all images of the request together are"


class _Failed(Exception):
    """Why an image was not fetched: the end of a sentence about it."""


class ImageFetcher:
    """Fetches images for the requests of all tenants."""

    def __init__(self, hosts: Iterable[str], most_bytes: int, *, only_public: bool = True) -> None:
        """``hosts``: names, with a port unless it is the usual one. ``most_bytes``: of all images of a
        request."""
        self._hosts = frozenset(host.lower() for host in hosts)
        self._most_bytes = most_bytes
        self._only_public = only_public
        self._slots = TenantSlots(_PER_TENANT)
        self._kept: TenantCache[str] = TenantCache(_CACHE_BYTES)
        self._session: aiohttp.ClientSession | None = None

    @property
    def is_on(self) -> bool:
        return bool(self._hosts)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def fetch(self, tenant: str, urls: tuple[str, ...]) -> Fetched:
        """Fetch images, one after the other."""
        found: dict[str, str | InvalidRequest] = {}
        left = self._most_bytes
        async with self._slots.hold(tenant):
            try:
                async with asyncio.timeout(_TOTAL_S):
                    for number, url in enumerate(urls):
                        try:
                            if number >= MOST_IMAGES:
                                raise _Failed(f"one request may name {MOST_IMAGES} images by URL")
                            fetched = await self._fetch(tenant, url, left)
                            if len(fetched) > left:  # in base64, or known from an earlier request
                                raise _Failed(_TOO_LARGE)
                            found[url] = fetched
                            left -= len(fetched)
                        except _Failed as failure:
                            found[url] = _refusal(str(failure))
                        except InvalidRequest as refusal:
                            found[url] = refusal
            except TimeoutError:
                found |= {url: _refusal("it was not sent in time") for url in urls if url not in found}
        return found

    async def _fetch(self, tenant: str, url: str, most: int) -> str:
        if not self._allows(url):
            host = quoted(urlsplit(url).hostname or "")
            raise InvalidRequest(
                f"this server fetches images only from hosts that its operator allows, and {host} is none of"
                " them. Send a data URL, such as 'data:image/png;base64,…'.",
                code="invalid_image_url",
            )
        key = (tenant, blake2b(url.encode(), digest_size=32).digest())
        if (kept := self._kept.find(key)) is not None:
            return kept
        data = await self._download(url, most)
        fetched = await asyncio.to_thread(_data_url, data)
        self._kept.put(key, fetched, len(fetched))
        return fetched

    def _allows(self, url: str) -> bool:
        try:
            parts = urlsplit(url)
            usual, port = _PORTS.get(parts.scheme), parts.port
        except ValueError:
            return False
        if usual is None or not parts.hostname or parts.username is not None:
            return False
        named = parts.hostname if port in (None, usual) else f"{parts.hostname}:{port}"
        return named in self._hosts

    async def _download(self, url: str, most: int) -> bytes:
        for _ in range(_MOST_REDIRECTS + 1):
            try:
                async with self._open().get(
                    URL(url),
                    allow_redirects=False,
                    headers={"Accept": "image/*", "Accept-Encoding": "identity"},
                ) as answer:
                    if answer.status not in _REDIRECTS:
                        return await _body(answer, most)
                    url = str(URL(url).join(URL(answer.headers.get("Location", ""))))
            except (aiohttp.ClientError, OSError, ValueError):
                # The reason may tell about a network that is none of the client's business.
                raise _Failed("its server cannot be reached") from None
            if not self._allows(url):
                raise _Failed("it was moved to a host that is not allowed")
        raise _Failed("it was moved too often")

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            factory = public_socket if self._only_public else None
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True, socket_factory=factory),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
                auto_decompress=False,
                trust_env=False,
                headers={"User-Agent": "slipring"},
            )
        return self._session


def _data_url(data: bytes) -> str:
    """An image file as a data URL. Takes time in proportion to it."""
    try:
        header = read_image_header(data)
    except BrokenImage as error:
        raise _Failed(f"it {error}") from None
    if header is None:
        raise _Failed("it is no PNG, JPEG, WebP or GIF file")
    return f"data:{header.media_type};base64,{base64.b64encode(data).decode()}"


async def _body(answer: aiohttp.ClientResponse, most: int) -> bytes:
    if answer.status != 200:
        raise _Failed(f"its server answered {answer.status}")
    body = bytearray()
    async for piece in answer.content.iter_any():
        body += piece
        if len(body) > most:
            raise _Failed(_TOO_LARGE)
    return bytes(body)


def _refusal(reason: str) -> InvalidRequest:
    return InvalidRequest(f"the image could not be fetched: {reason}.", code="failed_to_download_image")
