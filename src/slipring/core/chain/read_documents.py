"""Documents in the input: PDF files that the server has read for models that take no files.

The item of such a file stays as it was sent, and is opened: models see the text of each page in place of the
file, and a picture of the page if they see pictures. What is stored and what is listed therefore have both.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec import Raw, Struct, structs

from slipring.base.errors import InvalidRequest
from slipring.core.chain.fetched_images import fetched_form
from slipring.protocol import wire
from slipring.protocol.items import InputFile, Item, opened_with
from slipring.protocol.pictures.item_pictures import attached, part_param, parts_of
from slipring.protocol.pictures.pdf_documents import Document, data_in

_NAME = "document.pdf"
_fields = msgspec.json.Decoder(dict[str, Raw])
_parts = msgspec.json.Decoder(list[Raw])


class Page(Struct, frozen=True):
    text: str
    image_url: str | None = None
    """A picture of it, as a data URL."""

    @property
    def size_bytes(self) -> int:
        return len(self.text) + len(self.image_url or "")


ReadPages = Mapping[Document, Sequence[Page]]


def documents_in(item: Item) -> tuple[Document, ...]:
    """The documents of an item that is not opened with their pages, each once."""
    return tuple(dict.fromkeys(document for _, document in placed(item)))


def placed(item: Item) -> Iterator[tuple[int, Document]]:
    """The documents of an item that is not opened with their pages, with their places among the parts."""
    if (shown := _shown(item)) is not None:
        for part in attached(shown).parts:
            if part.document is not None:
                yield part.place, part.document


def data_of(item: Item, document: Document) -> str:
    """The base64 of a document of this item. Decodes the item: not for the event loop."""
    shown = _shown(item)
    assert shown is not None
    place = next(place for place, each in placed(item) if each == document)
    part = parts_of(shown)[place]
    assert isinstance(part, InputFile)
    return data_in(part)


def opened(item: Item, read: ReadPages, roles: Sequence[str]) -> Item:
    """The item with the pages of its documents. ``roles``: of the messages that may have pictures; others get
    the texts alone. Not for the event loop."""
    shown, found = _shown(item), dict(placed(item))
    if shown is None or not found:
        return item
    role = attached(shown).role
    fields = _fields.decode(shown.raw)
    name = "content" if item.type == "message" else "output"
    parts: list[object] = []
    for place, (sent, part) in enumerate(zip(_parts.decode(fields[name]), parts_of(shown), strict=True)):
        if place not in found:
            parts.append(sent)
            continue
        assert isinstance(part, InputFile)
        pages = read[found[place]]
        if role is not None and role not in roles:
            pages = [Page(page.text) for page in pages]
        parts += _written(pages, part.filename or _NAME)
    raw = wire.encode({**fields, name: parts})
    return opened_with(item, (structs.replace(shown, raw=raw, opened=None),))


def refused(item: Item, index: int, document: Document, error: InvalidRequest) -> InvalidRequest:
    """The error about a document that could not be read, which names its field. The message of ``error``
    continues a sentence that begins with "it" (the document)."""
    place = next(place for place, each in placed(item) if each == document)
    param = f"{part_param(item, index, place)}.file_data"
    return InvalidRequest(f"Invalid '{param}': the document {error.message}.", param=param)


def _shown(item: Item) -> Item | None:
    """An item as models see it so far: itself, or with images that were fetched. None if it stands for
    others."""
    return item if item.opened is None else fetched_form(item)


def _written(pages: Sequence[Page], name: str) -> Iterator[dict[str, str]]:
    """The pages of a document, as parts of an item."""
    for number, page in enumerate(pages, 1):
        head = f"{name}, page {number} of {len(pages)}"
        is_blank = page.image_url is None and not page.text.strip()
        text = f"[{head}: no text]\n" if is_blank else f"[{head}]\n{page.text}\n"
        yield {"type": "input_text", "text": text}
        if page.image_url is not None:
            yield {"type": "input_image", "image_url": page.image_url}
