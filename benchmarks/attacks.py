"""Measures the latency of one tenant's events while another tenant attacks the server.

The attacks are those of `make test-attack` that make the server compile or tokenize hostile input, against
the same kind of server: a separate process, with two tenants and the deadlines of that suite. The first
tenant is a process that makes turns over WebSocket, SSE and plain POST all the time, with an event every 5
ms; the other is the attacker. The latency is measured first without an attack, then during each attack, in
one run. A long wait is counted as every event that would have been due during it: half a second counts as a
hundred waits.

    python benchmarks/attacks.py
"""

import argparse
import asyncio
import dataclasses
import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

from common import keep

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.attack.catalog import ATTACKS
from tests.attack.limits import EVENT_MS, LIMITS
from tests.attack.runner import Arena, Outcome, arena
from tests.attack.server import PACE_MS, Spec
from tests.attack.stage import Attack, Stage

GROUPS = ("compiling", "tokenizing")
QUIET_S = 3.0


async def _nothing(stage: Stage) -> None:
    """The baseline: no attack."""
    await asyncio.sleep(QUIET_S)


def _measure(place: Arena, attack: Attack, repeats: int) -> list[Outcome]:
    outcomes = []
    for number in range(repeats):
        outcomes.append(outcome := place.run(attack, seed=number))
        print(f"  {attack.name}: p99 {outcome.times.p99:.1f} ms", file=sys.stderr, flush=True)
        if place.is_impaired:
            break
    return outcomes


def measure(repeats: int) -> list[list[Outcome]]:
    """Run every attack ``repeats`` times; the server is replaced if an attack has impaired it."""
    chosen = [attack for attack in ATTACKS if attack.group in GROUPS]
    found: list[list[Outcome]] = []
    for engine, attacks in itertools.groupby(chosen, key=lambda attack: attack.spec.engine):
        spec = Spec(engine)
        with arena(spec, timed=True) as place:
            quiet = Attack("quiet", engine, "no attack", _nothing, spec)
            found.append(_measure(place, quiet, repeats))
        waiting = list(attacks)
        while waiting:
            with arena(spec, timed=True) as place:
                while waiting and not place.is_impaired:
                    found.append(_measure(place, waiting.pop(0), repeats))
    return found


def _figures(outcomes: list[Outcome]) -> dict[str, Any]:
    attack = outcomes[0].attack
    return {
        "attack": attack.name,
        "engine": attack.spec.engine,
        "what": attack.sentence,
        "times_ms": [dataclasses.asdict(outcome.times) for outcome in outcomes],
        "model_times_ms": [dataclasses.asdict(each.model_times) for each in outcomes if each.model_times],
        "foreign_cores": [round(outcome.foreign_cores, 2) for outcome in outcomes],
        "peak_mib_more": [round(outcome.peak_mib - outcome.before_mib, 1) for outcome in outcomes],
        "faults": [fault for outcome in outcomes for fault in outcome.faults],
    }


def show(found: list[list[Outcome]]) -> None:
    print(f"ms per event of the other tenant: worst of the repeats; budget at p99: {EVENT_MS:g} ms")
    print(f"  {'attack':34} {'engine':10} {'p50':>7} {'p99':>8} {'max':>8}   of the embedded model: p50, p99")
    for outcomes in found:
        worst = max((outcome.times for outcome in outcomes), key=lambda times: times.p99)
        models = [outcome.model_times for outcome in outcomes if outcome.model_times]
        model = max(models, key=lambda times: times.p99) if models else None
        beside = f"   {model.p50:.0f}, {model.p99:.0f}" if model else ""
        verdict = "" if worst.p99 <= EVENT_MS else "  FALLS SHORT"
        if not all(outcome.is_timed for outcome in outcomes):
            verdict += "  (the machine was busy)"
        attack = outcomes[0].attack
        print(
            f"  {attack.name:34} {attack.spec.engine:10} {worst.p50:7.1f} {worst.p99:8.1f} {worst.max:8.1f}"
            f"{beside}{verdict}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    os.chdir(Path(__file__).parent.parent)
    began = time.monotonic()
    found = measure(arguments.repeats)
    show(found)
    record = {"budget_ms": EVENT_MS, "pace_ms": PACE_MS, "limits": dict(LIMITS)}
    keep("attacks", {**record, "attacks": [_figures(outcomes) for outcomes in found]})
    print(f"measured in {time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
