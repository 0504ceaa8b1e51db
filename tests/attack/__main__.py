"""`make test-attack`: runs every attack on a real server while a second tenant (the victim) is monitored.

The exit code is 0 if the server withstood all attacks. Linux only, because memory and descriptors are read
from /proc.
"""

import argparse
import random
import resource
import sys
import time

from tests.attack.catalog import ATTACKS
from tests.attack.runner import Campaign, Outcome
from tests.attack.stage import Attack

_SHOWN = 4


def _print(line: str) -> None:
    print(line, flush=True)


def _row(outcome: Outcome) -> str:
    times = outcome.times
    memory = f"{outcome.before_mib:.0f} → {outcome.peak_mib:.0f} → {outcome.after_mib:.0f}"
    descriptors = "{} → {}".format(*outcome.descriptors)
    verdict = "FAILED" if outcome.faults else "held"
    if not outcome.is_timed:
        verdict += ", not timed"
    return (
        f"{outcome.attack.group:11} {outcome.attack.name:32} {outcome.seconds:5.1f} {outcome.turns:6}"
        f" {times.p50:6.1f} {times.p99:7.1f} {times.max:8.1f}  {memory:>20}  {descriptors:>10}  {verdict}"
    )


_HEAD = (
    f"{'group':11} {'attack':32} {'s':>5} {'turns':>6} {'p50':>6} {'p99':>7} {'max ms':>8}"
    f"  {'MiB before→peak→after':>20}  {'files':>9}  verdict"
)


def _show(outcomes: list[Outcome]) -> None:
    _print(f"\nthe victim's turns and times per event, the server's memory and open files\n{_HEAD}")
    for outcome in outcomes:
        _print(_row(outcome))
        for fault in outcome.faults[:_SHOWN]:
            _print(f"              {fault}")


def _run(chosen: list[Attack], seed: int) -> list[Outcome]:
    outcomes = []
    with Campaign(_print, seed) as campaign:
        for number, attack in enumerate(chosen, 1):
            outcomes.append(outcome := campaign.run(attack))
            details = "; ".join([*outcome.faults[:2], *outcome.notes[:3]])[:400]
            _print(
                f"[{number}/{len(chosen)}] {attack.name}: {'FAILED' if outcome.faults else 'held'}  {details}"
            )
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(prog="make test-attack", description=__doc__)
    parser.add_argument("--only", default="", help="attacks or groups, separated by commas")
    parser.add_argument("--quick", action="store_true", help="only the attacks that `make test` runs too")
    parser.add_argument("--list", action="store_true", help="describe each attack, and run none")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    arguments = parser.parse_args()
    wanted = set(filter(None, arguments.only.split(",")))
    chosen = [each for each in ATTACKS if not wanted or wanted & {each.name, each.group}]
    chosen = [each for each in chosen if each.quick or not arguments.quick]
    if arguments.list:
        for attack in chosen:
            _print(f"{attack.group}/{attack.name}{' (quick)' if attack.quick else ''}: {attack.sentence}")
        return 0
    if not sys.platform.startswith("linux"):
        _print("skipped: memory and descriptors of the server are read from /proc, which only Linux has")
        return 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    _print(f"seed {arguments.seed}, {len(chosen)} attacks")
    began, outcomes = time.monotonic(), _run(chosen, arguments.seed)
    _show(outcomes)
    failed = sum(bool(outcome.faults) for outcome in outcomes)
    held, seconds = len(outcomes) - failed, time.monotonic() - began
    _print(f"{len(outcomes)} attacks in {seconds:.0f} s: {held} held, {failed} failed")
    if untimed := sum(not outcome.is_timed for outcome in outcomes):
        _print(f"latency was not judged for {untimed}: other processes used the machine")
    return 1 if failed or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
