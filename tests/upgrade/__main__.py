"""`make test-upgrade`: from an earlier version to this one, on SQLite and PostgreSQL. The exit code is 0 if
nothing was lost."""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from slipring.engines.llama.options import LlamaOptions
from slipring.engines.llama.served_model import locate
from tests.postgres import running_postgres
from tests.upgrade.files import upgrade_file
from tests.upgrade.previous import PREVIOUS, ROOT, NotInstallable, command, install
from tests.upgrade.recording import record
from tests.upgrade.rolling import RollingUpgrade


def main() -> int:
    parser = argparse.ArgumentParser(prog="make test-upgrade", description=__doc__)
    parser.add_argument("--previous", default=PREVIOUS, help="the commit of the earlier version")
    parser.add_argument("--directory", type=Path, default=ROOT / ".upgrade", help="where it is installed")
    parser.add_argument("--record", action="store_true", help="write the files of tests/upgrade/recorded")
    arguments = parser.parse_args()
    try:
        previous = command(install(arguments.previous, arguments.directory))
    except NotInstallable as error:
        print(f"make test-upgrade: {error}", file=sys.stderr)
        return 2
    if arguments.record:
        asyncio.run(record(previous))
        return 0
    began = time.monotonic()
    vocabulary = str(locate(LlamaOptions())[0])
    for kind, chosen in (("text", ""), ("token ids", vocabulary)):
        with tempfile.TemporaryDirectory() as directory:
            report = _reporter(f"sqlite, {kind}")
            asyncio.run(upgrade_file(Path(directory), previous, chosen, report))
        with running_postgres() as postgres:
            report = _reporter(f"postgresql, {kind}")
            asyncio.run(RollingUpgrade(postgres.url, previous, chosen, report).run())
    print(f"upgraded from {arguments.previous[:12]} in {time.monotonic() - began:.0f} s, nothing was lost")
    return 0


def _reporter(name: str) -> Callable[[str], None]:
    def report(line: str) -> None:
        print(f"{name}: {line}", flush=True)

    return report


if __name__ == "__main__":
    sys.exit(main())
