"""Pictures in items: which images an item has, of what type and size they are, and which are refused.

The data of a picture stands in its item, as a data URL, and nowhere else. A ``Picture`` is what the rest of
the server knows of it: its digest, by which pictures are compared, its type, and its size. ``attached`` says
which images and files an item has: an item with megabytes of them is decoded once, where requests are
decoded, and never for a look at its parts.

The type and the size come from the header of the file: PNG, JPEG, GIF or WebP. No pixel is decoded. The
structure of a file is walked to its end, or to the end of its first frame: a file that was cut off is found,
and so is one whose parts disagree about its size. A decoder therefore allocates what the header says and
nothing else. The work is linear in the bytes, and bounded by a number of parts.
"""

import binascii
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Literal, NamedTuple, cast, get_args

import msgspec
from msgspec import Raw, Struct, structs

from slipring.base.errors import InvalidRequest, quoted
from slipring.protocol import wire
from slipring.protocol.items.data_spans import LEAST_BYTES, data_spans
from slipring.protocol.items.items import (
    Body,
    CallOutput,
    InputFile,
    InputImage,
    Item,
    Message,
    Part,
    computed_once,
    may_be_models,
    may_have_images,
    raw_digest,
)
from slipring.protocol.items.pdf_documents import Document, document_in

MediaType = Literal["image/png", "image/jpeg", "image/gif", "image/webp"]
ALL_TYPES: tuple[MediaType, ...] = get_args(MediaType)
_SHORT_NAMES = {media_type: media_type.removeprefix("image/").upper() for media_type in ALL_TYPES}
_SHORT_NAMES["image/webp"] = "WebP"
_OTHER_SPELLINGS = {"image/jpg": "image/jpeg", "image/pjpeg": "image/jpeg", "image/x-png": "image/png"}
_DATA_URL = re.compile(r"data:([^;,\"]{0,100})((?:;[^;,\"]{0,100}){0,8}),", re.IGNORECASE)
_LONGEST_HEAD = 1024
_LONGEST_ADDRESS = 8192
ELSEWHERE = "elsewhere"
"""An image that has an address or a file id in place of its data."""
A_FILE = "file"
_OF_ROLE = "in a message of the role "
_DIGEST_BYTES = 32
_fields = msgspec.json.Decoder(dict[str, Raw])
_parts = msgspec.json.Decoder(list[Raw])


class Picture(Struct, frozen=True):
    """A picture without its data."""

    digest: str
    """BLAKE2b of the data, as 64 hexadecimal digits."""
    media_type: MediaType
    """By content."""
    width: int
    height: int
    size_bytes: int
    """Of the data, not of its base64."""
    detail: str | None = None
    """As the client asks for; None: ``auto``."""


class BadPicture(InvalidRequest):
    """A picture that cannot be shown to any model. ``place``: of its part, within the item."""

    def __init__(self, reason: str, code: str, place: int = 0) -> None:
        super().__init__(f"The image {reason}.", code=code)
        self.reason = reason
        self.place = place

    def placed(self, item: Item, index: int) -> "BadPicture":
        """The same error, which names the field of a request."""
        image = next(image for image in images_of(item) if image.place == self.place)
        self.param = image_param(item, index, image)
        self.message = f"Invalid '{self.param}': {self.message[0].lower()}{self.message[1:]}"
        return self


class Attached(Struct, frozen=True):
    """An image or a file among the parts of an item, without its data."""

    place: int
    """Among the parts."""
    is_image: bool
    has_data: bool = False
    """Whether it is an image whose data is in its item."""
    url: str | None = None
    """The address of an image without its data; empty if it is too long for one."""
    has_file_id: bool = False
    document: Document | None = None
    """Set if it is a PDF file whose data is in its item."""


class Attachments(Struct, frozen=True):
    """The images and files of an item."""

    role: str | None
    """Of a message; None for outputs of calls."""
    parts: tuple[Attached, ...]


_NONE_ATTACHED = Attachments(None, ())


@computed_once
def attached(item: Item) -> Attachments:
    """Which images and files an item has."""
    if not may_have_images(item):
        return _NONE_ATTACHED
    body = item.body()
    return Attachments(body.role if isinstance(body, Message) else None, tuple(_outlines(_parts_in(body))))


def _outlines(parts: Sequence[Part]) -> Iterator[Attached]:
    for place, part in enumerate(parts):
        if isinstance(part, InputImage):
            url = part.image_url
            has_data = url is not None and is_data(url)
            address = None if url is None or has_data else url if len(url) <= _LONGEST_ADDRESS else ""
            yield Attached(place, True, has_data, address, part.file_id is not None)
        elif isinstance(part, InputFile):
            yield Attached(place, False, document=document_in(part))


def part_param(item: Item, index: int, place: int) -> str:
    """How errors name a part of the content or output of an item: by the position of both."""
    if item.type != "computer_call_output":
        return f"input[{index}].{'content' if item.type == 'message' else 'output'}[{place}]"
    has_url = any(part.has_data or part.url is not None for part in attached(item).parts)
    return f"input[{index}].output.{'image_url' if has_url else 'file_id'}"


def image_param(item: Item, index: int, image: Attached) -> str:
    """How errors name an image: by its URL, or by its file id if it has no URL."""
    where = part_param(item, index, image.place)
    if item.type == "computer_call_output":
        return where
    is_file = not image.has_data and image.url is None and image.has_file_id
    return f"{where}.{'file_id' if is_file else 'image_url'}"


def role_of(message: Item) -> str | None:
    """The role of a message."""
    if may_have_images(message):
        return attached(message).role
    body = message.body()
    assert isinstance(body, Message)
    return body.role


def images_of(item: Item) -> list[Attached]:
    """The images of an item, whether it has their data or not."""
    return [part for part in attached(item).parts if part.is_image]


def image_parts(item: Item) -> Iterator[tuple[int, InputImage]]:
    """The images of an item with their data, each with its place among the parts. Decodes the item: not for
    the event loop."""
    if may_have_images(item):
        for place, part in enumerate(parts_of(item)):
            if isinstance(part, InputImage):
                yield place, part


def parts_of(item: Item) -> Sequence[Part]:
    """The parts of a message, or of the output of a call; none if that is a text. Decodes the item: not for
    the event loop, unless the item is small."""
    return _parts_in(item.body())


def _parts_in(body: Body) -> Sequence[Part]:
    content: object = None
    if isinstance(body, Message):
        content = body.content
    elif isinstance(body, CallOutput):
        content = body.output
    return content if isinstance(content, list) else ()


@computed_once
def image_count(item: Item) -> int:
    """How many images an item has, whether it has their data or not."""
    return len(images_of(item))


@computed_once
def file_count(item: Item) -> int:
    """How many files an item has."""
    return sum(not part.is_image for part in attached(item).parts)


def pictures(item: Item) -> tuple[Picture, ...]:
    """The pictures of an item whose data it has, in the order of its parts. Raises ``BadPicture``. The data
    is read once: the result is kept with the item, also if it is bad."""
    found = _examined(item)
    if isinstance(found, _Fault):
        raise BadPicture(*found)
    return found


class _Fault(NamedTuple):
    """The arguments of a ``BadPicture``. An exception would keep all that its frames refer to."""

    reason: str
    code: str
    place: int


@computed_once
def _examined(item: Item) -> tuple[Picture, ...] | _Fault:
    return _pictures_in(parts_of(item)) if may_have_images(item) else ()


def _pictures_in(parts: Sequence[Part]) -> tuple[Picture, ...] | _Fault:
    found: list[Picture] = []
    for place, part in enumerate(parts):
        if isinstance(part, InputImage) and part.image_url is not None and is_data(part.image_url):
            try:
                found.append(picture_of(part.image_url, part.detail))
            except BadPicture as error:
                return _Fault(error.reason, error.code, place)
    return tuple(found)


@computed_once
def attachments(item: Item) -> frozenset[str]:
    """What an item has beside texts: the types of its pictures, ``ELSEWHERE``, ``A_FILE``, and the role of a
    message with images, unless that is the user's. Nothing is known of pictures that are not valid."""
    has = attached(item)
    if not has.parts:
        return frozenset()
    try:
        found: set[str] = {picture.media_type for picture in pictures(item)}
    except BadPicture:
        found = set()
    if has.role not in (None, "user") and image_count(item):
        found.add(f"{_OF_ROLE}{has.role}")
    for part in has.parts:
        if not part.is_image:
            found.add(A_FILE)
        elif not part.has_data:
            found.add(ELSEWHERE)
    return frozenset(found)


def examine(item: Item) -> None:
    """Work out what later looks at an item need, and keep it with the item. Takes time in proportion to the
    item: those of large requests are examined in the thread that decodes them."""
    kept = item.__dict__
    if kept.keys() >= _EXAMINED:
        return  # no mark of its own: one more entry makes the dictionaries of calls half as large again
    if may_have_images(item) and attached.__name__ not in kept:
        body = item.body()  # once for both
        parts = _parts_in(body)
        kept[_examined.__name__] = _pictures_in(parts)
        role = body.role if isinstance(body, Message) else None
        kept[attached.__name__] = Attachments(role, tuple(_outlines(parts)))
    attachments(item)
    may_be_models(item)
    raw_digest(item)
    data_spans(item)
    hash(item.sent)  # by which it is known: bytes keep it


_EXAMINED = {each.__name__ for each in (attachments, may_be_models, raw_digest, data_spans)}


def roles_in(attached: Iterable[str]) -> set[str]:
    """The roles, other than the user's, of messages with images, of what ``attachments`` says."""
    return {each.removeprefix(_OF_ROLE) for each in attached if each.startswith(_OF_ROLE)}


def is_data(url: str) -> bool:
    """Whether a URL has the data itself."""
    return url[:5].lower() == "data:"


def is_web(url: str) -> bool:
    """Whether a URL is that of a web server."""
    return url[:8].lower().startswith(("http://", "https://"))


def base64_of(url: str) -> str:
    """The base64 in the data URL of a picture."""
    return url[url.index(",", 0, _LONGEST_HEAD) + 1 :]


def plain_url(url: str) -> str:
    """The data URL of a picture as every server reads it: its type by its usual name, and nothing beside it.
    llama-server reads no ``DATA:``, and neither it nor vLLM reads ``BASE64``."""
    head = _DATA_URL.match(url, 0, _LONGEST_HEAD)
    if head is None:
        return url
    plain = f"data:{_type_of(head)};base64,"
    return url if head[0] == plain else plain + url[head.end() :]


def _type_of(head: re.Match[str]) -> str:
    claimed = head[1].strip().lower()
    return _OTHER_SPELLINGS.get(claimed, claimed)


def picture_of(url: str, detail: str | None = None) -> Picture:
    """What is known of the picture in a data URL. Raises ``BadPicture``."""
    head = _DATA_URL.match(url, 0, _LONGEST_HEAD)
    if head is None or head[2].lower().rpartition(";")[2] != "base64":
        raise BadPicture(
            "must be a data URL such as 'data:image/png;base64,…', with base64", "invalid_image_url"
        )
    claimed = _type_of(head)
    if claimed not in _SHORT_NAMES:
        raise BadPicture(
            f"has the type {quoted(claimed)}; supported are {', '.join(ALL_TYPES)}",
            "unsupported_image_media_type",
        )
    data = decoded(url, head.end())
    return picture_in(data, claimed, detail)


def decoded(url: str, start: int) -> bytes:
    """The data of base64 that begins there. Raises ``BadPicture``."""
    try:
        data = binascii.a2b_base64(url[start:], strict_mode=True)
    except ValueError:
        raise BadPicture(
            "is not valid base64: the standard alphabet, padded, without line breaks", "invalid_base64_image"
        ) from None
    if not data:
        raise BadPicture("has no data", "empty_image_file")
    return data


def picture_in(data: bytes, claimed: str, detail: str | None = None) -> Picture:
    """What is known of a picture that is said to be of the type ``claimed``. Raises ``BadPicture``."""
    try:
        header = read_image_header(data)
    except BrokenImage as error:
        raise BadPicture(f"cannot be read: it {error}", "image_parse_error") from None
    if header is None:
        raise BadPicture(
            f"is none of the supported types by its content, which are {', '.join(ALL_TYPES)}",
            "unsupported_image_media_type",
        )
    if header.media_type != claimed:
        raise BadPicture(
            f"is said to be {claimed}, but by its content it is {header.media_type}", "invalid_image_format"
        )
    digest = blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
    detail = None if detail == "auto" else detail
    return Picture(digest, header.media_type, header.width, header.height, len(data), detail)


@computed_once
def without_images(item: Item) -> Item:
    """A message with a line of text in place of each image, which says what it was. Its pictures must be
    valid."""
    images = images_of(item)
    if not images:
        return item
    found = dict(zip((image.place for image in images if image.has_data), pictures(item), strict=True))
    fields, parts = _without_data(item, found) or _content_of(item.raw)
    for image in images:
        shown = described(found[image.place]) if image.has_data else "image"
        parts[image.place] = {"type": "input_text", "text": f"[{shown}]"}
    return structs.replace(item, raw=wire.encode({**fields, "content": parts}))


_Content = tuple[dict[str, Raw], list[object]]


def _content_of(raw: bytes) -> _Content:
    """The fields of a message, and its parts."""
    fields = _fields.decode(raw)
    return fields, list(_parts.decode(fields["content"]))


def _without_data(item: Item, found: Mapping[int, Picture]) -> _Content | None:
    """The same without the data of pictures, which takes no time in proportion to it: where data stands was
    found when the item was examined. None if some of it may stand elsewhere than in the pictures."""
    raw, spans = item.raw, data_spans(item)
    kept, at = [], 0
    for span in spans:
        if raw[span.end : span.end + 1] != b'"' or raw[span.end - 1 : span.end] == b"\\":
            return None  # it does not end with its string
        kept.append(raw[at : span.start])
        at = span.end
    fields, parts = _content_of(b"".join([*kept, raw[at:]]))
    large = [place for place, picture in found.items() if -(-picture.size_bytes // 3) * 4 >= LEAST_BYTES]
    emptied = [place for place in large if len(bytes(cast(Raw, parts[place]))) < LEAST_BYTES]
    # Each of them has lost data, and no more was cut out: so each has lost its own, and nothing else has.
    return (fields, parts) if len(large) == len(emptied) == len(spans) else None


def described(picture: Picture) -> str:
    """What a picture is, in words."""
    return f"{_SHORT_NAMES[picture.media_type]} picture, {picture.width} × {picture.height}"


# Headers of image files.

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
