"""Estimated token counts: of a context that no engine has counted, and of an answer that is cut off."""

import re
from collections.abc import Iterable

from slipring.core.chain.instructions_and_tools import Head
from slipring.core.generation import Job
from slipring.protocol.items.item_pictures import BadPicture, Picture, pictures
from slipring.protocol.items.items import Item

_BYTES_PER_TOKEN = 4
_CHARACTERS_PER_TOKEN = 4
_IMAGE_BYTES = 4 * 1500
"""Other data takes about 1500 tokens of a context, however many bytes it has."""
_PATCH = 28
_LEAST_PICTURE, _MOST_PICTURE = 64, 3000
_DATA = re.compile(rb'"data:[^"]*"')


def estimated_tokens(job: Job) -> int:
    """The tokens of a job's prompt: those that the engine reported for the parent, plus one per four new
    bytes."""
    parent = job.parent
    counted = parent.tokens if parent is not None else None
    if parent is None or counted is None:
        return estimated_context_tokens(job.head, job.context())
    return counted + estimated_context_tokens(None if parent.head == job.head else job.head, job.input)


def estimated_context_tokens(head: Head | None, items: Iterable[Item]) -> int:
    """The tokens of a part of a context, which begins with ``head`` unless that is None."""
    size = len(bytes(head.instructions_json)) + len(head.tools.raw) if head is not None else 0
    return (size + _bytes(items)) // _BYTES_PER_TOKEN


def estimated_text_tokens(characters: int) -> int:
    """The tokens of a text of this length."""
    return -(-characters // _CHARACTERS_PER_TOKEN)


def _bytes(items: Iterable[Item]) -> int:
    return sum(map(_weight, items))


def estimated_picture_tokens(picture: Picture) -> int:
    """The tokens of a picture: one for each 28 × 28 pixels, as with many models, which make a large picture
    smaller before."""
    patches = -(-picture.width // _PATCH) * -(-picture.height // _PATCH)
    return min(max(patches, _LEAST_PICTURE), _MOST_PICTURE)


def _weight(item: Item) -> int:
    """The bytes of an item, with what its pictures take of a context instead of the bytes of their data."""
    size = len(item.raw)
    if b'"data:' not in item.raw:
        return size
    found = _known_pictures(item)
    spans = [data.end() - data.start() for data in _DATA.finditer(item.raw)]
    size += _BYTES_PER_TOKEN * sum(map(estimated_picture_tokens, found)) - sum(spans)
    return size + _IMAGE_BYTES * max(0, len(spans) - len(found))


def _known_pictures(item: Item) -> tuple[Picture, ...]:
    try:
        return pictures(item)
    except BadPicture:
        return ()
