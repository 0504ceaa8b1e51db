"""What the core cannot do by itself, handed in: ids are drawn, time is read and seals are made elsewhere."""

from collections.abc import Callable

from msgspec import Struct

from slipring.core.sealing import Seal
from slipring.core.stages import Clock

Mint = Callable[[str], str]
"""Makes a new id with a prefix: ``mint("call")`` → ``call_…``."""


class Means(Struct, frozen=True):
    """The same for all sessions of a server."""

    mint: Mint
    clock: Clock
    """Stops the stages of turns."""
    seal: Seal
