"""Measures the cost of a continuation without the model, with growing history: it should stay constant.

Each chain begins with one create that sends its whole history (messages, tool calls and tool outputs, as a
coding agent creates them), then continues by id with one small message at a time, with ten tools in every
frame. The engine answers at once with one token, so that only slipring's own work is measured: wall time from
sending to ``response.completed`` at the client, and CPU time of the server process. The same is measured for
forks: continuations of the chain's first response on another lane. Chains alternate, so that changes of the
machine's speed affect all of them.

    python benchmarks/continuation_cost.py
"""

import argparse
import asyncio
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

from common import Loop, Process, connected, keep, slipring, spread, verdict

BUDGET = 1.5
HISTORIES = (2_000, 20_000, 150_000)
KINDS = ("wall", "cpu", "fork")
OUTPUT_BYTES = 3_500
TOOLS = [
    {
        "type": "function",
        "name": f"tool_{number}",
        "description": "Does one thing of the many that a coding agent can do. " * 8,
        "parameters": {
            "type": "object",
            "properties": {name: {"type": "string"} for name in ("path", "text", "reason", "mode")},
            "required": ["path"],
        },
        "strict": False,
    }
    for number in range(10)
]


def history(tokens: int) -> list[dict[str, Any]]:
    """Return items of about ``tokens`` tokens, at four bytes per token."""
    items: list[dict[str, Any]] = [{"role": "user", "content": "Mend the failing test."}]
    for number in range(tokens * 4 // OUTPUT_BYTES):
        call_id = f"call_{number}"
        call = {"type": "function_call", "call_id": call_id, "name": "tool_1", "arguments": '{"path":"a.py"}'}
        output = {"type": "function_call_output", "call_id": call_id, "output": "line of code\n" * 269}
        items += [call, output]
    return items


class Chain:
    """A conversation with a long history."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.history_tokens = 0
        self._first: dict[str, Any] = {}
        self._latest: dict[str, Any] = {}

    async def begin(self, tokens: int) -> None:
        self._first = self._latest = await self._turn(input=history(tokens))
        self.history_tokens = self._latest["usage"]["input_tokens"]

    async def step(self) -> None:
        self._latest = await self._turn(
            input=[{"role": "user", "content": "go on"}], previous_response_id=self._latest["id"]
        )
        details = self._latest["usage"]["input_tokens_details"]
        assert details["cached_tokens"] > self.history_tokens, "the history was lost"

    async def fork(self) -> None:
        response = await self._turn(
            input=[{"role": "user", "content": "or else"}],
            previous_response_id=self._first["id"],
            stream_id="fork",
        )
        cached = response["usage"]["input_tokens_details"]["cached_tokens"]
        assert cached > self.history_tokens, "the history was lost"

    async def _turn(self, **create: Any) -> dict[str, Any]:
        settings = {"model": "simulated", "store": False, "tools": TOOLS, "tool_choice": "none"}
        response, _ = await self._loop.turn(**settings, **create)
        return response


async def measure(server: Process, steps: int, batch: int) -> dict[int, dict[str, list[float]]]:
    """Return the milliseconds per continuation, wall and CPU, and per fork: one figure per batch of steps."""
    costs: dict[int, dict[str, list[float]]] = {tokens: {kind: [] for kind in KINDS} for tokens in HISTORIES}
    async with AsyncExitStack() as stack:
        chains = {}
        for tokens in HISTORIES:
            chains[tokens] = Chain(await stack.enter_async_context(connected(server.url)))
            await chains[tokens].begin(tokens)
            for _ in range(batch):
                await chains[tokens].step()
        for _ in range(steps // batch):
            for tokens, chain in chains.items():
                cpu, wall = server.cpu_s(), time.perf_counter()
                for _ in range(batch):
                    await chain.step()
                costs[tokens]["wall"].append((time.perf_counter() - wall) / batch * 1e3)
                costs[tokens]["cpu"].append((server.cpu_s() - cpu) / batch * 1e3)
                wall = time.perf_counter()
                for _ in range(batch):
                    await chain.fork()
                costs[tokens]["fork"].append((time.perf_counter() - wall) / batch * 1e3)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400, help="continuations per chain")
    parser.add_argument("--batch", type=int, default=20, help="continuations per figure")
    arguments = parser.parse_args()
    print(f"{arguments.steps} continuations at each of {HISTORIES} tokens …", file=sys.stderr, flush=True)
    with slipring("simulated:tokens_per_s=0,output_tokens=1") as server:
        costs = asyncio.run(measure(server, arguments.steps, arguments.batch))
    print("cost of a continuation beside the model, median (range)")
    base = {kind: spread(costs[HISTORIES[0]][kind])["median"] for kind in KINDS}
    ratios: dict[str, float] = {}
    for tokens, cost in costs.items():
        parts = []
        for kind in KINDS:
            each = spread(cost[kind])
            ratios[kind] = each["median"] / base[kind]
            parts.append(f"{kind} {each['median']:.3f} ms ({each['low']:.3f} – {each['high']:.3f})")
        print(f"  {tokens:7,} tokens   {'   '.join(parts)}")
    for kind, ratio in ratios.items():
        print(f"  {HISTORIES[-1]:,} against {HISTORIES[0]:,} tokens, {kind}: {verdict(ratio, BUDGET)}")
    keep("continuation_cost", {"budget": BUDGET, "ms_per_turn": costs, "ratios": ratios})


if __name__ == "__main__":
    main()
