"""Where the admin listener gets what it shows."""

from collections.abc import Callable
from typing import Protocol

from slipring.observation import live
from slipring.observation.snapshots import Snapshot

INTERVAL_S = 0.5
"""Time between two updates of one process."""
Receive = Callable[[bytes], None]
"""Takes one line of a live stream, without waiting."""


class Source(Protocol):
    """What an admin listener shows."""

    def greeting(self) -> live.Greeting:
        """The first message of a live stream."""

    def subscribe(self, receive: Receive) -> Callable[[], None]:
        """Send the lines of a live stream to ``receive`` until the returned function is called."""

    async def detail(self, process: int, number: int) -> live.ConnectionDetail | None:
        """Describe one connection; None if it is not open."""

    def metrics(self) -> Snapshot:
        """What all processes have counted."""

    def health(self) -> tuple[object, int]:
        """The body of ``GET /health`` and its status."""
