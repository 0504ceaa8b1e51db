"""``/v1/conversations``: conversations, i.e. lists of items that responses read and extend."""

from aiohttp import web

from slipring.base.errors import conversation_not_found
from slipring.protocol.endpoints.conversations import (
    CreateConversation,
    read_creation,
    read_update,
)
from slipring.protocol.endpoints.reply_bodies import DeletedConversation
from slipring.server.access.auth import Caller
from slipring.server.clock import now
from slipring.server.connections.request_bodies import read_body
from slipring.server.endpoints.conversation_items import as_object, conversation_id_of, read_items, required
from slipring.server.endpoints.replies import json_response
from slipring.server.id_minting import mint
from slipring.server.service import Service
from slipring.stores.conversations import Conversation


async def create(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    asked = CreateConversation()
    if request.can_read_body:
        body = await read_body(service, request, caller)
        asked = await service.decoder.body(caller.tenant, body, read_creation)
    conversation = Conversation(mint("conv"), int(now()), asked.metadata or {})
    items, _ = await read_items(service, caller.tenant, asked.items or [])
    await service.store.conversations.create(caller.tenant, conversation, items)
    return json_response(as_object(conversation))


async def retrieve(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    conversation_id = conversation_id_of(request)
    conversation = await service.store.conversations.read(caller.tenant, conversation_id)
    return json_response(as_object(required(conversation, conversation_id)))


async def update(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    conversation_id = conversation_id_of(request)
    body = await read_body(service, request, caller)
    asked = await service.decoder.body(caller.tenant, body, read_update)
    conversation = await service.store.conversations.update(
        caller.tenant, conversation_id, asked.metadata or {}
    )
    return json_response(as_object(required(conversation, conversation_id)))


async def delete(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    conversation_id = conversation_id_of(request)
    if not await service.store.conversations.delete(caller.tenant, conversation_id):
        raise conversation_not_found(conversation_id)
    service.forget_sent(caller.tenant)
    return json_response(DeletedConversation(conversation_id))
