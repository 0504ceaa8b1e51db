"""HTTP responses: JSON bodies, errors in the API's shape, and the headers that every response carries."""

from collections.abc import MutableMapping

from aiohttp import web
from msgspec import UNSET, structs

from slipring.base.errors import ApiError
from slipring.protocol import wire
from slipring.protocol.events import Error, ErrorAnswer
from slipring.server.id_minting import mint


def json_response(body: object, status: int = 200) -> web.Response:
    return web.Response(body=wire.encode(body), status=status, content_type="application/json")


def error_response(error: ApiError) -> web.Response:
    """An error as an HTTP response in the API's shape."""
    return error_event_response(Error.of(error))


def error_event_response(event: Error) -> web.Response:
    """The HTTP response for an error event. The event's own ``headers`` become HTTP headers."""
    body = wire.encode(ErrorAnswer(structs.replace(event.error, headers=UNSET)))
    headers = event.error.headers if event.error.headers is not UNSET else {}
    return web.Response(status=event.status, body=body, content_type="application/json", headers=headers)


def add_standard_headers(headers: MutableMapping[str, str]) -> None:
    """Set ``Server``, without a version that would help to look up known faults, and ``X-Request-Id``."""
    headers["Server"] = "slipring"
    headers["X-Request-Id"] = mint("req")
