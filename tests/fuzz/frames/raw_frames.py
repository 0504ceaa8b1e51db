"""Bytes of WebSocket connections: frames that RFC 6455 allows, in unusual forms, and then what it forbids."""

import random
import struct
import zlib
from collections.abc import Callable

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
_RSV1 = 0x40
_TAIL = b"\x00\x00\xff\xff"
_LONGEST_CONTROL = 125
MOST_PADDING = 1 << 17
"""Longest rest of a frame that is sent to complete it."""


def frame(
    opcode: int, payload: bytes, rng: random.Random | None = None, *, final: bool = True, bits: int = 0
) -> bytes:
    """A client's frame. With ``rng``, its mask and the form of its length are drawn."""
    length = len(payload)
    first = opcode | bits | (0x80 if final else 0)
    forms = [form for form, most in ((0, 125), (126, 65535), (127, 1 << 62)) if length <= most]
    form = forms[0] if rng is None or opcode >= CLOSE or rng.random() < 0.9 else rng.choice(forms)
    if form == 0:
        head = bytes((first, 0x80 | length))
    elif form == 126:
        head = struct.pack("!BBH", first, 0x80 | 126, length)
    else:
        head = struct.pack("!BBQ", first, 0x80 | 127, length)
    if rng is None or rng.random() < 0.3:
        return head + bytes(4) + payload
    mask = rng.randbytes(4)
    return head + mask + masked(payload, mask)


def masked(payload: bytes, mask: bytes) -> bytes:
    size = len(payload)
    key = int.from_bytes((mask * (size // 4 + 1))[:size])
    return (int.from_bytes(payload) ^ key).to_bytes(size)


def deflated(payload: bytes) -> bytes:
    """A payload as permessage-deflate sends it, with a context of its own."""
    squeeze = zlib.compressobj(wbits=-15)
    return (squeeze.compress(payload) + squeeze.flush(zlib.Z_SYNC_FLUSH)).removesuffix(_TAIL)


def missing_bytes(stream: bytes) -> int:
    """How many bytes the last frame of a stream lacks, as far as its header tells."""
    at, size = 0, len(stream)
    while at < size:
        if at + 2 > size:
            return 1
        length, head = stream[at + 1] & 0x7F, 2
        if length >= 126:
            head = 4 if length == 126 else 10
            if at + head > size:
                return at + head - size
            length = int.from_bytes(stream[at + 2 : at + head])
        at += head + (4 if stream[at + 1] & 0x80 else 0) + length
    return at - size


class RawFrames:
    """Draws the bytes of connections. ``messages`` draws the messages in the frames."""

    def __init__(self, rng: random.Random, messages: Callable[[], bytes]) -> None:
        self._rng = rng
        self._messages = messages

    def legal(self, *, compress: bool) -> tuple[bytes, int]:
        """Frames that are allowed, of one message; and how many."""
        rng = self._rng
        kind = rng.random()
        if kind < 0.35:
            opcode = rng.choice((PING, PONG))
            size = rng.choice((0, 0, 1, 2, 124, _LONGEST_CONTROL, rng.randrange(126)))
            return frame(opcode, rng.randbytes(size), rng), 1
        payload = rng.choice((b"", b"\0", b"{}", b"null", b"[")) if kind < 0.6 else self._messages()
        opcode = TEXT if rng.random() < 0.8 else BINARY
        bits = 0
        if compress and rng.random() < 0.5:
            payload, bits = deflated(payload), _RSV1
        if rng.random() < 0.4:
            return frame(opcode, payload, rng, bits=bits), 1
        return self._fragmented(opcode, payload, bits)

    def _fragmented(self, opcode: int, payload: bytes, bits: int) -> tuple[bytes, int]:
        """A message in fragments, some empty, with control frames in between."""
        rng = self._rng
        cuts = sorted(rng.randrange(len(payload) + 1) for _ in range(rng.choice((1, 1, 2, 3, 8))))
        parts = [payload[start:end] for start, end in zip([0, *cuts], [*cuts, len(payload)], strict=True)]
        frames = []
        for index, part in enumerate(parts):
            last = index == len(parts) - 1
            kind = CONTINUATION if index else opcode
            frames.append(frame(kind, part, rng, final=last, bits=0 if index else bits))
            if not last and rng.random() < 0.3:
                frames.append(frame(rng.choice((PING, PONG)), rng.randbytes(rng.randrange(20)), rng))
        return b"".join(frames), len(frames)

    def poison(self, *, compress: bool) -> bytes:
        """A frame, or bytes that are none, that a server has to refuse; or a close frame."""
        rng = self._rng
        return rng.choice(_POISONS)(rng, self._messages(), compress)

    def damaged(self, stream: bytes) -> bytes:
        """Bytes with a few changes."""
        return damaged(self._rng, stream)


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Data with a few bytes changed, removed, repeated or inserted."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(changed) + 1)
        kind = rng.randrange(5)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del changed[at : at + rng.choice((1, 1, 2, 8))]
        elif kind == 2:
            changed[at:at] = rng.randbytes(rng.choice((1, 1, 2, 8)))
        elif kind == 3:
            changed[at:at] = changed[at : at + rng.choice((1, 4, 32))]
        elif at < len(changed):
            changed[at] = rng.choice(b'\x00\xff\x80\xc0\xed\xf4"{}[],:\\')
    return bytes(changed)


def _head(first: int, length: int, form: int, *, has_mask: bool = True) -> bytes:
    """A header that says what it is told to."""
    bit = 0x80 if has_mask else 0
    if form == 0:
        head = bytes((first & 0xFF, bit | length & 0x7F))
    elif form == 126:
        head = struct.pack("!BBH", first & 0xFF, bit | 126, length & 0xFFFF)
    else:
        head = struct.pack("!BBQ", first & 0xFF, bit | 127, length & (1 << 64) - 1)
    return head + (bytes(4) if has_mask else b"")


def _reserved_opcode(rng: random.Random, text: bytes, compress: bool) -> bytes:
    return frame(rng.choice((3, 4, 5, 6, 7, 11, 12, 13, 14, 15)), text[:100], rng)


def _reserved_bits(rng: random.Random, text: bytes, compress: bool) -> bytes:
    return frame(rng.choice((0, 1, 2, 8, 9, 10)), text[:100], rng, bits=rng.randrange(1, 8) << 4)


def _long_control(rng: random.Random, text: bytes, compress: bool) -> bytes:
    return frame(rng.choice((CLOSE, PING, PONG)), rng.randbytes(rng.choice((126, 200, 70_000))))


def _fragmented_control(rng: random.Random, text: bytes, compress: bool) -> bytes:
    return frame(rng.choice((CLOSE, PING, PONG)), b"a", rng, final=False)


def _stray_continuation(rng: random.Random, text: bytes, compress: bool) -> bytes:
    return frame(CONTINUATION, text, rng, final=rng.random() < 0.5)


def _text_within_text(rng: random.Random, text: bytes, compress: bool) -> bytes:
    opened = frame(rng.choice((TEXT, BINARY)), text, rng, final=False)
    return opened + frame(rng.choice((TEXT, BINARY)), text, rng)


_BROKEN_TEXT = (
    b"\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xe2\x82",
    b"\x80",
    b"\xf8\x88\x80\x80\x80",
    b'{"type":"response.create","input":"\xff"}',
)


def _broken_text(rng: random.Random, text: bytes, compress: bool) -> bytes:
    broken = rng.choice(_BROKEN_TEXT)
    if rng.random() < 0.5:
        return frame(TEXT, broken, rng)
    cut = rng.randrange(len(broken))
    return frame(TEXT, broken[:cut], rng, final=False) + frame(CONTINUATION, broken[cut:], rng)


def _unmasked(rng: random.Random, text: bytes, compress: bool) -> bytes:
    body = text[:100]
    return _head(0x80 | rng.choice((1, 2, 8, 9, 10)), len(body), 0, has_mask=False) + body


def _huge(rng: random.Random, text: bytes, compress: bool) -> bytes:
    lengths = (1 << 16, 1 << 20, 1 << 24, (1 << 24) + 1, 1 << 31, 1 << 32, 1 << 62, 1 << 63, (1 << 64) - 1)
    return _head(rng.randrange(256), rng.choice(lengths), 127) + text


def _wrong_length(rng: random.Random, text: bytes, compress: bool) -> bytes:
    return _head(0x80 | rng.choice((1, 2)), len(text) + rng.randrange(-3, 200), 126) + text


def _close(rng: random.Random, text: bytes, compress: bool) -> bytes:
    codes = (0, 1, 999, 1000, 1001, 1004, 1005, 1006, 1011, 1012, 1015, 2999, 3000, 4999, 5000, 65535)
    code = struct.pack("!H", rng.choice(codes))
    reason = rng.choice((b"", b"bye", b"\xff\xfe", b"\xc3", "ü".encode() * 61, b"x" * 123))
    payload = rng.choice((code + reason, code, b"", b"\x03"))
    return frame(CLOSE, payload, rng) + (frame(TEXT, text, rng) if rng.random() < 0.3 else b"")


def _bad_deflate(rng: random.Random, text: bytes, compress: bool) -> bytes:
    data = deflated(text)
    kind = rng.randrange(4)
    if kind == 0:
        data = damaged(rng, data)
    elif kind == 1:
        data = data[: rng.randrange(len(data) + 1)]
    elif kind == 2:
        data = deflated(bytes(rng.choice((1 << 18, 1 << 20, 1 << 23))))
    else:
        data = rng.randbytes(rng.randrange(1, 60))
    return frame(rng.choice((TEXT, BINARY)), data, rng, bits=_RSV1)


def _garbage(rng: random.Random, text: bytes, compress: bool) -> bytes:
    return rng.randbytes(rng.choice((1, 2, 3, 8, 64, 1000)))


def _http(rng: random.Random, text: bytes, compress: bool) -> bytes:
    return b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"


_POISONS = (
    _reserved_opcode,
    _reserved_bits,
    _long_control,
    _fragmented_control,
    _stray_continuation,
    _text_within_text,
    _broken_text,
    _unmasked,
    _huge,
    _wrong_length,
    _close,
    _bad_deflate,
    _bad_deflate,
    _garbage,
    _http,
)
