"""The pages of a PDF file: their texts, and a picture of each. Runs in the child process of a sandbox only.

PDFium, which Chromium reads PDF files with, does both. It gets the file as bytes, runs no scripts, and is
given fonts by the file alone: a sealed child can open none.
"""

import base64
import binascii
import encodings.utf_16_le  # noqa: F401 a sealed child can load no codec any more
import struct
import zlib
from typing import Any

import pypdfium2
import pypdfium2.raw as pdfium

from slipring.base.errors import InvalidRequest

_SIDE, _DETAILED_SIDE = 1024, 2048
"""Pixels of the longer side of a page."""
_MOST_SCALE = 4.0
"""Pixels for a point of the page: a small page is not drawn larger than this."""
_RGB = 2
_BEGINNING = b"%PDF-"
_WITHIN = 1024
"""Readers accept a file whose header stands within so many bytes."""


def read_pdf(encoded: str, most_pages: int, draws: bool, is_detailed: bool) -> list[tuple[str, str | None]]:
    """The text of each page, and its picture as a data URL if this ``draws``.

    Raises ``InvalidRequest``, whose message continues a sentence that begins with "it".
    """
    side = (_DETAILED_SIDE if is_detailed else _SIDE) if draws else 0
    try:
        data = binascii.a2b_base64(encoded, strict_mode=True)
    except ValueError:
        raise InvalidRequest("is not valid base64") from None
    if _BEGINNING not in data[:_WITHIN]:
        raise InvalidRequest("is no PDF file by its content")
    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        if error.err_code == pdfium.FPDF_ERR_PASSWORD:
            raise InvalidRequest("is protected by a password") from None
        raise InvalidRequest("cannot be read: it is broken, or cut off") from None
    with document:
        count = len(document)
        if not count:
            raise InvalidRequest("has no pages")
        if count > most_pages:
            raise InvalidRequest(f"has {count} pages, and may have {most_pages} (max_document_pages)")
        return [_read_page(document, number, side) for number in range(count)]


def _read_page(document: Any, number: int, side: int) -> tuple[str, str | None]:
    try:
        page = document[number]
    except pypdfium2.PdfiumError:
        raise InvalidRequest(f"cannot be read: its page {number + 1} is broken") from None
    try:
        text_page = page.get_textpage()
        text = text_page.get_text_range().replace("\r\n", "\n").replace("\0", "")
        text_page.close()
        return text, _picture(page, side) if side else None
    finally:
        page.close()


def _picture(page: Any, side: int) -> str:
    longest = max(page.get_size())
    scale = min(side / longest if longest > 0 else _MOST_SCALE, _MOST_SCALE)
    bitmap = page.render(scale=scale, may_draw_forms=False, rev_byteorder=True)
    try:
        return "data:image/png;base64," + base64.b64encode(_png(bitmap)).decode()
    finally:
        bitmap.close()


def _png(bitmap: Any) -> bytes:
    """A PNG file of a bitmap with three bytes for each pixel."""
    width, height, stride = bitmap.width, bitmap.height, bitmap.stride
    pixels = memoryview(bitmap.buffer).cast("B")
    packer = zlib.compressobj(6)
    rows = [packer.compress(b"\0" + pixels[at : at + 3 * width]) for at in range(0, stride * height, stride)]
    header = struct.pack(">IIBBBBB", width, height, 8, _RGB, 0, 0, 0)
    chunks = (b"IHDR", header), (b"IDAT", b"".join(rows) + packer.flush()), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
