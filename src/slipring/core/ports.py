"""Injected dependencies: id minting, clock, encryption, the ledger of request bytes.

The core itself reads no clock and draws no random numbers.
"""

from collections.abc import Callable

from msgspec import Struct

from slipring.core.byte_ledger import Ledger
from slipring.core.chain.instructions_and_tools import KnownHeads
from slipring.core.chain.resent_history import KnownContexts, KnownItems
from slipring.core.chain.sealed_items import Seal
from slipring.core.checks.known_verdicts import KnownVerdicts

Mint = Callable[[str], str]
"""Returns a new id with a prefix: ``mint("call")`` → ``call_…``."""
Clock = Callable[[], float]
"""Returns seconds of a monotonic clock."""


class Ports(Struct, frozen=True):
    """The dependencies that all sessions of a server share."""

    mint: Mint
    clock: Clock
    """Times the stages of turns."""
    seal: Seal
    requests: Ledger
    """Counts the bytes of requests that wait or run."""
    known: KnownContexts
    """Recognises histories that clients send again."""
    heads: KnownHeads
    """Recognises tools that clients send again."""
    items: KnownItems
    """Recognises single items that clients send again."""
    verdicts: KnownVerdicts
    """What safety checks have said about items."""
    ignored_tools: frozenset[str] = frozenset()
    """Types of tools that requests may list although nothing answers them."""
    fetches_images: bool = False
    """Whether images that requests name by URL are fetched."""
    reads_documents: bool = False
    """Whether PDF files are read for models that take no files."""
