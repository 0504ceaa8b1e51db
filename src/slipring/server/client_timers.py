"""When which client of a server has to be looked at next.

Due times are kept in buckets of a second, and each client is in one bucket at most. A client that waits for
something far away costs nothing until then, however many of them there are.
"""

import math
from typing import Generic, TypeVar

T = TypeVar("T")


class Alarms(Generic[T]):
    """The due time of every client, to the second. Nothing is due before its time."""

    __slots__ = ("_bucket_of", "_buckets")

    def __init__(self) -> None:
        self._buckets: dict[int, dict[T, None]] = {}
        self._bucket_of: dict[T, int] = {}

    def __len__(self) -> int:
        return len(self._bucket_of)

    def set(self, client: T, due: float) -> None:
        """Have a client looked at from this time on, and not at the time set before; infinity: not at all."""
        self.remove(client)
        if due == math.inf:
            return
        number = math.ceil(due)
        self._bucket_of[client] = number
        self._buckets.setdefault(number, {})[client] = None

    def advance(self, client: T, due: float) -> None:
        """Have a client looked at from this time on, unless it is due before."""
        if (number := self._bucket_of.get(client)) is None or number > due + 1:
            self.set(client, due)

    def remove(self, client: T) -> None:
        """Forget a client, if it is known."""
        number = self._bucket_of.pop(client, None)
        if number is None:
            return
        bucket = self._buckets[number]
        del bucket[client]
        if not bucket:
            del self._buckets[number]

    def take_due(self, now: float) -> list[T]:
        """The clients that are due, the earliest first. They are looked at once: set them again."""
        due = sorted(number for number in self._buckets if number <= now)
        clients = [client for number in due for client in self._buckets.pop(number)]
        for client in clients:
            del self._bucket_of[client]
        return clients
