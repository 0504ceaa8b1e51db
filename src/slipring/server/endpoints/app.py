"""The HTTP surface: routes, admission and the shape of every refusal.

``/v1`` may be left out of any path. Who is asking is decided here, once, before anything else is looked at.
"""

import logging
import os
from collections.abc import Awaitable, Callable
from functools import partial

from aiohttp import web
from aiohttp.typedefs import Handler

from slipring import __version__
from slipring.core.generation import Model
from slipring.errors import ApiError, InvalidRequest, NotFound, ServerError
from slipring.protocol.endpoints.small_objects import EngineHealth, Health, ModelList, ModelObject, TurnList
from slipring.server.access.auth import Caller
from slipring.server.background.runs import Background
from slipring.server.clock import now
from slipring.server.cluster import peers
from slipring.server.connections.http_connection import connection_of
from slipring.server.connections.response_headers import sign
from slipring.server.endpoints import conversations
from slipring.server.endpoints.compact import compact
from slipring.server.endpoints.input_tokens import count_tokens
from slipring.server.endpoints.replies import error_response, json_response
from slipring.server.endpoints.responses import StoredResponses
from slipring.server.service import Service, shutting_down
from slipring.server.transports import echo
from slipring.server.transports.http import create_response
from slipring.server.transports.websocket import Connection, serve_websocket

log = logging.getLogger("slipring")

_Endpoint = Callable[[Service, web.Request, Caller], Awaitable[web.StreamResponse]]


class UpgradeRequired(InvalidRequest):
    """Clients take this status as "no WebSocket that way" and go on over HTTP at once."""

    status = 426
    code = "upgrade_required"


def build_app(service: Service, background: Background) -> web.Application:
    app = web.Application(middlewares=[_answer_errors])
    stored = StoredResponses(background)
    create = partial(_create, background)
    endpoints: list[tuple[str, str, _Endpoint]] = [
        ("GET", "/responses", _open_socket),
        ("POST", "/responses", create),
        ("POST", "/responses/compact", compact),
        ("POST", "/responses/input_tokens", count_tokens),
        ("GET", "/responses/{response_id}", stored.retrieve),
        ("DELETE", "/responses/{response_id}", stored.delete),
        ("POST", "/responses/{response_id}/cancel", stored.cancel),
        ("GET", "/responses/{response_id}/input_items", stored.input_items),
        ("POST", "/conversations", conversations.create),
        ("GET", "/conversations/{conversation_id}", conversations.retrieve),
        ("POST", "/conversations/{conversation_id}", conversations.update),
        ("DELETE", "/conversations/{conversation_id}", conversations.delete),
        ("GET", "/conversations/{conversation_id}/items", conversations.list_items),
        ("POST", "/conversations/{conversation_id}/items", conversations.add_items),
        ("GET", "/conversations/{conversation_id}/items/{item_id}", conversations.retrieve_item),
        ("DELETE", "/conversations/{conversation_id}/items/{item_id}", conversations.delete_item),
        ("GET", "/slipring/turns", _list_turns),
        ("GET", "/models", _list_models),
        ("GET", "/models/{model:.+}", _show_model),
    ]
    if service.config.echo:
        endpoints.append(("GET", echo.PATH, _open_echo))
    for method, path, endpoint in endpoints:
        handler = _admitted(service, endpoint)
        for prefix in ("/v1", ""):
            app.router.add_route(method, prefix + path, handler)
            if method == "GET":
                app.router.add_route("HEAD", prefix + path, handler)

    async def health(request: web.Request) -> web.Response:
        return _health(service)

    async def parked(request: web.Request) -> web.Response:
        return _show_parked(service, request)

    app.router.add_get("/health", health)
    # Any method, because what is refused as the wrong one is known to be there.
    app.router.add_route("*", f"{peers.PATH}/{{response_id}}", parked)
    app.on_response_prepare.append(_sign)
    return app


async def _sign(request: web.Request, response: web.StreamResponse) -> None:
    sign(response.headers)


def _admitted(service: Service, endpoint: _Endpoint) -> Handler:
    """Let a request through to an endpoint, as the caller that it comes from."""

    async def handler(request: web.Request) -> web.StreamResponse:
        caller = await service.keyring.admit(request.headers)
        connection, alone = connection_of(request), service.keyring.is_open
        service.connections.identify(connection, caller.tenant, alone=alone)
        if service.draining:
            raise shutting_down()
        return await endpoint(service, request, caller)

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
    except Exception as error:
        if isinstance(error, ConnectionError) and _has_left(request):
            raise  # nobody is left to be told
        log.exception("a request failed unexpectedly")
        response = error_response(ServerError())
    if connection_of(request).is_surplus:
        response.force_close()
    if response.status == UpgradeRequired.status:
        response.headers.update({"Upgrade": "websocket", "Connection": "Upgrade"})
    return response


def _has_left(request: web.Request) -> bool:
    """Whether the client has closed its connection."""
    return request.transport is None or request.transport.is_closing()


def _translate(refusal: web.HTTPException, request: web.Request) -> ApiError:
    """What the HTTP library refused, in our terms. Its own text is not told: it repeats what was sent."""
    if refusal.status == 404:
        return NotFound(f"Unknown path: {request.method} {request.path}", code="unknown_url")
    if refusal.status == 405:
        error: ApiError = InvalidRequest(
            f"{request.method} is not allowed on {request.path}.", code="method_not_allowed"
        )
    elif _asks_for_socket(request):
        error = InvalidRequest("The handshake of the WebSocket is not valid.", code="invalid_request")
    else:
        error = InvalidRequest(f"The request is not valid: {refusal.reason}.", code="invalid_request")
    error.status = refusal.status
    return error


async def _open_socket(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    if not _asks_for_socket(request):
        raise UpgradeRequired("This endpoint takes POST, or GET with an upgrade to a WebSocket.")
    return await serve_websocket(service, request, caller)


async def _open_echo(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    if not _asks_for_socket(request):
        raise UpgradeRequired("This endpoint takes GET with an upgrade to a WebSocket.")
    return await echo.echo(service, request, caller)


def _asks_for_socket(request: web.Request) -> bool:
    return request.headers.get("Upgrade", "").lower() == "websocket"


async def _create(
    background: Background, service: Service, request: web.Request, caller: Caller
) -> web.StreamResponse:
    return await create_response(service, background, request, caller)


def _show_parked(service: Service, request: web.Request) -> web.Response:
    """To another node: what a socket that was cut has left here. To everybody else, there is no such path."""
    response_id = request.match_info["response_id"]
    tenant = service.peers.asked_for(request.headers, response_id) if request.method == "GET" else None
    state = service.parking.find(tenant, response_id, now()) if tenant is not None else None
    if state is None or tenant is None:
        raise web.HTTPNotFound
    body, headers = service.peers.reply(tenant, state)
    return web.Response(body=body, headers=headers, content_type="application/octet-stream")


def _describe(model: Model) -> ModelObject:
    return ModelObject(id=model.name, created=model.created, owned_by=model.owner)


async def _list_models(service: Service, request: web.Request, caller: Caller) -> web.Response:
    return json_response(ModelList([_describe(model) for model in service.models_of(caller)]))


async def _show_model(service: Service, request: web.Request, caller: Caller) -> web.Response:
    return json_response(_describe(service.models_of(caller).find(request.match_info["model"])))


async def _list_turns(service: Service, request: web.Request, caller: Caller) -> web.Response:
    """How the recent turns of the tenant's open sockets went, each socket's newest first."""
    sockets = [client for client in service.clients if isinstance(client, Connection)]
    own = [socket.recent or () for socket in sockets if socket.driver.session.tenant == caller.tenant]
    reports = [report for recent in own for report in reversed(recent)]
    return json_response(TurnList(reports))


def _health(service: Service) -> web.Response:
    engines = [EngineHealth(engine.name, engine.trouble) for engine in service.catalog.engines]
    in_trouble = [engine for engine in engines if engine.trouble is not None]
    serves = not service.draining and len(in_trouble) < len(engines)
    trouble = service.connections.trouble
    body = Health(
        status="draining" if service.draining else "degraded" if in_trouble or trouble else "ok",
        version=__version__,
        pid=os.getpid(),
        engines=engines,
        store=service.store.name,
        connections=service.sockets,
        render_fallbacks=service.render_fallbacks,
        trouble=trouble,
    )
    return json_response(body, status=200 if serves else 503)
