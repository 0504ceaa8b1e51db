"""Limits how many pieces of work of one kind run at once for each tenant."""

from asyncio import Semaphore
from weakref import WeakValueDictionary


class TenantSlots:
    """A semaphore per tenant. Tenants do not wait for each other."""

    def __init__(self, per_tenant: int) -> None:
        self._per_tenant = per_tenant
        self._tenants: WeakValueDictionary[str, Semaphore] = WeakValueDictionary()
        """The semaphores in use: each task that holds a slot, or waits for one, refers to its semaphore."""

    def hold(self, tenant: str) -> Semaphore:
        """To be used as a context: the block begins when one of the tenant's slots is free, and holds it."""
        slots = self._tenants.get(tenant)
        if slots is None:
            slots = self._tenants[tenant] = Semaphore(self._per_tenant)
        return slots
