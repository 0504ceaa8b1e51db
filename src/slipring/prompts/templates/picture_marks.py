"""How templates take pictures: as a mark in a text, or as a part of a content.

In ``ChatMessage.content`` a mark stands for each picture, at its place in the text. A mark has the number of
the picture among those of the messages that are written. What a template is given in its place is the
``PictureForm`` that it takes.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

_MARK = re.compile("\ufdd0([0-9]{1,6})\ufdd1")
"""Between two noncharacters, which no text has that is meant for others."""
Role = Literal["system", "user", "assistant", "tool"]
PICTURE_ROLES: tuple[Role, ...] = ("user", "tool", "system")
"""Of messages that clients put pictures into."""
MOVED = "Pictures of the message above:\n"
"""What precedes pictures that were moved to a message of the user."""


class PictureForm(Struct, frozen=True, kw_only=True):
    """What a template is given for a picture, and what it writes for one."""

    part: Mapping[str, Any] | None = None
    """The part of a content that is a list; None: the content is text."""
    text: str = ""
    """What stands for a picture in a text; empty: its mark."""
    id: int | None = None
    """Of the control token that the template writes once for a picture; None: it writes the mark."""
    are_numbered: bool = False
    """Whether it writes another text for a picture after others."""
    roles: tuple[Role, ...] = ()
    """Of the messages in which it writes pictures."""


PARTS = (
    PictureForm(part={"type": "image"}),
    PictureForm(part={"type": "image_url", "image_url": {"url": ""}}),
)
"""The forms that templates take, in the order in which they are tried."""
INLINE = PictureForm()
"""Marks stay in the text, for an engine that is sent text with marks of its own."""


def picture_mark(number: int) -> str:
    """What stands for a picture in the text of a message."""
    return f"\ufdd0{number}\ufdd1"


def unmarked(text: str) -> str:
    """A text of a client, in which nothing passes for a mark."""
    return text.replace("\ufdd0", "\ufffd") if "\ufdd0" in text else text


def has_marks(text: str) -> bool:
    return "\ufdd0" in text and _MARK.search(text) is not None


def split_marks(text: str) -> Iterator[str | int]:
    """The parts of a text: texts, and the numbers of the pictures between them."""
    for place, piece in enumerate(_MARK.split(text)):
        if place % 2:
            yield int(piece)
        elif piece:
            yield piece


def moved_marks(text: str) -> tuple[str, str]:
    """A text without its marks, and the marks."""
    return _MARK.sub("", text), "".join(found[0] for found in _MARK.finditer(text))


def written_content(content: str, text: Callable[[str], str], form: PictureForm | None) -> str | list[Any]:
    """The content of a message for a template. ``text`` is applied to all of it but the pictures."""
    if form is None or not has_marks(content):
        return text(content)
    pieces: Sequence[str | int] = list(split_marks(content))
    if form.part is None:
        return "".join(
            text(piece) if isinstance(piece, str) else form.text or picture_mark(piece) for piece in pieces
        )
    return [
        {"type": "text", "text": text(piece)} if isinstance(piece, str) else {**form.part} for piece in pieces
    ]
