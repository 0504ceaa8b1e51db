"""Measures what slipring and agentic-api, a gateway written in Rust, add to a turn and to a token in front of the
same upstream, and what their idle connections cost.

    python benchmarks/peers/setup.py --only agentic-api     # once; it has wheels for Linux on x86_64 and for macOS
    python benchmarks/peers/gateways.py [--rounds 7]

The upstream is ``instant_upstream.py``, a server of Responses and of Chat Completions that answers at once. The
workload is that of ``plumbing.py``: a coding agent whose answers are a tool call in sixty pieces; an answer that
shows lost history aborts the run. Three servers take turns, turn by turn: agentic-api, and slipring in front of
the upstream's Responses and in front of its Chat Completions. Both keep chained responses in SQLite files.

- *added*: the time of a turn, minus that of the same turn sent directly to the upstream's Responses over HTTP.
- *first output*: the time to the first piece of the answer, nothing subtracted.
- *CPU*: of the server's processes. Per delta: in front of an upstream that tells 500 pieces a second.
- idle connections: the growth of the server's memory by 1,250 WebSockets, and its CPU time while they rest.

The figures are written to ``benchmarks/results/gateways.json``; ``benchmarks/page.py`` shows them.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import servers

sys.path.insert(0, str(Path(__file__).parents[1]))

import plumbing
from common import Process, started

RIVAL, RESPONSES, CHAT = "agentic-api", "slipring, responses", "slipring, chat"
MODES = plumbing.MODE_NAMES
PACE = 500
PACED_TOKENS = 200
CONNECTIONS = 1250

Rounds = dict[str, dict[str, list[float]]]


@contextmanager
def gateways(upstream: str, directory: str) -> Iterator[dict[str, Process]]:
    """Start all servers in front of one upstream."""
    with ExitStack() as running:
        behind = servers.Server("instant", upstream, 0, "instant")
        rival = running.enter_context(servers.agentic(behind))
        found: dict[str, Process] = {RIVAL: Process(rival.pid, rival.url)}
        for name, engine in ((RESPONSES, "responses"), (CHAT, "chat")):
            spec = plumbing.ENGINES[engine].format(url=upstream, tokenizer="")
            found[name] = running.enter_context(plumbing.tree(plumbing.TREE, spec, directory))
        yield found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    given = parser.parse_args()
    rounds: dict[str, Rounds] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    with ExitStack() as running:
        directory = running.enter_context(tempfile.TemporaryDirectory())
        instant = running.enter_context(started(plumbing.UPSTREAM)).url
        speed = ("--tokens-per-s", str(PACE), "--tokens", str(PACED_TOKENS))
        paced = running.enter_context(started(plumbing.UPSTREAM, *speed)).url
        fast = running.enter_context(gateways(instant, directory))
        slow = running.enter_context(gateways(paced, directory))
        start_mb = {name: server.resident_bytes() / 1e6 for name, server in fast.items()}
        print(start_mb)
        for number in range(given.rounds):
            for mode in given.modes:
                print(f"round {number + 1} of {given.rounds}: {mode} …", file=sys.stderr, flush=True)
                for figures in (
                    asyncio.run(plumbing.loops(fast, instant, mode, direct_mode="http-full")),
                    asyncio.run(plumbing.streams(slow, mode, PACED_TOKENS)),
                ):
                    for name, kinds in figures.items():
                        for kind, values in kinds.items():
                            rounds[mode][name][kind].append(statistics.median(values))
    for mode, found in rounds.items():
        for name, kinds in found.items():
            print(
                f"{mode:14} {name:20}",
                *(
                    f"{kind} {statistics.median(v):8.2f} ({min(v):.2f} – {max(v):.2f})"
                    for kind, v in kinds.items()
                ),
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
