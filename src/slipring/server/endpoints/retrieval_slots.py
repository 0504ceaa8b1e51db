"""Answers from the store: how many are read and encoded at once for one tenant.

What is stored may be as large as a request, and is held several times while an answer is made of it: as rows,
as objects and as the answer's bytes. From then on it counts as unread, which has bounds of its own.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Retrieving:
    """Places for reading from the store. Each tenant has its own; whoever finds none waits."""

    def __init__(self, places: int) -> None:
        """``places``: of each tenant."""
        self._places = places
        self._tenants: dict[str, _Places] = {}

    @asynccontextmanager
    async def place(self, tenant: str) -> AsyncIterator[None]:
        """Have a place for as long as the block runs."""
        places = self._tenants.get(tenant)
        if places is None:
            places = self._tenants[tenant] = _Places(self._places)
        places.users += 1
        try:
            async with places.free:
                yield
        finally:
            places.users -= 1
            if not places.users:
                del self._tenants[tenant]


class _Places:
    """Those of one tenant."""

    __slots__ = ("free", "users")

    def __init__(self, count: int) -> None:
        self.free = asyncio.Semaphore(count)
        self.users = 0
        """Who has a place or waits for one."""
