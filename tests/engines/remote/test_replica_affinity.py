"""How answers name the replica that they come from."""

import pytest

from slipring.engines.remote.replica_affinity import (
    REPLICA_HEADERS,
    Replica,
    answering_replica,
    read_header_names,
)

NAMES = read_header_names(REPLICA_HEADERS)


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({}, None),
        ({"x-slipring-replica": ""}, None),
        ({"x-slipring-replica": " ;kv_tokens=5"}, None),
        ({"x-slipring-replica": "3f9a;kv_tokens=75000"}, Replica("3f9a", 75_000)),
        ({"x-slipring-replica": "3f9a; kv_tokens=75000"}, Replica("3f9a", 75_000)),
        ({"x-slipring-replica": "3f9a;kv_tokens=0"}, Replica("3f9a", None)),
        ({"x-slipring-replica": "3f9a;kv_tokens=many"}, Replica("3f9a", None)),
        ({"x-slipring-replica": "3f9a;kv_tokens=" + "9" * 40}, Replica("3f9a", None)),
        ({"x-slipring-replica": "3f9a;other=1"}, Replica("3f9a", None)),
        ({"x-smg-routed-worker-id": "http://10.0.0.1:8000"}, Replica("http://10.0.0.1:8000", None)),
        ({"x-smg-routed-worker-id": "http://a", "x-slipring-replica": "r1"}, Replica("r1", None)),
        ({"x-slipring-replica": "r" * 1000}, Replica("r" * 256, None)),
    ],
)
def test_the_first_header_that_is_there_names_the_replica(
    headers: dict[str, str], found: Replica | None
) -> None:
    assert answering_replica(headers, NAMES) == found


def test_any_header_can_be_chosen() -> None:
    assert answering_replica({"x-replica": "one"}, read_header_names(" X-Replica ;")) == Replica("one", None)
    assert answering_replica({"x-replica": "one"}, read_header_names("")) is None
