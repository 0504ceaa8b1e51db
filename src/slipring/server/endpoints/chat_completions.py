"""``POST /v1/chat/completions``: answers of a model, for clients of the Chat Completions API.

A request is a single create, whose items and events ``protocol.chat_completions`` translates. It stores
nothing.
"""

from hashlib import sha256

from aiohttp import web

from slipring import __version__
from slipring.base.errors import ApiError
from slipring.protocol.chat_completions.translation import ChatTranslation
from slipring.server.access.auth import Caller
from slipring.server.service import Service
from slipring.server.transports.beta_header import retention_of
from slipring.server.transports.http import JsonReply, PostedCreate, SseReply, answer, read_posted

_FINGERPRINT = f"fp_{sha256(__version__.encode()).hexdigest()[:10]}"


async def complete(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    translation = ChatTranslation(_FINGERPRINT)
    posted = await _read(service, request, caller, translation)
    reply: JsonReply | SseReply = (
        SseReply(service, request, posted.stages, translation)
        if translation.streams
        else JsonReply(translation)
    )
    session = service.open_exchange(caller, retention_of(request.headers))
    return await answer(service, caller, session, reply, posted)


async def _read(
    service: Service, request: web.Request, caller: Caller, translation: ChatTranslation
) -> PostedCreate:
    try:
        return await read_posted(service, request, caller, translation.read)
    except ApiError as error:
        translation.rename(error)
        raise
