"""When a server says that it cannot have as many connections as its limit allows."""

import pytest

from slipring.core.limits import Limits
from slipring.server.connections.open_connections import log_reduced_room


@pytest.mark.parametrize(
    ("room", "asked", "is_logged"),
    [
        (16_000, Limits().max_connections, False),  # at every start of every server would be too often
        (900, Limits().max_connections, True),
        (16_000, 50_000, True),
        (500, 500, False),
        (400, 500, True),
    ],
)
def test_fewer_connections_are_logged_if_they_were_asked_for_or_are_few(
    room: int, asked: int, *, is_logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    log_reduced_room(room, asked)
    assert ("ulimit -n" in caplog.text) is is_logged
