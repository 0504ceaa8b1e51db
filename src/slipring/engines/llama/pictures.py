"""What llama.cpp needs of pictures: contexts as text with a marker for each, and which pictures it decodes.

llama.cpp takes no ids beside pictures, and refuses a request with a picture that it cannot decode. So it is
asked about new pictures before the response is created.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from slipring.core.generation import Job
from slipring.engines.llama.api import Api, describe
from slipring.engines.tokens.job_rendering import data_urls
from slipring.engines.tokens.pictured_requests import grey_square
from slipring.prompts.rendering import Rendered
from slipring.prompts.tokenization.control_token_guard import ContextSpeller
from slipring.prompts.tokenization.tokenizer import Vocabulary
from slipring.protocol import wire
from slipring.protocol.items.item_pictures import (
    BadPicture,
    MediaType,
    base64_of,
    image_count,
    image_parts,
    images_of,
)
from slipring.protocol.items.items import Item

PICTURE_TYPES: tuple[MediaType, ...] = ("image/png", "image/jpeg", "image/gif")
"""What llama.cpp decodes."""
RESENT = "llama.cpp takes a context with pictures as text: all of it is sent again"
_OLD_MARKER = "<__media__>"
"""Of servers that do not name theirs."""
_NO_PICTURE = "AAAA"
_AFTER_PICTURE = "\n"


class PicturedText:
    """Writes the prompts of one server that has loaded a projector."""

    def __init__(self, speller: ContextSpeller, marker: str, api: Api, undecodable: str | None) -> None:
        """``undecodable``: how the server refuses data that is no picture; None if it refuses pictures in the
        same way, so that it cannot be asked."""
        self._speller = speller
        self._marker = marker
        self._api = api
        self._undecodable = undecodable

    @classmethod
    async def of(cls, vocabulary: Vocabulary, api: Api) -> "PicturedText":
        """Raises ``StartupError``, ``HttpFailure``."""
        server = api.queries
        marker = str((await describe(server)).get("media_marker") or _OLD_MARKER)
        asked = {"content": "", "add_special": True}
        added = (await server.query("/tokenize", [wire.encode(asked)]))["tokens"]

        def ask(ids: list[int]) -> str:
            return str(server.query_from_thread("/detokenize", {"tokens": ids})["content"])

        speller = ContextSpeller(
            vocabulary,
            None if vocabulary.is_local else ask,
            marker=marker,
            other_markers=(_OLD_MARKER,),
            first=added[0] if added else None,
        )
        refused = await api.refusal(pictured_prompt("", [_NO_PICTURE]))
        decodable = await api.refusal(pictured_prompt("", [grey_square()]))
        return cls(speller, marker, api, refused if refused != decodable else None)

    def write(self, ids: list[int]) -> str:
        """The text of a context. Takes time in proportion to it; a vocabulary that is not local asks the
        server."""
        text = self._speller.write(ids)
        # llama.cpp crashes if nothing follows the last picture.
        return text + _AFTER_PICTURE if text.endswith(self._marker) else text

    async def refuse_undecodable(self, job: Job, in_thread: Callable[..., Awaitable[list[str]]]) -> None:
        """Raise ``BadPicture`` for a new picture that llama.cpp cannot decode. ``in_thread`` does work that
        takes time in proportion to pictures."""
        new = [(index, item) for index, item in enumerate(job.input) if image_count(item)]
        if not new:
            return
        data = await in_thread(base64_in, [item for _, item in new])
        broken = await self._undecodable_among(data)
        if broken is not None:
            places = [(index, item, image.place) for index, item in new for image in images_of(item)]
            index, item, place = places[broken]
            raise BadPicture("cannot be decoded by the model's server", "image_parse_error", place).placed(
                item, index
            )

    async def _undecodable_among(self, pictures: list[str]) -> int | None:
        """Which of the pictures, as base64, is the first that the server cannot decode; None if it decodes
        all of them, or does not say. No slot is used: a text without markers is refused after decoding."""
        if self._undecodable is None or not pictures or not await self._refuses(pictures):
            return None
        for number, picture in enumerate(pictures):
            if await self._refuses([picture]):
                return number
        return None

    async def _refuses(self, pictures: list[str]) -> bool:
        asked = await asyncio.to_thread(pictured_prompt, "", pictures)
        return await self._api.refusal(asked) == self._undecodable


def pictured_prompt(text: str, pictures: Sequence[str]) -> bytes:
    """Encode a prompt with pictures, as base64: the media marker stands for each in the text."""
    return wire.encode({"prompt_string": text, "multimodal_data": pictures})


def prompt_of(job: Job, sent: Rendered, text: str) -> bytes:
    """The prompt of a context with pictures, whose text ``PicturedText.write`` has written."""
    digests = sent.digests()
    urls = data_urls(job, digests)
    return pictured_prompt(text, [base64_of(urls[digest]) for digest in digests])


def base64_in(items: Sequence[Item]) -> list[str]:
    """The data of the pictures in items."""
    return [base64_of(part.image_url or "") for item in items for _, part in image_parts(item)]
