"""The images and files in the input of a turn: which may reach the model, and what the model sees of them.

They are refused unless the model sees them, and images unless they are within the bounds of the server.

An image that a request names by URL is fetched by the server, and a PDF is read by it for models that take no
files. The item stays as it was sent, and is opened: models see it with a data URL in place of the URL, or
with the text of each page in place of the file (and a picture of the page if they see pictures). What is
stored and what is listed therefore have both.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec import Raw, Struct, structs

from slipring.base.errors import InvalidPrompt, InvalidRequest, UnsupportedParameter
from slipring.core.chain.state import Carry
from slipring.core.checks.policies import NO_POLICY, Check, Policy
from slipring.core.generation import Capabilities
from slipring.core.limits import Limits
from slipring.protocol import wire
from slipring.protocol.items.item_pictures import (
    A_FILE,
    ALL_TYPES,
    ELSEWHERE,
    Attached,
    BadPicture,
    Picture,
    attached,
    image_param,
    images_of,
    is_web,
    part_param,
    parts_of,
    pictures,
    roles_in,
)
from slipring.protocol.items.items import InputFile, Item, opened_with
from slipring.protocol.items.pdf_documents import Document, data_in

_BLIND = (
    "This model takes text only: it cannot see images. The models that can have 'image' among the"
    " 'input_modalities' that GET /v1/models lists."
)
_NO_FILES = (
    "This model takes no such file: send its text instead. Of files, this server reads PDFs in 'file_data',"
    " if its extra 'pdf' is installed."
)
_REMOTE = ("http://", "https://")
_UNNAMED_DOCUMENT = "document.pdf"
_fields = msgspec.json.Decoder(dict[str, Raw])
_parts = msgspec.json.Decoder(list[Raw])

Fetched = Mapping[str, "str | InvalidRequest"]
"""Data URLs by the URLs that were fetched, or why that was not possible: the end of a sentence about the
image."""


class AttachmentRules(Struct, frozen=True):
    """Which images and files may reach the model of a turn."""

    capabilities: Capabilities
    limits: Limits
    policy: Policy = NO_POLICY
    """Of safety checks, which read texts."""

    @property
    def unread_by(self) -> str | None:
        """The safety check that cannot read images and whose policy refuses what it cannot read."""
        closed = (check.name for check in self.policy.checks if _must_read_images(check))
        return next(closed, None)

    @property
    def shows_images(self) -> bool:
        return self.capabilities.images and self.unread_by is None

    @property
    def shows_pages(self) -> bool:
        """Whether the pages of documents are shown, and not only their texts."""
        return self.shows_images and "image/png" in self.capabilities.picture_types

    def refuse_beside_documents(self, items: Sequence[Item]) -> None:
        """Refuse what stands beside documents that are to be read, in the same items."""
        for index, item in enumerate(items):
            shown = item if item.opened is None else fetched_form(item)
            if shown is not None and any(part.document is not None for part in attached(shown).parts):
                self._refuse_in(shown, index, reads_documents=True)

    def refuse_unread(self, items: Sequence[Item]) -> None:
        """Refuse documents in items that a running response is to read: only those of requests are opened."""
        if self.capabilities.files:
            return
        for index, item in enumerate(items):
            for part in attached(item).parts:
                if part.document is not None:
                    param = part_param(item, index, part.place)
                    raise UnsupportedParameter(
                        f"Unsupported value: '{param}': documents are not read while a response runs. Send"
                        " its text, or the document in a request that continues the response.",
                        param=param,
                    )

    def refuse_unseen(self, items: Sequence[Item], *, reads_documents: bool = False) -> None:
        """Refuse images and files in new items that the model does not see, and images beyond the limits.
        ``reads_documents``: documents among them will be read before the model gets them."""
        for index, item in enumerate(items):
            # What an item was opened with has passed here before, or this server has made it; except for
            # images that were fetched.
            new = item if item.opened is None else fetched_form(item)
            if new is not None:
                self._refuse_in(new, index, reads_documents=reads_documents)

    def refuse_context(self, carry: Carry) -> None:
        """Refuse a context with this carry if it has what the model does not see, or too many images."""
        capabilities, inspects_all = self.capabilities, self.policy.scope == "all"
        if carry.pictures and not capabilities.images:
            raise UnsupportedParameter(f"The context has images. {_BLIND}", param="model")
        attached = "images" if carry.pictures else "files" if A_FILE in carry.attached else None
        if attached is not None and inspects_all and self.unread_by is not None:
            raise InvalidPrompt(
                f"The context has {attached}, which the safety check '{self.unread_by}' cannot read.",
                param="input",
            )
        if A_FILE in carry.attached and not capabilities.files:
            raise UnsupportedParameter("The context has files, and this model takes none.", param="model")
        if ELSEWHERE in carry.attached and not capabilities.resolves_urls:
            raise UnsupportedParameter(
                "The context has images without their data, and this model's server does not fetch images.",
                param="model",
            )
        unread = sorted({*ALL_TYPES}.intersection(carry.attached).difference(capabilities.picture_types))
        if unread:
            raise UnsupportedParameter(
                f"The context has images of the type {', '.join(unread)}: this model sees"
                f" {', '.join(capabilities.picture_types)}.",
                param="model",
            )
        if others := sorted(roles_in(carry.attached).difference(capabilities.image_roles)):
            raise UnsupportedParameter(
                f"The context has images in messages of the role {', '.join(others)}, where this model takes"
                " none.",
                param="model",
            )
        if carry.pictures > self.limits.max_pictures:
            raise InvalidRequest(
                f"Invalid 'input': the context has {carry.pictures} images, and may have"
                f" {self.limits.max_pictures}.",
                param="input",
            )

    def _refuse_in(self, item: Item, index: int, *, reads_documents: bool = False) -> None:
        has = attached(item)
        if not has.parts:
            return
        shown = []
        for part in has.parts:
            if part.is_image:
                self._refuse_image(part_param(item, index, part.place), has.role)
                if part.has_data:
                    shown.append(part)
                else:
                    self._refuse_elsewhere(part, image_param(item, index, part))
            elif not (reads_documents and part.document is not None):
                self._refuse_file(part_param(item, index, part.place))
        try:
            found = pictures(item)
        except BadPicture as error:
            raise error.placed(item, index) from None
        for part, picture in zip(shown, found, strict=True):
            self.refuse_picture(picture, image_param(item, index, part))

    def refuse_picture(self, picture: Picture, param: str) -> None:
        """Refuse a picture of a type that the model's decoder does not read, and one beyond the limits."""
        capabilities, limits = self.capabilities, self.limits
        if picture.media_type not in capabilities.picture_types:
            raise UnsupportedParameter(
                f"Unsupported value: '{param}': this model sees {', '.join(capabilities.picture_types)}, and"
                f" the image is {picture.media_type}.",
                param=param,
            )
        if picture.size_bytes > limits.max_picture_bytes:
            raise InvalidRequest(
                f"Invalid '{param}': the image has {picture.size_bytes:,} bytes, and may have"
                f" {limits.max_picture_bytes:,}.",
                param=param,
                code="image_file_too_large",
            )
        if picture.width * picture.height > limits.max_picture_pixels:
            raise InvalidRequest(
                f"Invalid '{param}': the image has {picture.width} × {picture.height} pixels, and may have"
                f" {limits.max_picture_pixels:,} of them.",
                param=param,
                code="image_too_large",
            )

    def _refuse_file(self, param: str) -> None:
        if not self.capabilities.files:
            raise UnsupportedParameter(_NO_FILES, param=param)
        if self.unread_by is not None:
            raise InvalidPrompt(
                f"The input has a file, which the safety check '{self.unread_by}' cannot read.", param=param
            )

    def _refuse_image(self, param: str, role: str | None) -> None:
        """Refuse any image if none may reach the model. ``role``: of its message."""
        if not self.capabilities.images:
            raise UnsupportedParameter(_BLIND, param=param)
        if role is not None and role not in self.capabilities.image_roles:
            raise UnsupportedParameter(
                f"This model takes no images in messages of the role {role}: it takes them in those of"
                f" {', '.join(self.capabilities.image_roles)}, and in the outputs of calls.",
                param=param,
            )
        if self.unread_by is not None:
            raise InvalidPrompt(
                f"The input has an image, which the safety check '{self.unread_by}' cannot read.", param=param
            )

    def _refuse_elsewhere(self, part: Attached, param: str) -> None:
        """Refuse an image whose data is not in the request, unless the model's server can get it."""
        url, resolves = part.url, self.capabilities.resolves_urls
        if url is None and not part.has_file_id:
            raise InvalidRequest(
                f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
            )
        if url is None and not resolves:
            raise UnsupportedParameter(
                f"Unsupported parameter: '{param}': this server keeps no files. Send an 'image_url' with a"
                " data URL.",
                param=param,
            )
        if url is not None and not (resolves and is_web(url)):
            known = (
                "expected a data URL or an http(s) URL" if resolves else "this server does not fetch images"
            )
            raise InvalidRequest(
                f"Invalid '{param}': {known}. Send a data URL, such as 'data:image/png;base64,…'.",
                param=param,
                code="invalid_image_url",
            )


def _must_read_images(check: Check) -> bool:
    return check.on_images == "closed" and not {"message", "tool_output"}.isdisjoint(check.subjects)


# Fetched images.


def urls_to_fetch(items: Sequence[Item], capabilities: Capabilities) -> tuple[str, ...]:
    """The URLs of images in items that are not opened, each once: those that this server fetches for a model
    that sees images, unless the engine's server does that."""
    if not capabilities.images or capabilities.resolves_urls:
        return ()
    return tuple(
        dict.fromkeys(
            image.url
            for item in items
            if item.opened is None
            for image in images_of(item)
            if image.url is not None and image.url.lower().startswith(_REMOTE)
        )
    )


def with_fetched_images(items: Sequence[Item], fetched: Fetched) -> tuple[Item, ...]:
    """The items, those with fetched images opened. Raises ``InvalidRequest``, which names the field, for an
    image that could not be fetched."""
    return tuple(_with_fetched(item, index, fetched) for index, item in enumerate(items))


def _with_fetched(item: Item, index: int, fetched: Fetched) -> Item:
    if item.opened is not None:
        return item
    found: dict[int, str] = {}
    for image in images_of(item):
        result = fetched.get(image.url or "")
        if isinstance(result, InvalidRequest):
            param = image_param(item, index, image)
            raise InvalidRequest(f"Invalid '{param}': {result.message}", param=param, code=result.code)
        if result is not None:
            found[image.place] = result
    return opened_with(item, (structs.replace(item, raw=_with_urls(item, found)),)) if found else item


def _with_urls(item: Item, found: Mapping[int, str]) -> bytes:
    """The JSON of an item with these URLs in its parts."""
    fields: dict[str, object] = dict(_fields.decode(item.raw))
    name = "content" if item.type == "message" else "output"
    value = fields[name]
    assert isinstance(value, Raw)
    if item.type == "computer_call_output":
        fields[name] = {**_fields.decode(value), "image_url": found[0]}
    else:
        parts: list[object] = list(_parts.decode(value))
        for place, url in found.items():
            part = parts[place]
            assert isinstance(part, Raw)
            parts[place] = {**_fields.decode(part), "image_url": url}
        fields[name] = parts
    return wire.encode(fields)


def fetched_form(item: Item) -> Item | None:
    """What a model sees of an item with fetched images; None if it has none."""
    if item.opened is None or len(item.opened) != 1 or item.opened[0].type != item.type:
        return None
    return item.opened[0] if item.opened[0].raw != item.raw else None


# Documents.


class Page(Struct, frozen=True):
    """A page of a document, as the server has read it."""

    text: str
    image_url: str | None = None
    """A picture of it, as a data URL."""

    @property
    def size_bytes(self) -> int:
        return len(self.text) + len(self.image_url or "")


ReadPages = Mapping[Document, Sequence[Page]]


def documents_in(item: Item) -> tuple[Document, ...]:
    """The documents of an item that is not opened with their pages, each once."""
    return tuple(dict.fromkeys(document for _, document in documents_with_places(item)))


def has_documents_to_read(items: Iterable[Item], capabilities: Capabilities) -> bool:
    """Whether items have documents that this server reads for the model: it takes no files."""
    return not capabilities.files and any(any(documents_with_places(item)) for item in items)


def documents_with_places(item: Item) -> Iterator[tuple[int, Document]]:
    """The documents of an item that is not opened with their pages, with their places among the parts."""
    if (shown := _shown(item)) is not None:
        for part in attached(shown).parts:
            if part.document is not None:
                yield part.place, part.document


def document_data(item: Item, document: Document) -> str:
    """The base64 of a document of this item. Decodes the item: not for the event loop."""
    shown = _shown(item)
    assert shown is not None
    place = next(place for place, each in documents_with_places(item) if each == document)
    part = parts_of(shown)[place]
    assert isinstance(part, InputFile)
    return data_in(part)


def with_pages(item: Item, read: ReadPages, roles: Sequence[str]) -> Item:
    """The item with the pages of its documents. ``roles``: of the messages that may have pictures; others get
    the texts alone. Not for the event loop."""
    shown, found = _shown(item), dict(documents_with_places(item))
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
        parts += _page_parts(pages, part.filename or _UNNAMED_DOCUMENT)
    raw = wire.encode({**fields, name: parts})
    return opened_with(item, (structs.replace(shown, raw=raw, opened=None),))


def unreadable(item: Item, index: int, document: Document, error: InvalidRequest) -> InvalidRequest:
    """The error about a document that could not be read, which names its field. The message of ``error``
    continues a sentence that begins with "it" (the document)."""
    place = next(place for place, each in documents_with_places(item) if each == document)
    param = f"{part_param(item, index, place)}.file_data"
    return InvalidRequest(f"Invalid '{param}': the document {error.message}.", param=param)


def _shown(item: Item) -> Item | None:
    """An item as models see it so far: itself, or with images that were fetched. None if it stands for
    others."""
    return item if item.opened is None else fetched_form(item)


def _page_parts(pages: Sequence[Page], name: str) -> Iterator[dict[str, str]]:
    """The pages of a document, as parts of an item."""
    for number, page in enumerate(pages, 1):
        head = f"{name}, page {number} of {len(pages)}"
        is_blank = page.image_url is None and not page.text.strip()
        text = f"[{head}: no text]\n" if is_blank else f"[{head}]\n{page.text}\n"
        yield {"type": "input_text", "text": text}
        if page.image_url is not None:
            yield {"type": "input_image", "image_url": page.image_url}
