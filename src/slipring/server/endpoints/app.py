"""The web application: routes, authentication, and errors in the API's shape.

``/v1`` may be left out of any path. Every endpoint but ``/health`` and ``/ready`` is called with the
authenticated caller.
"""

import logging
import time
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from msgspec import UNSET

from slipring.base.errors import ApiError, InvalidRequest, NotFound, ServerError
from slipring.core.generation import Model
from slipring.protocol.endpoints.reply_bodies import ModelList, ModelObject, TurnList
from slipring.protocol.endpoints.translation import RESPONSES, Translation
from slipring.protocol.messages.requests import MessagesTranslation
from slipring.server import peers
from slipring.server.access.auth import Caller
from slipring.server.background.runs import Background
from slipring.server.clock import now
from slipring.server.connections.client_connection import connection_of
from slipring.server.endpoints import conversations, messages
from slipring.server.endpoints.chat_completions import complete
from slipring.server.endpoints.codex_catalog import describe_for_codex
from slipring.server.endpoints.compact import compact
from slipring.server.endpoints.decisions import decide
from slipring.server.endpoints.messages import speaks_messages
from slipring.server.endpoints.moderations import moderate
from slipring.server.endpoints.replies import (
    add_standard_headers,
    body_of,
    error_response,
    json_response,
    request_id_of,
)
from slipring.server.endpoints.responses import Responses, count_tokens
from slipring.server.observation.health import StoreHealth, health_of, readiness_of
from slipring.server.process.shutdown import shutting_down
from slipring.server.service import Service
from slipring.server.transports import websocket
from slipring.server.transports.websocket import (
    UPGRADE_HEADERS,
    UpgradeRequired,
    WebSocketConnection,
    asks_for_upgrade,
    serve_websocket,
)

log = logging.getLogger("slipring")

_CALLER = web.RequestKey("caller", Caller)
_Endpoint = Callable[[Service, web.Request, Caller], Awaitable[web.StreamResponse]]
_HINTS = {
    "/chat/completions": "Chat completions are not stored",
    "/completions": "This server has chat completions, not the Completions API",
}
"""By path prefix, why a path below it does not exist. POST /v1/chat/completions is what to use instead."""


def build_app(service: Service, background: Background) -> web.Application:
    """The application with all endpoints of a server."""
    app = web.Application(middlewares=[_answering_errors(service)])
    responses = Responses(background)
    endpoints: list[tuple[str, str, _Endpoint]] = [
        ("GET", "/responses", serve_websocket),
        ("POST", "/responses", responses.create),
        ("POST", "/responses/compact", compact),
        ("POST", "/responses/input_tokens", count_tokens),
        ("GET", "/responses/{response_id}", responses.retrieve),
        ("DELETE", "/responses/{response_id}", responses.delete),
        ("POST", "/responses/{response_id}/cancel", responses.cancel),
        ("GET", "/responses/{response_id}/input_items", responses.input_items),
        ("POST", "/conversations", conversations.create),
        ("GET", "/conversations/{conversation_id}", conversations.retrieve),
        ("POST", "/conversations/{conversation_id}", conversations.update),
        ("DELETE", "/conversations/{conversation_id}", conversations.delete),
        ("GET", "/conversations/{conversation_id}/items", conversations.list_items),
        ("POST", "/conversations/{conversation_id}/items", conversations.add_items),
        ("GET", "/conversations/{conversation_id}/items/{item_id}", conversations.retrieve_item),
        ("DELETE", "/conversations/{conversation_id}/items/{item_id}", conversations.delete_item),
        ("POST", "/chat/completions", complete),
        ("POST", "/decisions", decide),
        ("POST", "/moderations", moderate),
        ("POST", "/messages", messages.create),
        ("POST", "/messages/count_tokens", messages.count_tokens),
        ("GET", "/slipring/turns", _list_turns),
        ("GET", "/models", _list_models),
        ("GET", "/models/{model:.+}", _show_model),
    ]
    if service.config.echo:
        endpoints.append(("GET", websocket.ECHO_PATH, websocket.echo))
    for method, path, endpoint in endpoints:
        handler = _authenticated(service, endpoint)
        for prefix in ("/v1", ""):
            app.router.add_route(method, prefix + path, handler)
            if method == "GET":
                app.router.add_route("HEAD", prefix + path, handler)

    async def parked(request: web.Request) -> web.Response:
        return _show_parked(service, request)

    app.router.add_route("*", "/", _answer_root)
    # Every method, because a 405 would reveal that the path exists.
    app.router.add_route("*", f"{peers.PATH}/{{response_id}}", parked)
    _add_probes(app, service)
    app.on_response_prepare.append(_adding_headers(service))
    return app


def _add_probes(app: web.Application, service: Service) -> None:
    """The endpoints that balancers and operators ask, without a key."""
    store_health = StoreHealth(service.store, time.monotonic)

    async def health(request: web.Request) -> web.Response:
        return json_response(*health_of(service, await store_health.trouble()))

    async def ready(request: web.Request) -> web.Response:
        return json_response(*readiness_of(service))

    async def ready_to_store(request: web.Request) -> web.Response:
        return json_response(*readiness_of(service, await store_health.trouble()))

    async def end_trials(app: web.Application) -> None:
        await store_health.close()

    app.router.add_get("/health", health)
    app.router.add_get("/ready", ready)
    app.router.add_get("/ready/store", ready_to_store)
    app.on_cleanup.append(end_trials)


def _adding_headers(service: Service) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """Adds the headers that every response has, and how much is left of the quotas of the caller's key."""

    async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
        request_id = request_id_of(request)
        add_standard_headers(response.headers, request_id)
        if speaks_messages(request):
            response.headers["request-id"] = request_id
        caller = request.get(_CALLER)
        if caller is not None and caller.key is not None and request.method == "POST":
            limits = service.quotas.standing(caller.key)
            response.headers.update(_translation_of(request).limit_headers(limits))

    return add_headers


def _authenticated(service: Service, endpoint: _Endpoint) -> Handler:
    """A handler that authenticates a request, applies the limits on connections, and calls ``endpoint``."""

    async def handler(request: web.Request) -> web.StreamResponse:
        caller = request[_CALLER] = await service.keyring.admit(request.headers)
        connection, alone = connection_of(request), service.keyring.is_open
        service.connections.identify(connection, caller.tenant, alone=alone)
        if service.draining:
            raise shutting_down()
        return await endpoint(service, request, caller)

    return handler


def _answering_errors(service: Service) -> Middleware:
    """Turns exceptions into responses in the API's shape, and counts them. Unexpected ones are logged, and
    their text is not sent."""

    @web.middleware
    async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
        # Answered within the clauses: a variable that outlives them would refer to this frame by the
        # exception's traceback, and only a garbage collection would free the request and its body.
        try:
            return await handler(request)
        except ApiError as error:
            return _refuse(service, request, error)
        except web.HTTPException as refusal:
            allowed = refusal.headers.get("Allow")
            return _refuse(service, request, _translate(refusal, request), allowed)
        except Exception as failure:
            if isinstance(failure, ConnectionError) and _is_disconnected(request):
                raise  # there is no client to answer
            log.exception("a request failed unexpectedly")
            return _refuse(service, request, ServerError())

    return answer_errors


def _refuse(
    service: Service, request: web.Request, error: ApiError, allowed: str | None = None
) -> web.StreamResponse:
    """Count an error, and make the response that tells it. ``allowed``: the methods that the path has."""
    if not error.is_reported:
        service.refusals[error.code] += 1
    response = error_response(error, _translation_of(request))
    if allowed is not None:
        response.headers["Allow"] = allowed
    if connection_of(request).is_surplus:
        response.force_close()
    if response.status == UpgradeRequired.status:
        response.headers.update(UPGRADE_HEADERS)
    return response


def _translation_of(request: web.Request) -> Translation:
    """That of the API whose path was asked for: errors that come before its endpoint have its shape too."""
    return MessagesTranslation(request_id_of(request)) if speaks_messages(request) else RESPONSES


async def _answer_root(request: web.Request) -> web.Response:
    """Some clients ask with HEAD whether there is a server. There is nothing else at this path."""
    if request.method != "HEAD":
        raise web.HTTPNotFound
    return web.Response()


def _is_disconnected(request: web.Request) -> bool:
    """Whether the client has closed its connection."""
    return request.transport is None or request.transport.is_closing()


def _translate(refusal: web.HTTPException, request: web.Request) -> ApiError:
    """An error of aiohttp as an error of the API. aiohttp's text is not sent: it repeats the request."""
    if refusal.status == 404:
        message = f"Unknown path: {request.method} {request.path}"
        return NotFound(message + _hint(request.path), code="unknown_url")
    if refusal.status == 405:
        error: ApiError = InvalidRequest(
            f"{request.method} is not allowed on {request.path}.", code="method_not_allowed"
        )
    elif asks_for_upgrade(request):
        error = InvalidRequest("The handshake of the WebSocket is not valid.", code="invalid_request")
    else:
        error = InvalidRequest(f"The request is not valid: {refusal.reason}.", code="invalid_request")
    error.status = refusal.status
    return error


def _hint(path: str) -> str:
    """What to use instead of a path that this server does not have."""
    inner = path.removeprefix("/v1")
    if inner in ("", "/"):
        return ". The API is below /v1: GET /v1/models lists the models, POST /v1/responses asks one."
    for prefix, reason in _HINTS.items():
        if inner == prefix or inner.startswith(f"{prefix}/"):
            return f". {reason}: use POST /v1/chat/completions."
    return ""


def _show_parked(service: Service, request: web.Request) -> web.Response:
    """Send a parked response state to another node; for every other client the path does not exist."""
    response_id = request.match_info["response_id"]
    tenant = service.peers.verify_request(request.headers, response_id) if request.method == "GET" else None
    state = service.parking.find(tenant, response_id, now()) if tenant is not None else None
    if state is None or tenant is None:
        raise web.HTTPNotFound
    body, headers = service.peers.reply(tenant, state)
    return web.Response(body=body_of(body), headers=headers, content_type="application/octet-stream")


def _describe(model: Model) -> ModelObject:
    return ModelObject(
        id=model.name,
        created=model.created,
        owned_by=model.owner,
        input_modalities=["text", "image"] if model.capabilities.images else ["text"],
    )


async def _list_models(service: Service, request: web.Request, caller: Caller) -> web.Response:
    if speaks_messages(request):
        return await messages.list_models(service, request, caller)
    models = service.models_of(caller)
    described = describe_for_codex(models) if request.query.get("client_version") else UNSET
    return json_response(ModelList([_describe(model) for model in models], models=described))


async def _show_model(service: Service, request: web.Request, caller: Caller) -> web.Response:
    if speaks_messages(request):
        return await messages.show_model(service, request, caller)
    return json_response(_describe(service.models_of(caller).find(request.match_info["model"])))


async def _list_turns(service: Service, request: web.Request, caller: Caller) -> web.Response:
    """The reports of the latest turns of the tenant's open sockets, newest first for each socket."""
    sockets = [client for client in service.clients if isinstance(client, WebSocketConnection)]
    own = [socket.recent or () for socket in sockets if socket.driver.session.tenant == caller.tenant]
    reports = [turn.report for recent in own for turn in reversed(recent)]
    return json_response(TurnList(reports))
