"""``POST /v1/chat/completions``: answers of a model, for clients of the Chat Completions API.

A choice is a response, whose request and events ``protocol.chat_completions`` translates. Nothing is stored.
"""

from hashlib import sha256

from aiohttp import web

from slipring import __version__
from slipring.base.errors import ApiError, InvalidRequest
from slipring.protocol.chat_completions.requests import ChatTranslation
from slipring.server.access.auth import Caller
from slipring.server.endpoints.forks import answer_with_forks
from slipring.server.service import Service
from slipring.server.transports.beta_header import retention_of
from slipring.server.transports.http import PostedCreate, answer, read_posted, reply_to

_FINGERPRINT = f"fp_{sha256(__version__.encode()).hexdigest()[:10]}"


async def complete(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    translation = ChatTranslation(_FINGERPRINT)
    posted = await _read(service, request, caller, translation)
    reply = reply_to(service, request, posted, streams=translation.streams, translation=translation)
    _require_lanes(translation.form.choices, service.config.limits.max_lanes)
    betas = retention_of(request.headers)
    if translation.form.choices == 1:
        return await answer(service, caller, service.open_exchange(caller, betas), reply, posted)
    return await answer_with_forks(
        service, caller, service.open_session(caller, betas), reply, translation, posted
    )


async def _read(
    service: Service, request: web.Request, caller: Caller, translation: ChatTranslation
) -> PostedCreate:
    try:
        return await read_posted(service, request, caller, translation.read, translation.api)
    except ApiError as error:
        translation.rename(error)
        raise


def _require_lanes(choices: int, max_lanes: int) -> None:
    """Refuse more choices than a connection may have lanes: each takes one."""
    if 1 < choices > max_lanes:
        raise InvalidRequest.at("n", f"this server allows at most {max_lanes} (max_lanes)")
