"""Streams of server-sent events: headers, and chunks of a streamed HTTP/1.1 body (RFC 9112, 7.1)."""

from aiohttp import hdrs, web

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


def is_chunked(response: web.StreamResponse) -> bool:
    """Whether the body of a response whose headers have been sent is chunked: not for HTTP/1.0."""
    return response.headers.get(hdrs.TRANSFER_ENCODING) == "chunked"


def no_head(_: int) -> bytes:
    """What is written before a block: nothing."""
    return b""


def chunk(data: bytes) -> bytes:
    """Data, which must not be empty, as one chunk of a body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
