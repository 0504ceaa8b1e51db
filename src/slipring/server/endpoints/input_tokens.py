"""``POST /v1/responses/input_tokens``: counts the tokens of a context.

The request is loaded, checked and rendered like any other turn; then its engine counts instead of generating.
"""

from aiohttp import web

from slipring.protocol.endpoints.translation import RESPONSES
from slipring.server.access.auth import Caller
from slipring.server.service import Service
from slipring.server.transports.http import JsonReply, answer, read_posted


async def count_tokens(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    posted = await read_posted(service, request, caller, RESPONSES.read)
    create = posted.request
    create.store, create.background, create.context_management = False, None, None
    session = service.open_exchange(caller)
    session.shared.counts_only = True
    return await answer(service, caller, session, JsonReply(), posted)
