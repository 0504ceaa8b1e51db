"""Attacks by images: files that lie, bombs, floods of pictures, and files that take long to walk through."""

import asyncio
import json
import struct

from tests import pictures
from tests.attack.limits import LARGE_EVENT_MS, MIB
from tests.attack.sockets import Json
from tests.attack.stage import Registry, Stage

attack = Registry("pictures")
_PNG = pictures.png(16, 16)
_FIELD = r"input\[0\]\.content\[1\]\.image_url$"
_WALKS = {
    "chunks of no bytes in a PNG": _PNG[:33] + pictures.png_chunk(b"tEXt", b"") * (8 * MIB // 12),
    "segments of no bytes in a JPEG": b"\xff\xd8" + pictures.jpeg_segment(0xFE, b"") * (2 * MIB),
    "fill bytes in a JPEG": b"\xff\xd8" + b"\xff" * (8 * MIB),
    "fill bytes after a scan of a JPEG": pictures.jpeg(8, 8)[:-2] + b"\xff" * (8 * MIB),
    "restarts in a JPEG": pictures.jpeg(8, 8)[:-2] + b"\xff\xd0\xff\x00" * (2 * MIB),
    "blocks of one byte in a GIF": pictures.gif(8, 8, frames=0)[:-1] + b"\x21\xfe" + b"\x01x" * (4 * MIB),
    "extensions of no bytes in a GIF": pictures.gif(8, 8, frames=0)[:-1] + b"\x21\xfe\x00" * (2 * MIB),
    "chunks of no bytes in a WebP": pictures.riff(pictures.webp_chunk(b"XMP ", b"") * MIB),
}
"""Files of megabytes with as many parts as there can be."""


def _message(*urls: str) -> Json:
    parts = [{"type": "input_image", "image_url": url} for url in urls]
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "look"}, *parts]}


def _create(*urls: str, **fields: object) -> Json:
    return {"model": "simulated", "input": [_message(*urls)], **fields}


@attack(quick=True)
async def lies(stage: Stage) -> None:
    """Files that are cut off, of another type than they say, or of none of the known ones are refused by
    their field."""
    wrong = {
        "image_parse_error": pictures.data_url(_PNG[:-1]),
        "invalid_image_format": pictures.data_url(_PNG, "image/webp"),
        "unsupported_image_media_type": pictures.data_url(b"<svg/>", "image/svg+xml"),
        "invalid_base64_image": "data:image/png;base64,####",
        "empty_image_file": "data:image/png;base64,",
    }
    for code, url in wrong.items():
        stage.refused(await stage.post(_create(url)), (400,), code=code, param=_FIELD)
    for make in pictures.FILES.values():
        data = make(40, 30)
        cut = stage.random.randrange(20, len(data) - 2)
        stage.refused(await stage.post(_create(pictures.data_url(data[:cut]))), (400,), param=_FIELD)


@attack(quick=True)
async def bombs(stage: Stage) -> None:
    """A few bytes that a decoder would make gigabytes of are refused by their header, in each format."""
    side = 60_000
    png = pictures.png_of(side, side, b"")
    jpeg = pictures.jpeg(8, 8).replace(struct.pack(">HH", 8, 8), struct.pack(">HH", side, side))
    gif = pictures.gif(8, 8).replace(struct.pack("<HH", 8, 8), struct.pack("<HH", side, side), 1)
    for data in (png, jpeg, gif, pictures.webp(16_000, 16_000)):
        answer = await stage.post(_create(pictures.data_url(data)))
        stage.refused(answer, (400,), code="image_too_large", param=_FIELD)


@attack(quick=True)
async def addresses(stage: Stage) -> None:
    """Images by URL are not fetched, whatever they point at; neither are files by id."""
    port = stage.server.port
    for url in (
        f"http://127.0.0.1:{port}/health",
        "http://169.254.169.254/latest",
        "file:///etc/passwd",
        "x",
    ):
        stage.refused(await stage.post(_create(url)), (400,), code="invalid_image_url", param=_FIELD)
    body = _create()
    body["input"][0]["content"].append({"type": "input_image", "file_id": "file_1"})
    stage.refused(await stage.post(body), (400,), param=r"input\[0\]\.content\[1\]\.file_id$")


@attack(event_ms=LARGE_EVENT_MS)
async def long_walks(stage: Stage) -> None:
    """Files of megabytes that consist of as many parts as possible, in each format, are refused, and others
    are served meanwhile."""
    for data in _WALKS.values():
        stage.refused(await stage.post(_create(pictures.data_url(data))), (400,), param=_FIELD)


@attack(event_ms=LARGE_EVENT_MS)
async def many(stage: Stage) -> None:
    """More pictures than a context may have are refused, in one request and along a chain."""
    most = 100
    stage.refused(await stage.post(_create(*[pictures.PIXEL] * (most + 1))), (400,), param="input$")
    first = await stage.stored(_create(*[pictures.PIXEL] * most))
    stage.refused(
        await stage.post(_create(pictures.PIXEL, previous_response_id=first)), (400,), param="input$"
    )


@attack(event_ms=LARGE_EVENT_MS)
async def resent(stage: Stage) -> None:
    """A history with a megabyte of pictures that is sent again with every turn is stored once, and read as
    fast as any request of its size."""
    shot = pictures.data_url(pictures.png(1000, 1000))
    history: list[Json] = [_message(shot)]
    for _ in range(8):
        answer = await stage.post({"model": "simulated", "input": history})
        stage.check(answer is not None and answer.status == 200, f"refused: {answer and answer.body[:300]!r}")
        if answer is None:
            return
        history = [*history, *json.loads(answer.body)["output"], _message(pictures.PIXEL)]


# Its deadlines are long: attackers get only the CPU that others leave, and on a busy machine they would be
# cut off before they have sent their pictures, which is no finding about pictures.
@attack(event_ms=LARGE_EVENT_MS, limits={"header_timeout_s": 60, "body_timeout_s": 60})
async def different(stage: Stage) -> None:
    """Large pictures, all different, from sixteen connections at once: each is stored or refused."""
    urls = [pictures.data_url(pictures.png(700, 700, seed=seed)) for seed in range(16)]
    for answer in await asyncio.gather(*(stage.post(_create(url)) for url in urls)):
        stage.answered(answer)
