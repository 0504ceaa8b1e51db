"""What the core cannot do by itself, or shares between sessions, handed in.

Ids are drawn, time is read and seals are made elsewhere; the bytes of requests are counted over all sessions.
"""

from collections.abc import Callable

from msgspec import Struct

from slipring.core.byte_ledger import Ledger
from slipring.core.chain.sealed_items import Seal
from slipring.core.turn.stages import Clock

Mint = Callable[[str], str]
"""Makes a new id with a prefix: ``mint("call")`` → ``call_…``."""


class Means(Struct, frozen=True):
    """The same for all sessions of a server."""

    mint: Mint
    clock: Clock
    """Stops the stages of turns."""
    seal: Seal
    requests: Ledger
    """The bytes of requests that wait or run."""
