"""Measures what it costs to send the whole history with every turn, compared with a chained turn.

The engine is `instant_upstream.py`, as a vLLM server. Agent loops run over HTTP, with a history of 150,000
tokens before their first measured turn, and take turns with each other in one run:

- chained: sends its new items and `previous_response_id`;
- resent: sends everything, to the same server, which recognises the history; stored and not stored;
- messages, chat: the same by Messages and by Chat Completions, whose clients cannot do otherwise;
- unrecognised: sends everything, to a server with `--recognised-s 0`.

An answer contains a digest of all tool outputs that the engine received, so a turn that lost some aborts the
run. Every loop has texts of its own, as real loops have. Reported, as medians over the turns: wall time, the
CPU time of the server, and how much both exceed those of the chained turn beside it. The time that it takes
to decode the JSON of such a body, and to validate and translate what is new in it, is measured too, in this
process, because no server can avoid it. Read the CPU time if the machine is not idle.

    python benchmarks/resent_history.py
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
from common import EXCHANGE_KB, Process, added, keep, slipring, spread, started, verdict_ms
from engine_overhead import ASK, TOOL, write_tokenizer
from instant_upstream import digest

from slipring.commands.bench.workloads.prose import Prose
from slipring.protocol import requests, wire
from slipring.protocol.chat_completions.requests import ChatTranslation
from slipring.protocol.endpoints.translation import Translation
from slipring.protocol.items.items import Item
from slipring.protocol.messages.requests import MessagesTranslation
from slipring.protocol.requests import Piece

EXCHANGES = 124
"""About 150,000 tokens of history."""
EXCHANGE_TOKENS = 1_210
_OUTPUT_BYTES = int(EXCHANGE_KB * 1000)
TURNS = 15
BUDGET_MS = 4.0
MODES = ("chained", "resent", "resent and stored", "messages", "chat", "unrecognised")
PARSED: dict[str, Callable[[], Translation]] = {
    "resent": Translation,
    "messages": lambda: MessagesTranslation("req"),
    "chat": lambda: ChatTranslation("fp"),
}
"""Modes whose bodies are read in this process, too, and how."""
Json = dict[str, Any]


class Conversation:
    """An agent loop over HTTP. ``resends``: it keeps its history itself."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        server: Process,
        seed: str,
        *,
        model: str = "",
        resends: bool = True,
        store: bool = False,
    ) -> None:
        self._http = http
        self._prose = Prose(seed)
        self._server = server
        self._resends = resends
        self._store = store
        self._model = model
        self._outputs: list[str] = []
        self._items: list[Json] = [ASK]
        self._sent = 0
        self._latest: Json | None = None
        self.body = b""

    async def turn(self, outputs: int = 1) -> tuple[float, float]:
        """Send this many new outputs; returns the wall time and the server's CPU time, in milliseconds."""
        new = [self._prose.tool_output(_OUTPUT_BYTES).strip() for _ in range(outputs)]
        self._outputs += new
        self._add(new)
        self.body = wire.encode(self._request())
        cpu, start = self._server.cpu_s(), time.perf_counter()
        arguments = await self._post()
        wall, cpu = time.perf_counter() - start, self._server.cpu_s() - cpu
        if f"outputs={digest(self._outputs)}" not in arguments:
            raise RuntimeError("the engine did not see the whole history")
        return wall * 1e3, cpu * 1e3

    def _request(self) -> Json:
        create: Json = {"tools": [TOOL], "store": self._store, "stream": True, "input": self._items}
        if not self._resends and self._latest is not None:
            create |= {"previous_response_id": self._latest["id"], "input": self._items[self._sent :]}
        self._sent = len(self._items) + 1  # the answer is one call
        return create

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

    async def _post(self) -> str:
        """Send the request, and add its answer, a call, to the history; returns the arguments of the call."""
        completed = [
            block for block in await self._stream("responses") if block["type"] == "response.completed"
        ]
        self._latest = completed[0]["response"]
        self._items += self._latest["output"]
        arguments: str = self._latest["output"][0]["arguments"]
        return arguments

    async def _stream(self, path: str) -> list[Json]:
        """Send the request; the events of the answer."""
        headers = {"Content-Type": "application/json", "anthropic-version": "2023-06-01"}
        async with self._http.post(f"{self._server.url}/{path}", data=self.body, headers=headers) as answer:
            lines = [line async for line in answer.content if line.startswith(b"data: {")]
            if answer.status != 200:
                raise RuntimeError(f"the request was refused ({answer.status})")
        return [json.loads(line[6:]) for line in lines]


class MessagesConversation(Conversation):
    """The same loop by Messages."""

    def _request(self) -> Json:
        tool = {"name": "run", "input_schema": TOOL["parameters"]}
        return {
            "model": self._model,
            "max_tokens": 64,
            "stream": True,
            "tools": [tool],
            "messages": self._items,
        }

    def _add(self, new: list[str]) -> None:
        for number, text in enumerate(new):
            call_id = f"h{number}"
            if self._latest is not None:
                call_id = self._latest["id"]
            else:
                call = {"type": "tool_use", "id": call_id, "name": "run", "input": {}}
                self._items.append({"role": "assistant", "content": [call]})
            result = {"type": "tool_result", "tool_use_id": call_id, "content": text}
            self._items.append({"role": "user", "content": [result]})

    async def _post(self) -> str:
        blocks = await self._stream("messages")
        call = next(block["content_block"] for block in blocks if block["type"] == "content_block_start")
        deltas = [block["delta"] for block in blocks if block["type"] == "content_block_delta"]
        arguments = "".join(delta["partial_json"] for delta in deltas)
        self._latest = {**call, "input": json.loads(arguments)}
        self._items.append({"role": "assistant", "content": [self._latest]})
        return arguments


class ChatConversation(Conversation):
    """The same loop by Chat Completions."""

    def _request(self) -> Json:
        tool = {"type": "function", "function": {key: TOOL[key] for key in ("name", "parameters")}}
        return {"stream": True, "tools": [tool], "messages": self._items}

    def _add(self, new: list[str]) -> None:
        for number, text in enumerate(new):
            call_id = f"h{number}"
            if self._latest is not None:
                call_id = self._latest["id"]
            else:
                self._add_call(
                    {"id": call_id, "type": "function", "function": {"name": "run", "arguments": "{}"}}
                )
            self._items.append({"role": "tool", "tool_call_id": call_id, "content": text})

    def _add_call(self, call: Json) -> None:
        self._items.append({"role": "assistant", "content": None, "tool_calls": [call]})

    async def _post(self) -> str:
        chunks = await self._stream("chat/completions")
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        pieces = [call for delta in deltas for call in delta.get("tool_calls") or ()]
        arguments = "".join(piece["function"].get("arguments") or "" for piece in pieces)
        function = {"name": pieces[0]["function"]["name"], "arguments": arguments}
        self._latest = {"id": pieces[0]["id"], "type": "function", "function": function}
        self._add_call(self._latest)
        return arguments


async def measure(
    on: Process, off: Process, exchanges: int, repeats: int
) -> dict[str, dict[str, list[float]]]:
    """The wall and CPU milliseconds of every turn, by mode. The modes alternate by turn."""
    figures: dict[str, dict[str, list[float]]] = {mode: {"wall": [], "cpu": []} for mode in MODES}
    figures |= {f"parsing: {mode}": {"wall": [], "cpu": []} for mode in PARSED}
    for repeat in range(repeats):
        async with aiohttp.ClientSession(read_bufsize=2**22) as http:
            async with http.get(f"{on.url}/models") as answer:
                model = (await answer.json())["data"][0]["id"]
            loops = {
                "chained": Conversation(http, on, f"chained {repeat}", resends=False, store=True),
                "resent": Conversation(http, on, f"resent {repeat}"),
                "resent and stored": Conversation(http, on, f"stored {repeat}", store=True),
                "messages": MessagesConversation(http, on, f"messages {repeat}", model=model),
                "chat": ChatConversation(http, on, f"chat {repeat}"),
                "unrecognised": Conversation(http, off, f"off {repeat}"),
            }
            for loop in loops.values():
                await loop.turn(exchanges)
            sent: dict[str, dict[bytes, Item | Piece]] = {mode: {} for mode in PARSED}
            for mode, translation in PARSED.items():
                parse(loops[mode].body, translation(), sent[mode])
            for _ in range(TURNS):
                for mode, loop in loops.items():
                    wall, cpu = await loop.turn()
                    figures[mode]["wall"].append(round(wall, 4))
                    figures[mode]["cpu"].append(round(cpu, 4))
                for mode, translation in PARSED.items():
                    wall, cpu = parse(loops[mode].body, translation(), sent[mode])
                    figures[f"parsing: {mode}"]["wall"].append(round(wall, 4))
                    figures[f"parsing: {mode}"]["cpu"].append(round(cpu, 4))
    return figures


def parse(body: bytes, translation: Translation, sent: dict[bytes, Item | Piece]) -> tuple[float, float]:
    """Decode, validate and translate a body; returns the wall and CPU milliseconds. ``sent``: what the loop
    has sent before, to which its pieces are added."""
    wall, cpu = time.perf_counter(), time.thread_time()
    create = translation.read(requests.require_body(body), sent)
    create.read_items(sent)
    wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
    sent |= create.pieces
    return wall * 1e3, cpu * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--exchanges", type=int, default=EXCHANGES)
    arguments = parser.parse_args()
    upstream_file = str(Path(__file__).with_name("instant_upstream.py"))
    with started(upstream_file) as upstream, tempfile.TemporaryDirectory() as directory:
        engine = f"vllm:{upstream.url},tokenizer={write_tokenizer(Path(directory))}"
        quiet = ("--log-level", "error")
        with slipring(engine, *quiet) as on, slipring(engine, *quiet, "--recognised-s", "0") as off:
            figures = asyncio.run(measure(on, off, arguments.exchanges, arguments.repeats))
    show(figures, arguments.exchanges)
    tokens = arguments.exchanges * EXCHANGE_TOKENS // 1000 * 1000
    keep("resent_history", {"budget_ms": BUDGET_MS, "tokens": tokens, "ms": figures})


def show(figures: dict[str, dict[str, list[float]]], exchanges: int) -> None:
    print(f"{exchanges} exchanges of {EXCHANGE_KB:g} kB before the loop; medians (ranges), milliseconds")
    for mode, figure in figures.items():
        wall, cpu = spread(figure["wall"]), spread(figure["cpu"])
        print(
            f"  {mode:18} wall {wall['median']:7.2f} ({wall['low']:.2f} – {wall['high']:.2f})"
            f"   CPU {cpu['median']:7.2f} ({cpu['low']:.2f} – {cpu['high']:.2f})"
        )
    for mode in MODES[1:]:
        parsing = statistics.median(figures[f"parsing: {mode if mode in PARSED else 'resent'}"]["cpu"])
        for kind in ("wall", "cpu"):
            pair = {"this": figures[mode][kind], "chained": figures["chained"][kind]}
            more = added(pair, "this", without="chained")
            print(
                f"  {mode}, {kind}: {more:+.2f} ms; without parsing: {verdict_ms(more - parsing, BUDGET_MS)}"
            )


if __name__ == "__main__":
    main()
