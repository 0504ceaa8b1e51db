"""Pictures in items: what is known of a picture without decoding it.

The data of a picture stands in its item, as a data URL, and nowhere else. A ``Picture`` is what the rest of
the server knows of it: its digest, by which pictures are compared, its type, and its size.
"""

import binascii
import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple, get_args

import msgspec
from msgspec import Raw, Struct, structs

from slipring.base.errors import InvalidRequest, quoted
from slipring.protocol import wire
from slipring.protocol.items import (
    CallOutput,
    InputFile,
    InputImage,
    Item,
    Message,
    Part,
    computed_once,
    may_have_images,
    part_param,
)
from slipring.protocol.pictures.image_headers import BrokenImage, MediaType, read_image_header

ALL_TYPES: tuple[MediaType, ...] = get_args(MediaType)
_NAMES = {media_type: media_type.removeprefix("image/").upper() for media_type in ALL_TYPES}
_NAMES["image/webp"] = "WebP"
_OTHER_SPELLINGS = {"image/jpg": "image/jpeg", "image/pjpeg": "image/jpeg", "image/x-png": "image/png"}
_DATA_URL = re.compile(r"data:([^;,\"]{0,100})((?:;[^;,\"]{0,100}){0,8}),", re.IGNORECASE)
_LONGEST_HEAD = 1024
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
        self.param = image_param(item, index, self.place)
        self.message = f"Invalid '{self.param}': {self.message[0].lower()}{self.message[1:]}"
        return self


def image_param(item: Item, index: int, place: int) -> str:
    """How errors name the image of a part: by its URL, or by its file id if it has no URL."""
    where = part_param(item, index, place)
    if item.type == "computer_call_output":
        return where
    part = dict(image_parts(item))[place]
    is_file = part.image_url is None and part.file_id is not None
    return f"{where}.{'file_id' if is_file else 'image_url'}"


def image_parts(item: Item) -> Iterator[tuple[int, InputImage]]:
    """The images of an item, each with its place among the parts."""
    if may_have_images(item):
        for place, part in enumerate(parts_of(item)):
            if isinstance(part, InputImage):
                yield place, part


def parts_of(item: Item) -> Sequence[Part]:
    """The parts of a message, or of the output of a call; none if that is a text."""
    body = item.body()
    content: object = None
    if isinstance(body, Message):
        content = body.content
    elif isinstance(body, CallOutput):
        content = body.output
    return content if isinstance(content, list) else ()


@computed_once
def image_count(item: Item) -> int:
    """How many images an item has, whether it has their data or not."""
    return sum(1 for _ in image_parts(item))


@computed_once
def file_count(item: Item) -> int:
    """How many files an item has."""
    return sum(isinstance(part, InputFile) for part in parts_of(item)) if may_have_images(item) else 0


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
    found: list[Picture] = []
    for place, part in image_parts(item):
        if part.image_url is not None and is_data(part.image_url):
            try:
                found.append(picture_of(part.image_url, part.detail))
            except BadPicture as error:
                return _Fault(error.reason, error.code, place)
    return tuple(found)


@computed_once
def attachments(item: Item) -> frozenset[str]:
    """What an item has beside texts: the types of its pictures, ``ELSEWHERE``, ``A_FILE``, and the role of a
    message with images, unless that is the user's. Nothing is known of pictures that are not valid."""
    if not may_have_images(item):
        return frozenset()
    try:
        found: set[str] = {picture.media_type for picture in pictures(item)}
    except BadPicture:
        found = set()
    body = item.body()
    if isinstance(body, Message) and body.role != "user" and image_count(item):
        found.add(f"{_OF_ROLE}{body.role}")
    for part in parts_of(item):
        if isinstance(part, InputFile):
            found.add(A_FILE)
        elif isinstance(part, InputImage) and not (part.image_url is not None and is_data(part.image_url)):
            found.add(ELSEWHERE)
    return frozenset(found)


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
    if claimed not in _NAMES:
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


def without_images(item: Item) -> Item:
    """A message with a line of text in place of each image, which says what it was. Its pictures must be
    valid."""
    places = [place for place, _ in image_parts(item)]
    if not places:
        return item
    found = dict(zip(_data_places(item), pictures(item), strict=True))
    fields = _fields.decode(item.raw)
    parts: list[object] = list(_parts.decode(fields["content"]))
    for place in places:
        shown = described(found[place]) if place in found else "image"
        parts[place] = {"type": "input_text", "text": f"[{shown}]"}
    return structs.replace(item, raw=wire.encode({**fields, "content": parts}))


def _data_places(item: Item) -> list[int]:
    return [
        place for place, part in image_parts(item) if part.image_url is not None and is_data(part.image_url)
    ]


def described(picture: Picture) -> str:
    """What a picture is, in words."""
    return f"{_NAMES[picture.media_type]} picture, {picture.width} × {picture.height}"
