"""Where the data of pictures and documents stands in the JSON of items, for stores, which keep it once.

A span is cut out of the JSON and put back as it was, whatever it is: a string that only looks like data does
no harm.
"""

import re
from hashlib import blake2b
from typing import NamedTuple

from slipring.protocol.items.items import Item, computed_once

LEAST_BYTES = 2048
"""Shorter data stays in its item: a row for it would take as much."""
_START = b";base64,"
_PDF_START = b'"JVBERi0'
"""The beginning of a PDF file that was sent without a data URL."""
_LONGEST_HEAD = 1024
_DATA = re.compile(rb"[A-Za-z0-9+/=\\]*+")
_WINDOW = 64 * 1024
"""Bytes that are searched at once: a search lets no other thread run."""
_MOST = 2000
"""Places where data may begin that are looked at: what follows stays in its item."""
_OVERLAP = max(len(_START), len(_PDF_START)) - 1
_DIGEST_BYTES = 32


class Span(NamedTuple):
    start: int
    end: int
    digest: bytes


@computed_once
def data_spans(item: Item) -> tuple[Span, ...]:
    """The data of pictures and documents in an item, with its digests. Takes time in proportion to the
    item."""
    raw = item.raw
    if len(raw) < LEAST_BYTES:
        return ()
    found: list[Span] = []
    at, looked_at = 0, 0
    while at < len(raw) and looked_at < _MOST:
        window = raw[at : at + _WINDOW + _OVERLAP]
        start = _beginning(window)
        if start is None:
            at += _WINDOW
            continue
        looked_at += 1
        start += at
        at = _end(raw, start)
        if at - start >= LEAST_BYTES:
            digest = blake2b(memoryview(raw)[start:at], digest_size=_DIGEST_BYTES).digest()
            found.append(Span(start, at, digest))
    return tuple(found)


def _beginning(window: bytes) -> int | None:
    """Where data begins first."""
    places = []
    if (place := window.lower().find(_START)) >= 0:  # URLs may have capitals
        places.append(place + len(_START))
    if (place := window.find(_PDF_START)) >= 0:
        places.append(place + 1)
    return min(places, default=None)


def _end(raw: bytes, start: int) -> int:
    """Where data ends: with its string, if that is a data URL or a file, which is found many times faster
    than the end of its alphabet."""
    opening = raw.rfind(b'"', max(start - _LONGEST_HEAD, 0), start)
    if opening >= 0 and (opening == start - 1 or raw[opening + 1 : opening + 6].lower() == b"data:"):
        end = raw.find(b'"', start)
        return len(raw) if end < 0 else end
    end = start
    while (matched := _DATA.match(raw, end, end + _WINDOW)) is not None and matched.end() > end:
        end = matched.end()
    return end
