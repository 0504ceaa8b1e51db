"""Timers that say when each client of a server has to be checked next.

Due times are kept in buckets of one second, and each client is in one bucket at most. A client costs nothing
until its time is due, however many clients there are.
"""

import math
from typing import Generic, TypeVar

T = TypeVar("T")


class ClientTimers(Generic[T]):
    """One due time per client, rounded up to a second: a client is never returned before its time."""

    __slots__ = ("_bucket_of", "_buckets")

    def __init__(self) -> None:
        self._buckets: dict[int, dict[T, None]] = {}
        self._bucket_of: dict[T, int] = {}

    def __len__(self) -> int:
        return len(self._bucket_of)

    def set(self, client: T, due: float) -> None:
        """Set a client's due time, replacing the one set before; infinity removes it."""
        self.remove(client)
        if due == math.inf:
            return
        number = math.ceil(due)
        self._bucket_of[client] = number
        self._buckets.setdefault(number, {})[client] = None

    def advance(self, client: T, due: float) -> None:
        """Set a client's due time, unless it is due earlier already."""
        if (number := self._bucket_of.get(client)) is None or number > due + 1:
            self.set(client, due)

    def remove(self, client: T) -> None:
        """Remove a client's due time, if it has one."""
        number = self._bucket_of.pop(client, None)
        if number is None:
            return
        bucket = self._buckets[number]
        del bucket[client]
        if not bucket:
            del self._buckets[number]

    def take_due(self, now: float) -> list[T]:
        """Remove and return the clients that are due, the earliest first."""
        due = sorted(number for number in self._buckets if number <= now)
        clients = [client for number in due for client in self._buckets.pop(number)]
        for client in clients:
            del self._bucket_of[client]
        return clients
