"""Measures all peers in one run, in front of one upstream, with ``slipring bench``.

    python benchmarks/peers/run.py [--repeats 5] [--workload coding] [--tokens-per-s 1000]

The peers alternate: in each repeat every peer runs every mode once, and each repeat begins with another peer,
so that other load on the machine affects all of them. The results are written as records of the bench to
``benchmarks/results/peers``; ``table.py`` shows them.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import msgspec
from servers import ROOT, SERVERS, Server, upstream
from table import write_readme

from slipring.commands.argument_parser import UsageError
from slipring.commands.bench import results

MODES = ("http-full", "http-full-newconn", "http-chained", "websocket", "websocket-lanes")
"""Modes of the public API."""
RESULTS = ROOT / "benchmarks" / "results" / "peers"
_MEASURED = (0, 1)
"""Exit codes that come with a record. 1 means that an answer was wrong, which is a valid result."""


class Unmeasured(Exception):
    """A server could not be measured. The message is one line."""


def measure(server: Server, workload: str, deep: str, path: Path) -> results.BenchRecord:
    """Run one loop of each mode; return the record, which is passed in a file. Raises ``Unmeasured``."""
    path.unlink(missing_ok=True)  # an old record must not be taken for the new one
    command = [
        *(sys.executable, "-m", "slipring", "bench", "--url", server.url, "--model", server.model),
        *("--repeats", "1", "--server-pid", str(server.pid), "--json", str(path)),
        *("--mode", ",".join(MODES)),
        *(("--deep", deep) if deep else ("--workload", workload)),
    ]
    env = {**os.environ, "OPENAI_API_KEY": server.key}
    ended = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if ended.returncode not in _MEASURED:
        errors = ended.stderr.strip().splitlines() or ["no output"]
        raise Unmeasured(f"{server.name}: slipring bench ended with {ended.returncode}: {errors[-1]}")
    try:
        return results.read(path)
    except UsageError as error:
        raise Unmeasured(f"{server.name}: {error}") from None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workload", default="coding")
    parser.add_argument("--deep", default="", help="as of slipring bench; instead of a workload")
    parser.add_argument("--tokens-per-s", type=float, default=1000.0, help="speed of the upstream")
    parser.add_argument("--only", choices=SERVERS, nargs="+", default=list(SERVERS))
    given = parser.parse_args()
    kept: dict[str, results.BenchRecord] = {}
    unmeasured: set[str] = set()
    with ExitStack() as running, tempfile.TemporaryDirectory() as directory:
        url = running.enter_context(upstream(given.tokens_per_s))
        servers = [running.enter_context(SERVERS[name](url)) for name in given.only]
        for repeat in range(given.repeats):
            first = repeat % len(servers)
            for server in servers[first:] + servers[:first]:
                if server.name in unmeasured:
                    continue
                print(f"{repeat + 1} of {given.repeats}: {server.name} …", file=sys.stderr, flush=True)
                path = Path(directory) / f"{server.name}-{repeat}.json"
                try:
                    record = measure(server, given.workload, given.deep, path)
                except Unmeasured as error:
                    print(f"not measured: {error}", file=sys.stderr, flush=True)
                    unmeasured.add(server.name)
                    kept.pop(server.name, None)
                    continue
                for loop in record.loops:
                    loop.repeat = repeat
                if server.name not in kept:
                    kept[server.name] = described(record, server, given.repeats, given.tokens_per_s)
                else:
                    kept[server.name].loops += record.loops
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name, record in kept.items():
        results.write(record, RESULTS / f"{name}-{given.workload if not given.deep else 'deep'}.json")
    write_readme()
    return 1 if unmeasured else 0


def described(
    record: results.BenchRecord, server: Server, repeats: int, tokens_per_s: float
) -> results.BenchRecord:
    """Add the server's versions and the settings of the run to a record."""
    record.versions |= server.versions
    record.settings.repeats = repeats
    record.endpoint = msgspec.structs.replace(record.endpoint, tokens_per_s=tokens_per_s, url=None)
    return record


if __name__ == "__main__":
    raise SystemExit(main())
