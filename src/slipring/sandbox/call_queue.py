"""Fair queue of calls: tenants take turns, and each has at most one call running."""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

from slipring.base.errors import OVERLOAD_RETRY_S, RateLimited

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Waiting calls by tenant. After ``take``, the caller must report the end of the call with ``finish``."""

    def __init__(self, max_waiting: int) -> None:
        """``max_waiting``: calls of one tenant that may wait."""
        self._max_waiting = max_waiting
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()
        """By tenant, in the order of their next turns."""
        self._running: set[str] = set()

    def put(self, tenant: str, call: T) -> None:
        """Add a call. Raises ``RateLimited`` if too many calls of the tenant are waiting."""
        calls = self._waiting.setdefault(tenant, deque())
        if len(calls) >= self._max_waiting:
            raise RateLimited(
                f"{len(calls)} grammars or schemas of yours wait to be compiled. Try again later.",
                retry_after_s=OVERLOAD_RETRY_S,
            )
        calls.append(call)

    def take(self) -> tuple[str, T] | None:
        """Remove and return the next call of a tenant that has none running; None if there is none."""
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

    def finish(self, tenant: str) -> None:
        """The running call of a tenant has ended."""
        self._running.discard(tenant)

    def remove(self, tenant: str, call: T) -> bool:
        """Remove a waiting call; returns whether it was waiting."""
        calls = self._waiting.get(tenant)
        if calls is None or call not in calls:
            return False
        calls.remove(call)
        if not calls:
            del self._waiting[tenant]
        return True

    def clear(self) -> list[T]:
        """Remove and return all waiting calls."""
        waiting = [call for calls in self._waiting.values() for call in calls]
        self._waiting.clear()
        return waiting
