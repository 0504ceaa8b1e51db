"""Bodies of requests, put together from ready pieces. A long history is sent with every turn: it is copied
at most once on its way, in blocks, and never as a whole."""

from collections.abc import Iterable, Sequence

from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

_BLOCK = 100_000
"""Few writes, and memory that allocators have at hand."""


def spliced(opening: bytes, items: Iterable[bytes], closing: bytes) -> list[bytes]:
    """Items with commas between them and what stands around them, in pieces to be sent one by one. An item
    that is as long as a block is one, and not copied."""
    pieces = [opening]
    block: list[bytes] = []
    size = 0
    for item in items:
        if len(item) >= _BLOCK:
            pieces += [b",".join([*block, b""]), item]
            block, size = [b""], 0
            continue
        block.append(item)
        size += len(item)
        if size >= _BLOCK:
            pieces.append(b",".join(block))
            block, size = [b""], 0
    return [*pieces, b",".join(block), closing]


class JsonBody(Payload):
    """A body in pieces, as the HTTP client takes it. Can be sent again."""

    _autoclose = True
    _value: Sequence[bytes]

    def __init__(self, pieces: Sequence[bytes]) -> None:
        super().__init__(pieces, content_type="application/json")
        self._size = sum(map(len, pieces))

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._value).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        small: list[bytes] = []
        for piece in self._value:
            if len(piece) < _BLOCK:
                small.append(piece)
                continue
            if small:
                await writer.write(b"".join(small))
                small = []
            await writer.write(piece)
        if small:
            await writer.write(b"".join(small))
