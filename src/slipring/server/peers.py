"""Fetches parked states from other nodes on the same store.

A response id contains the id of the node that made the response. That node is asked once, with a short
timeout; on any failure the state counts as not found. Nodes share a secret through the store. They sign
requests and replies with it and never send it, because another process may listen at the address of a node
that has died.
"""

import hashlib
import hmac
import logging
import secrets
from collections.abc import Mapping

import aiohttp
from aiohttp import ClientTimeout

from slipring.base.errors import ApiError
from slipring.core.chain.state import Positions, ResponseState
from slipring.server.clock import shared_now
from slipring.server.random_ids import node_of
from slipring.stores.nodes import Cluster, Node
from slipring.stores.response_codec import pack_chain, unpack_chain

log = logging.getLogger("slipring")

PATH = "/slipring/parked"
TENANT = "X-Slipring-Tenant"
ASKED_AT = "X-Slipring-Asked-At"
SIGNATURE = "X-Slipring-Signature"
_TIMEOUT = ClientTimeout(total=3.0, connect=1.0)
_MAX_REPLY_BYTES = 256 * 2**20
_SILENT_S = 180.0
"""A node that has not announced itself for this long is not asked. Nodes announce themselves every minute."""
_MAX_REQUEST_AGE_S = 60.0


class Peers:
    """Fetches states from other nodes, and verifies their requests. Inactive until ``open``."""

    def __init__(self, node_id: str, cluster: Cluster, positions: Positions | None) -> None:
        self.node_id = node_id
        self._cluster = cluster
        self._positions = positions
        self._url = ""
        self._secret = b""
        self._http: aiohttp.ClientSession | None = None

    async def open(self, url: str) -> None:
        """Announce the URL at which other nodes reach this one, and start to ask them."""
        self._secret = await self._cluster.secret("peers", secrets.token_hex(32).encode())
        self._url = url.rstrip("/")
        self._http = aiohttp.ClientSession(timeout=_TIMEOUT)
        await self.announce()

    async def announce(self) -> None:
        """Record in the store that this node is alive."""
        if self._url:
            await self._cluster.announce(Node(self.node_id, self._url, shared_now()))

    async def close(self) -> None:
        if self._http is None:
            return
        await self._http.close()
        self._http = None
        try:
            await self._cluster.leave(self.node_id)
        except ApiError as error:
            log.warning("cannot remove this node from the store: %s", error.message)

    async def find(self, tenant: str, response_id: str) -> ResponseState | None:
        """Fetch a response that another node has parked; None if it has none, or does not answer."""
        owner = node_of(response_id)
        if self._http is None or owner is None or owner == self.node_id:
            return None
        node = await self._cluster.find(owner)
        if node is None or node.seen_at < shared_now() - _SILENT_S:
            return None
        url = f"{node.url}{PATH}/{response_id}"
        try:
            async with self._http.get(url, headers=self.sign_request(owner, tenant, response_id)) as answer:
                if answer.status != 200 or (answer.content_length or 0) > _MAX_REPLY_BYTES:
                    return None
                body = await answer.read()
                if not self._is_signed(answer.headers, *_reply_parts(tenant, response_id, body)):
                    return None
                return unpack_chain(body, self._positions)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            log.warning("cannot fetch a parked response from node %s: %s", owner, type(error).__name__)
            return None

    def sign_request(self, owner: str, tenant: str, response_id: str) -> dict[str, str]:
        """Headers of a signed request to a node for a tenant's response."""
        asked_at = str(int(shared_now()))
        signature = self._sign("question", owner, tenant, response_id, asked_at)
        return {TENANT: tenant.encode().hex(), ASKED_AT: asked_at, SIGNATURE: signature}

    def verify_request(self, headers: Mapping[str, str], response_id: str) -> str | None:
        """The tenant for which another node asks; None if the request is not signed by a node, or too old."""
        try:
            tenant = bytes.fromhex(headers[TENANT]).decode()
            asked_at = headers[ASKED_AT]
            is_recent = abs(shared_now() - int(asked_at)) <= _MAX_REQUEST_AGE_S
        except (KeyError, ValueError):
            return None
        is_signed = self._is_signed(headers, "question", self.node_id, tenant, response_id, asked_at)
        return tenant if is_signed and is_recent else None

    def reply(self, tenant: str, state: ResponseState) -> tuple[bytes, dict[str, str]]:
        """The body with a response and its chain, and the headers that sign it, for another node."""
        body = pack_chain(state, self._positions)
        return body, {SIGNATURE: self._sign(*_reply_parts(tenant, state.id, body))}

    def _is_signed(self, headers: Mapping[str, str], *parts: str) -> bool:
        presented = headers.get(SIGNATURE, "").encode("utf-8", "surrogateescape")
        return bool(self._secret) and hmac.compare_digest(presented, self._sign(*parts).encode())

    def _sign(self, *parts: str) -> str:
        # Hashing each part keeps bytes from moving between parts under the same signature.
        digests = b"".join(hashlib.sha256(part.encode("utf-8", "surrogateescape")).digest() for part in parts)
        return hmac.new(self._secret, digests, hashlib.sha256).hexdigest()


def _reply_parts(tenant: str, response_id: str, body: bytes) -> tuple[str, str, str, str]:
    return "answer", tenant, response_id, hashlib.sha256(body).hexdigest()
