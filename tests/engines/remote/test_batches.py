"""A failure among what is told at once: what came before it is told first."""

import pytest

from slipring.engines.remote.batches import read_each
from slipring.errors import ApiError, ServerError


def read(item: int) -> str:
    if item < 0:
        raise ServerError(str(item))
    return str(item)


@pytest.mark.parametrize(
    ("items", "said", "fault"),
    [
        ([], [], None),
        ([1, 0, 2], ["1", "0", "2"], None),
        ([-1, 1], [], "-1"),
        ([1, -2, 1, -3], ["1"], "-2"),
    ],
)
def test_a_failure_ends_what_is_read(items: list[int], said: list[str], fault: str | None) -> None:
    told, error = read_each(read, items)
    assert told == said
    assert (error.message if isinstance(error, ApiError) else None) == fault
