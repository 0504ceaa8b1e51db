"""Stage times, error messages and event times of an exchange."""

import pytest

from slipring.commands.bench.client.exchange import TurnExchange, refusal
from tests.commands.bench.faulty import Faulty, Json, running
from tests.commands.bench.stage import measured


@pytest.mark.parametrize(
    ("header", "stages"),
    [
        ("a;dur=1.2.3", []),
        ("a;dur=1.2.3, b;dur=4", [{"b": 4.0}]),
        ("a;desc=x;dur=2.5 , b;dur=.", [{"a": 2.5}]),
        ("a;dur=9e999", []),
    ],
)
def test_parsing_of_server_timing(header: str, stages: list[dict[str, float]]) -> None:
    exchange = TurnExchange()
    exchange.server_timing = header
    assert exchange.steps_ms == stages


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "No.", "code": "no"}}, "No. (no)"),
        ({"detail": "Too many requests"}, "Too many requests"),
        ({"detail": [{"loc": ["body"], "msg": "field required"}]}, "field required"),
        ({"error": "down"}, "down"),
        ({}, "the server gave no reason"),
    ],
)
def test_error_messages_in_different_formats(body: Json, message: str) -> None:
    assert str(refusal(body)) == message


async def test_the_terminal_event_has_its_own_time() -> None:
    async with running(Faulty()) as url:
        record = await measured(url, modes=("http-full",))
    for turn in record.loops[0].turns:
        assert turn.terminal_ms is not None
        assert 0 < turn.terminal_ms <= turn.total_ms
