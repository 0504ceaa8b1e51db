"""Images that a request names by URL, and that the server has fetched.

The item of such an image stays as it was sent, and is opened: models see it with a data URL in place of the
URL. What is stored and what is listed therefore have both.
"""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Raw, structs

from slipring.base.errors import InvalidRequest
from slipring.protocol import wire
from slipring.protocol.items import Item, opened_with
from slipring.protocol.pictures.item_pictures import image_param, images_of

Fetched = Mapping[str, "str | InvalidRequest"]
"""Data URLs by the URLs that were fetched, or why that was not possible: the end of a sentence about the
image."""
_REMOTE = ("http://", "https://")
_fields = msgspec.json.Decoder(dict[str, Raw])
_parts = msgspec.json.Decoder(list[Raw])


def remote_urls(items: Sequence[Item]) -> tuple[str, ...]:
    """The URLs of images in items that are not opened, each once."""
    return tuple(
        dict.fromkeys(
            image.url
            for item in items
            if item.opened is None
            for image in images_of(item)
            if image.url is not None and image.url.lower().startswith(_REMOTE)
        )
    )


def opened(items: Sequence[Item], fetched: Fetched) -> tuple[Item, ...]:
    """The items, those with fetched images opened. Raises ``InvalidRequest``, which names the field, for an
    image that could not be fetched."""
    return tuple(_opened(item, index, fetched) for index, item in enumerate(items))


def _opened(item: Item, index: int, fetched: Fetched) -> Item:
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
    return opened_with(item, (structs.replace(item, raw=_with(item, found)),)) if found else item


def _with(item: Item, found: Mapping[int, str]) -> bytes:
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
