"""Where an engine's server runs, and how one process owns an engine that several workers use.

A host gives the engine's address, and says why there is none while it is down. An owner gives each user a
share: slots of the engine and room for files that no other user touches, so that users need not know of each
other. Neither the kind of engine nor how owner and users communicate is known here.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from slipring.base.errors import Unavailable


class Host:
    """Where an engine's server runs: in a child process, owned by another process of slipring, or elsewhere.

    The defaults are those of a server that slipring did not start, and that always runs.
    """

    why_down = "the engine is starting again"
    """For operators, while there is no address."""

    def __init__(self, key: str, url: str | None = None) -> None:
        self.key = key
        self._url = url

    @property
    def url(self) -> str:
        """Its address. Raises ``Unavailable`` while it is down."""
        if self._url is None:
            raise Unavailable("The engine is starting again. Try again in a moment.")
        return self._url

    @property
    def trouble(self) -> str | None:
        """Why it is down; None while it runs."""
        return self.why_down if self._url is None else None

    def suspect(self) -> None:
        """Report that it has not answered for too long."""
        return

    def rejects_grammar(self, slot: int) -> bool:
        """Whether it does not enforce the grammar of the job that began last in a slot, as far as this
        process can know. Returns True once for each such job."""
        return False

    async def start(self, on_loss: Callable[[], None]) -> None:
        """Start it or wait for it. ``on_loss`` is called when the contents of its slots are lost."""
        return

    async def close(self) -> None:
        return


class Share(Struct, frozen=True):
    """The part of an engine that one user may use."""

    slots: tuple[int, ...]
    """The numbers of its slots."""
    saved_bytes: int
    """The total size of its files."""
    directory: str = ""
    """Where its files are, if the user may remove them."""
    mark: str = ""
    """Prefix of its file names, by which the owner finds the files of a user that has died."""


class Owner(Protocol):
    """Runs an engine for several users and divides it among them."""

    key: str

    @property
    def address(self) -> str | None:
        """The engine's URL; None while it is down."""

    async def start(self, on_move: Callable[[], None]) -> None:
        """Run it. ``on_move`` is called when the address changes: to None first, then to the new one."""

    async def close(self) -> None: ...

    def share(self, number: int) -> Share:
        """The share of a new user; removes the files that an earlier user with this number left."""

    def suspect(self, url: str) -> None:
        """Report that the engine at this address has not answered a user for too long."""


class Borrowed(Host):
    """One user's view of an engine that another process owns."""

    why_down = "the shared engine is starting again"

    def __init__(self, share: Share, key: str, on_suspicion: Callable[[str], None]) -> None:
        """``on_suspicion`` is called with the address at which the engine does not answer."""
        super().__init__(key)
        self.share = share
        self._on_suspicion = on_suspicion
        self._on_loss: Callable[[], None] | None = None
        self._is_there = asyncio.Event()

    def suspect(self) -> None:
        """Report to the owner, which may restart the engine."""
        if self._url is not None:
            self._on_suspicion(self._url)

    def move(self, url: str | None) -> None:
        """Set the address that the owner reports. A new address means that the engine has lost its slots."""
        if self._url not in (None, url) and self._on_loss is not None:
            self._on_loss()
        self._url = url
        if url is None:
            self._is_there.clear()
        else:
            self._is_there.set()

    async def start(self, on_loss: Callable[[], None]) -> None:
        """Wait until there is an address: the owner may be restarting the engine."""
        self._on_loss = on_loss
        await self._is_there.wait()
