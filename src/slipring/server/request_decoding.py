"""Decodes requests: small ones on the event loop, large ones in a thread.

The event loop could do nothing else while it decodes a large request. The thread yields to the loop every few
milliseconds, between items.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from slipring.base.errors import ApiError, forget_frames
from slipring.core.betas import Betas
from slipring.core.byte_ledger import Ledger
from slipring.core.chain.resent_history import KnownItems
from slipring.core.checks import inspected_texts
from slipring.core.session import client_events
from slipring.core.session.client_events import ClientEvent
from slipring.core.session.request_charges import objection
from slipring.engines.tokens.tokenizer_threads import FairThreadPool
from slipring.protocol import requests
from slipring.protocol.items.items import Item
from slipring.protocol.requests import CreateRequest, Known

T = TypeVar("T")
ReadCreate = Callable[[bytes, Known], CreateRequest]
"""Decodes the body of a create request, with what its tenant has sent before."""
LARGE_BYTES = 128 * 1024
"""What is larger is decoded in the thread: it takes about a millisecond, if none of the items is known.
Handing it over takes a tenth."""
_THREADS = 1
"""Decoding holds the interpreter lock most of the time: a second thread would only delay the event loop."""


class RequestDecoder:
    """Decodes the requests of all clients. Every method raises ``ApiError`` if the request is not valid."""

    def __init__(self, requests: Ledger, known: KnownItems, *, digests: bool, inspects: bool = False) -> None:
        """``requests``: counts the bytes of large requests while they wait for the thread and are decoded.
        ``known``: what was decoded before. ``digests``: whether the digests of items will be needed;
        ``inspects``: whether what safety checks read of them will be."""
        self._threads = FairThreadPool("read", _THREADS)
        self._requests = requests
        self._known = known
        self._digests = digests
        self._inspects = inspects

    async def frame(self, tenant: str, frame: bytes | str, betas: Betas) -> ClientEvent | None:
        """Decode a large WebSocket message for ``Session.receive``, which decodes small ones itself."""
        with self._counted(tenant, len(frame)):
            known = self._known.of(tenant)
            return await self.in_thread(tenant, self._read_ahead, frame, betas, known)

    async def create(self, tenant: str, body: bytes, read: ReadCreate) -> CreateRequest:
        """Decode the body of a create request with ``read``."""
        return await self.body(tenant, body, partial(self._read_whole, read, self._known.of(tenant)))

    async def body(self, tenant: str, body: bytes, read: Callable[[bytes], T]) -> T:
        """Decode a request's body with ``read``."""
        if len(body) <= LARGE_BYTES:
            return read(requests.require_body(body))
        with self._counted(tenant, len(body)):
            return await self.in_thread(tenant, lambda: read(requests.require_body(body)))

    def _read_ahead(self, frame: bytes | str, betas: Betas, known: Known) -> ClientEvent | None:
        found = client_events.read_ahead(frame, betas, digests=self._digests, known=known)
        if isinstance(found, client_events.Create):
            self.prepare(found.request.read)
        return found

    def _read_whole(self, read: ReadCreate, known: Known, body: bytes) -> CreateRequest:
        """Decode a create request; of a large one, its items too, which are otherwise decoded on first
        use."""
        request = read(body, known)
        if len(body) > LARGE_BYTES:
            request.read_ahead(digests=self._digests, known=known)
            self.prepare(request.read)
        return request

    def prepare(self, items: Iterable[Item]) -> None:
        """Work out what safety checks read of items with images and files, if there are checks. In the
        thread."""
        if self._inspects:
            for item in items:
                inspected_texts.prepare(item)

    async def if_large(self, tenant: str, size_bytes: int, work: Callable[..., T], *arguments: object) -> T:
        """Call ``work``, which processes so many bytes: in the thread if they are many, otherwise right
        here."""
        if size_bytes <= LARGE_BYTES:
            return work(*arguments)
        return await self.in_thread(tenant, work, *arguments)

    async def in_thread(self, tenant: str, work: Callable[..., T], *arguments: object) -> T:
        """Call ``work`` in the thread. Tenants take turns."""
        try:
            return await self._threads.run(tenant, work, *arguments)
        except ApiError as error:
            # Its frames have the whole request, and the future that they wait for has the error.
            forget_frames(error)
            raise

    @contextmanager
    def counting(self, tenant: str) -> Iterator[Callable[[int], None]]:
        """Count what is added to a request while it is prepared. Yields what counts more bytes, and raises
        ``RateLimited`` or ``Unavailable`` if they do not fit."""
        counted = 0

        def count(size_bytes: int) -> None:
            nonlocal counted
            if (error := objection(self._requests, tenant, size_bytes)) is not None:
                raise error
            self._requests.add(tenant, size_bytes)
            counted += size_bytes

        try:
            yield count
        finally:
            if counted:
                self._requests.remove(tenant, counted)

    @contextmanager
    def _counted(self, tenant: str, size_bytes: int) -> Iterator[None]:
        self._requests.add(tenant, size_bytes)
        try:
            yield
        finally:
            self._requests.remove(tenant, size_bytes)
