"""Injected dependencies: id minting, clock, encryption, the ledger of request bytes.

The core itself reads no clock and draws no random numbers. Also here: the API extensions that a client
enables when it connects.
"""

from collections.abc import Callable

from msgspec import Struct

from slipring.core.byte_ledger import Ledger
from slipring.core.chain.head import KnownHeads
from slipring.core.chain.input_items import Seal
from slipring.core.chain.resent_history import KnownContexts, KnownItems
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


class Betas(Struct, frozen=True):
    """API extensions that a client enabled for its connection."""

    timing: bool = False
    """Send a ``slipring.timing`` event after each response."""
    rollout: bool = False
    """Accept ``rollout`` in ``response.create``, and ``response.append`` events."""
    inject: bool = False
    """Accept ``response.inject`` events."""
    tool_output: bool = False
    """Accept ``response.tool_output.delta`` and ``response.tool_output.done`` events."""
    tool_progress: bool = False
    """Send a ``slipring.mcp_call.progress`` event whenever the server of a hosted call reports progress."""
    short_events: bool = False
    """Omit ``instructions`` and ``tools`` from the response in ``response.created`` and
    ``response.in_progress``."""
    keeps_nothing: bool = False
    """Keep no response in memory after its connection has closed."""


NO_BETAS = Betas()
