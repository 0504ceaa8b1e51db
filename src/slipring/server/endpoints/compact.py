"""``POST /v1/responses/compact``: replaces a context by a shorter one to continue from.

It runs an ordinary turn whose only output is a compaction. The answer has a form of its own: the user
messages that were kept are readable, and the rest is sealed in a compaction item.
"""

import msgspec
from aiohttp import web
from msgspec import Raw

from slipring.core.chain import item_ids
from slipring.core.chain.sealed_items import Seal
from slipring.core.turn.compaction import is_users
from slipring.protocol import wire
from slipring.protocol.endpoints.compact import Window, read_compact
from slipring.protocol.endpoints.translation import Translation
from slipring.protocol.items.items import InputText, Item
from slipring.protocol.responses import CompactionItem, Response
from slipring.server.access.auth import Caller
from slipring.server.service import Service
from slipring.server.transports.beta_header import retention_of
from slipring.server.transports.http import JsonReply, answer, read_posted

_compaction = msgspec.json.Decoder(CompactionItem)
_fields = msgspec.json.Decoder(dict[str, Raw])
_text = msgspec.json.Decoder(str)


async def compact(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    """Compact a context and answer with the new one."""
    posted = await read_posted(service, request, caller, lambda body, _: read_compact(body).as_create())
    session = service.open_exchange(caller, retention_of(request.headers))
    reply = JsonReply(_Compaction(service.seal, caller.tenant))
    return await answer(service, caller, session, reply, posted)


class _Compaction(Translation):
    """Answers with the new context instead of the response."""

    def __init__(self, seal: Seal, tenant: str) -> None:
        self._seal = seal
        self._tenant = tenant

    def body(self, response: Response) -> object:
        return _window(self._seal, self._tenant, response)


def _window(seal: Seal, tenant: str, response: Response) -> Window:
    """The new context of a finished compaction, in the endpoint's form."""
    assert response.usage is not None
    compaction = _compaction.decode(response.output[0])
    kept = seal.open(tenant, compaction.encrypted_content)
    messages = [item for item in kept if is_users(item)]
    rest = tuple(item for item in kept if not is_users(item))
    readable = [_output_message(item, response.id, index) for index, item in enumerate(messages)]
    sealed_id = item_ids.output_id("compaction", response.id, len(messages))
    sealed = CompactionItem(id=sealed_id, encrypted_content=seal.seal(tenant, rest))
    return Window(
        id=response.id,
        created_at=response.created_at,
        output=[*readable, wire.raw(sealed)],
        usage=response.usage,
    )


def _output_message(message: Item, response_id: str, index: int) -> Raw:
    """A user's message in the form of an output item."""
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
