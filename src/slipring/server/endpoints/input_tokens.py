"""``POST /v1/responses/input_tokens``: counts the tokens of a context.

The request is loaded, checked and rendered like any other turn; then its engine counts instead of generating.
"""

from aiohttp import web

from slipring.core.turn.stages import Stages
from slipring.server.access.auth import Caller
from slipring.server.clock import clock
from slipring.server.connections.request_bodies import read_body
from slipring.server.service import Service
from slipring.server.transports.http_replies import (
    JsonReply,
    answer,
    decode_create,
    exchange_driver,
    origin_of,
    read_create,
)


async def count_tokens(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    body = await read_body(service, request, caller)
    stages = Stages(clock)
    create = await decode_create(service, request, caller, body, stages, read_create)
    create.store, create.background, create.context_management = False, None, None
    session = service.open_exchange(caller)
    session.shared.counts_only = True
    reply = JsonReply()
    driver = exchange_driver(service, caller, session, reply, origin_of(request, "http"))
    return await answer(driver, reply, create, stages, len(body))
