"""The fair queue of calls."""

import pytest

from slipring.base.errors import RateLimited
from slipring.sandbox.sandbox import FairQueue


def test_tenants_take_turns_and_have_one_call_running_each() -> None:
    queue: FairQueue[int] = FairQueue(2)
    queue.put("a", 1)
    queue.put("a", 2)
    with pytest.raises(RateLimited):
        queue.put("a", 3)
    queue.put("b", 4)
    assert queue.take() == ("a", 1)
    assert queue.take() == ("b", 4)
    assert queue.take() is None, "each tenant has one call running"
    queue.finish("a")
    assert queue.remove("a", 2)
    assert not queue.remove("a", 2)
    assert queue.take() is None
    queue.put("b", 5)
    assert queue.clear() == [5]
