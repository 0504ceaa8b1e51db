"""``/v1/conversations`` and ``/v1/conversations/…/items``: conversations, i.e. lists of items that responses
read and extend, and which items may be added to them.
"""

from collections.abc import Sequence

from aiohttp import web
from msgspec import Raw, json

from slipring.base.errors import InvalidRequest, NotFound, conversation_not_found, quoted
from slipring.core.attachments import AttachmentRules
from slipring.core.chain import item_ids, sealed_items
from slipring.core.generation import ALL_ROLES, Capabilities
from slipring.core.limits import Limits
from slipring.core.turn.compaction import TRIGGER
from slipring.core.turn.request_validation import new_definitions, read_include
from slipring.protocol.endpoints.conversations import (
    ConversationObject,
    CreateConversation,
    read_addition,
    read_creation,
    read_update,
)
from slipring.protocol.endpoints.reply_bodies import DeletedConversation
from slipring.protocol.items.item_listing import present
from slipring.protocol.items.items import (
    AdditionalTools,
    ConfigurationUpdate,
    Item,
    LoadedTools,
    read_item,
    with_id,
)
from slipring.protocol.requests import read_format
from slipring.protocol.tools.grammars_and_schemas import Definitions
from slipring.protocol.tools.toolset import Toolset
from slipring.server.access.auth import Caller
from slipring.server.clock import now
from slipring.server.connections.request_bodies import read_body
from slipring.server.endpoints import paging
from slipring.server.endpoints.replies import encoded_response, json_response
from slipring.server.random_ids import mint
from slipring.server.service import Service
from slipring.stores.conversations import Conversation
from slipring.stores.pictures import prepare

_SEES_ALL = Capabilities(images=True, image_roles=ALL_ROLES, resolves_urls=True, files=True)
"""What some model may be able to do: a conversation is not bound to one."""


async def create(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    asked = CreateConversation()
    if request.can_read_body:
        body = await read_body(service, request, caller)
        asked = await service.decoder.body(caller.tenant, body, read_creation)
    conversation = Conversation(mint("conv"), int(now()), asked.metadata or {})
    items, _ = await _read_items(service, caller.tenant, asked.items or [])
    await service.store.conversations.create(caller.tenant, conversation, items)
    return json_response(_as_object(conversation))


async def retrieve(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    conversation_id = _conversation_id_of(request)
    conversation = await service.store.conversations.read(caller.tenant, conversation_id)
    return json_response(_as_object(_required(conversation, conversation_id)))


async def update(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    conversation_id = _conversation_id_of(request)
    body = await read_body(service, request, caller)
    asked = await service.decoder.body(caller.tenant, body, read_update)
    conversation = await service.store.conversations.update(
        caller.tenant, conversation_id, asked.metadata or {}
    )
    return json_response(_as_object(_required(conversation, conversation_id)))


async def delete(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    conversation_id = _conversation_id_of(request)
    if not await service.store.conversations.delete(caller.tenant, conversation_id):
        raise conversation_not_found(conversation_id)
    service.forget_sent(caller.tenant)
    return json_response(DeletedConversation(conversation_id))


async def list_items(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    conversation_id = _conversation_id_of(request)
    _read_include(request)
    page = paging.read_page(request.query)
    async with service.retrieval_slots.hold(caller.tenant):
        with paging.refusing_unknown(page):
            found = await service.store.conversations.items(caller.tenant, conversation_id, page)
        if found is None:
            raise conversation_not_found(conversation_id)
        return await _page(service, caller, *found)


async def add_items(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    conversation_id = _conversation_id_of(request)
    _read_include(request)
    body = await read_body(service, request, caller)
    asked = await service.decoder.body(caller.tenant, body, read_addition)
    items, chosen = await _read_items(service, caller.tenant, asked.items)
    conversations = service.store.conversations
    for item in items:
        if item.id is not None and item.id in chosen:
            existing = await conversations.item(caller.tenant, conversation_id, item.id)
            if existing is not None:
                size, where = len(item.raw) + len(existing.raw), chosen[item.id]
                await service.decoder.if_large(caller.tenant, size, _refuse_change, existing, item, where)
    if not await conversations.add(caller.tenant, conversation_id, items):
        raise conversation_not_found(conversation_id)
    return await _page(service, caller, items, has_more=False)


async def retrieve_item(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    conversation_id, item_id = _conversation_id_of(request), request.match_info["item_id"]
    _read_include(request)
    async with service.retrieval_slots.hold(caller.tenant):
        item = await service.store.conversations.item(caller.tenant, conversation_id, item_id)
        if item is None:
            raise await _missing(service, caller.tenant, conversation_id, item_id)
        size, kind = len(item.raw), "conversation"
        body = await service.decoder.if_large(caller.tenant, size, present, item, item_id, kind)
        return encoded_response(bytes(body))


async def delete_item(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    conversation_id, item_id = _conversation_id_of(request), request.match_info["item_id"]
    conversations = service.store.conversations
    if not await conversations.delete_item(caller.tenant, conversation_id, item_id):
        raise await _missing(service, caller.tenant, conversation_id, item_id)
    service.forget_sent(caller.tenant)
    conversation = await conversations.read(caller.tenant, conversation_id)
    return json_response(_as_object(_required(conversation, conversation_id)))


async def _missing(service: Service, tenant: str, conversation_id: str, item_id: str) -> NotFound:
    if await service.store.conversations.read(tenant, conversation_id) is None:
        return conversation_not_found(conversation_id)
    return NotFound(f"Item with id {quoted(item_id)} not found.", param="item_id")


def _read_include(request: web.Request) -> None:
    read_include(request.query.getall("include", []) + request.query.getall("include[]", []))


async def _page(
    service: Service, caller: Caller, items: Sequence[Item], has_more: bool
) -> web.StreamResponse:
    size = sum(len(item.raw) for item in items)
    body = await service.decoder.if_large(
        caller.tenant, size, paging.encoded, items, has_more, "conversation"
    )
    return encoded_response(body)


def _conversation_id_of(request: web.Request) -> str:
    return request.match_info["conversation_id"]


def _required(conversation: Conversation | None, conversation_id: str) -> Conversation:
    if conversation is None:
        raise conversation_not_found(conversation_id)
    return conversation


def _as_object(conversation: Conversation) -> ConversationObject:
    return ConversationObject(conversation.id, conversation.created_at, conversation.metadata)


async def _read_items(
    service: Service, tenant: str, raws: list[Raw]
) -> tuple[tuple[Item, ...], dict[str, str]]:
    """Decode and check items that a client adds to a conversation: large ones in a thread.

    Returns the items, each once and with an id, and the paths (``items[0]``) of those whose id the client
    chose.
    """
    definitions = new_definitions(service.config.limits, service.ignored_tools)
    limits, size = service.config.limits, sum(map(len, raws))
    items, chosen = await service.decoder.if_large(tenant, size, _decode_items, raws, definitions, limits)
    await service.compiler.check(tenant, definitions.grammars)
    return sealed_items.opened(items, service.seal, tenant, "items"), chosen


def _decode_items(
    raws: list[Raw], definitions: Definitions, limits: Limits
) -> tuple[tuple[Item, ...], dict[str, str]]:
    sent: list[Item] = []
    items: dict[str, Item] = {}
    chosen: dict[str, str] = {}
    for index, raw in enumerate(raws):
        where = f"items[{index}]"
        item = read_item(bytes(raw), where)
        sent.append(item)
        _check_settings(item, where, definitions)
        if item.type in ("item_reference", TRIGGER):
            raise InvalidRequest(
                f"Invalid '{where}': a conversation holds items, not references or compaction triggers.",
                param=f"{where}.type",
            )
        if item.id:
            _refuse_change(items.get(item.id), item, where)
            chosen[item.id] = where
        item_id = item.id or mint(item_ids.prefix(item.type))
        items[item_id] = with_id(item, item_id)
    _check_pictures(sent, limits)
    prepare(items.values())
    return tuple(items.values()), chosen


def _check_pictures(items: list[Item], limits: Limits) -> None:
    """Raise for images that no turn of the conversation could show to any model."""
    try:
        AttachmentRules(_SEES_ALL, limits).refuse_unseen(items)
    except InvalidRequest as error:
        error.message, error.param = (
            text.replace("input[", "items[", 1) for text in (error.message, error.param or "")
        )
        raise


def _refuse_change(existing: Item | None, item: Item, where: str) -> None:
    """Raise ``InvalidRequest`` if an id is taken by another item. The same item again is accepted: it may be
    a retry."""
    if existing is not None and _content_of(existing) != _content_of(item):
        raise InvalidRequest.at(
            f"{where}.id", f"the conversation has another item with the id {quoted(item.id or '')}"
        )


def _content_of(item: Item) -> object:
    return json.decode(present(item, item.id or "", "conversation"))


def _check_settings(item: Item, where: str, definitions: Definitions) -> None:
    """Raise for settings that would make every later turn of the conversation fail."""
    body = item.body()
    if isinstance(body, AdditionalTools | LoadedTools):
        Toolset.read(body.tools, f"{where}.tools", loaded=True, definitions=definitions)
    elif isinstance(body, ConfigurationUpdate) and body.text is not None:
        read_format(body.text.format, f"{where}.text.format", definitions)
