"""``/v1/responses`` over HTTP: create, count tokens, retrieve, stream, list
input items, cancel and delete.

A response of another tenant is answered like one that does not exist.
"""

from aiohttp import web
from msgspec import Raw, json, structs

from slipring.base.errors import InvalidRequest, response_not_found
from slipring.core.chain import item_ids
from slipring.core.chain.sealed_items import Seal
from slipring.core.chain.state import ResponseState
from slipring.core.turn.request_validation import ENCRYPTED_REASONING, read_include
from slipring.protocol import wire
from slipring.protocol.endpoints.reply_bodies import DeletedResponse
from slipring.protocol.endpoints.translation import RESPONSES
from slipring.protocol.items.items import Item, Reasoning, read_item
from slipring.protocol.responses import Response
from slipring.server.access.auth import Caller
from slipring.server.background import event_stream
from slipring.server.background.cancelled_and_orphaned_runs import read_response, unfinished_state
from slipring.server.background.runs import Background, RunRefused
from slipring.server.endpoints import paging
from slipring.server.endpoints.replies import encoded_response, error_reply, json_response
from slipring.server.service import Service
from slipring.server.transports.beta_header import of_exchange, retention_of
from slipring.server.transports.http import JsonReply, PostedCreate, answer, read_posted, reply_to

_fields = json.Decoder(dict[str, Raw])


class Responses:
    """The endpoints of responses, those in the background included."""

    def __init__(self, background: Background) -> None:
        self._background = background

    async def create(self, service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
        posted = await read_posted(service, request, caller, RESPONSES.read)
        if posted.request.background is True:
            return await self._create_in_background(request, caller, posted)
        reply = reply_to(service, request, posted, streams=bool(posted.request.stream))
        session = service.open_exchange(caller, of_exchange(request.headers))
        return await answer(service, caller, session, reply, posted)

    async def retrieve(self, service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
        response_id = request.match_info["response_id"]
        include = read_include(request.query.getall("include", []) + request.query.getall("include[]", []))
        streams = _streams(request)
        async with service.retrieval_slots.hold(caller.tenant):
            response = await _find(service, caller.tenant, response_id)
            if ENCRYPTED_REASONING in include:
                response.output = [_sealed(raw, service.seal, caller.tenant) for raw in response.output]
            if not streams or request.method == "HEAD":
                if "starting_after" in request.query:
                    raise InvalidRequest("'starting_after' needs 'stream=true'.", param="starting_after")
                return json_response(response)
            response.output = []  # it may be large, and is not needed any more
        after = _starting_after(request)
        if not response.background:
            raise InvalidRequest(
                "Only responses that were created with 'background' can be streamed again.", param="stream"
            )
        return await event_stream.follow(self._background, request, caller.tenant, response, after=after)

    async def delete(self, service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
        response_id = request.match_info["response_id"]
        store = service.store
        run_deleted = await store.runs.delete(caller.tenant, response_id)
        await self._background.stop(caller.tenant, response_id)
        # Not before: until it is stopped, a run may end, and what it used is then known.
        service.known.forget_response(caller.tenant, response_id)
        service.forget_sent(caller.tenant)
        if not await store.responses.delete(caller.tenant, response_id) and not run_deleted:
            raise response_not_found(response_id)
        return json_response(DeletedResponse(response_id))

    async def cancel(self, service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
        response_id = request.match_info["response_id"]
        response = await self._background.cancel(caller.tenant, response_id)
        if response is None:
            await _find(service, caller.tenant, response_id)
            raise InvalidRequest(
                "Only responses that were created with 'background' can be cancelled.", param="response_id"
            )
        return json_response(response)

    async def input_items(self, service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
        response_id = request.match_info["response_id"]
        page = paging.read_page(request.query)
        async with service.retrieval_slots.hold(caller.tenant):
            state = await service.store.responses.load(caller.tenant, response_id)
            if state is None:
                response = await _find(service, caller.tenant, response_id)
                state = await unfinished_state(service.store, service.seal, caller.tenant, response)
            if state is None:
                raise InvalidRequest(
                    "The input of this response is not stored: it was refused, or is being checked, or the"
                    " response that it continues has been deleted.",
                    param="response_id",
                )
            # In a thread: a chain may have any number of items, and all are read for one page.
            with paging.refusing_unknown(page):
                body = await service.decoder.in_thread(
                    caller.tenant, lambda: paging.encoded(*paging.cut(_input_of(state), page), "response")
                )
            return encoded_response(body)

    async def _create_in_background(
        self, request: web.Request, caller: Caller, posted: PostedCreate
    ) -> web.StreamResponse:
        """Start a background run; answer with its queued response, or with a stream of its events."""
        background = self._background
        try:
            run = await background.begin(caller, posted, retention_of(request.headers))
        except RunRefused as refused:
            return error_reply(RESPONSES.error(refused.error))
        if posted.request.stream:
            return await event_stream.follow(background, request, caller.tenant, run.promised, after=-1)
        return json_response(run.promised)


def _input_of(state: ResponseState) -> list[Item]:
    """All input items of a response and its ancestors, oldest first, each with a unique id.

    A client may send an item twice. With equal ids, the page after the second one would begin after the
    first.
    """
    items: dict[str, Item] = {}
    for node in reversed(list(state.chain())):
        for index, item in enumerate(node.input):
            own = item_ids.input_id(item, node.id, index)
            item_id = own if own not in items else item_ids.place_id(item, node.id, index)
            items[item_id] = structs.replace(item, id=item_id)
        if node is not state:
            items.update({item.id: item for item in node.output if item.id is not None})
    return list(items.values())


async def _find(service: Service, tenant: str, response_id: str) -> Response:
    """A stored or running response. Raises ``NotFound``."""
    response = await service.store.responses.retrieve(tenant, response_id)
    if response is not None:
        return response
    run = await service.store.runs.read(tenant, response_id)
    if run is None:
        raise response_not_found(response_id)
    return read_response(run.response)


def _streams(request: web.Request) -> bool:
    given = request.query.get("stream", "false")
    if given not in ("true", "false"):
        raise InvalidRequest.at("stream", "must be 'true' or 'false'")
    return given == "true"


def _sealed(raw: Raw, seal: Seal, tenant: str) -> Raw:
    """An output item; if it is reasoning, with its encrypted content."""
    item = read_item(bytes(raw), "output")
    body = item.body()
    if not isinstance(body, Reasoning) or body.encrypted_content:
        return raw
    return wire.raw({**_fields.decode(raw), "encrypted_content": seal.seal(tenant, (item,))})


def _starting_after(request: web.Request) -> int:
    given = request.query.get("starting_after")
    if given is None:
        return -1
    if not (given.isascii() and given.isdigit()):
        raise InvalidRequest.at("starting_after", "must be a whole number")
    return int(given[:18])


async def count_tokens(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    """Load, check and render a request like any other turn; then its engine counts instead of generating."""
    posted = await read_posted(service, request, caller, RESPONSES.read)
    create = posted.request
    create.store, create.background, create.context_management = False, None, None
    session = service.open_exchange(caller)
    session.shared.counts_only = True
    return await answer(service, caller, session, JsonReply(), posted)
