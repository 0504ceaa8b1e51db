"""How long it takes until a quota can be used again, as headers say it."""

import pytest

from slipring.protocol.endpoints.rate_limits import RateLimit, openai_headers


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0, "0s"), (45, "45s"), (60, "1m0s"), (360, "6m0s"), (3600, "1h0m0s"), (86_385, "23h59m45s")],
)
def test_durations(seconds: int, written: str) -> None:
    headers = openai_headers([RateLimit("tokens", 10, 5, "", seconds)])
    assert headers["x-ratelimit-reset-tokens"] == written
