"""Which contexts of token ids were read before, block by block, as engines with a paged KV cache know it.

Each block's digest covers all that comes before it, so that a history that is sent again in full finds the
blocks of a chain, and the other way round. A continuation goes on from its parent's digest.
"""

from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b

from msgspec import Struct

from slipring.prompts.rendering import Step

BLOCK_TOKENS = 32
_BLOCK_BYTES = 4 * BLOCK_TOKENS
_MAX_BLOCKS = 262_144


class Blocks(Struct, frozen=True):
    """A context cut into blocks: the digest of the last whole one, and what comes after it."""

    digest: bytes
    tokens: int = 0
    """In whole blocks."""
    rest: bytes = b""


class BlockCache:
    """The blocks that were read; the least recently used are forgotten."""

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def start(self, tenant: str) -> Blocks:
        """Nothing, as a tenant's: nobody may learn from a cache what somebody else has sent."""
        return Blocks(blake2b(tenant.encode(), digest_size=16).digest())

    def read(self, before: Blocks, steps: Iterable[Step]) -> tuple[Blocks, int]:
        """Read on; returns where that leads, and how many tokens were known from the beginning on."""
        seen = self._seen
        digest = before.digest
        known = not before.tokens or digest in seen
        cached = before.tokens if known else 0
        data = before.rest + b"".join(step.ids.tobytes() for step in steps)
        whole = len(data) - len(data) % _BLOCK_BYTES
        for at in range(0, whole, _BLOCK_BYTES):
            digest = blake2b(digest + data[at : at + _BLOCK_BYTES], digest_size=16).digest()
            known = known and digest in seen
            cached += BLOCK_TOKENS * known
            seen[digest] = None
            seen.move_to_end(digest)
        while len(seen) > _MAX_BLOCKS:
            seen.popitem(last=False)
        return Blocks(digest, before.tokens + whole // 4, data[whole:]), cached
