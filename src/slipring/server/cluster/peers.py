"""Other nodes on the same store, asked for what sockets that were cut have left there.

The id of a response tells which node made it. Where nodes can reach each other, that node is asked, once and
for a short time; whatever goes wrong, the answer is that there is nothing. Nodes share a secret through the
store. It never travels: questions and answers are signed with it, because at the address of a node that has
died somebody else may listen.
"""

import hashlib
import hmac
import logging
import secrets
from collections.abc import Mapping

import aiohttp
from aiohttp import ClientTimeout

from slipring.core.chain.state import Positions, ResponseState
from slipring.errors import ApiError
from slipring.server.clock import shared_now
from slipring.server.cluster.ids import node_of
from slipring.stores.base import Cluster, Node
from slipring.stores.chain_transfer import pack_chain, unpack_chain

log = logging.getLogger("slipring")

PATH = "/slipring/parked"
TENANT = "X-Slipring-Tenant"
ASKED_AT = "X-Slipring-Asked-At"
SIGNATURE = "X-Slipring-Signature"
_TIMEOUT = ClientTimeout(total=3.0, connect=1.0)
_LONGEST_BYTES = 256 * 2**20
_SILENT_S = 180.0
"""A node that has not announced itself for this long is not asked. They do every minute."""
_QUESTION_S = 60.0
"""How old a question may be."""


class Peers:
    """The door to other nodes, and who may come in by it. Closed until it is opened with a URL."""

    def __init__(self, node_id: str, cluster: Cluster, positions: Positions | None) -> None:
        self.node_id = node_id
        self._cluster = cluster
        self._positions = positions
        self._url = ""
        self._secret = b""
        self._http: aiohttp.ClientSession | None = None

    async def open(self, url: str) -> None:
        """Let other nodes know where this one can be reached."""
        self._secret = await self._cluster.secret("peers", secrets.token_hex(32).encode())
        self._url = url.rstrip("/")
        self._http = aiohttp.ClientSession(timeout=_TIMEOUT)
        await self.announce()

    async def announce(self) -> None:
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
            log.warning("this node could not take its leave: %s", error.message)

    async def find(self, tenant: str, response_id: str) -> ResponseState | None:
        """A response that another node has parked."""
        owner = node_of(response_id)
        if self._http is None or owner is None or owner == self.node_id:
            return None
        node = await self._cluster.find(owner)
        if node is None or node.seen_at < shared_now() - _SILENT_S:
            return None
        url = f"{node.url}{PATH}/{response_id}"
        try:
            async with self._http.get(url, headers=self.question(owner, tenant, response_id)) as answer:
                if answer.status != 200 or (answer.content_length or 0) > _LONGEST_BYTES:
                    return None
                body = await answer.read()
                if not self._signed(answer.headers, *_answer(tenant, response_id, body)):
                    return None
                return unpack_chain(body, self._positions)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            log.warning("node %s did not say what it has parked: %s", owner, type(error).__name__)
            return None

    def question(self, owner: str, tenant: str, response_id: str) -> dict[str, str]:
        """The headers with which a node is asked for a tenant's response."""
        asked_at = str(int(shared_now()))
        signature = self._sign("question", owner, tenant, response_id, asked_at)
        return {TENANT: tenant.encode().hex(), ASKED_AT: asked_at, SIGNATURE: signature}

    def asked_for(self, headers: Mapping[str, str], response_id: str) -> str | None:
        """The tenant for whom another node asks; None: whoever asks is no node."""
        try:
            tenant = bytes.fromhex(headers[TENANT]).decode()
            asked_at = headers[ASKED_AT]
            is_new = abs(shared_now() - int(asked_at)) <= _QUESTION_S
        except (KeyError, ValueError):
            return None
        is_signed = self._signed(headers, "question", self.node_id, tenant, response_id, asked_at)
        return tenant if is_signed and is_new else None

    def reply(self, tenant: str, state: ResponseState) -> tuple[bytes, dict[str, str]]:
        """A response with its chain, for another node: the body, and the headers that prove it."""
        body = pack_chain(state, self._positions)
        return body, {SIGNATURE: self._sign(*_answer(tenant, state.id, body))}

    def _signed(self, headers: Mapping[str, str], *parts: str) -> bool:
        presented = headers.get(SIGNATURE, "").encode("utf-8", "surrogateescape")
        return bool(self._secret) and hmac.compare_digest(presented, self._sign(*parts).encode())

    def _sign(self, *parts: str) -> str:
        # Each by its digest, so that nothing can move from one to the next.
        digests = b"".join(hashlib.sha256(part.encode("utf-8", "surrogateescape")).digest() for part in parts)
        return hmac.new(self._secret, digests, hashlib.sha256).hexdigest()


def _answer(tenant: str, response_id: str, body: bytes) -> tuple[str, str, str, str]:
    return "answer", tenant, response_id, hashlib.sha256(body).hexdigest()
