"""Looks up the state of an earlier response that is not in the connection's own cache."""

from collections import Counter
from typing import Literal

from slipring.core.chain.state import ResponseState
from slipring.server.clock import now
from slipring.server.parking import Parking
from slipring.server.peers import Peers
from slipring.stores.responses import Responses

Source = Literal["parked", "store", "peer", "miss"]


class StateLookup:
    """Finds states in the store: for HTTP requests and background runs. For WebSocket connections it also
    finds those that are parked, here or on another node."""

    def __init__(
        self,
        responses: Responses,
        lookups: Counter[Source],
        parking: Parking | None = None,
        peers: Peers | None = None,
    ) -> None:
        """``lookups``: counts where states were found."""
        self._responses = responses
        self._lookups = lookups
        self._parking = parking
        self._peers = peers

    async def find(self, tenant: str, response_id: str) -> ResponseState | None:
        """The state of a response of this tenant; None if there is none."""
        source, state = await self._find(tenant, response_id)
        self._lookups[source] += 1
        return state

    async def _find(self, tenant: str, response_id: str) -> tuple[Source, ResponseState | None]:
        if (
            self._parking is not None
            and (parked := self._parking.find(tenant, response_id, now())) is not None
        ):
            return "parked", parked
        if (stored := await self._responses.load(tenant, response_id)) is not None:
            return "store", stored
        if self._peers is not None and (found := await self._peers.find(tenant, response_id)) is not None:
            return "peer", found
        return "miss", None
