"""Engines that one process owns and several workers use.

The owner gives each user a share: slots of the engine and room for files that no other user touches, so that
users need not know of each other. This module defines shares and how a user follows the engine's address. It
knows neither the kind of engine nor how owner and users communicate.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from slipring.base.errors import Unavailable


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


class Borrowed:
    """One user's view of an engine that another process owns."""

    def __init__(self, share: Share, key: str, on_suspicion: Callable[[str], None]) -> None:
        """``on_suspicion`` is called with the address at which the engine does not answer."""
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
        """Report to the owner, which may restart the engine."""
        if self._url is not None:
            self._on_suspicion(self._url)

    def rejects_grammar(self, slot: int) -> bool:
        """False: the owner logs it."""
        return False

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

    async def close(self) -> None:
        return
