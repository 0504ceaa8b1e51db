"""Token counts of contexts, and the prefix caches of the simulated engine, of items or of blocks of tokens.

Like a real engine, the one without a vocabulary works on a rendering of the items, so a history that a client
sends again in full has the same prefix as one that is continued by id. The tally of a finished response is
its position: a continuation counts only its new items, unless the head changed.

With a vocabulary the cache has blocks, like that of engines with a paged KV cache: each block's digest covers
all tokens up to its end, so that a history that is sent again in full finds the blocks of a chain, and vice
versa.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct

from slipring.core.chain.instructions_and_tools import Head
from slipring.core.generation import CallArguments, CallStarted, Delta, Job, RefusalText, Text
from slipring.core.token_estimates import estimated_picture_tokens
from slipring.engines.simulated.context_digest import Trace
from slipring.protocol.items.item_pictures import pictures
from slipring.protocol.items.items import (
    CallOutput,
    CustomToolCall,
    FunctionCall,
    Item,
    Message,
    plain_text,
)

if TYPE_CHECKING:
    from slipring.prompts.rendering import EncodedIds

_BYTES_PER_TOKEN = 4
_TOKENS_PER_ITEM = 4
_MAX_PREFIXES = 16_384
_POSITION_BYTES = 200
BLOCK_TOKENS = 32
_BLOCK_BYTES = 4 * BLOCK_TOKENS
_MAX_BLOCKS = 262_144


class Tally(Struct, frozen=True):
    """The token count and the digest of a context up to some item."""

    head: Head
    tokens: int
    digest: bytes
    tool_outputs: int
    boundaries: tuple[tuple[bytes, int], ...] = ()
    """Digest and token count at each item border of the newest part; prefixes are cached at these."""
    trace: Trace | None = None
    """Only in positions, with ``digest=true``: the trace of the context without the answer."""

    @property
    def new_tokens(self) -> int:
        """The token count of the newest part."""
        return self.tokens - self.boundaries[0][1]

    @property
    def size_bytes(self) -> int:
        return _POSITION_BYTES

    def unshared_bytes(self, earlier: object) -> int:
        """It shares nothing with other positions."""
        return _POSITION_BYTES

    def extended(self, texts: Iterable[tuple[str, bool]]) -> "Tally":
        """The tally of this context and further items. ``texts``: the rendering of each item, and whether it
        is a tool output."""
        tokens, digest, outputs = self.tokens, self.digest, self.tool_outputs
        boundaries = [(digest, tokens)]
        for text, is_output in texts:
            encoded = text.encode()
            tokens += len(encoded) // _BYTES_PER_TOKEN + _TOKENS_PER_ITEM
            digest = blake2b(digest + encoded, digest_size=16).digest()
            outputs += is_output
            boundaries.append((digest, tokens))
        return Tally(self.head, tokens, digest, outputs, tuple(boundaries))

    def after(self, emitted: Iterable[Delta], trace: Trace | None = None) -> "Tally":
        """The tally of this context and the answer that consists of these deltas."""
        return self.extended((text, False) for text in _render_deltas(emitted)).as_position(trace)

    def as_position(self, trace: Trace | None) -> "Tally":
        """What the next turn needs of this tally, which outlives its own turn."""
        return Tally(self.head, self.tokens, self.digest, self.tool_outputs, trace=trace)


def tally_job(job: Job) -> Tally:
    """Count a job's context: from its parent's position if the head is the same, else from the start."""
    position = position_of(job)
    if position is not None:
        return position.extended(_render_items(job.input))
    rendered = f"{job.head.instructions or ''}\n".encode() + job.head.tools.raw
    # Keyed by tenant, so that no tenant can learn from the cache what another has sent.
    key = blake2b(job.tenant.encode(), digest_size=16).digest()
    start = Tally(
        job.head,
        tokens=len(rendered) // _BYTES_PER_TOKEN,
        digest=blake2b(rendered, key=key, digest_size=16).digest(),
        tool_outputs=0,
    )
    return start.extended(_render_items(job.context()))


def position_of(job: Job) -> Tally | None:
    """The position of a job's parent; None if there is none or its head differs."""
    position = job.parent.position if job.parent is not None else None
    if isinstance(position, Tally) and (position.head is job.head or position.head == job.head):
        return position
    return None


class Begun(Struct, frozen=True):
    """A context whose last item is not complete. It keeps nothing of the context but numbers: it stays in the
    prefix cache."""

    before: bytes
    """The digest of the context without that item."""
    before_tokens: int
    length: int
    """Of the item's text so far, in bytes."""
    digest: bytes
    """Of that text."""

    @property
    def tokens(self) -> int:
        return self.before_tokens + self.length // _BYTES_PER_TOKEN


def begin_last_item(job: Job) -> Begun:
    """Count a job's context; the text of its last item may still grow. The job's parent has a position."""
    position = position_of(job)
    assert position is not None
    before = position.extended(_render_items(job.input[:-1]))
    text = _render(job.input[-1])[0].encode()
    return Begun(before.digest, before.tokens, len(text), blake2b(text, digest_size=16).digest())


def _seen(item: Item) -> str:
    """What stands for the pictures of an item: their digests, at the length of their tokens."""
    lengths = ((each.digest, _BYTES_PER_TOKEN * estimated_picture_tokens(each)) for each in pictures(item))
    return "".join(digest.ljust(length) for digest, length in lengths)


class PrefixCache:
    """The digests of the contexts that the engine has read. Evicts the least recently used."""

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, Begun | None] = OrderedDict()

    def longest(self, tally: Tally, job: Job) -> int:
        """The token count of a job's longest cached prefix, which ends at an item border or within an item
        whose beginning was read before."""
        for index in range(len(tally.boundaries) - 1, -1, -1):
            digest, tokens = tally.boundaries[index]
            if digest in self._seen:
                self._seen.move_to_end(digest)
                begun = self._seen[digest]
                return tokens if begun is None else _continued(begun, index, tokens, job)
        return 0

    def add_begun(self, begun: Begun) -> None:
        """Add a context whose last item is not complete."""
        self._add(begun.before)
        self._seen[begun.before] = begun

    def add(self, tally: Tally) -> None:
        """Add a context."""
        self._add(tally.digest)

    def _add(self, digest: bytes) -> None:
        self._seen.setdefault(digest, None)
        self._seen.move_to_end(digest)
        if len(self._seen) > _MAX_PREFIXES:
            self._seen.popitem(last=False)


def _continued(begun: Begun, index: int, tokens: int, job: Job) -> int:
    """The token count of a job's prefix up to the part of its item at ``index`` that was read before."""
    following = next(islice(_render_items(job.input), index, None), None)
    if following is None:
        return tokens
    text = following[0].encode()[: begun.length]
    return begun.tokens if blake2b(text, digest_size=16).digest() == begun.digest else tokens


def _render_items(items: Iterable[Item]) -> Iterator[tuple[str, bool]]:
    """All items but reasoning, which does not stay in the context."""
    return (_render(item) for item in items if item.type != "reasoning")


def _render(item: Item) -> tuple[str, bool]:
    """The text of an item, and whether it is a tool output."""
    body = item.body()
    if isinstance(body, Message):
        return f"{body.role}\n{plain_text(body.content)}{_seen(item)}", False
    if isinstance(body, FunctionCall):
        return f"call {body.name}\n{body.arguments}", False
    if isinstance(body, CustomToolCall):
        return f"call {body.name}\n{body.input}", False
    if isinstance(body, CallOutput):
        return f"output\n{plain_text(body.output)}{_seen(item)}", True
    return item.raw.decode(), False


def _render_deltas(deltas: Iterable[Delta]) -> list[str]:
    """The texts of the items that deltas make up, as ``_render`` renders them later."""
    items: list[list[str]] = []
    in_message = False
    for delta in deltas:
        if type(delta) is Text or isinstance(delta, RefusalText):  # first: most deltas are text
            if not in_message:
                items.append(["assistant\n"])
            items[-1].append(delta.text)
            in_message = True
        elif isinstance(delta, CallStarted):
            items.append([f"call {delta.name}\n"])
            in_message = False
        elif isinstance(delta, CallArguments):
            items[-1].append(delta.text)
        else:
            in_message = False  # reasoning: text after it is another message
    return ["".join(pieces) for pieces in items]


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

    def read(self, before: Blocks, steps: "Iterable[EncodedIds]") -> tuple[Blocks, int]:
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
