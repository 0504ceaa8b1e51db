"""Requests with pictures: how they are sent, and which picture a server refuses.

Such a request takes long to write, so it is written in a thread, and pictures that the server should know are
only named. A server that refuses a picture refuses the request, and does not say which picture it means.
Where more than one is new, it is asked about half of them, and half of those, until one is left: eight
requests for the most pictures that a request may have, and none for turns that do not fail. Servers are tried
with a picture that every decoder takes.
"""

import asyncio
import base64
import re
import struct
import zlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from slipring.base.errors import InvalidRequest, ServerError
from slipring.core.generation import Emit, Job
from slipring.engines.tokens.job_exchange import JobExchange, Request, Send, Write
from slipring.engines.tokens.token_answer import TokenAnswer
from slipring.protocol.items.item_pictures import image_param, image_parts, images_of, is_data, plain_url
from slipring.protocol.items.items import in_context

_NAMING_S = 5.0
"""How long the server is asked which picture it refuses. The time counts as that in which its answer has to
begin, and a server that does not answer in time counts as failed."""
_ABOUT_PICTURES = re.compile(r"\bimage|multi-?modal|\bPIL\b", re.IGNORECASE)
_SQUARE_PIXELS = 64
Refuses = Callable[[Sequence[str]], Awaitable[bool]]
"""Whether a server refuses a message with these pictures."""


class PicturedExchange(JobExchange):
    """Sends a request that takes long to write, because it has pictures: it is written in a thread. Names the
    pictures that the server should know; sends all of them if it does not."""

    def __init__(
        self,
        send: Send,
        job: Job,
        write: Write,
        answer: TokenAnswer,
        in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
        refuses: Refuses,
        write_lean: Write | None = None,
    ) -> None:
        """``write_lean``: writes a request without what the server should know; None if that is nothing.
        ``refuses``: asks the server which pictures it refuses, if it has refused the request."""
        super().__init__(send, job, write, answer)
        self._in_thread = in_thread
        self._refuses = refuses
        self._write_lean = write_lean
        self._lean: Request | None = None

    async def prepare(self) -> None:
        if self._write_lean is None:
            self._request = await self._in_thread(self._write)
        else:
            self._lean = await self._in_thread(self._write_lean)

    async def attempt(self, emit: Emit, begin: Callable[[], None]) -> None:
        try:
            await self._try_requests(emit, begin)
        except InvalidRequest as error:
            raise await self._naming_picture(error) from error.__cause__

    async def _try_requests(self, emit: Emit, begin: Callable[[], None]) -> None:
        if self._lean is not None:
            lean, self._lean = self._lean, None
            try:
                await self.send(lean, emit, begin)
                return
            except (InvalidRequest, ServerError):
                if self._answer.has_begun:
                    raise
        if self._request is None:
            self._request = await self._in_thread(self._write)
        await super().attempt(emit, begin)

    async def _naming_picture(self, error: InvalidRequest) -> InvalidRequest:
        """The refusal of a request; of a picture, with its field."""
        if self._answer.has_begun or not may_be_refused_for_pictures(error):
            return error
        new = await self._in_thread(partial(new_pictures, self._job))
        picture = None
        with suppress(TimeoutError):
            async with asyncio.timeout(_NAMING_S):
                picture = await refused_picture(new, self._refuses)
        return error if picture is None else _naming(error, picture)


class NewPicture(NamedTuple):
    param: str
    url: str
    """With its data."""


def may_be_refused_for_pictures(error: InvalidRequest) -> bool:
    """Whether a server's refusal may be about a picture, by its words."""
    return error.param is None and _ABOUT_PICTURES.search(error.message) is not None


def new_pictures(job: Job) -> list[NewPicture]:
    """The pictures in the new items of a job; none if the data of one is not known, because it may be the one
    that is refused. Decodes the items: not for the event loop."""
    found = []
    for index, item in enumerate(job.input):
        if not (images := images_of(item)):
            continue
        shown, *_ = in_context((item,))  # images that were fetched have their data there
        if len(images_of(shown)) != len(images):  # pages of documents stand there, too
            shown = item
        for image, (_, part) in zip(images, image_parts(shown), strict=True):
            if part.image_url is None or not is_data(part.image_url):
                return []
            found.append(NewPicture(image_param(item, index, image), plain_url(part.image_url)))
    return found


async def refused_picture(new: Sequence[NewPicture], refuses: Refuses) -> NewPicture | None:
    """The picture that the server refuses; None if it refuses none of them alone, or others as well."""
    if len(new) == 1:
        return new[0]
    left = new
    while len(left) > 1:
        half = left[: len(left) // 2]
        left = half if await refuses([each.url for each in half]) else left[len(half) :]
    if not left or not await refuses([left[0].url]):
        return None
    return None if await refuses([grey_square_url()]) else left[0]


def _naming(error: InvalidRequest, picture: NewPicture) -> InvalidRequest:
    """The refusal, with the field of the picture."""
    error.message = f"Invalid '{picture.param}': the model's server refuses the image: {error.message}"
    error.args, error.param = (error.message,), picture.param
    return error


def grey_square() -> str:
    """A PNG file that every decoder takes, as base64."""
    rows = (b"\x00" + b"\x80" * _SQUARE_PIXELS) * _SQUARE_PIXELS
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", _SQUARE_PIXELS, _SQUARE_PIXELS, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    )
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )
    return base64.b64encode(data).decode()


def grey_square_url() -> str:
    """The same as a data URL."""
    return f"data:image/png;base64,{grey_square()}"
