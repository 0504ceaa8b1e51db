"""Limits how many pieces of work of one kind run at once for each tenant."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class TenantSlots:
    """A semaphore per tenant. Tenants do not wait for each other."""

    def __init__(self, per_tenant: int) -> None:
        self._per_tenant = per_tenant
        self._tenants: dict[str, _Slots] = {}

    @asynccontextmanager
    async def hold(self, tenant: str) -> AsyncIterator[None]:
        """Hold one of the tenant's slots while the block runs; waits until one is free."""
        slots = self._tenants.get(tenant)
        if slots is None:
            slots = self._tenants[tenant] = _Slots(self._per_tenant)
        slots.users += 1
        try:
            async with slots.free:
                yield
        finally:
            slots.users -= 1
            if not slots.users:
                del self._tenants[tenant]


class _Slots:
    __slots__ = ("free", "users")

    def __init__(self, count: int) -> None:
        self.free = asyncio.Semaphore(count)
        self.users = 0
        """Number of blocks that hold a slot or wait for one."""
