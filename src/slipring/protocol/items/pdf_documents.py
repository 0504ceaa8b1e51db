"""PDF files in the parts of items: what is known of one without its data."""

import re
from hashlib import blake2b

from msgspec import Struct

from slipring.protocol.items.items import InputFile

_DATA_URL = re.compile(r"data:application/(?:x-)?pdf((?:;[^;,\"]{0,100}){0,8}),", re.IGNORECASE)
_LONGEST_HEAD = 1024
_BEGINNING = "JVBERi0"
"""What the base64 of a PDF file begins with."""
_DIGEST_BYTES = 32


class Document(Struct, frozen=True):
    """A PDF file of a request, without its data."""

    digest: bytes
    """Of its base64."""
    length: int
    """Of its base64."""
    is_detailed: bool = False
    """Whether its pages are to be drawn larger."""


def document_in(part: InputFile) -> Document | None:
    """The PDF file in a part; None if it has another one, or no data."""
    start = _start(part.file_data)
    if part.file_data is None or start is None:
        return None
    data = memoryview(part.file_data.encode())[start:]
    digest = blake2b(data, digest_size=_DIGEST_BYTES).digest()
    return Document(digest, len(data), part.detail == "high")


def data_in(part: InputFile) -> str:
    """The base64 of the PDF file in a part."""
    sent, start = part.file_data, _start(part.file_data)
    assert sent is not None
    return sent[start:]


def _start(sent: str | None) -> int | None:
    """Where the base64 of a PDF file begins."""
    if sent is None:
        return None
    head = _DATA_URL.match(sent, 0, _LONGEST_HEAD)
    if head is not None and head[1].lower().rpartition(";")[2] == "base64":
        return head.end()
    return 0 if sent.startswith(_BEGINNING) else None
