"""Load in miniature: a few connections for a moment, and what makes it stop."""

from typing import Any

import pytest

from slipring.bench.load.files import allow_connections
from slipring.bench.load.options import LoadOptions
from slipring.bench.load.results import Level, LoadRecord, ServiceLevel
from slipring.bench.load.run import Load
from slipring.bench.load.screen import verdict
from slipring.bench.options import Target, UsageError
from slipring.bench.probes import Unmeasurable
from tests.bench.faulty import Faulty, running

EASY = ServiceLevel(first_token_ms=60_000, errors=0.0)


class Silent:
    def climbing(self, connections: int, seconds: float) -> None:
        pass

    def measured(self, level: Level) -> None:
        pass


def options(url: str, service_level: ServiceLevel = EASY, **settings: Any) -> LoadOptions:
    settings = {"connections": 4, "ramp_s": 0.0, "hold_s": 0.3, "think_ms": 1.0, **settings}
    return LoadOptions(target=Target(url=url, timeout_s=20), service_level=service_level, **settings)


async def loaded(options: LoadOptions) -> LoadRecord:
    load = Load(options, Silent())
    await load.run()
    return load.record


@pytest.mark.parametrize("mode", ["websocket", "http-full", "http-full-newconn", "http-chained"])
async def test_a_load_goes_up_by_steps(mode: str) -> None:
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
        assert faulty.connections == 5  # and the one of the probe


async def test_a_load_ends_where_the_service_level_breaks() -> None:
    async with running(Faulty()) as url:
        impossible = ServiceLevel(first_token_ms=0, errors=1)
        record = await loaded(options(url, impossible, step=1))
    (level,) = record.levels
    assert level.broken is not None
    assert level.broken.startswith("first token after")
    assert verdict(record)[0].startswith("The service level holds with no level and breaks with 1:")


@pytest.mark.parametrize("fault", ["swaps deltas", "forgets the chain"])
async def test_wrong_answers_are_errors(fault: str) -> None:
    async with running(Faulty(fault)) as url:
        record = await loaded(options(url))
    (level,) = record.levels
    assert level.failed > 0
    assert all(reason.startswith("wrong answer: ") for reason in level.errors)
    assert level.broken is not None


async def test_an_endpoint_that_cannot_be_measured() -> None:
    async with running(Faulty("has no websocket")) as url:
        with pytest.raises(Unmeasurable, match="404"):
            await loaded(options(url))


def test_levels() -> None:
    assert options("", connections=10).levels == [10]
    assert options("", connections=10, step=4).levels == [4, 8, 10]
    assert options("", connections=10, step=5).levels == [5, 10]
    assert options("", connections=3, step=5).levels == [3]


def test_more_connections_than_the_system_allows() -> None:
    allow_connections(1)
    with pytest.raises(UsageError, match="open files"):
        allow_connections(10**9)
