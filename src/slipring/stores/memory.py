"""Responses kept in the memory of the process, bounded in bytes; gone when it stops.

States are kept as they are, with their shared structure: continuing a stored chain costs a lookup, and a
chain of many responses costs what its deltas cost. When the bound is reached, the responses that were used
least recently are forgotten first.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable

from slipring.core.cache import Retention
from slipring.core.state import ResponseState
from slipring.protocol.items import Item
from slipring.stores.base import Store

_Key = tuple[str, str]


class MemoryStore(Store):
    name = "memory"

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._retention = Retention()
        self._responses: OrderedDict[_Key, ResponseState] = OrderedDict()
        self._items: dict[_Key, Item] = {}
        self._holders: Counter[_Key] = Counter()

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def __len__(self) -> int:
        return len(self._responses)

    async def save(self, tenant: str, state: ResponseState) -> None:
        self._responses[tenant, state.id] = state
        for item in _named_items(state):
            self._items[tenant, item.id or ""] = item
            self._holders[tenant, item.id or ""] += 1
        self._used_bytes += self._retention.hold(state)
        while self._used_bytes > self._limit_bytes and self._responses:
            self._forget_oldest()

    async def load(self, tenant: str, response_id: str) -> ResponseState | None:
        state = self._responses.get((tenant, response_id))
        if state is not None:
            self._responses.move_to_end((tenant, response_id))
        return state

    async def load_items(self, tenant: str, item_ids: Iterable[str]) -> dict[str, Item]:
        found = {item_id: self._items.get((tenant, item_id)) for item_id in item_ids}
        return {item_id: item for item_id, item in found.items() if item is not None}

    def _forget_oldest(self) -> None:
        (tenant, _), state = self._responses.popitem(last=False)
        for item in _named_items(state):
            key = tenant, item.id or ""
            self._holders[key] -= 1
            if not self._holders[key]:
                del self._holders[key], self._items[key]
        self._used_bytes -= self._retention.release(state)


def _named_items(state: ResponseState) -> list[Item]:
    return [item for item in state.input + state.output if item.id]
