"""HTTP responses: JSON bodies, streams of server-sent events, errors in the API's shape, and the headers that
every response carries.
"""

from collections.abc import MutableMapping

from aiohttp import hdrs, web

from slipring.base.errors import ApiError
from slipring.protocol import wire
from slipring.protocol.endpoints.translation import RESPONSES, ErrorReply, Translation
from slipring.protocol.events import Error
from slipring.server.id_minting import mint

_REQUEST_ID = web.RequestKey("request_id", str)


def json_response(body: object, status: int = 200) -> web.Response:
    return encoded_response(wire.encode(body), status)


def encoded_response(body: bytes, status: int = 200) -> web.Response:
    """JSON as an HTTP response."""
    return web.Response(body=body, status=status, content_type="application/json")


def error_response(error: ApiError, translation: Translation = RESPONSES) -> web.Response:
    """An error as an HTTP response in the shape of the client's API."""
    return error_reply(translation.error(Error.of(error)))


def error_reply(reply: ErrorReply) -> web.Response:
    return web.Response(
        status=reply.status,
        body=wire.encode(reply.body),
        content_type="application/json",
        headers=reply.headers,
    )


def add_standard_headers(headers: MutableMapping[str, str], request_id: str | None = None) -> None:
    """Set ``Server``, without a version that would help to look up known faults, and ``X-Request-Id``."""
    headers["Server"] = "slipring"
    headers["X-Request-Id"] = request_id or mint("req")


def request_id_of(request: web.Request) -> str:
    """The id of a request, for its client and for logs."""
    request_id = request.get(_REQUEST_ID)
    if request_id is None:
        request_id = request[_REQUEST_ID] = mint("req")
    return request_id


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
