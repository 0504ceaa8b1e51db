"""What comes of a batch: an engine is told many things at once, and one of them may be a failure."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from slipring.errors import ApiError

T = TypeVar("T")
R = TypeVar("R")


def read_all(read: Callable[[T], list[R]], items: Iterable[T]) -> tuple[list[R], ApiError | None]:
    """What items say, up to the first that tells of a failure, and the failure: it is raised once all that
    came before it has been told."""
    said: list[R] = []
    try:
        for item in items:
            said += read(item)
    except ApiError as fault:
        return said, fault
    return said, None
