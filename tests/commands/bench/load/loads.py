"""Runs loads with few connections in this process."""

from typing import Any

from slipring.commands.bench.load.command import Load, LoadProgress
from slipring.commands.bench.load.options import LoadOptions
from slipring.commands.bench.load.results import LoadRecord
from slipring.commands.bench.load.service_level import ServiceLevel
from slipring.commands.bench.subject.endpoint import Target

EASY = ServiceLevel(first_token_ms=60_000, errors=0.0)


class Silent(LoadProgress):
    def __init__(self) -> None:
        super().__init__(1)


def options(url: str, service_level: ServiceLevel = EASY, **settings: Any) -> LoadOptions:
    settings = {"connections": 4, "ramp_s": 0.0, "hold_s": 1.0, "think_ms": 1.0, **settings}
    settings |= {
        "slo_ttft_ms": service_level.first_token_ms,
        "slo_errors": service_level.errors,
        "slo_pace": service_level.pace,
    }
    return LoadOptions(target=Target(url=url, timeout_s=60), **settings)


async def loaded(options: LoadOptions) -> LoadRecord:
    load = Load(options, Silent())
    await load.run()
    return load.record
