"""Measures how long an answer takes to begin after a tool has ended: with the tool's output streamed while
the tool runs, and without.

A model calls a tool, which prints lines for some seconds; then it answers. Both ways send the same frames,
except that one also sends `response.tool_output.delta` events while the tool prints. The time is from the
tool's end to the first token of the answer. Two tenants of one server take turns with the same texts: they
share no cache, so that each reads every text once. The texts of each round are different. The answers, which
are greedy, and the token counts are compared.

    python benchmarks/tool_output.py
    python benchmarks/tool_output.py --tokens 200 --seconds 5 --rounds 1
"""

import argparse
import asyncio
import json
import random
import sys
import time
from typing import Any

import aiohttp
from common import Process, keep, slipring, spread, verdict

BUDGET = 0.15
"""Most that an answer may take to begin, as a share of what it takes without streaming."""
WAYS = ("streamed", "plain")
PIECES_PER_S = 10
HEADERS = {"OpenAI-Beta": "slipring_tool_output=v1, slipring_timing=v1"}
TOOL = {
    "type": "function",
    "name": "run_tests",
    "description": "Run the tests of the project.",
    "parameters": {
        "type": "object",
        "properties": {"path": {"type": "string", "maxLength": 24}},
        "required": ["path"],
        "additionalProperties": False,
    },
    "strict": True,
}
SETTINGS = {
    "instructions": "You mend code. Run the tests, then say what fails.",
    "tools": [TOOL],
    "parallel_tool_calls": False,
    "temperature": 0,
    "store": False,
}
WORDS = (
    "parser lexer cache index route token queue writer reader merge split store lane chain head tail".split()
)
COUNTED_LINES = 40


def lines(number: int) -> list[str]:
    """Return what the tool prints in a round: more lines than are needed."""
    chance = random.Random(number)
    return [
        f"tests/test_{'_'.join(chance.sample(WORDS, 2))}.py::test_{'_'.join(chance.sample(WORDS, 3))}"
        f" {chance.choice(('PASSED', 'FAILED'))} in {chance.randrange(1, 999)} ms\n"
        for _ in range(4096)
    ]


class Agent:
    """Calls the tool and reads the answer, on the socket of one tenant."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse, seconds: float, *, streams: bool) -> None:
        self._ws = ws
        self._seconds = seconds
        self._streams = streams

    async def run(self, number: int, text: str) -> dict[str, Any]:
        """Run one round; return its figures and the answer."""
        question = f"{number}: which tests of the project fail?"
        await self._create(input=question, tool_choice="required", max_output_tokens=60)
        called, _, _ = await self._read()
        (call,) = called["output"]
        await self._run_tool({"response_id": called["id"], "call_id": call["call_id"]}, text)
        ended = time.perf_counter()
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": text}
        await self._create(
            input=[output], previous_response_id=called["id"], tool_choice="none", max_output_tokens=24
        )
        answered, first, prefill_ms = await self._read()
        usage = answered["usage"]
        return {
            "first_ms": (first - ended) * 1e3,
            "prefill_ms": prefill_ms,
            "output_tokens_of_tool": usage["input_tokens"] - called["usage"]["total_tokens"],
            "input_tokens": usage["input_tokens"],
            "cached_tokens": usage["input_tokens_details"]["cached_tokens"],
            "answer": [part["text"] for item in answered["output"] for part in item.get("content", [])],
        }

    async def _run_tool(self, call: dict[str, str], text: str) -> None:
        """Let the time of the tool pass. Streams its output, if this agent does."""
        start, pieces = time.perf_counter(), max(round(self._seconds * PIECES_PER_S), 1)
        for piece in range(pieces):
            due = start + self._seconds * (piece + 1) / pieces
            await asyncio.sleep(max(due - time.perf_counter(), 0))
            if self._streams:
                delta = text[len(text) * piece // pieces : len(text) * (piece + 1) // pieces]
                frame = {"type": "response.tool_output.delta", **call, "delta": delta}
                await self._ws.send_str(json.dumps(frame))

    async def _create(self, **fields: Any) -> None:
        await self._ws.send_str(json.dumps({"type": "response.create", **SETTINGS, **fields}))

    async def _read(self) -> tuple[dict[str, Any], float, float]:
        """Read a response to its end; return it, when its first delta arrived, and its time of prefill."""
        first, response = 0.0, {}
        while True:
            event = json.loads(await self._ws.receive_str())
            kind = event["type"]
            if kind in ("error", "response.failed", "response.tool_output.failed"):
                raise RuntimeError(json.dumps(event))
            if kind.endswith(".delta"):
                first = first or time.perf_counter()
            elif kind in ("response.completed", "response.incomplete"):
                response = event["response"]
            elif kind == "slipring.timing":
                stages = event["timing"]["stages"]
                prefills = [each["duration_ms"] for each in stages if each["name"] == "prefill"]
                return response, first, sum(prefills)


async def measure(server: Process, tokens: int, seconds: float, rounds: int) -> list[dict[str, Any]]:
    """Run the rounds; return the figures of both ways for each."""
    found = []
    async with (
        aiohttp.ClientSession(headers=HEADERS) as http,
        _socket(http, server, "streamed") as streamed,
        _socket(http, server, "plain") as plain,
    ):
        agents = {
            "streamed": Agent(streamed, seconds, streams=True),
            "plain": Agent(plain, seconds, streams=False),
        }
        for number in range(rounds):
            text = await _text(http, server, number, tokens)
            both = {}
            for way in WAYS if number % 2 else reversed(WAYS):
                print(f"  round {number + 1} of {rounds}, {way} …", file=sys.stderr, flush=True)
                both[way] = await agents[way].run(number, text)
            found.append(both)
    return found


def _socket(http: aiohttp.ClientSession, server: Process, tenant: str) -> Any:
    headers = {"Authorization": f"Bearer key-of-{tenant}"}
    return http.ws_connect(f"{server.url}/responses", headers=headers, max_msg_size=0)


async def _text(http: aiohttp.ClientSession, server: Process, number: int, tokens: int) -> str:
    """Return the output of a round, of about this many tokens as the engine counts them."""
    printed = lines(number)

    async def count(text: str) -> int:
        url, headers = f"{server.url}/responses/input_tokens", {"Authorization": "Bearer key-of-plain"}
        async with http.post(url, json={"input": text}, headers=headers) as answer:
            answer.raise_for_status()
            return int((await answer.json())["input_tokens"])

    overhead = await count("x")
    per_line = (await count("".join(printed[:COUNTED_LINES])) - overhead) / COUNTED_LINES
    return "".join(printed[: max(round(tokens / per_line), 1)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=2000, help="tokens that the tool prints")
    parser.add_argument("--seconds", type=float, default=10, help="how long the tool runs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine", default="llama:slots=2,context=8192")
    arguments = parser.parse_args()
    keys = [flag for way in WAYS for flag in ("--api-key", f"{way}:key-of-{way}")]
    flags = [*keys, "--ping-interval-s", "0", "--log-level", "error"]
    with slipring(arguments.engine, *flags) as server:
        rounds = asyncio.run(measure(server, arguments.tokens, arguments.seconds, arguments.rounds))
    figures = {
        "engine": arguments.engine,
        "seconds": arguments.seconds,
        "budget": BUDGET,
        "rounds": rounds,
        "same_input_tokens": all(
            each["streamed"]["input_tokens"] == each["plain"]["input_tokens"] for each in rounds
        ),
        "same_answers": sum(each["streamed"]["answer"] == each["plain"]["answer"] for each in rounds),
        "ratios": spread([each["streamed"]["first_ms"] / each["plain"]["first_ms"] for each in rounds]),
    }
    show(figures)
    keep(f"tool_output_{figures['seconds']:g}s", figures)


def show(figures: dict[str, Any]) -> None:
    rounds = figures["rounds"]
    print("from the tool's end to the first token of the answer, median (range)")
    for way in WAYS:
        first = spread([each[way]["first_ms"] / 1e3 for each in rounds])
        left = spread([each[way]["input_tokens"] - each[way]["cached_tokens"] for each in rounds])
        print(
            f"  {way:9} {first['median']:.2f} s ({first['low']:.2f} – {first['high']:.2f}),"
            f" {left['median']:.0f} tokens left to read ({left['low']:.0f} – {left['high']:.0f})"
        )
    ratios = figures["ratios"]
    print(f"  ratio     {verdict(ratios['median'], BUDGET)} ({ratios['low']:.2f} – {ratios['high']:.2f})")
    equal = "the same" if figures["same_input_tokens"] else "DIFFERENT"
    print(f"  {equal} input tokens; the same answer in {figures['same_answers']} of {len(rounds)} rounds")


if __name__ == "__main__":
    main()
