"""A small picture, with which engines ask servers whether and how they take pictures."""

import base64
import struct
import zlib

_SIDE = 64


def grey_square() -> str:
    """A PNG file that every decoder takes, as base64."""
    rows = (b"\x00" + b"\x80" * _SIDE) * _SIDE
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", _SIDE, _SIDE, 8, 0, 0, 0, 0)),
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
