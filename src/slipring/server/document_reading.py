"""Reads documents of requests, in the child process of a sandbox: bytes, pages, time and memory are bounded.

PDFium reads them, which the extra ``pdf`` installs. Its child is sealed: it opens no file and no socket. What
was read is kept for a while, so that a history that is sent again does not take the work again.
"""

from collections.abc import Sequence
from importlib.util import find_spec

from slipring.base.errors import InvalidRequest, TooExpensive
from slipring.core.chain.read_documents import Document, Page, ReadPages
from slipring.core.limits import Limits
from slipring.sandbox.pipe_messages import Words
from slipring.sandbox.sandbox import Sandbox, SandboxLimits

MOST_DOCUMENTS = 16
_SIDE, _DETAILED_SIDE = 1024, 2048
"""Pixels of the longer side of a page."""
_WAITING = 16
_CACHE_BYTES = 64 * 1024 * 1024
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


class DocumentReader:
    """Reads documents for the requests of all tenants."""

    def __init__(self, limits: Limits) -> None:
        self.is_on = find_spec("pypdfium2") is not None
        self._limits = limits
        self.sandbox = Sandbox(
            SandboxLimits(
                timeout_s=limits.document_timeout_s,
                memory_bytes=limits.document_memory_bytes,
                waiting=_WAITING,
                call_bytes=_base64_size(limits.max_document_bytes) + _CALL_BYTES,
                result_bytes=limits.max_frame_bytes,
                cache_bytes=_CACHE_BYTES,
                is_sealed=True,
                words=_WORDS,
            ),
            {"read_pdf": "slipring.sandbox.pdf_pages"},
        )

    async def read(self, tenant: str, documents: Sequence[Document], *, draws: bool) -> ReadPages:
        """Read documents, one after the other; ``draws``: with a picture of each page. All pages together are
        within the size of a request."""
        found: dict[Document, Sequence[Page] | InvalidRequest] = {}
        most = left = self._limits.max_frame_bytes
        for number, document in enumerate(documents):
            if number >= MOST_DOCUMENTS:
                found[document] = InvalidRequest(
                    f"is one too many: a request may have {MOST_DOCUMENTS} documents"
                )
                continue
            try:
                pages = await self._read(tenant, document, draws=draws)
                left -= sum(len(page.text) + len(page.image_url or "") for page in pages)
                if left < 0:
                    raise InvalidRequest(
                        f"expands to more than {most} bytes with those before it (max_frame_bytes)"
                    )
                found[document] = pages
            except TooExpensive as error:
                found[document] = InvalidRequest(error.reason)
            except InvalidRequest as error:
                found[document] = error
        return found

    async def close(self) -> None:
        await self.sandbox.close()

    async def _read(self, tenant: str, document: Document, *, draws: bool) -> list[Page]:
        most = self._limits.max_document_bytes
        if len(document.data) > _base64_size(most):
            raise InvalidRequest(f"has more than {most} bytes (max_document_bytes)")
        side = (_DETAILED_SIDE if document.is_detailed else _SIDE) if draws else 0
        pages = await self.sandbox.run(
            tenant, "read_pdf", document.data, self._limits.max_document_pages, side
        )
        return [Page(*page) for page in pages]


def _base64_size(size: int) -> int:
    return -(-size // 3) * 4
