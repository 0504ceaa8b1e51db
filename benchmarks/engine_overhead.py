"""Measures what slipring adds to a turn in front of each kind of engine, compared with direct calls.

The engine is `instant_upstream.py`: it answers at once with a tool call in sixty pieces, whose arguments
contain a digest of all tool outputs that it received. An agent loop of twenty-five turns, with 3.5 kB of tool
output each, runs by id over slipring's WebSocket. Alternating with it, turn by turn, the same conversation
calls the engine directly, as an efficient client would (one kept-alive connection, only the required fields).
A wrong digest aborts the run. Each loop runs with two lengths of history.

Servers that take token ids leave it to their callers to render new items, to tokenize them and to decode ids.
slipring does that for its clients; the direct client does it too, with the same library. Reported, as medians
over the turns: the extra time of a turn compared with the direct one beside it; the added CPU time, which is
that of slipring and its client minus that of the direct client; the CPU time of slipring alone; and how that
grows with the history, minus the direct client's work on ids. The direct client's cost of sending its history
again is not subtracted from that growth.

    python benchmarks/engine_overhead.py
"""

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from common import EXCHANGE_KB, Loop, Process, added, connected, growth, keep, slipring, started
from instant_upstream import digest
from packaged import packaged_metadata

from slipring.engines.tokens.model_files import control_tokens
from slipring.prompts.tokenization.tokenizer import Tokenizer
from slipring.protocol import wire

TURNS = 25
TEMPLATE = Path(__file__).parents[1] / "tests" / "prompts" / "templates" / "families" / "qwen3.jinja"
ASK = {"role": "user", "content": "Mend the failing test."}
TOOL = {
    "type": "function",
    "name": "run",
    "description": "Run a command.",
    "parameters": {"type": "object", "properties": {"digest": {"type": "string"}}},
    "strict": False,
}
BUDGETS = {"added_ms": 2.0, "added_cpu_ms": 2.5, "growth_ms_per_10_kB": 0.02}
BUDGETS_OF_IDS = {**BUDGETS, "added_ms": 1.0, "added_cpu_ms": 1.3}
"""In front of engines that take token ids: a direct client tokenizes, too."""
TAKE_IDS = ("vllm", "sglang")
FIGURES = ("through", "direct", "cpu", "client_cpu", "direct_cpu", "tokenizing")
"""Milliseconds of every turn: wall time through slipring and directly, CPU time of slipring and of the two
clients, and the part of the direct client's CPU time that is spent on ids."""


def output_text(number: int) -> str:
    lines = "def handler(request): return request.body  # line of code\n" * 60
    return f"{number}: {lines}"[: int(EXCHANGE_KB * 1000)]


class Conversation(ABC):
    """One client of the conversation. ``outputs`` are the tool outputs so far."""

    def __init__(self) -> None:
        self.outputs: list[str] = []
        self.cpu_ms = 0.0
        """CPU time of the client for the last turn."""
        self.tokenizing_ms = 0.0
        """The part of it that was spent on ids, if the client has to create them."""

    @abstractmethod
    async def turn(self, new: list[str]) -> str:
        """Send the new outputs; return the arguments of the tool call in the answer."""

    async def timed(self, new: list[str]) -> float:
        self.outputs += new
        start, cpu = time.perf_counter(), time.thread_time()
        arguments = await self.turn(new)
        took, self.cpu_ms = (time.perf_counter() - start) * 1e3, (time.thread_time() - cpu) * 1e3
        if f"outputs={digest(self.outputs)}" not in arguments:
            raise RuntimeError("the engine did not see the whole history")
        return took


class ThroughSlipring(Conversation):
    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self._loop = loop
        self._latest: dict[str, Any] | None = None

    async def turn(self, new: list[str]) -> str:
        create: dict[str, Any] = {"tools": [TOOL], "store": False, "input": [ASK]}
        if self._latest is None and new:
            create["input"] = [ASK, *_exchanges(new)]
        elif self._latest is not None:
            (call,) = self._latest["output"]
            create["previous_response_id"] = self._latest["id"]
            create["input"] = [
                {"type": "function_call_output", "call_id": call["call_id"], "output": new[0]},
                *_exchanges(new[1:]),
            ]
        self._latest, _ = await self._loop.turn(**create)
        return str(self._latest["output"][0]["arguments"])


def _exchanges(outputs: list[str]) -> list[dict[str, Any]]:
    items = []
    for number, text in enumerate(outputs):
        call = {"type": "function_call", "call_id": f"h{number}", "name": "run", "arguments": "{}"}
        items += [call, {"type": "function_call_output", "call_id": f"h{number}", "output": text}]
    return items


class Direct(Conversation):
    """Calls the engine over HTTP, with only the required fields."""

    path = ""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        super().__init__()
        self._http = http
        self._url = url + self.path

    async def payloads(self, body: bytes) -> list[Any]:
        headers = {"Content-Type": "application/json"}
        async with self._http.post(self._url, data=body, headers=headers) as answer:
            lines = [line async for line in answer.content if line.startswith(b"data: {")]
        return [msgspec.json.decode(line[6:]) for line in lines]


class DirectChat(Direct):
    path = "/v1/chat/completions"

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        super().__init__(http, url)
        self._messages: list[dict[str, Any]] = [ASK]

    async def turn(self, new: list[str]) -> str:
        for text in new:
            function = {"name": "run", "arguments": "{}"}
            call = {"id": f"c{len(self._messages)}", "type": "function", "function": function}
            self._messages += [
                {"role": "assistant", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call["id"], "content": text},
            ]
        tool = {"type": "function", "function": {"name": "run", "parameters": TOOL["parameters"]}}
        body = {"model": "instant", "messages": self._messages, "tools": [tool], "stream": True}
        chunks = await self.payloads(wire.encode(body))
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
        return "".join(
            call["function"]["arguments"] for each in deltas for call in each.get("tool_calls", [])
        )


class DirectResponses(Direct):
    path = "/v1/responses"

    async def turn(self, new: list[str]) -> str:
        body = {
            "model": "instant",
            "input": [ASK, *_exchanges(self.outputs)],
            "tools": [TOOL],
            "stream": True,
        }
        events = await self.payloads(wire.encode(body))
        return str(events[-1]["response"]["output"][0]["arguments"])


class DirectTokens(Direct):
    """Renders and tokenizes new items, decodes answers, and keeps the ids of the history as encoded bytes:
    the minimum that a client of such a server has to do itself."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        super().__init__(http, url)
        self._tokenizer = Tokenizer.from_gguf(packaged_metadata())
        self._start, self._end = map(self._tokenizer.control, ("<|im_start|>", "<|im_end|>"))
        self._sent = b""

    async def turn(self, new: list[str]) -> str:
        began = time.thread_time()
        encode = self._tokenizer.encode
        outputs = "\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in new) or ASK["content"]
        asked = [self._start, *encode("user\n"), *encode(outputs), self._end, *encode("\n")]
        self._keep([*asked, self._start, *encode("assistant\n")])
        writing = time.thread_time() - began
        answer_ids: list[int] = []
        for chunk in await self.payloads(self.body(self._sent)):
            answer_ids = self.read(answer_ids, chunk)
        began = time.thread_time()
        self._keep([*answer_ids, *encode("\n")])
        text = b"".join(map(self._tokenizer.bytes_of, answer_ids)).decode()
        self.tokenizing_ms = (writing + time.thread_time() - began) * 1e3
        return json.dumps(
            json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>"))["arguments"]
        )

    def _keep(self, ids: list[int]) -> None:
        more = wire.encode(ids)[1:-1]
        self._sent = self._sent + b"," + more if self._sent else more

    @abstractmethod
    def body(self, ids: bytes) -> bytes:
        """Return the body of a request with these ids."""

    @abstractmethod
    def read(self, answer_ids: list[int], chunk: Any) -> list[int]:
        """Return all ids of the answer so far, including those of this chunk."""


class DirectVllm(DirectTokens):
    path = "/v1/completions"

    def body(self, ids: bytes) -> bytes:
        return b'{"prompt":[' + ids + b'],"model":"instant","stream":true,"return_token_ids":true}'

    def read(self, answer_ids: list[int], chunk: Any) -> list[int]:
        return answer_ids + [id for choice in chunk["choices"] for id in choice["token_ids"]]


class DirectSglang(DirectTokens):
    path = "/generate"

    def body(self, ids: bytes) -> bytes:
        return b'{"input_ids":[' + ids + b'],"stream":true}'

    def read(self, answer_ids: list[int], chunk: Any) -> list[int]:
        return list(chunk["output_ids"])


class DirectSocket(Conversation):
    """Calls the engine's Responses API over a WebSocket, by id."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        super().__init__()
        self._through = ThroughSlipring(Loop(ws))

    async def turn(self, new: list[str]) -> str:
        return await self._through.turn(new)


Make = Callable[[aiohttp.ClientSession, str], Any]
HTTP: dict[str, tuple[str, Make]] = {
    "chat": ("chat:{url}/v1", DirectChat),
    "responses over SSE": ("responses:{url}/v1,transport=sse", DirectResponses),
    "vllm": ("vllm:{url},tokenizer={tokenizer}", DirectVllm),
    "sglang": ("sglang:{url},tokenizer={tokenizer}", DirectSglang),
}


async def loops(
    server: Process, through: Conversation, direct: Conversation, before: int
) -> dict[str, list[float]]:
    """Run both conversations, alternating by turn, after ``before`` exchanges of history."""
    past = [output_text(number) for number in range(before)]
    figures: dict[str, list[float]] = {name: [] for name in FIGURES}
    await through.timed(past)
    await direct.timed(past)
    for number in range(TURNS):
        new = [output_text(before + number)]
        cpu = server.cpu_s()
        figures["through"].append(await through.timed(new))
        figures["cpu"].append((server.cpu_s() - cpu) * 1e3)
        figures["client_cpu"].append(through.cpu_ms)
        figures["direct"].append(await direct.timed(new))
        figures["direct_cpu"].append(direct.cpu_ms)
        figures["tokenizing"].append(direct.tokenizing_ms)
    return figures


async def measure(
    server: Process, upstream: str, make: Make | None, lengths: tuple[int, ...], repeats: int
) -> dict[int, dict[str, list[float]]]:
    """Run loops with each length of history, alternating, so that changes of the machine's speed affect
    all."""
    found: dict[int, dict[str, list[float]]] = {before: {name: [] for name in FIGURES} for before in lengths}
    for _ in range(repeats):
        for before, figures in found.items():
            async with connected(server.url) as loop, aiohttp.ClientSession() as http:
                if make is not None:
                    each = await loops(server, ThroughSlipring(loop), make(http, upstream), before)
                else:
                    async with http.ws_connect(f"{upstream}/v1/responses", max_msg_size=0) as ws:
                        each = await loops(server, ThroughSlipring(loop), DirectSocket(ws), before)
            for name, values in each.items():
                figures[name] += [round(value, 4) for value in values]
    return found


def write_tokenizer(directory: Path) -> Path:
    """Write the embedded model's vocabulary and the chat template of Qwen3 into a directory: every model that
    people run has a template, and rendering it is a part of what a turn costs. Returns the directory."""
    metadata = packaged_metadata()
    document = json.loads(Tokenizer.from_gguf(metadata)._backend.to_str())
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    document["added_tokens"] = [
        {"id": id, "content": token, **plain} for token, id in control_tokens(metadata).items()
    ]
    shutil.copy(TEMPLATE, directory / "chat_template.jinja")
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>"}), encoding="utf-8"
    )
    (directory / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--long", type=int, default=85, help="exchanges of history before the long loop")
    parser.add_argument("--only", default="", help="kinds whose names begin with this")
    arguments = parser.parse_args()
    kinds: dict[str, tuple[str, Make | None]] = {
        **HTTP,
        "responses over a WebSocket": ("responses:{url}/v1,transport=websocket", None),
    }
    results: dict[str, Any] = {}
    upstream_file = str(Path(__file__).with_name("instant_upstream.py"))
    with started(upstream_file) as upstream, tempfile.TemporaryDirectory() as directory:
        tokenizer = write_tokenizer(Path(directory))
        for kind, (spec, make) in kinds.items():
            if not kind.startswith(arguments.only):
                continue
            print(f"{kind} …", file=sys.stderr, flush=True)
            engine = spec.format(url=upstream.url, tokenizer=tokenizer)
            with slipring(engine, "--log-level", "error") as server:
                lengths = (0, arguments.long)
                results[kind] = asyncio.run(measure(server, upstream.url, make, lengths, arguments.repeats))
            show(kind, results[kind])
    if not arguments.only:
        budgets = {kind: budgets_of(kind) for kind in kinds}
        keep("engine_overhead", {"budgets": budgets, "turns": TURNS, "ms": results})


def budgets_of(kind: str) -> dict[str, float]:
    return BUDGETS_OF_IDS if kind in TAKE_IDS else BUDGETS


def show(kind: str, results: dict[int, dict[str, list[float]]]) -> None:
    budgets = budgets_of(kind)
    for before, figures in results.items():
        medians = {name: statistics.median(values) for name, values in figures.items()}
        wall = added(figures, "through", without="direct")
        cpu = added(figures, "cpu", "client_cpu", without="direct_cpu")
        print(
            f"{kind}, {before} exchanges before: directly {medians['direct']:.2f} ms, through slipring"
            f" {medians['through']:.2f} ms, added {_held(wall, budgets['added_ms'])};\n"
            f"  CPU of slipring {medians['cpu']:.2f} ms and of its client {medians['client_cpu']:.2f}, of the"
            f" direct client {medians['direct_cpu']:.2f} ({medians['tokenizing']:.2f} on ids):"
            f" added {_held(cpu, budgets['added_cpu_ms'])}"
        )
    held = _held(growth(results, TURNS), budgets["growth_ms_per_10_kB"], 3)
    print(f"{kind}: CPU of slipring grows by {held} per 10 kB of history")


def _held(ms: float, most: float, digits: int = 2) -> str:
    """Format a figure with its budget."""
    return f"{ms:.{digits}f} ms (budget ≤ {most:g}: {'met' if ms <= most else 'FALLS SHORT'})"


if __name__ == "__main__":
    main()
