"""`make test-crash`: runs crash storms on SQLite and PostgreSQL. The exit code is 0 if no data was lost."""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.crash.databases import PostgresServer, SqliteFile, StormDatabase
from tests.crash.storm import Storm
from tests.postgres import running_postgres

_SHOWN = 5
_LONGEST = 2000


def _print(line: str) -> None:
    print(line, flush=True)


async def _run_storm(database: StormDatabase, rounds: int, seed: int) -> Storm:
    began = time.monotonic()
    storm = Storm(database, seed, _print)
    await storm.run_rounds(rounds)
    _print(f"{database.name}: {rounds} rounds in {time.monotonic() - began:.0f} s, {storm.figures}")
    for kind in ("lost", "half"):
        for finding in getattr(storm.findings, kind)[:_SHOWN]:
            _print(f"  {kind}: {finding[:_LONGEST]}")
    return storm


def main() -> int:
    parser = argparse.ArgumentParser(prog="make test-crash", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="on SQLite; half as many on PostgreSQL")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    arguments = parser.parse_args()
    _print(f"seed {arguments.seed}")
    with tempfile.TemporaryDirectory() as directory, running_postgres() as postgres:
        storms = [
            asyncio.run(_run_storm(SqliteFile(Path(directory)), arguments.rounds, arguments.seed)),
            asyncio.run(_run_storm(PostgresServer(postgres), max(1, arguments.rounds // 2), arguments.seed)),
        ]
    lost = sum(len(storm.findings.lost) for storm in storms)
    half = sum(len(storm.findings.half) for storm in storms)
    answers = sum(storm.acknowledged for storm in storms)
    _print(f"all: {answers} stored responses acknowledged, {lost} lost, {half} half-written")
    return 1 if lost or half else 0


if __name__ == "__main__":
    sys.exit(main())
