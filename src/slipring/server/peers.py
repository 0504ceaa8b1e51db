"""Other nodes on the same store, asked for what sockets that were cut have left there.

The id of a response tells which node made it. Where nodes can reach each other, that node is asked, once and
for a short time; whatever goes wrong, the answer is that there is nothing. Nodes know each other by a secret
that they share through the store.
"""

import hmac
import logging
import secrets
from collections.abc import Mapping

import aiohttp
from aiohttp import ClientTimeout

from slipring.core.state import Positions, ResponseState
from slipring.keys.token import digest
from slipring.server.clock import now
from slipring.server.ids import node_of
from slipring.stores.base import Cluster, Node
from slipring.stores.chains import pack_chain, unpack_chain

log = logging.getLogger("slipring")

PATH = "/slipring/parked"
TENANT = "X-Slipring-Tenant"
_TIMEOUT = ClientTimeout(total=3.0, connect=1.0)
_LONGEST_BYTES = 256 * 2**20


class Peers:
    """The door to other nodes, and who may come in by it. Closed until it is opened with a URL."""

    def __init__(self, node_id: str, cluster: Cluster, positions: Positions | None) -> None:
        self._node_id = node_id
        self._cluster = cluster
        self._positions = positions
        self._url = ""
        self._secret = ""
        self._http: aiohttp.ClientSession | None = None

    async def open(self, url: str) -> None:
        """Let other nodes know where this one can be reached."""
        self._secret = (await self._cluster.secret("peers", secrets.token_hex(32).encode())).decode()
        self._url = url.rstrip("/")
        self._http = aiohttp.ClientSession(timeout=_TIMEOUT)
        await self.announce()

    async def announce(self) -> None:
        if self._url:
            await self._cluster.announce(Node(self._node_id, self._url, now()))

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None
            await self._cluster.leave(self._node_id)

    def admits(self, headers: Mapping[str, str]) -> bool:
        """Whether a request comes from another node."""
        scheme, _, presented = headers.get("Authorization", "").partition(" ")
        known = hmac.compare_digest(digest(presented.strip()), digest(self._secret))
        return bool(self._secret) and scheme.lower() == "bearer" and known

    def tenant_of(self, headers: Mapping[str, str]) -> str | None:
        """Whose response another node asks for; None: it does not say so in a way that can be read."""
        try:
            return bytes.fromhex(headers[TENANT]).decode()
        except (KeyError, ValueError):
            return None

    async def find(self, tenant: str, response_id: str) -> ResponseState | None:
        """A response that another node has parked."""
        owner = node_of(response_id)
        if self._http is None or owner is None or owner == self._node_id:
            return None
        node = await self._cluster.find(owner)
        if node is None:
            return None
        headers = {"Authorization": f"Bearer {self._secret}", TENANT: tenant.encode().hex()}
        try:
            async with self._http.get(f"{node.url}{PATH}/{response_id}", headers=headers) as answer:
                if answer.status != 200 or (answer.content_length or 0) > _LONGEST_BYTES:
                    return None
                return unpack_chain(await answer.read(), self._positions)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            log.warning("node %s did not say what it has parked: %s", owner, type(error).__name__)
            return None

    def pack(self, state: ResponseState) -> bytes:
        """A response with its chain, for another node."""
        return pack_chain(state, self._positions)
