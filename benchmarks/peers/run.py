"""Measures all peers in one run, in front of one upstream, with ``slipring bench``.

    python benchmarks/peers/run.py [--repeats 5] [--workload coding] [--tokens-per-s 1000]

The peers take turns: in each repeat every peer runs every mode once, and each repeat begins with another
peer, so that whatever else the machine does meets all of them. What was measured is kept as records of the
bench below ``benchmarks/results/peers``; ``table.py`` shows them.
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

from slipring.bench import results
from slipring.bench.errors import UnreadableRecord

MODES = ("http-full", "http-full-newconn", "http-chained", "websocket", "websocket-lanes")
"""Those of the public API."""
RESULTS = ROOT / "benchmarks" / "results" / "peers"
_MEASURED = (0, 1)
"""Exit codes with a record; 1: an answer was wrong, which is what is to be found out."""


class Unmeasured(Exception):
    """There is no record of a server. The text is one line."""


def measure(server: Server, workload: str, deep: str, path: Path) -> results.BenchRecord:
    """One loop of each mode, by way of a file at which nothing else may be. Raises ``Unmeasured``."""
    path.unlink(missing_ok=True)  # or it would be taken for this one, where there is none
    command = [
        *(sys.executable, "-m", "slipring", "bench", "--url", server.url, "--model", server.model),
        *("--repeats", "1", "--server-pid", str(server.pid), "--json", str(path)),
        *("--mode", ",".join(MODES)),
        *(("--deep", deep) if deep else ("--workload", workload)),
    ]
    env = {**os.environ, "OPENAI_API_KEY": server.key}
    ended = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if ended.returncode not in _MEASURED:
        said = ended.stderr.strip().splitlines() or ["it said nothing"]
        raise Unmeasured(f"{server.name}: slipring bench ended with {ended.returncode}: {said[-1]}")
    try:
        return results.read(path)
    except UnreadableRecord as error:
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
                    print(f"no figures are kept of {error}", file=sys.stderr, flush=True)
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
    """A record with what is known about its server here."""
    record.versions |= server.versions
    record.settings.repeats = repeats
    record.endpoint = msgspec.structs.replace(record.endpoint, tokens_per_s=tokens_per_s, url=None)
    return record


if __name__ == "__main__":
    raise SystemExit(main())
