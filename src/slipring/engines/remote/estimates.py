"""How long a context is, for engines that cannot count: what was counted before, and a guess at the rest."""

import re
from collections.abc import Iterable

from slipring.core.generation import Job
from slipring.protocol.items import Item

_BYTES_PER_TOKEN = 4
_IMAGE_BYTES = 4 * 1500
"""An image takes about so much of a context, however many bytes its data has."""
_DATA = re.compile(rb'"data:[^"]*"')


def estimated_tokens(job: Job) -> int:
    """The tokens of a job's prompt: as the engine reported them for the parent, and four bytes a token for
    what is new."""
    parent = job.parent
    counted = parent.tokens if parent is not None else None
    head = len(bytes(job.head.instructions_json)) + len(job.head.tools.raw)
    if parent is None or counted is None:
        return (head + _bytes(job.context())) // _BYTES_PER_TOKEN
    return counted + ((0 if parent.head == job.head else head) + _bytes(job.input)) // _BYTES_PER_TOKEN


def _bytes(items: Iterable[Item]) -> int:
    return sum(map(_weight, items))


def _weight(item: Item) -> int:
    size = len(item.raw)
    if b'"data:' in item.raw:
        for found in _DATA.finditer(item.raw):
            size += _IMAGE_BYTES - (found.end() - found.start())
    return size
