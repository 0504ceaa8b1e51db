"""Headers of image files: PNG, JPEG, GIF and WebP. Tells the type by content, and the size in pixels.

No pixel is decoded. The structure of a file is walked to its end, or to the end of its first frame: a file
that was cut off is found, and so is one whose parts disagree about its size. A decoder therefore allocates
what the header says and nothing else. The work is linear in the bytes, and bounded by a number of parts.
"""

import re
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

MediaType = Literal["image/png", "image/jpeg", "image/gif", "image/webp"]

_PNG = b"\x89PNG\r\n\x1a\n"
_MOST_CHUNKS = 20_000
"""Of a PNG or a WebP file. Encoders write 8 KiB into a chunk, so that this is 160 MB."""
_MOST_SEGMENTS = 2_000
"""Of a JPEG file: each has up to 64 KiB of metadata or tables, or is a scan."""
_MOST_BLOCKS = 50_000
"""Of the first frame of a GIF file and what is before it; encoders write 255 bytes into a block."""
_PNG_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
"""Bits of a sample, by the kind of colours."""
_MARKER = re.compile(rb"\xff++([^\xff])")
_MARKER_AFTER_SCAN = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])")
_WINDOW = 64 * 1024
"""Bytes of a scan that are searched at once: the search lets no other thread run."""
_SOI, _EOI, _SOS, _TEM = 0xD8, 0xD9, 0xDA, 0x01
_RESTARTS = range(0xD0, 0xD8)
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of frame headers, which have the size."""


class ImageHeader(NamedTuple):
    media_type: MediaType
    width: int
    height: int


class BrokenImage(ValueError):
    """A file that is cut off or contradicts itself. The message continues a sentence that begins with "it"
    (the file)."""


def read_image_header(data: bytes) -> ImageHeader | None:
    """The type and size of an image file; None if it is of no known type. Raises ``BrokenImage``."""
    for matches, media_type, read in _TYPES:
        if matches(data):
            width, height = read(data)
            if not width or not height:
                raise BrokenImage("has no pixels")
            return ImageHeader(media_type, width, height)
    return None


_CUT_OFF = "is cut off"


def _byte(data: bytes, at: int) -> int:
    if at >= len(data):
        raise BrokenImage(_CUT_OFF)
    return data[at]


def _field(data: bytes, start: int, size: int) -> bytes:
    found = data[start : start + size]
    if len(found) < size:
        raise BrokenImage(_CUT_OFF)
    return found


def _number(data: bytes, start: int, size: int, order: Literal["big", "little"]) -> int:
    return int.from_bytes(_field(data, start, size), order)


# PNG: a signature and chunks; the first has the size.


def _read_png(data: bytes) -> tuple[int, int]:
    if _number(data, 8, 4, "big") != 13 or _field(data, 12, 4) != b"IHDR":
        raise BrokenImage("does not begin with its header")
    width, height = _number(data, 16, 4, "big"), _number(data, 20, 4, "big")
    depth, colours, compression, filters, interlace = _field(data, 24, 5)
    if depth not in _PNG_DEPTHS.get(colours, ()) or compression or filters or interlace > 1:
        raise BrokenImage("has a header that is not valid")
    at, has_pixels = 33, False
    for _ in range(_MOST_CHUNKS):
        size, kind = _number(data, at, 4, "big"), _field(data, at + 4, 4)
        at += 12 + size
        if at > len(data):
            raise BrokenImage(_CUT_OFF)
        if kind == b"IHDR":
            raise BrokenImage("has two headers")
        if kind == b"IEND":
            if not has_pixels:
                raise BrokenImage("has no pixels")
            return width, height
        has_pixels = has_pixels or kind == b"IDAT"
    raise BrokenImage("has too many chunks")


# JPEG: segments, each after a marker; between them the data of scans.


def _read_jpeg(data: bytes) -> tuple[int, int]:
    size: tuple[int, int] | None = None
    has_pixels = False
    for marker, segment in _segments(data):
        if marker in _FRAMES:
            if size is not None:
                raise BrokenImage("has two sizes")
            size = _number(segment, 5, 2, "big"), _number(segment, 3, 2, "big")
        elif marker == _SOS:
            has_pixels = True
    if size is None or not has_pixels:
        raise BrokenImage("has no pixels")
    return size


def _segments(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The segments up to the end of the image, each with its marker."""
    at, after_scan = 2, False
    for _ in range(_MOST_SEGMENTS):
        # Between two segments there is nothing; after the beginning of a scan, its data is skipped.
        found = _after_scan(data, at) if after_scan else _MARKER.match(data, at)
        if found is None:
            raise BrokenImage(_CUT_OFF if after_scan or at >= len(data) - 1 else "has bytes astray")
        marker, at = found[1][0], found.end()
        if marker == _EOI:
            return
        if marker == _SOI:
            raise BrokenImage("begins twice")
        after_scan = marker == _SOS
        if marker == _TEM or marker in _RESTARTS:
            continue
        length = _number(data, at, 2, "big")
        if length < 2:
            raise BrokenImage("has a segment that is not valid")
        yield marker, _field(data, at, length)
        at += length
    raise BrokenImage("has too many segments")


def _after_scan(data: bytes, start: int) -> re.Match[bytes] | None:
    """The marker that ends the data of a scan."""
    for at in range(start, len(data), _WINDOW):
        # A marker of two bytes may begin with the last one.
        if (found := _MARKER_AFTER_SCAN.search(data, at, at + _WINDOW + 1)) is not None:
            return found
    return None


# GIF: the size of the screen, then blocks; a frame may be larger than the screen.


def _read_gif(data: bytes) -> tuple[int, int]:
    width, height = _number(data, 6, 2, "little"), _number(data, 8, 2, "little")
    at = 13 + _colours(_byte(data, 10))
    blocks = 0
    while True:
        kind = _byte(data, at)
        if kind == 0x21:
            at, blocks = _skip_blocks(data, at + 2, blocks)
        elif kind == 0x2C:
            left, top, across, down = (_number(data, at + 1 + 2 * n, 2, "little") for n in range(4))
            if not across or not down:
                raise BrokenImage("has no pixels")
            _skip_blocks(data, at + 11 + _colours(_byte(data, at + 9)), blocks)
            return max(width, left + across), max(height, top + down)
        else:
            raise BrokenImage("has no pixels" if kind == 0x3B else "has a block that is not valid")


def _colours(flags: int) -> int:
    """The size of a colour table, of which these are the flags."""
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _skip_blocks(data: bytes, at: int, blocks: int) -> tuple[int, int]:
    """Skip blocks of data up to the empty one that ends them. Returns where they end, and ``blocks`` with
    their number."""
    while blocks < _MOST_BLOCKS:
        size = _byte(data, at)
        at += 1 + size
        blocks += 1
        if not size:
            return at, blocks
    raise BrokenImage("has too many blocks")


# WebP: chunks within one RIFF chunk. The first has the size: of a still image, or of the canvas that an image
# or the frames of an animation are drawn on.


def _read_webp(data: bytes) -> tuple[int, int]:
    end = 8 + _number(data, 4, 4, "little")
    if end > len(data):
        raise BrokenImage(_CUT_OFF)
    canvas: tuple[int, int] | None = None
    at = 12
    for _ in range(_MOST_CHUNKS):
        if at >= end:
            raise BrokenImage("has no pixels")
        kind, size = _field(data, at, 4), _number(data, at + 4, 4, "little")
        start, at = at + 8, at + 8 + size + size % 2
        if start + size > end:
            raise BrokenImage(_CUT_OFF)
        if kind == b"VP8X":
            if canvas is not None:
                raise BrokenImage("has two headers")
            canvas = _size_less_one(data, start + 4)
        elif (drawn := _drawn(kind, data, start)) is not None:
            if canvas is None:
                canvas = drawn
            if drawn[0] > canvas[0] or drawn[1] > canvas[1]:
                raise BrokenImage("has an image that is larger than its header says")
            return canvas
    raise BrokenImage("has too many chunks")


def _size_less_one(data: bytes, start: int) -> tuple[int, int]:
    return _number(data, start, 3, "little") + 1, _number(data, start + 3, 3, "little") + 1


def _drawn(kind: bytes, data: bytes, start: int) -> tuple[int, int] | None:
    """How far a chunk with pixels reaches on its canvas; None if it has no pixels."""
    if kind == b"VP8 ":
        if _byte(data, start) & 1 or _field(data, start + 3, 3) != b"\x9d\x01\x2a":
            raise BrokenImage("has an image that is not valid")
        width, height = (_number(data, start + at, 2, "little") for at in (6, 8))
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L":
        if _byte(data, start) != 0x2F:
            raise BrokenImage("has an image that is not valid")
        bits = _number(data, start + 1, 4, "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"ANMF":
        left, top = (2 * _number(data, start + at, 3, "little") for at in (0, 3))
        width, height = _size_less_one(data, start + 6)
        return left + width, top + height
    return None


_TYPES: tuple[tuple[Callable[[bytes], bool], MediaType, Callable[[bytes], tuple[int, int]]], ...] = (
    (lambda data: data.startswith(_PNG), "image/png", _read_png),
    (lambda data: data.startswith(b"\xff\xd8\xff"), "image/jpeg", _read_jpeg),
    (lambda data: data.startswith((b"GIF87a", b"GIF89a")), "image/gif", _read_gif),
    (lambda data: data[:4] == b"RIFF" and data[8:12] == b"WEBP", "image/webp", _read_webp),
)
