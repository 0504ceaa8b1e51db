"""``POST /v1/responses/compact``: a context goes in, a short one to begin anew with comes out.

It is a turn like any other, one that makes a compaction and nothing else. What is new here is the form of the
answer: the user's messages that were kept stand in the open, and what is sealed is the rest.
"""

from functools import partial

import msgspec
from aiohttp import web
from msgspec import Raw

from slipring.core.chain import item_ids
from slipring.core.chain.sealed_items import Seal
from slipring.core.turn.compaction import is_users
from slipring.core.turn.stages import Stages
from slipring.protocol import wire
from slipring.protocol.endpoints.compact import Window, read_compact
from slipring.protocol.items import InputText, Item
from slipring.protocol.requests import CreateRequest
from slipring.protocol.responses import CompactionItem, Response
from slipring.server.access.auth import Caller
from slipring.server.clock import clock
from slipring.server.cluster.state_lookup import StoredStates
from slipring.server.connections.request_bodies import read_body
from slipring.server.driver import Driver
from slipring.server.service import Service
from slipring.server.transports.http import JsonReply, answer

_compaction = msgspec.json.Decoder(CompactionItem)
_fields = msgspec.json.Decoder(dict[str, Raw])
_text = msgspec.json.Decoder(str)


async def compact(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    """Compact a context and answer with what is left of it."""
    body = await read_body(service, request, caller)
    stages = Stages(clock)
    create = await service.reading.create(caller.tenant, body, _read)
    stages.lap("decode")
    session = service.open_exchange(caller)
    reply = JsonReply(partial(_window, service.seal, caller.tenant))
    driver = Driver(service, caller, session, reply, states=StoredStates(service.store.responses))
    return await answer(driver, reply, create, stages, len(body))


def _read(body: bytes) -> CreateRequest:
    return read_compact(body).as_create()


def _window(seal: Seal, tenant: str, response: Response) -> Window:
    """The window that a finished compaction is."""
    assert response.usage is not None
    made = _compaction.decode(response.output[0])
    meant = seal.open(tenant, made.encrypted_content)
    messages = [item for item in meant if is_users(item)]
    rest = tuple(item for item in meant if not is_users(item))
    shown = [_shown(item, response.id, index) for index, item in enumerate(messages)]
    sealed_id = item_ids.output_id("compaction", response.id, len(messages))
    sealed = CompactionItem(id=sealed_id, encrypted_content=seal.seal(tenant, rest))
    return Window(
        id=response.id,
        created_at=response.created_at,
        output=[*shown, wire.raw(sealed)],
        usage=response.usage,
    )


def _shown(message: Item, response_id: str, index: int) -> Raw:
    """A user's message in the form of output items."""
    fields = _fields.decode(message.raw)
    content: object = fields["content"]
    if bytes(fields["content"]).startswith(b'"'):
        content = [InputText(_text.decode(fields["content"]))]
    return wire.raw(
        {
            **fields,
            "id": item_ids.output_id("message", response_id, index),
            "status": "completed",
            "content": content,
        }
    )
