"""Reads documents of requests, in the child process of a sandbox: bytes, pages, time and memory are bounded.

PDFium reads them, which the extra ``pdf`` installs. Its child is sealed: it opens no file and no socket.
Items with the pages of their documents are kept for a while, so that a history that is sent again takes
neither the work nor the memory again. What takes time in proportion to a document is done in the thread that
decodes large requests, and not on the event loop.
"""

from collections.abc import Sequence
from hashlib import blake2b
from importlib.util import find_spec

from slipring.base.errors import InvalidRequest, TooExpensive
from slipring.core import attachments
from slipring.core.attachments import Page, ReadPages, fetched_form
from slipring.core.limits import Limits
from slipring.core.session.actions import ReadDocuments
from slipring.core.tenant_caches import TenantEntries
from slipring.protocol.items.item_digests import content_digest
from slipring.protocol.items.item_pictures import examine
from slipring.protocol.items.items import Item, in_context, opened_with, raw_digest
from slipring.protocol.items.pdf_documents import Document
from slipring.sandbox.pipe_messages import SandboxLimits, Words
from slipring.sandbox.sandbox import EncodedCall, Sandbox, encoded_call
from slipring.server.request_decoding import RequestDecoder

MOST_DOCUMENTS = 100
_WAITING = 16
_OUTCOMES_BYTES = 8 * 1024 * 1024
"""Of the sandbox: it is asked again for what was refused, and for a document that stands in another item."""
_OPENED_BYTES = 64 * 1024 * 1024
_DIGEST_BYTES = 32
_CALL_BYTES = 1024
"""Of a call without its document."""
_WORDS = Words(
    verb="read",
    participle="read",
    subjects="documents",
    timeout="document_timeout_s",
    memory="document_memory_bytes",
    size="max_document_bytes",
    result="max_frame_bytes",
)


class _OpenedItems(TenantEntries[bytes, Item]):
    """Items that were opened with the pages of their documents lately. The largest tenant loses first."""

    __slots__ = ()

    def find(self, tenant: str, key: bytes) -> Item | None:
        return self._find(tenant, key)

    def keep(self, tenant: str, key: bytes, item: Item) -> None:
        self._keep(tenant, {key: item})

    def forget(self, tenant: str) -> None:
        """Drop all items of a tenant."""
        self._drop_all(tenant)

    def _hold(self, tenant: str, value: Item) -> int:
        return value.size_bytes

    _release = _hold


class DocumentReader:
    """Reads documents for the requests of all tenants."""

    def __init__(self, limits: Limits, decoder: RequestDecoder) -> None:
        """``decoder``: has the thread, and counts pages while the rest of a request is read."""
        self.is_on = find_spec("pypdfium2") is not None
        self._limits = limits
        self._decoder = decoder
        self._opened = _OpenedItems(_OPENED_BYTES)
        self.sandbox = Sandbox(
            SandboxLimits(
                timeout_s=limits.document_timeout_s,
                memory_bytes=limits.document_memory_bytes,
                waiting=_WAITING,
                call_bytes=_base64_size(limits.max_document_bytes) + _CALL_BYTES,
                result_bytes=limits.max_frame_bytes,
                cache_bytes=_OUTCOMES_BYTES,
                is_sealed=True,
                words=_WORDS,
            ),
            {"read_pdf": "slipring.sandbox.pdf_pages"},
        )

    async def read(self, tenant: str, work: ReadDocuments) -> tuple[Item, ...]:
        """The items of a request, with the pages of their documents. Raises ``ApiError``: one that names the
        field of a document that could not be read, or one that says that too many bytes are in use."""
        found: list[Item] = []
        documents, pages_bytes = 0, 0
        with self._decoder.counting(tenant) as count:
            for index, item in enumerate(work.items):
                if not (in_item := attachments.documents_in(item)):
                    found.append(item)
                    continue
                documents += len(in_item)
                if documents > MOST_DOCUMENTS:
                    reason = f"is one too many: a request may have {MOST_DOCUMENTS} documents"
                    one_too_many = in_item[MOST_DOCUMENTS - documents]
                    raise attachments.unreadable(item, index, one_too_many, InvalidRequest(reason))
                shown = await self._item(tenant, work, index, in_item)
                pages_bytes += shown.size_bytes - item.size_bytes
                if pages_bytes > self._limits.max_pages_bytes:
                    reason = (
                        f"expands to more than {self._limits.max_pages_bytes} bytes with those before it"
                        " (max_pages_bytes)"
                    )
                    raise attachments.unreadable(item, index, in_item[-1], InvalidRequest(reason))
                count(max(shown.size_bytes - item.size_bytes, 0))
                found.append(shown)
        return tuple(found)

    def forget(self, tenant: str) -> None:
        """Forget the documents that a tenant has sent, because some of them may have been deleted."""
        self._opened.forget(tenant)
        self.sandbox.forget(tenant)

    async def close(self) -> None:
        await self.sandbox.close()

    async def _item(
        self, tenant: str, work: ReadDocuments, index: int, documents: Sequence[Document]
    ) -> Item:
        """An item of a request with the pages of its documents."""
        item = work.items[index]
        key = await self._decoder.in_thread(tenant, _key, item, work)
        if (known := self._opened.find(tenant, key)) is not None:
            assert known.opened is not None
            return opened_with(item, known.opened)
        read: dict[Document, Sequence[Page]] = {}
        left = self._limits.max_frame_bytes
        for document in documents:
            try:
                pages = await self._pages(tenant, item, document, draws=work.draws)
                left -= sum(page.size_bytes for page in pages)
                if left < 0:
                    most = self._limits.max_frame_bytes
                    raise InvalidRequest(
                        f"expands to more than {most} bytes with those before it in the same item"
                        " (max_frame_bytes)"
                    )
            except TooExpensive as error:
                raise attachments.unreadable(item, index, document, InvalidRequest(error.reason)) from None
            except InvalidRequest as error:
                raise attachments.unreadable(item, index, document, error) from None
            read[document] = pages
        shown = await self._decoder.in_thread(tenant, self._with_pages, item, read, work.roles)
        self._opened.keep(tenant, key, shown)
        return shown

    async def _pages(self, tenant: str, item: Item, document: Document, *, draws: bool) -> list[Page]:
        most = self._limits.max_document_bytes
        if document.length > _base64_size(most):
            raise InvalidRequest(f"has more than {most} bytes (max_document_bytes)")
        most_pages = self._limits.max_document_pages
        call = await self._decoder.in_thread(tenant, _call, item, document, most_pages, draws)
        pages = await self.sandbox.run_encoded(tenant, call)
        return [Page(*page) for page in pages]

    def _with_pages(self, item: Item, read: ReadPages, roles: Sequence[str]) -> Item:
        """The item with these pages; what is computed of them is kept with them. In the thread."""
        found = attachments.with_pages(item, read, roles)
        for shown in in_context((found,)):
            examine(shown)
            content_digest(shown)
            self._decoder.prepare((shown,))
        return found


# What is done in the thread.


def _key(item: Item, work: ReadDocuments) -> bytes:
    """Identifies an item with the pages of its documents."""
    drawn = f"{work.draws} {work.roles} {item.id}".encode()
    shown = fetched_form(item)
    return blake2b(raw_digest(item if shown is None else shown) + drawn, digest_size=_DIGEST_BYTES).digest()


def _call(item: Item, document: Document, most_pages: int, draws: bool) -> EncodedCall:
    data = attachments.document_data(item, document)
    return encoded_call("read_pdf", data, most_pages, draws, document.is_detailed)


def _base64_size(size: int) -> int:
    return -(-size // 3) * 4
