"""Image files are known by their structure: type, size, and whether they are cut off or broken."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipring.protocol.items.item_pictures import BrokenImage, read_image_header
from tests import pictures
from tests.pictures import FILES, jpeg_segment, png_chunk, riff, webp_chunk

SIZES = [(1, 1), (13, 7), (300, 2)]
BEGINNINGS = {"image/png": 8, "image/jpeg": 3, "image/webp": 12, "image/gif": 6}
"""Bytes by which each type is known."""
FRAME = jpeg_segment(0xC0, struct.pack(">BHHB", 8, 7, 13, 1) + b"\x01\x11\x00")
SCAN = jpeg_segment(0xDA, b"\x01\x01\x00\x00\x3f\x00") + b"\x00\xff\x00\xff\xd0\x00"
END = b"\xff\xd9"


@pytest.mark.parametrize("media_type", FILES)
@pytest.mark.parametrize("size", SIZES)
def test_the_type_and_the_size_are_those_of_the_content(media_type, size):
    assert read_image_header(FILES[media_type](*size)) == (media_type, *size)


@pytest.mark.parametrize("media_type", FILES)
def test_a_file_that_is_cut_off_anywhere_is_broken(media_type):
    data = FILES[media_type](13, 7)
    ends = (
        len(data) - 1 if media_type == "image/gif" else len(data)
    )  # the first frame is whole without the end
    for size in range(ends):
        if size < BEGINNINGS[media_type]:
            assert read_image_header(data[:size]) is None
        else:
            with pytest.raises(BrokenImage):
                read_image_header(data[:size])


@pytest.mark.parametrize("media_type", FILES)
def test_bytes_after_the_end_do_not_matter(media_type):
    assert read_image_header(FILES[media_type](13, 7) + b"more") == (media_type, 13, 7)


@pytest.mark.parametrize(
    "data", [b"", b"BM" + bytes(60), b"%PDF-1.7", b"<svg/>", b"RIFF\x04\x00\x00\x00WAVE"]
)
def test_other_files_are_of_no_known_type(data):
    assert read_image_header(data) is None


def png_with(*chunks: bytes, header: bytes | None = None) -> bytes:
    whole = pictures.png(13, 7)
    return whole[:8] + (header if header is not None else whole[8:33]) + b"".join(chunks)


IDAT, IEND = png_chunk(b"IDAT", b"x"), png_chunk(b"IEND", b"")


def png_header(depth: int = 8, colours: int = 0, rest: bytes = b"\x00\x00\x00") -> bytes:
    return png_chunk(b"IHDR", struct.pack(">IIBB", 13, 7, depth, colours) + rest)


BROKEN = {
    "png without pixels": (png_with(IEND), "has no pixels"),
    "png without a header": (png_with(IDAT, IEND, header=b""), "does not begin with its header"),
    "png whose header has another name": (
        png_with(header=png_chunk(b"IDAT", bytes(13))),
        "does not begin with its header",
    ),
    "png with two headers": (png_with(png_with()[8:33], IDAT, IEND), "has two headers"),
    "png of no colours": (png_with(IDAT, IEND, header=png_header(colours=5)), "a header that is not valid"),
    "png of odd depth": (png_with(IDAT, IEND, header=png_header(depth=3)), "a header that is not valid"),
    "png compressed otherwise": (
        png_with(IDAT, IEND, header=png_header(rest=b"\x01\x00\x00")),
        "a header that is not valid",
    ),
    "png filtered otherwise": (
        png_with(IDAT, IEND, header=png_header(rest=b"\x00\x01\x00")),
        "a header that is not valid",
    ),
    "png interlaced otherwise": (
        png_with(IDAT, IEND, header=png_header(rest=b"\x00\x00\x02")),
        "a header that is not valid",
    ),
    "png of many chunks": (png_with(png_chunk(b"tEXt", b"") * 20_001), "has too many chunks"),
    "png of no width": (pictures.png_of(0, 7, b""), "has no pixels"),
    "jpeg that begins twice": (b"\xff\xd8" + pictures.jpeg(8, 8), "begins twice"),
    "jpeg without pixels": (b"\xff\xd8" + FRAME + END, "has no pixels"),
    "jpeg without anything": (b"\xff\xd8" + jpeg_segment(0xFE, b"") + END, "has no pixels"),
    "jpeg without a size": (b"\xff\xd8" + SCAN + END, "has no pixels"),
    "jpeg of two sizes": (b"\xff\xd8" + FRAME + FRAME + SCAN + END, "has two sizes"),
    "jpeg with a size after its pixels": (b"\xff\xd8" + FRAME + SCAN + FRAME + END, "has two sizes"),
    "jpeg with a short segment": (b"\xff\xd8\xff\xe0\x00\x01", "has a segment that is not valid"),
    "jpeg with a short frame": (b"\xff\xd8" + jpeg_segment(0xC0, b"\x08") + END, "is cut off"),
    "jpeg with bytes astray": (b"\xff\xd8" + FRAME + b"astray", "has bytes astray"),
    "jpeg of many segments": (b"\xff\xd8" + jpeg_segment(0xFE, b"") * 2_001, "has too many segments"),
    "jpeg of a height that comes later": (
        b"\xff\xd8" + FRAME.replace(b"\x00\x07", bytes(2)) + SCAN + END,
        "has no pixels",
    ),
    "gif without frames": (pictures.gif(8, 8, frames=0), "has no pixels"),
    "gif with a frame of no width": (
        pictures.gif(8, 8, frames=0)[:-1] + pictures.gif_frame(0, 8),
        "has no pixels",
    ),
    "gif with another block": (pictures.gif(8, 8, frames=0)[:-1] + b"\x07", "has a block that is not valid"),
    "gif of many extensions": (
        pictures.gif(8, 8, frames=0)[:-1] + b"\x21\xfe\x00" * 50_001,
        "has too many blocks",
    ),
    "jpeg of fill bytes": (b"\xff\xd8" + b"\xff" * 1_000_000, "bytes astray"),
    "jpeg of fill bytes after a scan": (b"\xff\xd8" + FRAME + SCAN + b"\xff" * 1_000_000, "is cut off"),
    "gif of many blocks": (
        pictures.gif(8, 8, frames=0)[:-1] + b"\x21\xfe" + b"\x01x" * 50_001,
        "has too many blocks",
    ),
    "webp without pixels": (riff(webp_chunk(b"EXIF", b"x")), "has no pixels"),
    "webp with a chunk that is cut off": (riff(b"VP8L\xff\x00\x00\x00"), "is cut off"),
    "webp with two headers": (riff(webp_chunk(b"VP8X", bytes(10)) * 2), "has two headers"),
    "webp of many chunks": (riff(webp_chunk(b"XMP ", b"") * 20_001), "has too many chunks"),
    "webp, lossy, no key frame": (
        riff(webp_chunk(b"VP8 ", b"\x01" + bytes(9))),
        "an image that is not valid",
    ),
    "webp, lossy, no start": (riff(webp_chunk(b"VP8 ", bytes(10))), "an image that is not valid"),
    "webp, lossless, no start": (riff(webp_chunk(b"VP8L", bytes(10))), "an image that is not valid"),
    "webp larger than its canvas": (
        riff(webp_chunk(b"VP8X", bytes(10)) + pictures.webp(2, 1)[12:]),
        "larger than its header says",
    ),
    "webp higher than its canvas": (
        riff(webp_chunk(b"VP8X", bytes(10)) + pictures.webp(1, 2)[12:]),
        "larger than its header says",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_files_that_contradict_themselves_are_broken(name):
    data, reason = BROKEN[name]
    with pytest.raises(BrokenImage, match=reason):
        read_image_header(data)


def canvas(width: int, height: int) -> bytes:
    return webp_chunk(
        b"VP8X", bytes(4) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    )


SOUND = {
    "a lossy webp": (
        riff(webp_chunk(b"VP8 ", bytes(3) + b"\x9d\x01\x2a" + struct.pack("<HH", 13, 7))),
        (13, 7),
    ),
    "a webp on a canvas": (riff(canvas(20, 10) + pictures.webp(13, 7)[12:]), (20, 10)),
    "a webp with a profile before its image": (
        riff(canvas(20, 10) + webp_chunk(b"ICCP", b"odd") + pictures.webp(13, 7)[12:]),
        (20, 10),
    ),
    "an animated webp": (
        riff(canvas(20, 10) + webp_chunk(b"ANMF", b"\x01\x00\x00" + bytes(3) + b"\x09\x00\x00\x08\x00\x00")),
        (20, 10),
    ),
    "a gif whose frame is larger than its screen": (
        pictures.gif(8, 8, frames=0)[:-1] + pictures.gif_frame(10, 3, left=5, top=1),
        (15, 8),
    ),
    "a gif with a comment and colours of its own": (
        pictures.gif(8, 8, frames=0)[:-1] + b"\x21\xfe\x02hi\x00" + pictures.gif_frame(8, 8),
        (8, 8),
    ),
    "a gif without colours": (
        b"GIF87a" + struct.pack("<HHBBB", 8, 8, 0, 0, 0) + pictures.gif_frame(8, 8) + b"\x3b",
        (8, 8),
    ),
    "an animated gif": (pictures.gif(8, 8, frames=3), (8, 8)),
    "a jpeg with a long scan": (
        b"\xff\xd8" + FRAME + SCAN + b"\xff\x00" * 32_767 + b"\x00" + END,
        (13, 7),
    ),
    "a jpeg of several scans": (b"\xff\xd8" + FRAME + SCAN + SCAN + END, (13, 7)),
    "a jpeg with markers alone": (b"\xff\xd8\xff\x01\xff\xff\xd3" + FRAME + SCAN + END, (13, 7)),
    "a png with other chunks": (png_with(png_chunk(b"tEXt", b"a\x00b"), IDAT, IDAT, IEND), (13, 7)),
}


@pytest.mark.parametrize("name", SOUND)
def test_other_forms_of_the_known_types_are_read(name):
    data, size = SOUND[name]
    header = read_image_header(data)
    assert header is not None
    assert header[1:] == size


@given(st.data())
@settings(max_examples=400)
def test_changed_bytes_give_a_header_or_a_broken_image(data):
    kind = data.draw(st.sampled_from(sorted(FILES)))
    changed = bytearray(FILES[kind](13, 7))
    for _ in range(data.draw(st.integers(1, 6))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(changed)))
    for each in (bytes(changed), bytes(changed[:cut])):
        try:
            header = read_image_header(each)
        except BrokenImage:
            continue
        assert header is None or (header.width > 0 and header.height > 0)
