"""Documents in the input: PDF files that the server has read for models that take no files.

The item of such a file stays as it was sent, and is opened: models see the text of each page in place of the
file, and a picture of the page if they see pictures. What is stored and what is listed therefore have both.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec import Raw, Struct, structs

from slipring.base.errors import InvalidRequest
from slipring.core.chain.fetched_images import fetched_form
from slipring.protocol import wire
from slipring.protocol.items import InputFile, Item, Message, may_have_images, part_param
from slipring.protocol.pictures.item_pictures import parts_of

_DATA_URL = re.compile(r"data:application/(?:x-)?pdf((?:;[^;,\"]{0,100}){0,8}),", re.IGNORECASE)
_LONGEST_HEAD = 1024
_BEGINNING = "JVBERi0"
"""What the base64 of a PDF file begins with."""
_NAME = "document.pdf"
_fields = msgspec.json.Decoder(dict[str, Raw])
_parts = msgspec.json.Decoder(list[Raw])


class Document(Struct, frozen=True):
    """A PDF file of a request."""

    data: str
    """In base64."""
    is_detailed: bool = False
    """Whether its pages are to be drawn larger."""


class Page(Struct, frozen=True):
    text: str
    image_url: str | None = None
    """A picture of it, as a data URL."""


ReadPages = Mapping[Document, "Sequence[Page] | InvalidRequest"]
"""The pages of documents, or why one could not be read: the message continues a sentence that begins with
"it" (the document)."""


def documents(items: Sequence[Item]) -> tuple[Document, ...]:
    """The documents in items that are not opened with their pages, each once."""
    return tuple(dict.fromkeys(document for item in items for _, _, document in _found(_shown(item))))


def opened(items: Sequence[Item], read: ReadPages, roles: Sequence[str]) -> tuple[Item, ...]:
    """The items, those with documents opened with the pages of these. ``roles``: of the messages that may
    have pictures; others get the texts alone. Raises ``InvalidRequest``, which names the field, for a
    document that could not be read."""
    return tuple(_opened(item, index, read, roles) for index, item in enumerate(items))


def _shown(item: Item) -> Item | None:
    """An item as models see it so far: itself, or with images that were fetched. None if it stands for
    others."""
    return item if item.opened is None else fetched_form(item)


def _found(item: Item | None) -> Iterator[tuple[int, InputFile, Document]]:
    """The documents of an item, each with its place among the parts."""
    if item is None or not may_have_images(item):
        return
    for place, part in enumerate(parts_of(item)):
        if isinstance(part, InputFile) and (document := document_in(part)) is not None:
            yield place, part, document


def document_in(part: InputFile) -> Document | None:
    """The PDF file in a part; None if it has another one, or no data."""
    sent = part.file_data
    if sent is None:
        return None
    head = _DATA_URL.match(sent, 0, _LONGEST_HEAD)
    if head is not None and head[1].lower().rpartition(";")[2] == "base64":
        return Document(sent[head.end() :], part.detail == "high")
    return Document(sent, part.detail == "high") if sent.startswith(_BEGINNING) else None


def _opened(item: Item, index: int, read: ReadPages, roles: Sequence[str]) -> Item:
    shown = _shown(item)
    found: dict[int, list[dict[str, str]]] = {}
    for place, part, document in _found(shown):
        pages = read[document]
        if isinstance(pages, InvalidRequest):
            param = f"{part_param(item, index, place)}.file_data"
            raise InvalidRequest(f"Invalid '{param}': the document {pages.message}.", param=param)
        body = item.body()
        if isinstance(body, Message) and body.role not in roles:
            pages = [Page(page.text) for page in pages]
        found[place] = list(_written(pages, part.filename or _NAME))
    if shown is None or not found:
        return item
    fields = _fields.decode(shown.raw)
    name = "content" if item.type == "message" else "output"
    parts: list[object] = []
    for place, sent in enumerate(_parts.decode(fields[name])):
        parts += found.get(place, [sent])
    raw = wire.encode({**fields, name: parts})
    return structs.replace(item, opened=(structs.replace(shown, raw=raw, opened=None),))


def _written(pages: Sequence[Page], name: str) -> Iterator[dict[str, str]]:
    """The pages of a document, as parts of an item."""
    for number, page in enumerate(pages, 1):
        head = f"{name}, page {number} of {len(pages)}"
        is_blank = page.image_url is None and not page.text.strip()
        text = f"[{head}: no text]\n" if is_blank else f"[{head}]\n{page.text}\n"
        yield {"type": "input_text", "text": text}
        if page.image_url is not None:
            yield {"type": "input_image", "image_url": page.image_url}
