"""Looks up the state of an earlier response that is not in the connection's own cache."""

from typing import Protocol

from slipring.core.chain.state import ResponseState
from slipring.server.clock import now
from slipring.server.cluster.parking import Parking
from slipring.server.cluster.peers import Peers
from slipring.stores.base import Responses


class States(Protocol):
    """A source of response states."""

    async def find(self, tenant: str, response_id: str) -> ResponseState | None:
        """The state of a response of this tenant; None if there is none."""


class StoredStates:
    """States in the store: for HTTP requests and background runs."""

    def __init__(self, responses: Responses) -> None:
        self._responses = responses

    async def find(self, tenant: str, response_id: str) -> ResponseState | None:
        return await self._responses.load(tenant, response_id)


class SocketStates:
    """States in the store, and states parked here or on another node: for WebSocket connections."""

    def __init__(self, responses: Responses, parking: Parking, peers: Peers) -> None:
        self._responses = responses
        self._parking = parking
        self._peers = peers

    async def find(self, tenant: str, response_id: str) -> ResponseState | None:
        parked = self._parking.find(tenant, response_id, now())
        if parked is not None:
            return parked
        stored = await self._responses.load(tenant, response_id)
        if stored is not None:
            return stored
        return await self._peers.find(tenant, response_id)
