"""What a store is: responses that any connection of their tenant may continue.

Every lookup is by tenant *and* id. Somebody else's response and one that never was get the same answer: none.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable

from slipring.core.state import ResponseState
from slipring.protocol.items import Item


class Store(ABC):
    """Keeps responses. When ``save`` has returned, the response is as safe as this store can make it."""

    name: str

    async def start(self) -> None:
        """Get ready. Raises ``StartupError`` with one line for the operator when that cannot be."""
        return

    async def close(self) -> None:
        return

    @abstractmethod
    async def save(self, tenant: str, state: ResponseState) -> None:
        """Keep a finished response, with the chain that it builds on."""

    @abstractmethod
    async def load(self, tenant: str, response_id: str) -> ResponseState | None:
        """A response with its whole chain, ready to be continued."""

    @abstractmethod
    async def load_items(self, tenant: str, item_ids: Iterable[str]) -> dict[str, Item]:
        """The stored items that have these ids; those that are not there are left out."""
