"""`make clients`: installs real clients, runs them against real servers, and prints a table of the
results."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.clients.real.client import Client, Report
from tests.clients.real.installing import Workshop
from tests.clients.real.roster import CLIENTS
from tests.clients.real.table import failures, table

_WORKSHOP = Path(__file__).parents[3] / ".clients"


def _say(line: str) -> None:
    print(line, flush=True)


async def _examine(clients: Sequence[Client], workshop: Workshop) -> list[Report]:
    return [await client.examine(workshop, _say) for client in clients]


def main(arguments: Sequence[str] | None = None, clients: Sequence[Client] = CLIENTS) -> int:
    """Return 0 if all checks of all installable clients passed, and there was at least one."""
    parser = argparse.ArgumentParser(prog="make clients", description=__doc__)
    names = [client.name for client in clients]
    parser.add_argument("--only", action="append", choices=names, help="this client; may be given again")
    parser.add_argument("--workshop", type=Path, default=_WORKSHOP, help="where clients are installed")
    wanted = parser.parse_args(arguments)
    chosen = [client for client in clients if not wanted.only or client.name in wanted.only]
    reports = asyncio.run(_examine(chosen, Workshop(wanted.workshop)))
    _say(f"\n{table(reports)}")
    if complaint := failures(reports):
        _say(f"\n{complaint}")
    return 0 if not complaint and any(report.outcomes for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
