"""Bodies and messages that are small on the wire and large when decompressed."""

import asyncio
import functools
import gzip
import zlib

from tests.attack.limits import LARGE_EVENT_MS, MIB
from tests.attack.sockets import CLOSE, CONTINUATION, GONE, TEXT, frame, json_lines, request_head
from tests.attack.stage import Registry, Stage

attack = Registry("compressed", peak_mib=256)
_OFFER = (
    "Sec-WebSocket-Extensions: permessage-deflate; client_no_context_takeover; server_no_context_takeover"
)
_COMPRESSED = 4
"""The reserved bit of a frame that is compressed."""


@functools.cache
def _bomb(kind: str, size: int) -> bytes:
    """Return a JSON text of this many bytes, compressed."""
    pack = {"gzip": 31, "deflate": 15, "raw": -15}[kind]
    deflate = zlib.compressobj(9, zlib.DEFLATED, pack)
    packed = deflate.compress(b'{"input":"')
    block = b"a" * MIB
    for _ in range(size // MIB):
        packed += deflate.compress(block)
    packed += deflate.compress(b'"}')
    return packed + (deflate.flush() if kind != "raw" else deflate.flush(zlib.Z_SYNC_FLUSH)[:-4])


async def _send(stage: Stage, encoding: str, data: bytes) -> object:
    head = request_head(
        "POST",
        "/responses",
        f"Content-Encoding: {encoding}",
        "Connection: close",
        *json_lines(len(data)),
        key=stage.key,
    )
    return await stage.exchange(head + data)


@attack(quick=True, event_ms=LARGE_EVENT_MS)
async def bodies(stage: Stage) -> None:
    """Bodies of 40 KiB that decompress to 40 MiB, by gzip and by deflate, are refused."""
    for encoding in ("gzip", "deflate"):
        answers = await asyncio.gather(*(_send(stage, encoding, _bomb(encoding, 40 * MIB)) for _ in range(4)))
        for answer in answers:
            stage.refused(answer, (400, 413, 415))  # type: ignore[arg-type]


@attack(quick=True)
async def broken_bodies(stage: Stage) -> None:
    """Bodies that do not match their encoding, or are truncated, are refused."""
    whole = gzip.compress(b'{"input":"' + bytes(range(32, 127)) * 100 + b'"}')
    for encoding, data in (
        ("gzip", b"not gzip at all"),
        ("deflate", b"\xff" * 100),
        ("gzip", whole[: len(whole) // 2]),
        ("br", b"\x00" * 10),
        ("zstd", b"\x28\xb5\x2f\xfd" + b"\xff" * 20),
        ("gzip, gzip", whole),
    ):
        stage.refused(await _send(stage, encoding, data), (400, 413, 415))  # type: ignore[arg-type]


async def _burst(stage: Stage, *frames: bytes, codes: tuple[int, ...]) -> None:
    """Send frames on a compressed WebSocket, and require that it is closed with one of these codes."""
    socket = await stage.websocket(_OFFER)
    try:
        async with asyncio.timeout(20):
            for each in frames:
                await socket.send(each)
            opcode, payload = await socket.frame()
            while opcode != CLOSE:  # skip other frames, which may be compressed
                opcode, payload = await socket.frame()
            code = int.from_bytes(payload[:2], "big")
            stage.check(code in codes, f"closed with {code} instead of {codes}")
    except GONE:
        stage.note("closed without a code")
    finally:
        socket.reset()


@attack(flags=("--compression",), event_ms=LARGE_EVENT_MS)
async def messages(stage: Stage) -> None:
    """Messages of 400 KiB that decompress to 400 MiB are closed with 1009, whole and in fragments."""
    packed = _bomb("raw", 400 * MIB)
    whole = frame(TEXT, packed, reserved=_COMPRESSED)
    await asyncio.gather(*(_burst(stage, whole, codes=(1009,)) for _ in range(4)))
    half = len(packed) // 2
    await _burst(
        stage,
        frame(TEXT, packed[:half], reserved=_COMPRESSED, final=False),
        frame(CONTINUATION, packed[half:]),
        codes=(1009,),
    )


@attack(flags=("--compression",))
async def broken_messages(stage: Stage) -> None:
    """A compressed message that cannot be decompressed closes its connection, and no other."""
    for payload in (b"\xff" * 1000, b"\x07" * 1000):
        await _burst(stage, frame(TEXT, payload, reserved=_COMPRESSED), codes=(1000, 1002, 1003, 1007))
