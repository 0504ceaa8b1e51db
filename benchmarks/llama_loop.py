"""Measures an agent loop on the embedded model: continuations over a WebSocket against full history over
HTTP.

Twelve turns, each a forced tool call, then the tool's output. One conversation sends `previous_response_id`
and the new item; the other sends all items again, streamed, over one kept-alive connection. Both run on the
same server with a slot each, and both use the engine's prompt cache, which finds the longest prefix that a
slot still holds. They differ in how much has to be sent, parsed, rendered and tokenized, and in whether the
tokens of earlier answers are exactly those that the engine generated. The two alternate by turn.

    python benchmarks/llama_loop.py
"""

import argparse
import asyncio
import itertools
import json
import sys
import time
from typing import Any

import aiohttp
from common import keep, slipring, spread

TURNS = 12
TOOL = {
    "type": "function",
    "name": "read_file",
    "description": "Read a file of the project.",
    "parameters": {
        "type": "object",
        "properties": {"path": {"type": "string", "maxLength": 24}},
        "required": ["path"],
        "additionalProperties": False,
    },
    "strict": True,
}
SETTINGS = {
    "instructions": "You mend code. Read what you need.",
    "tools": [TOOL],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "temperature": 0,
    "max_output_tokens": 60,
    "store": False,
}
_asked = itertools.count(100)
TERMINAL = ("response.completed", "response.incomplete", "response.failed", "error")


def question() -> dict[str, Any]:
    """Return a unique first message, so that conversations do not share cached prefixes."""
    return {"role": "user", "content": f"{next(_asked)}: mend the failing test in tests/test_parser.py."}


class Turn:
    """Measurements of one turn."""

    def __init__(self, sent_bytes: int) -> None:
        self.sent_bytes = sent_bytes
        self._start = time.perf_counter()
        self.first_ms = self.total_ms = 0.0
        self.response: dict[str, Any] = {}

    def see(self, event: dict[str, Any]) -> bool:
        """Record an event; return whether it was the last."""
        passed = (time.perf_counter() - self._start) * 1e3
        if not self.first_ms and event["type"].endswith(".delta"):
            self.first_ms = passed
        if event["type"] not in TERMINAL:
            return False
        if event["type"] != "response.completed":
            raise RuntimeError(json.dumps(event))
        self.total_ms = passed
        self.response = event["response"]
        return True

    def figures(self) -> dict[str, float]:
        usage = self.response["usage"]
        return {
            "first_ms": self.first_ms,
            "total_ms": self.total_ms,
            "sent_bytes": self.sent_bytes,
            "input_tokens": usage["input_tokens"],
            "cached_tokens": usage["input_tokens_details"]["cached_tokens"],
        }


def tool_output(response: dict[str, Any], number: int) -> dict[str, Any]:
    (call,) = response["output"]
    text = (
        f"{number}: def parse_{number}(line: str) -> list[str]: return line.split(',')  # no such file\n" * 2
    )
    return {"type": "function_call_output", "call_id": call["call_id"], "output": text}


class Continued:
    """Continues by id over a WebSocket."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self._ws = ws
        self._latest: str | None = None
        self._new: list[dict[str, Any]] = [question()]

    async def turn(self, number: int) -> Turn:
        create = {"type": "response.create", **SETTINGS, "input": self._new}
        if self._latest is not None:
            create["previous_response_id"] = self._latest
        frame = json.dumps(create)
        turn = Turn(len(frame))
        await self._ws.send_str(frame)
        while not turn.see(json.loads(await self._ws.receive_str())):
            pass
        self._latest = turn.response["id"]
        self._new = [tool_output(turn.response, number)]
        return turn


class Repeated:
    """Sends the whole history with every HTTP request."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = f"{url}/responses"
        self._history: list[dict[str, Any]] = [question()]

    async def turn(self, number: int) -> Turn:
        body = json.dumps({**SETTINGS, "input": self._history, "stream": True})
        turn = Turn(len(body))
        headers = {"Content-Type": "application/json"}
        async with self._http.post(self._url, data=body, headers=headers) as answer:
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    turn.see(json.loads(line[6:]))
        self._history += [*turn.response["output"], tool_output(turn.response, number)]
        return turn


async def play(url: str) -> dict[str, list[dict[str, float]]]:
    """Run one loop of each kind, alternating by turn."""
    seen: dict[str, list[dict[str, float]]] = {"websocket": [], "http": []}
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(f"{url}/responses", max_msg_size=0) as ws,
    ):
        continued, repeated = Continued(ws), Repeated(http, url)
        for number in range(TURNS):
            print(f"  turn {number + 1} of {TURNS} …", end="\r", file=sys.stderr, flush=True)
            by_id = await continued.turn(number)
            in_full = await repeated.turn(number)
            seen["websocket"].append(by_id.figures())
            seen["http"].append(in_full.figures())
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", default="", help="a GGUF file; empty: the embedded model")
    arguments = parser.parse_args()
    with slipring(f"llama:{arguments.model},slots=2,context=4096", "--log-level", "error") as server:
        loops = [asyncio.run(play(server.url)) for _ in range(arguments.repeats)]
    show(loops)
    keep("llama_loop", {"turns": TURNS, "loops": loops})


def show(loops: list[dict[str, list[dict[str, float]]]]) -> None:
    print("time to first token, median of the repeats (cached of input tokens; bytes sent)")
    for number in range(TURNS):
        cells = []
        for kind in ("websocket", "http"):
            turns = [loop[kind][number] for loop in loops]
            first = spread([turn["first_ms"] for turn in turns])["median"]
            turn = turns[0]
            counts = f"{turn['cached_tokens']:.0f} of {turn['input_tokens']:.0f}; {turn['sent_bytes']:.0f} B"
            cells.append(f"{kind} {first:7.0f} ms ({counts})")
        print(f"  turn {number + 1:2}   {'   '.join(cells)}")
    totals = {
        kind: [sum(turn["total_ms"] for turn in loop[kind]) / 1e3 for loop in loops]
        for kind in ("websocket", "http")
    }
    for kind, seconds in totals.items():
        each = spread(seconds)
        print(f"  whole loop, {kind}: {each['median']:.2f} s ({each['low']:.2f} – {each['high']:.2f})")
    saved = spread([1 - ws / full for ws, full in zip(totals["websocket"], totals["http"], strict=True)])
    print(f"  the WebSocket saves {saved['median']:.0%} ({saved['low']:.0%} – {saved['high']:.0%})")


if __name__ == "__main__":
    main()
