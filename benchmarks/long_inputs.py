"""Measures what one tenant's long inputs cost the server, and how they delay another tenant's turns.

Each attack is sent several times at once while another client makes small turns one after the other. Reported
are the server's CPU seconds for the attack, the growth of its resident memory during and after it, and the
other client's turns: their median as a multiple of a turn on the idle server, and the slowest.

    python benchmarks/long_inputs.py
"""

import argparse
import asyncio
import io
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from common import Process, keep, slipring

MIB = 2**20
AT_ONCE = 4
TINY = {"role": "user", "content": "x"}
CPU_BUDGET_S = 6.0
"""For all attempts of an attack together."""


def attacks() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the path and body of each attack, by its name."""
    digits = "0123456789" * (5 * MIB // 10)
    return {
        "5 MiB of digits": ("/responses", {"input": digits}),
        "5 MiB of digits, counted": ("/responses/input_tokens", {"input": digits}),
        "5 MiB of digits, truncated": ("/responses", {"input": digits, "truncation": "auto"}),
        "5 MiB of spaces": ("/responses", {"input": " " * (5 * MIB)}),
        "5 MiB in one word": ("/responses", {"input": "a" * (5 * MIB)}),
        "300,000 items": ("/responses", {"input": [TINY] * 300_000}),
        "20,000 items": ("/responses", {"input": [TINY] * 20_000}),
        "300,000 parts": (
            "/responses",
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": ""}] * 300_000}]},
        ),
        "metadata of 500,000 keys": (
            "/responses",
            {"input": "x", "metadata": {str(n): "" for n in range(500_000)}},
        ),
        "100,000 tools": (
            "/responses",
            {"input": "x", "tools": [{"type": "function", "name": f"f{n}"} for n in range(100_000)]},
        ),
    }


class Bystander:
    """A client that makes small turns and measures how long they take."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url
        self.times_s: list[float] = []

    async def turn(self) -> None:
        before = time.perf_counter()
        body = {"input": "hello", "max_output_tokens": 2, "store": False}
        async with self._http.post(f"{self._url}/responses", json=body) as answer:
            await answer.read()
        self.times_s.append(time.perf_counter() - before)

    @asynccontextmanager
    async def beside(self) -> AsyncIterator[None]:
        """Make turns until the block ends, at least one."""
        self.times_s = []
        done = asyncio.Event()

        async def go_on() -> None:
            while not done.is_set() or not self.times_s:
                await self.turn()

        task = asyncio.create_task(go_on())
        try:
            yield
        finally:
            done.set()
            await task


async def send(http: aiohttp.ClientSession, url: str, body: bytes) -> int:
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    async with http.post(url, data=io.BytesIO(body), headers=headers) as answer:
        await answer.read()
        return answer.status


async def measure(server: Process) -> dict[str, dict[str, float]]:
    figures: dict[str, dict[str, float]] = {}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as http:
        other = Bystander(http, server.url)
        for _ in range(200):
            await other.turn()
        idle_s = statistics.median(other.times_s[50:])
        for name, (path, fields) in attacks().items():
            body = json.dumps(fields).encode()
            cpu_s, held = server.cpu_s(), server.resident_bytes()
            async with other.beside():
                sent = (send(http, server.url + path, body) for _ in range(AT_ONCE))
                statuses = await asyncio.gather(*sent)
            figures[name] = {
                "status": statuses[0],
                "cpu_s": server.cpu_s() - cpu_s - idle_s * len(other.times_s),
                "grown_mib": (server.resident_bytes() - held) / MIB,
                "median_ratio": statistics.median(other.times_s) / idle_s,
                "slowest_s": max(other.times_s),
            }
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", default="simulated:vocabulary=smollm2,context_tokens=131072")
    parser.add_argument("--keep", action="store_true", help="write the figures to benchmarks/results")
    options = parser.parse_args()
    with slipring(options.engine, "--log-level", "error") as server:
        figures = asyncio.run(measure(server))
    print(f"{'':28} {'status':>6} {'CPU s':>7} {'MiB':>6} {'median':>8} {'slowest':>9}")
    for name, row in figures.items():
        print(
            f"{name:28} {row['status']:6} {row['cpu_s']:7.2f} {row['grown_mib']:6.0f}"
            f" {row['median_ratio']:7.1f}x {row['slowest_s'] * 1000:6.0f} ms"
        )
    if options.keep:
        keep("long_inputs", {"engine": options.engine, "at_once": AT_ONCE, "attacks": figures})
    worst = max(row["cpu_s"] for row in figures.values())
    print(f"most CPU: {worst:.2f} s (budget {CPU_BUDGET_S} s)")
    return 0 if worst <= CPU_BUDGET_S else 1


if __name__ == "__main__":
    sys.exit(main())
