"""Answers over HTTP: a JSON body, or an error in the API's own shape."""

from aiohttp import web
from msgspec import UNSET, structs

from slipring.errors import ApiError, InvalidJson
from slipring.protocol import requests, wire
from slipring.protocol.events import Error, ErrorAnswer


def json_response(body: object, status: int = 200) -> web.Response:
    return web.Response(body=wire.encode(body), status=status, content_type="application/json")


def error_response(error: ApiError) -> web.Response:
    """An error in the API's own shape."""
    return refusal(Error.of(error))


def refusal(event: Error) -> web.Response:
    """What is an event on a socket, as an answer over HTTP."""
    body = wire.encode(ErrorAnswer(structs.replace(event.error, headers=UNSET)))
    headers = event.error.headers if event.error.headers is not UNSET else {}
    return web.Response(status=event.status, body=body, content_type="application/json", headers=headers)


async def read_body(request: web.Request) -> bytes:
    """The body of a request: text, and not nothing."""
    try:
        body = await request.read()
    except web.RequestPayloadError:
        raise InvalidJson("The request's body cannot be decompressed.") from None
    return requests.require_body(body)
