"""``POST /v1/decisions``: questions about one input, which the engine processes once for all of them.

Each question is a response, whose request and events ``protocol.decisions`` translates. Nothing is stored.
"""

from aiohttp import web

from slipring.protocol.decisions import LANES, DecisionTranslation
from slipring.server.access.auth import Caller
from slipring.server.endpoints.forks import answer_with_forks
from slipring.server.service import Service
from slipring.server.transports.beta_header import retention_of
from slipring.server.transports.http import JsonReply, read_posted


async def decide(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    translation = DecisionTranslation(max(1, min(LANES, service.config.limits.max_lanes)))
    posted = await read_posted(service, request, caller, translation.read)
    reply = JsonReply(translation)
    session = service.open_session(caller, retention_of(request.headers))
    return await answer_with_forks(service, caller, session, reply, translation, posted)
