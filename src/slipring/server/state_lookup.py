"""Looks up the state of an earlier response that is not in the connection's own cache."""

from collections import Counter
from typing import Literal, Protocol

from slipring.core.chain.state import ResponseState
from slipring.server.clock import now
from slipring.server.parking import Parking
from slipring.server.peers import Peers
from slipring.stores.responses import Responses

Source = Literal["parked", "store", "peer", "miss"]


class States(Protocol):
    """A source of response states."""

    async def find(self, tenant: str, response_id: str) -> ResponseState | None:
        """The state of a response of this tenant; None if there is none."""


class StoredStates:
    """States in the store: for HTTP requests and background runs."""

    def __init__(self, responses: Responses, lookups: Counter[Source]) -> None:
        """``lookups``: counts where states were found."""
        self._responses = responses
        self._lookups = lookups

    async def find(self, tenant: str, response_id: str) -> ResponseState | None:
        stored = await self._responses.load(tenant, response_id)
        self._lookups["store" if stored is not None else "miss"] += 1
        return stored


class SocketStates:
    """States in the store, and states parked here or on another node: for WebSocket connections."""

    def __init__(
        self, responses: Responses, parking: Parking, peers: Peers, lookups: Counter[Source]
    ) -> None:
        """``lookups``: counts where states were found."""
        self._responses = responses
        self._lookups = lookups
        self._parking = parking
        self._peers = peers

    async def find(self, tenant: str, response_id: str) -> ResponseState | None:
        source, state = await self._find(tenant, response_id)
        self._lookups[source] += 1
        return state

    async def _find(self, tenant: str, response_id: str) -> tuple[Source, ResponseState | None]:
        parked = self._parking.find(tenant, response_id, now())
        if parked is not None:
            return "parked", parked
        stored = await self._responses.load(tenant, response_id)
        if stored is not None:
            return "store", stored
        found = await self._peers.find(tenant, response_id)
        return ("peer" if found is not None else "miss"), found
