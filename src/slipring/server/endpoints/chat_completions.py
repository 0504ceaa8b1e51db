"""``POST /v1/chat/completions``: answers of a model, for clients of the Chat Completions API.

A choice is a response, whose request and events ``protocol.chat_completions`` translates. Nothing is stored.
"""

from hashlib import sha256

from aiohttp import web

from slipring import __version__
from slipring.base.errors import ApiError, InvalidRequest
from slipring.protocol.chat_completions.translation import ChatTranslation
from slipring.server.access.auth import Caller
from slipring.server.endpoints.forks import Forks
from slipring.server.service import Service
from slipring.server.transports.beta_header import retention_of
from slipring.server.transports.http import (
    JsonReply,
    PostedCreate,
    SseReply,
    answer,
    driving,
    read_posted,
)

_FINGERPRINT = f"fp_{sha256(__version__.encode()).hexdigest()[:10]}"


async def complete(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    translation = ChatTranslation(_FINGERPRINT)
    posted = await _read(service, request, caller, translation)
    reply: JsonReply | SseReply = (
        SseReply(service, request, posted.stages, translation)
        if translation.streams
        else JsonReply(translation)
    )
    _require_lanes(translation.form.choices, service.config.limits.max_lanes)
    betas = retention_of(request.headers)
    if translation.form.choices == 1:
        return await answer(service, caller, service.open_exchange(caller, betas), reply, posted)
    session, choices = service.open_session(caller, betas), Forks(reply, translation, posted)
    async with driving(service, caller, session, reply, posted, choices) as driver:
        choices.start(driver)
        return await reply.finished()


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
