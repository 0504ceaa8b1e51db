"""A prefix cache over token ids in blocks, like that of engines with a paged KV cache.

Each block's digest covers all tokens up to its end, so that a history that is sent again in full finds the
blocks of a chain, and vice versa. A continuation starts from its parent's digest.
"""

from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b

from msgspec import Struct

from slipring.prompts.rendering import EncodedIds

BLOCK_TOKENS = 32
_BLOCK_BYTES = 4 * BLOCK_TOKENS
_MAX_BLOCKS = 262_144


class Blocks(Struct, frozen=True):
    """A context in blocks: the digest of the last whole block, and the ids after it."""

    digest: bytes
    tokens: int = 0
    """In whole blocks."""
    rest: bytes = b""
    """The ids after the last whole block, four bytes each."""


class BlockCache:
    """The digests of the blocks that were read. Evicts the least recently used."""

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def start(self, tenant: str) -> Blocks:
        """The empty context of a tenant. The digests of tenants differ, so that no tenant can learn from the
        cache what another has sent."""
        return Blocks(blake2b(tenant.encode(), digest_size=16).digest())

    def read(self, before: Blocks, steps: Iterable[EncodedIds]) -> tuple[Blocks, int]:
        """Append steps to a context. Returns the longer context, and how many tokens from its beginning were
        cached already."""
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
