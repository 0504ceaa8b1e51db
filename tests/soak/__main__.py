"""`make soak`: random clients of every kind against real servers, for half an hour unless told otherwise.

The exit code is 0 if every answer was right, and memory, descriptors, tasks and latency stayed as they were.
Linux only, because memory and descriptors are read from /proc.
"""

import argparse
import asyncio
import random
import sys
import time

from tests.soak.deployments import FORMS, BadServer
from tests.soak.planted import FAULTS
from tests.soak.soak import Outcome, Soak

_SHOWN = 3


def _print(line: str) -> None:
    print(line, flush=True)


async def _run(form: str, seconds: float, seed: int, planted: str) -> Outcome:
    _print(f"{form}: {seconds:.0f} s")
    outcome = Outcome()
    try:
        async with FORMS[form](planted) as servers:
            soak = Soak(servers, seed, lambda line: _print(f"[{time.strftime('%H:%M:%S')}] {form} {line}"))
            outcome = soak.outcome
            await soak.run(seconds)
    except BadServer as error:
        outcome.faults.append(str(error))
    _show(form, outcome)
    return outcome


def _show(form: str, outcome: Outcome) -> None:
    turns = outcome.turns
    _print(f"{form}: {turns.total()} answers checked in {outcome.seconds:.0f} s: " + _counts(turns))
    _print(f"{form}: {outcome.visits.total()} visits: " + _counts(outcome.visits))
    if outcome.dropped:
        _print(f"{form}: connections that the servers dropped: {_counts(outcome.dropped)}")
    for trend in outcome.trends:
        _print(f"{form}: {trend}")
    if outcome.rest is not None:
        before, after = outcome.rest
        _print(
            f"{form}: at rest, before the first client and after the last: {before.descriptors:.0f} →"
            f" {after.descriptors:.0f} descriptors, {before.tasks:.0f} → {after.tasks:.0f} tasks"
        )
    for fault in outcome.faults[:_SHOWN]:
        _print(f"{form}: BROKEN: {fault}")


def _counts(counter: "dict[str, int]") -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counter.items()))


def main() -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800.0, help="shared by the forms")
    parser.add_argument("--only", choices=list(FORMS), action="append", help="one form of deployment")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument(
        "--plant", default="", choices=[*FAULTS, "answers"], help="a fault that has to be found"
    )
    arguments = parser.parse_args()
    if not sys.platform.startswith("linux"):
        _print("skipped: memory and descriptors of the servers are read from /proc, which only Linux has")
        return 0
    forms = arguments.only or list(FORMS)
    again = f"make soak SEED={arguments.seed} SOAK_SECONDS={arguments.seconds:g}"
    _print(f"seed {arguments.seed}; to repeat: {again}")
    for form in forms:
        outcome = asyncio.run(_run(form, arguments.seconds / len(forms), arguments.seed, arguments.plant))
        if outcome.faults:
            _print(f"{form} broke a promise; seed {arguments.seed}")
            return 1
        if not outcome.trends:
            _print(f"{form}: too short to judge what grows")
    _print("every answer was right, and nothing grew")
    return 0


if __name__ == "__main__":
    sys.exit(main())
