"""Contexts with pictures as llama.cpp takes them: text, in which a marker stands for each picture.

llama.cpp takes no ids beside pictures, and refuses a request with a picture that it cannot decode.
"""

import asyncio
from collections.abc import Sequence

from slipring.engines.grey_square import grey_square
from slipring.engines.llama.api import Api, describe
from slipring.prompts.tokenization.control_token_guard import ContextSpeller
from slipring.prompts.tokenization.tokenizer import Vocabulary
from slipring.protocol import wire

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

    async def undecodable(self, pictures: list[str]) -> int | None:
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
