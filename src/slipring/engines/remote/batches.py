"""What comes of a batch: an engine is told many things at once, and one of them may be a failure."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from slipring.errors import ApiError

T = TypeVar("T")
R = TypeVar("R")


def read_each(read: Callable[[T], R], items: Iterable[T]) -> tuple[list[R], ApiError | None]:
    """What items say, up to the first that tells of a failure, and the failure: it is raised once all that
    came before it has been told."""
    said: list[R] = []
    try:
        said.extend(map(read, items))
    except ApiError as fault:
        return said, fault
    return said, None
