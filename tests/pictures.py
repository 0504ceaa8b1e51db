"""Small image files of any size in pixels, written by the standard library. All of them can be decoded."""

import base64
import random
import struct
import zlib


def png(width: int, height: int, seed: int = 0) -> bytes:
    """Random grey pixels: a megapixel has a megabyte."""
    pixels = random.Random(seed)
    rows = b"".join(b"\x00" + pixels.randbytes(width) for _ in range(height))
    return png_of(width, height, rows)


def png_of(width: int, height: int, rows: bytes) -> bytes:
    """A PNG file with this header, whatever rows it has."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = (b"IHDR", header), (b"IDAT", zlib.compress(rows, 1)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(kind, data) for kind, data in chunks)


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def jpeg(width: int, height: int) -> bytes:
    """A grey picture. Each block of 8 × 8 pixels takes two bits: no change, and no detail."""
    blocks = -(-width // 8) * -(-height // 8)
    table = b"\x01" + bytes(15) + b"\x00"
    bits = -(-2 * blocks // 8)
    scan = bytes(bits - 1) + (b"\x00" if 2 * blocks % 8 == 0 else bytes([(1 << 8 - 2 * blocks % 8) - 1]))
    return b"".join(
        (
            b"\xff\xd8",
            jpeg_segment(0xE0, b"JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00"),
            jpeg_segment(0xDB, b"\x00" + b"\x01" * 64),
            jpeg_segment(0xC0, struct.pack(">BHHB", 8, height, width, 1) + b"\x01\x11\x00"),
            jpeg_segment(0xC4, b"\x00" + table),
            jpeg_segment(0xC4, b"\x10" + table),
            jpeg_segment(0xDA, b"\x01\x01\x00\x00\x3f\x00"),
            scan,
            b"\xff\xd9",
        )
    )


def jpeg_segment(marker: int, data: bytes) -> bytes:
    return b"\xff" + bytes([marker]) + struct.pack(">H", len(data) + 2) + data


def webp(width: int, height: int) -> bytes:
    """A picture of one colour, lossless: five codes of one symbol each, and no bits for the pixels."""
    bits, at = 0, 0
    codes = [field for value in (200, 100, 50, 255, 0) for field in ((0b101, 3), (value, 8))]
    for value, size in ((width - 1, 14), (height - 1, 14), (0, 7), *codes):
        bits |= value << at
        at += size
    image = b"\x2f" + bits.to_bytes(-(-at // 8), "little")
    return riff(webp_chunk(b"VP8L", image))


def riff(chunks: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WEBP" + chunks


def webp_chunk(kind: bytes, data: bytes) -> bytes:
    return kind + struct.pack("<I", len(data)) + data + b"\x00" * (len(data) % 2)


def gif(width: int, height: int, frames: int = 1) -> bytes:
    """A picture of one colour, black."""
    screen = struct.pack("<HHBBB", width, height, 0x80, 0, 0) + b"\x00\x00\x00\xff\xff\xff"
    return b"GIF89a" + screen + gif_frame(width, height) * frames + b"\x3b"


def gif_frame(width: int, height: int, left: int = 0, top: int = 0) -> bytes:
    bits, at = 0, 0
    # The codes are begun anew after every second pixel, so that all of them have three bits.
    for number in range(width * height):
        for code in (4, 0) if number % 2 == 0 else (0,):
            bits |= code << at
            at += 3
    bits |= 5 << at
    data = bits.to_bytes(-(-(at + 3) // 8), "little")
    blocks = [data[start : start + 255] for start in range(0, len(data), 255)]
    sized = b"".join(bytes([len(block)]) + block for block in blocks)
    return b"\x2c" + struct.pack("<HHHHB", left, top, width, height, 0) + b"\x02" + sized + b"\x00"


FILES = {
    "image/png": png,
    "image/jpeg": jpeg,
    "image/webp": webp,
    "image/gif": gif,
}


def data_url(data: bytes, media_type: str | None = None) -> str:
    """The data URL of a file; its type by content, unless one is given."""
    if media_type is None:
        beginnings = {b"\x89P": "png", b"\xff\xd8": "jpeg", b"RI": "webp", b"GI": "gif"}
        media_type = f"image/{beginnings[data[:2]]}"
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


PIXEL = data_url(png(1, 1))
"""The smallest picture."""
