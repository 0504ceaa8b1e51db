"""`make test-crash`: crash storms on every site. The exit code is 0 if nothing that was acknowledged is lost,
nothing is half-written and no call of a tool ran twice."""

import argparse
import asyncio
import random
import sys

from tests.crash.scenarios import SCENARIOS
from tests.crash.sites import Skipped
from tests.crash.storm import Storm

_SHOWN = 5
_LONGEST = 2000
_HEADINGS = ("scenario", "rounds", "acknowledged", "lost", "half-written", "twice", "seconds")


def _print(line: str) -> None:
    print(line, flush=True)


def _run_storm(name: str, rounds: int, seed: int) -> Storm | None:
    """Run one storm. Return None if this machine lacks what it needs."""
    storm = Storm(SCENARIOS[name](), seed, _print)
    try:
        asyncio.run(storm.run_rounds(rounds))
    except Skipped as why:
        _print(f"{name}: skipped: {why}")
        return None
    except Exception:
        _print(_how_to_repeat(name, seed))
        raise
    _print(f"{name}: {rounds} rounds in {storm.seconds:.0f} s, {storm.figures}")
    for kind in ("lost", "half", "twice"):
        for finding in getattr(storm.findings, kind)[:_SHOWN]:
            _print(f"  {kind}: {finding[:_LONGEST]}")
    return storm


def _how_to_repeat(name: str, seed: int) -> str:
    return f"broken: repeat with make test-crash ONLY={name} SEED={seed}"


def _table(storms: dict[str, Storm]) -> str:
    """The figures of all storms, as a table in Markdown."""
    rows = [
        (
            name,
            storm.rounds,
            storm.acknowledged,
            len(storm.findings.lost),
            len(storm.findings.half),
            len(storm.findings.twice),
            round(storm.seconds),
        )
        for name, storm in storms.items()
    ]
    total = ("all", *(sum(int(row[column]) for row in rows) for column in range(1, len(_HEADINGS))))
    lines = [_HEADINGS, ("---",) * len(_HEADINGS), *rows, total]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make test-crash", description=__doc__)
    parser.add_argument("--only", default=",".join(SCENARIOS), help="scenarios, separated by commas")
    parser.add_argument("--rounds", type=int, default=5, help="of each scenario")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    arguments = parser.parse_args()
    chosen = arguments.only.split(",")
    if unknown := [name for name in chosen if name not in SCENARIOS]:
        parser.error(f"unknown scenario {unknown[0]}: choose from {', '.join(SCENARIOS)}")
    _print(f"seed {arguments.seed}")
    storms: dict[str, Storm] = {}
    for name in (name for name in SCENARIOS if name in chosen):
        storm = _run_storm(name, arguments.rounds, arguments.seed)
        if storm is not None:
            storms[name] = storm
            if storm.findings:
                break
    _print(_table(storms))
    if any(storm.findings for storm in storms.values()):
        _print(_how_to_repeat(name, arguments.seed))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
