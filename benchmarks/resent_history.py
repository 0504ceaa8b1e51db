"""Measures what it costs to send the whole history with every turn, compared with a chained turn.

The engine is `instant_upstream.py`, as a vLLM server. Agent loops run over HTTP, with a history of 75,000
tokens before their first measured turn, and take turns with each other in one run:

- chained: sends its new items and `previous_response_id`;
- resent: sends everything, to the same server, which recognises the history; stored and not stored;
- unrecognised: sends everything, to a server with `--recognised-s 0`.

An answer contains a digest of all tool outputs that the engine received, so a turn that lost some aborts the
run. Every loop has texts of its own, as real loops have. Reported, as medians over the turns: wall time, the
CPU time of the server, and how much both exceed those of the chained turn beside it. The time that it takes
to decode and validate the JSON of such a body is measured too, in this process, because no server can avoid
it. Read the CPU time if the machine is not idle.

    python benchmarks/resent_history.py
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
from common import EXCHANGE_KB, Process, added, keep, slipring, spread, started, verdict_ms
from engine_overhead import ASK, TOOL, write_tokenizer
from instant_upstream import digest

from slipring.commands.bench.workloads.prose import Prose
from slipring.protocol import requests, wire

EXCHANGES = 62
"""About 75,000 tokens of history."""
_OUTPUT_BYTES = int(EXCHANGE_KB * 1000)
TURNS = 15
BUDGET_MS = 3.0
MODES = ("chained", "resent", "resent and stored", "unrecognised")


class Conversation:
    """An agent loop over HTTP. ``resends``: it keeps its history itself."""

    def __init__(
        self, http: aiohttp.ClientSession, server: Process, seed: str, *, resends: bool, store: bool
    ) -> None:
        self._http = http
        self._prose = Prose(seed)
        self._server = server
        self._resends = resends
        self._store = store
        self._outputs: list[str] = []
        self._items: list[dict[str, Any]] = [ASK]
        self._sent = 0
        self._latest: dict[str, Any] | None = None
        self.body = b""

    async def turn(self, outputs: int = 1) -> tuple[float, float]:
        """Send this many new outputs; returns the wall time and the server's CPU time, in milliseconds."""
        new = [self._prose.tool_output(_OUTPUT_BYTES).strip() for _ in range(outputs)]
        self._outputs += new
        self._add(new)
        create: dict[str, Any] = {"tools": [TOOL], "store": self._store, "stream": True, "input": self._items}
        if not self._resends and self._latest is not None:
            create |= {"previous_response_id": self._latest["id"], "input": self._items[self._sent :]}
        self._sent = len(self._items) + 1  # the answer is one call
        self.body = wire.encode(create)
        cpu, start = self._server.cpu_s(), time.perf_counter()
        self._latest = await self._post()
        wall, cpu = time.perf_counter() - start, self._server.cpu_s() - cpu
        self._items += self._latest["output"]
        if f"outputs={digest(self._outputs)}" not in self._latest["output"][0]["arguments"]:
            raise RuntimeError("the engine did not see the whole history")
        return wall * 1e3, cpu * 1e3

    def _add(self, new: list[str]) -> None:
        """The first output of a turn answers the call of the latest answer; others bring their own."""
        for number, text in enumerate(new):
            call_id = f"h{number}"
            if self._latest is not None:
                call_id = self._latest["output"][0]["call_id"]
            else:
                call = {"type": "function_call", "call_id": call_id, "name": "run", "arguments": "{}"}
                self._items.append(call)
            self._items.append({"type": "function_call_output", "call_id": call_id, "output": text})

    async def _post(self) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        url = f"{self._server.url}/responses"
        async with self._http.post(url, data=self.body, headers=headers) as answer:
            last = b""
            async for line in answer.content:
                if line.startswith(b'data: {"type":"response.completed"'):
                    last = line
            if not last:
                raise RuntimeError(f"no response was completed ({answer.status})")
        response: dict[str, Any] = json.loads(last[6:])["response"]
        return response


async def measure(
    on: Process, off: Process, exchanges: int, repeats: int
) -> dict[str, dict[str, list[float]]]:
    """The wall and CPU milliseconds of every turn, by mode. The modes alternate by turn."""
    figures: dict[str, dict[str, list[float]]] = {mode: {"wall": [], "cpu": []} for mode in MODES}
    figures["parsing"] = {"wall": [], "cpu": []}
    for repeat in range(repeats):
        async with aiohttp.ClientSession(read_bufsize=2**22) as http:
            loops = {
                "chained": Conversation(http, on, f"chained {repeat}", resends=False, store=True),
                "resent": Conversation(http, on, f"resent {repeat}", resends=True, store=False),
                "resent and stored": Conversation(http, on, f"stored {repeat}", resends=True, store=True),
                "unrecognised": Conversation(http, off, f"off {repeat}", resends=True, store=False),
            }
            for loop in loops.values():
                await loop.turn(exchanges)
            for _ in range(TURNS):
                for mode, loop in loops.items():
                    wall, cpu = await loop.turn()
                    figures[mode]["wall"].append(round(wall, 4))
                    figures[mode]["cpu"].append(round(cpu, 4))
                wall, cpu = parse(loops["resent"].body)
                figures["parsing"]["wall"].append(round(wall, 4))
                figures["parsing"]["cpu"].append(round(cpu, 4))
    return figures


def parse(body: bytes) -> tuple[float, float]:
    """Decode and validate a body; returns the wall and CPU milliseconds."""
    wall, cpu = time.perf_counter(), time.thread_time()
    _ = requests.read_create(requests.require_body(body)).items
    return (time.perf_counter() - wall) * 1e3, (time.thread_time() - cpu) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--exchanges", type=int, default=EXCHANGES)
    arguments = parser.parse_args()
    upstream_file = str(Path(__file__).with_name("instant_upstream.py"))
    with started(upstream_file) as upstream, tempfile.TemporaryDirectory() as directory:
        engine = f"vllm:{upstream.url},tokenizer={write_tokenizer(Path(directory))},dialect=chatml"
        quiet = ("--log-level", "error")
        with slipring(engine, *quiet) as on, slipring(engine, *quiet, "--recognised-s", "0") as off:
            figures = asyncio.run(measure(on, off, arguments.exchanges, arguments.repeats))
    show(figures, arguments.exchanges)
    keep("resent_history", {"budget_ms": BUDGET_MS, "exchanges": arguments.exchanges, "ms": figures})


def show(figures: dict[str, dict[str, list[float]]], exchanges: int) -> None:
    print(f"{exchanges} exchanges of {EXCHANGE_KB:g} kB before the loop; medians (ranges), milliseconds")
    for mode, figure in figures.items():
        wall, cpu = spread(figure["wall"]), spread(figure["cpu"])
        print(
            f"  {mode:18} wall {wall['median']:7.2f} ({wall['low']:.2f} – {wall['high']:.2f})"
            f"   CPU {cpu['median']:7.2f} ({cpu['low']:.2f} – {cpu['high']:.2f})"
        )
    parsing = statistics.median(figures["parsing"]["cpu"])
    for mode in MODES[1:]:
        for kind in ("wall", "cpu"):
            pair = {"this": figures[mode][kind], "chained": figures["chained"][kind]}
            more = added(pair, "this", without="chained")
            print(
                f"  {mode}, {kind}: {more:+.2f} ms; without parsing: {verdict_ms(more - parsing, BUDGET_MS)}"
            )


if __name__ == "__main__":
    main()
