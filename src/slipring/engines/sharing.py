"""An engine that one process runs and several use.

The process that runs it is its *owner*. Each user gets a share: places in the engine and room for files that
are nobody else's, so that users need not know of each other. This module owns what a share is and how a user
finds the engine. It must not know what kind of engine it is, nor how owner and users talk.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from slipring.errors import Unavailable


class Share(Struct, frozen=True):
    """What one user may use of an engine."""

    slots: tuple[int, ...]
    """The numbers of its places."""
    saved_bytes: int
    """How much its files may take."""
    directory: str = ""
    """Where its files are, if they are its to remove."""
    mark: str = ""
    """Begins the names of its files. The owner finds them by it when their user has died."""


class Owner(Protocol):
    """The process's hold on an engine that it runs for others."""

    key: str

    @property
    def address(self) -> str | None:
        """Where the engine is; None while it is not there."""

    async def start(self, on_move: Callable[[], None]) -> None:
        """Run it. ``on_move`` is told when its address has changed, to be None first of all."""

    async def close(self) -> None: ...

    def share(self, number: int) -> Share:
        """The share of a user who begins with nothing; what an earlier one with this number left goes."""

    def suspect(self, url: str) -> None:
        """A user has waited for too long at this address."""


class Borrowed:
    """An engine of another process, as one of its users sees it."""

    def __init__(self, share: Share, key: str, on_suspicion: Callable[[str], None]) -> None:
        """``on_suspicion`` tells the owner at which address the engine does not answer."""
        self.share = share
        self.key = key
        self._on_suspicion = on_suspicion
        self._on_loss: Callable[[], None] | None = None
        self._url: str | None = None
        self._is_there = asyncio.Event()

    @property
    def url(self) -> str:
        if self._url is None:
            raise Unavailable("The engine is starting again. Try again in a moment.")
        return self._url

    @property
    def trouble(self) -> str | None:
        return "the shared engine is starting again" if self._url is None else None

    def suspect(self) -> None:
        """It is its owner's to end."""
        if self._url is not None:
            self._on_suspicion(self._url)

    def move(self, url: str | None) -> None:
        """The owner tells where the engine is now. At another address nothing is left of what it held."""
        if self._url not in (None, url) and self._on_loss is not None:
            self._on_loss()
        self._url = url
        if url is None:
            self._is_there.clear()
        else:
            self._is_there.set()

    async def start(self, on_loss: Callable[[], None]) -> None:
        """Wait until it is there: a user may begin while its owner is just starting it again."""
        self._on_loss = on_loss
        await self._is_there.wait()

    async def close(self) -> None:
        return
