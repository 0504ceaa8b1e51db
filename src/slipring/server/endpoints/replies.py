"""Answers over HTTP: a JSON body, or an error in the API's own shape."""

from aiohttp import web
from msgspec import UNSET, structs

from slipring.errors import ApiError
from slipring.protocol import wire
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
