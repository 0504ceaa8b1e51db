"""The HTTP surface: routes, admission and the shape of every refusal.

``/v1`` may be left out of any path. Who is asking is decided here, once, before anything else is looked at.
"""

import logging
import os
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Handler

from slipring import __version__
from slipring.core.generation import Model
from slipring.errors import ApiError, InvalidRequest, NotFound, ServerError, Unavailable
from slipring.protocol import wire
from slipring.server.http import create_response, error_response
from slipring.server.service import Service, mint, shutting_down
from slipring.server.websocket import Connection, serve_websocket

log = logging.getLogger("slipring")

_Endpoint = Callable[[Service, web.Request, str], Awaitable[web.StreamResponse]]


class UpgradeRequired(InvalidRequest):
    """Clients take this status as "no WebSocket that way" and go on over HTTP at once."""

    status = 426
    code = "upgrade_required"


def build_app(service: Service) -> web.Application:
    app = web.Application(middlewares=[_answer_errors], client_max_size=service.config.limits.max_frame_bytes)
    for prefix in ("/v1", ""):
        app.router.add_get(f"{prefix}/responses", _admitted(service, _open_socket))
        app.router.add_post(f"{prefix}/responses", _admitted(service, _create))
        app.router.add_get(f"{prefix}/slipring/turns", _admitted(service, _list_turns))
        app.router.add_get(f"{prefix}/models", _admitted(service, _list_models))
        app.router.add_get(f"{prefix}/models/{{model:.+}}", _admitted(service, _show_model))

    async def health(request: web.Request) -> web.Response:
        return _health(service)

    app.router.add_get("/health", health)
    app.on_response_prepare.append(_sign)
    return app


async def _sign(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = f"slipring/{__version__}"
    response.headers["X-Request-Id"] = mint("req")


def _admitted(service: Service, endpoint: _Endpoint) -> Handler:
    """Let a request through to an endpoint, as the tenant that it speaks for."""

    async def handler(request: web.Request) -> web.StreamResponse:
        tenant = service.keyring.admit(request.headers)
        if service.draining:
            raise shutting_down()
        return await endpoint(service, request, tenant)

    return handler


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every refusal in the API's shape; unexpected faults are logged, and told without their text."""
    try:
        return await handler(request)
    except ApiError as error:
        response = error_response(error)
    except web.HTTPException as refusal:
        response = error_response(_translate(refusal, request))
        if isinstance(refusal, web.HTTPMethodNotAllowed):
            response.headers["Allow"] = refusal.headers["Allow"]
    except Exception:
        log.exception("a request failed unexpectedly")
        response = error_response(ServerError())
    if response.status == UpgradeRequired.status:
        response.headers.update({"Upgrade": "websocket", "Connection": "Upgrade"})
    return response


def _translate(refusal: web.HTTPException, request: web.Request) -> ApiError:
    """What the HTTP library refused, in our terms."""
    if refusal.status == 404:
        return NotFound(f"Unknown path: {request.method} {request.path}", code="unknown_url")
    if refusal.status == 413:
        error: ApiError = InvalidRequest("The request body is too large.", code="request_too_large")
    elif refusal.status == 405:
        error = InvalidRequest(
            f"{request.method} is not allowed on {request.path}.", code="method_not_allowed"
        )
    else:
        error = InvalidRequest(refusal.text or refusal.reason, code="invalid_request")
    error.status = refusal.status
    return error


async def _open_socket(service: Service, request: web.Request, tenant: str) -> web.StreamResponse:
    if request.headers.get("Upgrade", "").lower() != "websocket":
        raise UpgradeRequired("This endpoint takes POST, or GET with an upgrade to a WebSocket.")
    _require_place(service.sockets, service)
    return await serve_websocket(service, request, tenant)


def _require_place(taken: int, service: Service) -> None:
    if taken >= service.config.limits.max_connections:
        raise Unavailable("The server serves as many clients as it may. Try again later.")


async def _create(service: Service, request: web.Request, tenant: str) -> web.StreamResponse:
    _require_place(len(service.clients), service)
    return await create_response(service, request, tenant)


def _describe(model: Model) -> dict[str, object]:
    return {"id": model.name, "object": "model", "created": model.created, "owned_by": model.owner}


async def _list_models(service: Service, request: web.Request, tenant: str) -> web.Response:
    return _json({"object": "list", "data": [_describe(model) for model in service.catalog]})


async def _show_model(service: Service, request: web.Request, tenant: str) -> web.Response:
    return _json(_describe(service.catalog.find(request.match_info["model"])))


async def _list_turns(service: Service, request: web.Request, tenant: str) -> web.Response:
    """How the recent turns of the tenant's open sockets went, each socket's newest first."""
    sockets = [client for client in service.clients if isinstance(client, Connection)]
    own = [socket.recent or () for socket in sockets if socket.driver.session.tenant == tenant]
    return _json({"object": "list", "data": [report for recent in own for report in reversed(recent)]})


def _health(service: Service) -> web.Response:
    engines = [{"name": engine.name, "trouble": engine.trouble} for engine in service.catalog.engines]
    in_trouble = [engine for engine in engines if engine["trouble"] is not None]
    serves = not service.draining and len(in_trouble) < len(engines)
    body = {
        "status": "draining" if service.draining else "degraded" if in_trouble else "ok",
        "version": __version__,
        "pid": os.getpid(),
        "engines": engines,
        "store": service.store.name,
        "connections": service.sockets,
        "render_fallbacks": service.render_fallbacks,
    }
    return _json(body, status=200 if serves else 503)


def _json(body: object, status: int = 200) -> web.Response:
    return web.Response(body=wire.encode(body), status=status, content_type="application/json")
