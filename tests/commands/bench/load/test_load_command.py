"""Loads with few connections: levels, and when they end."""

import pytest

from slipring.commands.argument_parser import CommandFailed, UsageError
from slipring.commands.bench.load.service_level import ServiceLevel
from slipring.commands.bench.load.terminal import verdict
from slipring.commands.bench.subject.machine import raise_file_limit
from tests.commands.bench.faulty import Faulty, running
from tests.commands.bench.load.loads import loaded, options


@pytest.mark.parametrize("mode", ["websocket", "http-full", "http-full-newconn", "http-chained"])
async def test_levels_are_measured_one_after_the_other(mode: str) -> None:
    faulty = Faulty()
    async with running(faulty) as url:
        record = await loaded(options(url, step=3, mode=mode))
    assert [level.connections for level in record.levels] == [3, 4]
    for level in record.levels:
        assert level.turns > 0
        assert level.errors == {}
        assert level.broken is None
        assert level.first_token_ms is not None
        assert level.gap_ms is not None
    assert "more were not tried" in verdict(record)[0]
    if mode == "websocket":
        assert faulty.connections == 5  # one of them for the probe


async def test_the_load_ends_when_the_service_level_is_violated() -> None:
    async with running(Faulty()) as url:
        impossible = ServiceLevel(first_token_ms=0, errors=1)
        record = await loaded(options(url, impossible, step=1))
    (level,) = record.levels
    assert level.broken is not None
    assert level.broken.startswith("first token after")
    assert verdict(record)[0].startswith("The service level holds with no level and is violated with 1:")


@pytest.mark.parametrize("fault", ["swaps deltas", "forgets the chain"])
async def test_faulty_answers_count_as_errors(fault: str) -> None:
    async with running(Faulty(fault)) as url:
        record = await loaded(options(url, hold_s=3.0))
    (level,) = record.levels
    assert level.failed > 0
    assert all(reason.startswith("wrong answer: ") for reason in level.errors)
    assert level.broken is not None


async def test_an_unsupported_mode_cannot_be_measured() -> None:
    async with running(Faulty("has no websocket")) as url:
        with pytest.raises(CommandFailed, match="404"):
            await loaded(options(url))


def test_connections_per_level() -> None:
    assert options("", connections=10).levels == [10]
    assert options("", connections=10, step=4).levels == [4, 8, 10]
    assert options("", connections=10, step=5).levels == [5, 10]
    assert options("", connections=3, step=5).levels == [3]


def test_more_connections_than_the_file_limit() -> None:
    raise_file_limit(1)
    with pytest.raises(UsageError, match="open files"):
        raise_file_limit(10**9)
