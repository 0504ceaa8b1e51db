"""Which call is next: tenants take turns, and no tenant has more than one call running."""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

from slipring.errors import RateLimited

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Calls that wait. Whoever takes one says when it is over."""

    def __init__(self, most_waiting: int) -> None:
        self._most_waiting = most_waiting
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()
        """By tenant; the one that has waited longest for its turn comes first."""
        self._running: set[str] = set()

    def put(self, tenant: str, call: T) -> None:
        """Raises ``RateLimited`` where too many calls of the tenant wait already."""
        calls = self._waiting.setdefault(tenant, deque())
        if len(calls) >= self._most_waiting:
            raise RateLimited(
                f"{len(calls)} grammars or schemas of yours wait to be compiled. Try again later."
            )
        calls.append(call)

    def take(self) -> tuple[str, T] | None:
        """The next call, of a tenant that has none running; None: there is none just now."""
        for tenant, calls in self._waiting.items():
            if tenant not in self._running:
                call = calls.popleft()
                if calls:
                    self._waiting.move_to_end(tenant)
                else:
                    del self._waiting[tenant]
                self._running.add(tenant)
                return tenant, call
        return None

    def over(self, tenant: str) -> None:
        """The tenant's call is not running any more."""
        self._running.discard(tenant)

    def remove(self, tenant: str, call: T) -> bool:
        """Forget a call that waits; whether there was one."""
        calls = self._waiting.get(tenant)
        if calls is None or call not in calls:
            return False
        calls.remove(call)
        if not calls:
            del self._waiting[tenant]
        return True

    def clear(self) -> list[T]:
        """Forget all calls that wait; returns them."""
        waiting = [call for calls in self._waiting.values() for call in calls]
        self._waiting.clear()
        return waiting
