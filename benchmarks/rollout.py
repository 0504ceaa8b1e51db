"""Measures the cost of a tool boundary: a rollout in one response against separate responses on a WebSocket.

A loop of tool calls, as a coding agent makes them, with ten tools and instructions, which separate responses
send again each time. The engine answers at once, so that only slipring's own work is measured. A boundary is
the time between sending the output of a call and having read the next call, or the end; nothing is logged.
The two alternate by loop, on separate connections to one server, so that changes of the machine's speed
affect both.

    python benchmarks/rollout.py
"""

import argparse
import asyncio
import sys
import time
from typing import Any

import aiohttp
import msgspec
from common import Process, keep, slipring, spread
from continuation_cost import TOOLS

BUDGET = 1.15
"""Most that separate responses may take, as a multiple of a rollout."""
RESULT = "line of code\n" * 269
INSTRUCTIONS = "You mend programs. Read before you write, and test what you have written. " * 54
HEADER = {"OpenAI-Beta": "slipring_rollout=v1"}
_encode, _decode = msgspec.json.Encoder().encode, msgspec.json.Decoder().decode
ENDS = ("response.done", "response.completed", "response.failed", "error")


class Loop:
    """Runs loops on one socket, as rollouts or as separate responses."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse, calls: int, *, rollout: bool) -> None:
        self._ws = ws
        self._calls = calls
        self._rollout = rollout

    async def run(self, server: Process) -> tuple[float, float]:
        """Run one loop; return the milliseconds per boundary, wall time and CPU time of the server."""
        settings = {"model": "simulated", "store": False, "tools": TOOLS, "instructions": INSTRUCTIONS}
        last = await self._ask(
            type="response.create", **settings, rollout=self._rollout, input="Mend the failing test."
        )
        cpu, wall = server.cpu_s(), time.perf_counter()
        for _ in range(self._calls):
            results = [self._result(call_id) for call_id in self._owed(last)]
            if self._rollout:
                last = await self._ask(type="response.append", response_id=last["response_id"], input=results)
            else:
                last = await self._ask(
                    type="response.create",
                    **settings,
                    previous_response_id=last["response"]["id"],
                    input=results,
                )
        spent = time.perf_counter() - wall, server.cpu_s() - cpu
        if last["type"] != "response.completed" or last["response"]["output"][-1]["type"] != "message":
            raise RuntimeError(f"the loop has not come to its end: {last}")
        return spent[0] / self._calls * 1e3, spent[1] / self._calls * 1e3

    def _owed(self, last: dict[str, Any]) -> list[str]:
        if last["type"] == "response.done":
            return [stub["call_id"] for stub in last["required_input"]]
        return [item["call_id"] for item in last["response"]["output"] if item["type"] == "function_call"]

    def _result(self, call_id: str) -> dict[str, Any]:
        return {"type": "function_call_output", "call_id": call_id, "output": RESULT}

    async def _ask(self, **frame: Any) -> dict[str, Any]:
        await self._ws.send_str(_encode(frame).decode())
        while True:
            text = await self._ws.receive_str()
            if text.startswith(tuple(f'{{"type":"{kind}"' for kind in ENDS)):
                event: dict[str, Any] = _decode(text)
                if event["type"] in ("response.failed", "error"):
                    raise RuntimeError(text)
                return event


async def measure(server: Process, loops: int, calls: int) -> dict[str, dict[str, list[float]]]:
    costs: dict[str, dict[str, list[float]]] = {
        shape: {"wall_ms": [], "cpu_ms": []} for shape in ("rollout", "separate")
    }
    url = f"{server.url}/responses"
    async with (
        aiohttp.ClientSession(headers=HEADER) as http,
        http.ws_connect(url, max_msg_size=0) as one,
        http.ws_connect(url, max_msg_size=0) as other,
    ):
        shapes = {
            "rollout": Loop(one, calls, rollout=True),
            "separate": Loop(other, calls, rollout=False),
        }
        for number in range(-2, loops):
            order = list(shapes) if number % 2 else list(reversed(shapes))
            for shape in order:
                wall, cpu = await shapes[shape].run(server)
                if number >= 0:
                    costs[shape]["wall_ms"].append(wall)
                    costs[shape]["cpu_ms"].append(cpu)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loops", type=int, default=30, help="loops in each shape")
    parser.add_argument("--calls", type=int, default=25, help="tool calls in each loop")
    arguments = parser.parse_args()
    calls = arguments.calls
    print(f"{arguments.loops} loops of {calls} calls in each shape …", file=sys.stderr, flush=True)
    engine = f"simulated:tokens_per_s=0,output_tokens=60,tool_calls={calls}"
    with slipring(engine, "--log-level", "error") as server:
        costs = asyncio.run(measure(server, arguments.loops, calls))
    print("cost of a tool boundary beside the model, median (range)")
    for shape, cost in costs.items():
        parts = []
        for kind, values in cost.items():
            each = spread(values)
            name = kind.removesuffix("_ms")
            parts.append(f"{name} {each['median']:.2f} ms ({each['low']:.2f} – {each['high']:.2f})")
        print(f"  {shape:9}  {'   '.join(parts)}")
    ratios = {}
    for kind in ("wall_ms", "cpu_ms"):
        # Ratios of pairs, because each pair was measured side by side.
        pairs = zip(costs["separate"][kind], costs["rollout"][kind], strict=True)
        each = spread([separate / rollout for separate, rollout in pairs])
        ratios[kind] = each
        met = "met" if each["median"] <= BUDGET else "FALLS SHORT"
        print(
            f"  separate responses against a rollout, {kind.removesuffix('_ms')}: {each['median']:.2f} ×"
            f" ({each['low']:.2f} – {each['high']:.2f}; budget ≤ {BUDGET:g} ×: {met})"
        )
    keep("rollout", {"budget": BUDGET, "calls": calls, "per_boundary": costs, "ratios": ratios})


if __name__ == "__main__":
    main()
