"""``/v1/messages`` and ``/v1/models`` as clients of the Messages API know them."""

import re
from datetime import UTC, datetime
from functools import partial

from aiohttp import web

from slipring.core.chain.sealed_items import BrokenSeal
from slipring.core.generation import Model
from slipring.protocol.messages import requests
from slipring.protocol.messages.models import ModelInfo, page_of
from slipring.protocol.messages.requests import MessagesTranslation
from slipring.server.access.auth import Caller
from slipring.server.endpoints.replies import json_response, request_id_of
from slipring.server.service import Service
from slipring.server.transports.beta_header import retention_of
from slipring.server.transports.http import JsonReply, answer, read_posted, reply_to

VERSION_HEADER = "anthropic-version"
_PATH = re.compile(r"(/v1)?/messages(/|$)")
_SHARED_PATH = re.compile(r"(/v1)?/models(/|$)")


def speaks_messages(request: web.Request) -> bool:
    """Whether a request is one of the Messages API: by its path, or, where the path is of both APIs or of
    none, by the header that clients of this one send."""
    if _PATH.match(request.path) is not None:
        return True
    is_of_none = isinstance(request.match_info.http_exception, web.HTTPNotFound)
    return VERSION_HEADER in request.headers and (is_of_none or _SHARED_PATH.match(request.path) is not None)


def _opens(service: Service, caller: Caller, signature: str) -> bool:
    """Whether a signature is a thought that this server has sealed for the client's tenant."""
    try:
        thought = service.seal.open(caller.tenant, signature)
    except BrokenSeal:
        return False
    return [item.type for item in thought] == ["reasoning"]


async def create(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    translation = MessagesTranslation(request_id_of(request), partial(_opens, service, caller))
    posted = await read_posted(service, request, caller, translation.read, translation.api)
    reply = reply_to(service, request, posted, streams=bool(posted.request.stream), translation=translation)
    session = service.open_exchange(caller, retention_of(request.headers))
    return await answer(service, caller, session, reply, posted)


async def count_tokens(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    opens = partial(_opens, service, caller)
    translation = MessagesTranslation(request_id_of(request), opens, requests.read_count)
    posted = await read_posted(service, request, caller, translation.read, translation.api)
    session = service.open_exchange(caller)
    session.shared.counts_only = True
    return await answer(service, caller, session, JsonReply(translation), posted)


async def list_models(service: Service, request: web.Request, caller: Caller) -> web.Response:
    query = request.query
    models = [_describe(model) for model in service.models_of(caller)]
    page = page_of(models, query.get("limit"), query.get("after_id"), query.get("before_id"))
    return json_response(page)


async def show_model(service: Service, request: web.Request, caller: Caller) -> web.Response:
    return json_response(_describe(service.models_of(caller).find(request.match_info["model"])))


def _describe(model: Model) -> ModelInfo:
    return ModelInfo(
        id=model.name,
        display_name=model.name,
        created_at=datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        max_input_tokens=model.context_tokens,
        max_tokens=model.defaults.max_output_tokens or model.context_tokens,
    )
