"""What references to earlier items mean: by ids that the server gave, or that clients chose."""

from collections.abc import Iterable

from slipring.protocol.items.items import Item
from slipring.stores.conversations import Conversations
from slipring.stores.responses import Responses


class ItemReferences:
    """Finds the items of stored responses and conversations by their ids."""

    def __init__(self, responses: Responses, conversations: Conversations) -> None:
        self._responses = responses
        self._conversations = conversations

    async def find(
        self, tenant: str, ids: Iterable[str], conversation_id: str | None = None
    ) -> dict[str, Item]:
        """Return what references to these ids mean, by id: an item of a stored response to which the server
        gave the id, else the item of this conversation, else the only item with that id in stored responses
        and conversations. Ids of no item, and of different ones, are left out."""
        wanted = list(ids)
        found = await self._responses.load_items(tenant, wanted)
        for item_id in wanted:
            if item_id in found:
                continue
            item = None
            if conversation_id is not None:
                item = await self._conversations.item(tenant, conversation_id, item_id)
            if item is None:
                items = await self._responses.load_named(tenant, item_id)
                items += await self._conversations.find_items(tenant, item_id)
                item = items[0] if items and items.count(items[0]) == len(items) else None
            if item is not None:
                found[item_id] = item
        return found
