"""``POST /v1/responses/input_tokens``: counts the tokens of a context.

The request is loaded, checked and rendered like any other turn; then its engine counts instead of generating.
"""

from aiohttp import web

from slipring.core.turn.stages import Stages
from slipring.server.access.auth import Caller
from slipring.server.clock import clock
from slipring.server.cluster.state_lookup import StoredStates
from slipring.server.connections.request_bodies import read_body
from slipring.server.driver import Driver
from slipring.server.service import Service
from slipring.server.transports.http_replies import (
    JsonReply,
    answer,
    decode_create,
    origin_of,
    read_create,
)


async def count_tokens(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    body = await read_body(service, request, caller)
    stages = Stages(clock)
    create = await decode_create(service, request, caller, body, stages, read_create)
    create.store, create.background, create.context_management = False, None, None
    session = service.open_exchange(caller)
    session.lifecycle.counts_only = True
    reply = JsonReply()
    driver = Driver(
        service,
        caller,
        session,
        reply,
        origin=origin_of(request, "http"),
        states=StoredStates(service.store.responses, service.lookups),
    )
    return await answer(driver, reply, create, stages, len(body))
