"""The items of a response in compressed form, for chains that exceed the memory of their connection."""

import zlib
from functools import lru_cache

from msgspec import msgpack

from slipring.protocol.items import Item

Items = tuple[tuple[Item, ...], tuple[Item, ...]]
"""Input and output."""
_FASTEST = 1
_encode = msgpack.Encoder().encode
_decoder: msgpack.Decoder[Items] = msgpack.Decoder(Items)


def compress(items: Items) -> bytes:
    """Takes 20 to 40 ms per MB: not for an event loop."""
    return zlib.compress(_encode(items), _FASTEST)


@lru_cache(maxsize=2)
def decompress(data: bytes) -> Items:
    """The last ones are kept, because whoever walks a chain looks at a response several times."""
    return _decoder.decode(zlib.decompress(data))
