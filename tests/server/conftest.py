"""Runs the tests that depend on a transport on asyncio and on uvloop."""

import asyncio
from collections.abc import Callable

import pytest

try:
    from uvloop import new_event_loop as new_uvloop
except ImportError:  # not available on every platform
    new_uvloop = asyncio.new_event_loop  # type: ignore[assignment]

_BOTH = {"asyncio": asyncio.new_event_loop, "uvloop": new_uvloop}
_ON_BOTH = (
    "test_connection",
    "test_fair_reading",
    "test_open_connections",
    "test_request_bodies",
    "test_slow_clients",
    "test_drain",
    "test_websocket_protocol",
)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path.stem in _ON_BOTH:
        return _BOTH
    return {"asyncio": asyncio.new_event_loop}
