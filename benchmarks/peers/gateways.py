"""Measures what slipring and agentic-api, a gateway written in Rust, add to a turn and to a token in front of
the same upstream, and what their idle connections cost.

    python benchmarks/peers/setup.py --only agentic-api    # once; wheels for Linux on x86_64 and macOS
    python benchmarks/peers/gateways.py [--rounds 7] [--idle-rounds 3]

The upstream is ``instant_upstream.py``, a server of Responses and of Chat Completions that answers at once.
The workload is that of ``plumbing.py``: a coding agent whose answers are a tool call in sixty pieces; an
answer that shows lost history aborts the run. Four servers take turns, turn by turn: agentic-api, and
slipring in front of the upstream's Responses, of the same as agentic-api does it, and of its Chat
Completions. Both programs keep chained responses in an SQLite file; with full history and over the WebSocket,
nothing is stored. agentic-api repeats less of the request in its first events, and does not wait for the disk
when it commits: the third server has clients that ask for short first events, and ``--store-unsynced``.

- *added*: the time of a turn, minus that of the same turn sent directly to the upstream's Responses over
  HTTP.
- *first output*: the time to the first piece of the answer, nothing subtracted.
- *CPU*: of the server's process. Per delta: in front of an upstream that tells 500 pieces a second.
- idle connections: each server alone, freshly started. Its memory at start, the growth of it by a WebSocket,
  and its CPU time while 1,250 of them rest.

The median of each round is written to ``benchmarks/results/gateways.json`` if everything was measured;
``gateways_table.py`` makes the table of ``docs/benchmarks/server-cost.md`` from it.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import gateways_table
import servers
from gateways_table import CHAT, LIKE_RIVAL, RESPONSES, RIVAL, Rest, Turns

from slipring.commands.bench.subject.machine import raise_file_limit

sys.path.insert(0, str(Path(__file__).parents[1]))

import idle_connections
import plumbing
import rest_cost
from common import Process, keep, started

MODES = plumbing.MODE_NAMES
PACE = 500
PACED_TOKENS = 200
CONNECTIONS = 1250
ENGINES = {RESPONSES: "responses", LIKE_RIVAL: "responses", CHAT: "chat"}
FLAGS = {LIKE_RIVAL: ("--store-unsynced",)}
WITHOUT_LIKE = (RIVAL, RESPONSES, CHAT)
"""First events and commits have no part in what a delta and an idle connection cost."""


@contextmanager
def agentic(upstream: str) -> Iterator[Process]:
    with servers.agentic(servers.Server("instant", upstream, 0, "instant")) as server:
        yield Process(server.pid, server.url)


def gateway(name: str, upstream: str, directory: str) -> AbstractContextManager[Process]:
    """Start one of the servers."""
    if name == RIVAL:
        return agentic(upstream)
    engine = plumbing.ENGINES[ENGINES[name]].format(url=upstream)
    return plumbing.tree(plumbing.TREE, engine, directory, *FLAGS.get(name, ()))


@contextmanager
def gateways(upstream: str, directory: str, names: Iterable[str]) -> Iterator[dict[str, Process]]:
    """Start servers in front of one upstream."""
    with ExitStack() as running:
        yield {name: running.enter_context(gateway(name, upstream, directory)) for name in names}


def measure_turns(instant: str, directory: str, rounds: int, modes: list[str]) -> Turns:
    """Return the median of each round: by mode, then by server, then by kind."""
    found: Turns = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    speed = ("--tokens-per-s", str(PACE), "--tokens", str(PACED_TOKENS))
    with (
        started(plumbing.UPSTREAM, *speed) as paced,
        gateways(instant, directory, (RIVAL, *ENGINES)) as fast,
        gateways(paced.url, directory, WITHOUT_LIKE) as slow,
    ):
        for number in range(rounds):
            for mode in modes:
                print(f"round {number + 1} of {rounds}: {mode} …", file=sys.stderr, flush=True)
                for figures in (
                    asyncio.run(
                        plumbing.loops(fast, instant, mode, direct_mode="http-full", short=[LIKE_RIVAL])
                    ),
                    asyncio.run(plumbing.streams(slow, mode, PACED_TOKENS)),
                ):
                    for name, kinds in figures.items():
                        for kind, values in kinds.items():
                            found[mode][name][kind].append(round(statistics.median(values), 3))
    return found


def measure_rest(instant: str, directory: str, rounds: int) -> Rest:
    """Return the costs of idle connections in each round: by server, then by kind."""
    found: Rest = defaultdict(lambda: defaultdict(list))
    for number in range(rounds):
        for name in WITHOUT_LIKE:
            print(f"idle, round {number + 1} of {rounds}: {name} …", file=sys.stderr, flush=True)
            with gateway(name, instant, directory) as server:
                start_mb = server.resident_bytes() / 1e6
                # It opens a quarter more, first.
                idle = asyncio.run(idle_connections.idle_bytes(server, CONNECTIONS * 4 // 5))
                rest = asyncio.run(rest_cost.measure(server, CONNECTIONS, intervals=1))
            kinds = {
                **{"start_mb": start_mb, "idle_kib": idle / 1024, "rest_ms_per_s": rest["cpu_ms_per_s"]},
                "pings": rest["pings_per_connection"],
            }
            for kind, value in kinds.items():
                found[name][kind].append(round(value, 3))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--idle-rounds", type=int, default=3, help="rounds with idle connections; may be 0")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    given = parser.parse_args()
    if servers.installed("agentic-api") != servers.AGENTIC:
        parser.error(f"agentic-api {servers.AGENTIC} is not installed: see benchmarks/peers/setup.py")
    raise_file_limit(CONNECTIONS)  # for the servers as well
    with tempfile.TemporaryDirectory() as directory, started(plumbing.UPSTREAM) as upstream:
        turns = measure_turns(upstream.url, directory, given.rounds, given.modes)
        rest = measure_rest(upstream.url, directory, given.idle_rounds)
    print(gateways_table.table(turns, rest))
    if set(given.modes) == set(MODES) and given.rounds and given.idle_rounds:
        settings = {"pace": PACE, "connections": CONNECTIONS, "peers": {"agentic-api": servers.AGENTIC}}
        keep("gateways", {**settings, "turns": turns, "rest": rest})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
