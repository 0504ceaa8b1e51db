"""Measures what later turns cost after a screenshot of a megabyte, and compares the answers of chains with
those of whole histories, on real engines with tiny models that see.

    python benchmarks/peers/pictures.py vllm llama [--write]

All that vLLM (CPU build, ``--enable-scale-out``) is sent goes through a relay that counts. Ways: ``chained``
(slipring, each turn sends its new items), ``whole`` (slipring, each turn sends everything, and nothing is
recognised), ``own`` (the engine's chat endpoint, everything).
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
from model import write_seeing_vocabulary
from servers import CONTEXT, DIRECTORY, ROOT, Server, _running, free_port, vllm

sys.path.insert(0, str(ROOT))

from tests.pictures import data_url, png
from tests.prompts.gguf_writer import write_projector, write_tiny_model
from tests.prompts.vocabulary import smollm2_metadata

TURNS = 5
TOKENS = 24
SEEING = DIRECTORY / "seeing"
RECORD = ROOT / "benchmarks" / "results" / "pictures.json"
SCREENSHOT = data_url(png(1000, 1000))


class Relay:
    """Counts the bytes that go to a server."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.sent = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(self._copy(reader, to, counts=True), self._copy(there, writer, counts=False))

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counts: bool
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                self.sent += len(data) if counts else 0
                writer.write(data)
                await writer.drain()
        with suppress(ConnectionError):
            writer.close()


def question(turn: int) -> list[dict[str, Any]]:
    text = {"type": "input_text", "text": f"What do you see, number {turn}? " * 8}
    picture = {"type": "input_image", "image_url": SCREENSHOT}
    small = {"type": "input_image", "image_url": data_url(png(40, 40, 100 + turn))}
    parts = [text, picture] if turn == 0 else [text, small] if turn == 2 else [text]
    return [{"type": "message", "role": "user", "content": parts}]


def chat_message(item: dict[str, Any]) -> dict[str, Any]:
    parts = [
        {"type": "text", "text": part["text"]}
        if part["type"] == "input_text"
        else {"type": "image_url", "image_url": {"url": part["image_url"]}}
        for part in item["content"]
    ]
    return {"role": "user", "content": parts}


async def post(http: aiohttp.ClientSession, url: str, **body: Any) -> tuple[dict[str, Any], float]:
    begun = time.perf_counter()
    async with http.post(url, json=body) as answer:
        read = await answer.json()
        assert answer.status == 200, read
        return read, 1000 * (time.perf_counter() - begun)


async def responses(http: aiohttp.ClientSession, url: str, *, chained: bool) -> AsyncIterator[dict[str, Any]]:
    history: list[Any] = []
    before: str | None = None
    for turn in range(TURNS):
        asked = question(turn)
        sent = {"input": asked, "previous_response_id": before} if chained else {"input": [*history, *asked]}
        answer, took = await post(
            http, f"{url}/responses", temperature=0, max_output_tokens=TOKENS, store=chained, **sent
        )
        before, usage = answer["id"], answer["usage"]
        text = answer["output"][0]["content"][0]["text"]
        history += [*asked, {"type": "message", "role": "assistant", "content": text}]
        yield {
            "prefilled": usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"],
            "input": usage["input_tokens"],
            "ms": round(took, 1),
            "answer": text,
        }


async def chats(http: aiohttp.ClientSession, url: str, model: str) -> AsyncIterator[dict[str, Any]]:
    messages: list[Any] = []
    for turn in range(TURNS):
        messages += map(chat_message, question(turn))
        answer, took = await post(
            http,
            f"{url}/chat/completions",
            **{"model": model, "messages": messages, "temperature": 0, "max_tokens": TOKENS},
        )
        usage, text = answer["usage"], answer["choices"][0]["message"]["content"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        messages.append({"role": "assistant", "content": text})
        yield {
            "prefilled": usage["prompt_tokens"] - cached,
            "input": usage["prompt_tokens"],
            "ms": round(took, 1),
            "answer": text,
        }


@contextmanager
def slipring(spec: str, *flags: str, **env: str) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "slipring", "serve", "--port", str(port), "--log-level", "error"]
    command += ["--engine", spec, *flags]
    url = f"http://127.0.0.1:{port}/v1"
    with _running("slipring-pictures", command, f"{url}/models", **env):
        yield url


async def measured(turns: AsyncIterator[dict[str, Any]], relay: Relay | None) -> list[dict[str, Any]]:
    found = []
    before = relay.sent if relay is not None else 0
    async for turn in turns:
        if relay is not None:
            turn["uploaded"], before = relay.sent - before, relay.sent
        found.append(turn)
    return found


async def measure_vllm(engine: Server) -> dict[str, Any]:
    relay = Relay(int(engine.url.rpartition(":")[2].partition("/")[0]))
    timeout = aiohttp.ClientTimeout(total=120)
    async with relay.running() as port, aiohttp.ClientSession(timeout=timeout) as http:
        spec = f"vllm:http://127.0.0.1:{port},tokenizer={SEEING}"
        found = {}
        loop = asyncio.get_running_loop()
        for way, flags in (("chained", ()), ("whole", ("--recognised-s", "0"))):
            with ExitStack() as stack:
                url = await loop.run_in_executor(None, stack.enter_context, slipring(spec, *flags))
                found[way] = await measured(responses(http, url, chained=way == "chained"), relay)
        found["own"] = await measured(chats(http, f"http://127.0.0.1:{port}/v1", engine.model), relay)
        return found


async def measure_llama() -> dict[str, Any]:
    found = {}
    with TemporaryDirectory() as folder:
        path = Path(folder, "Tiny-Q8_0.gguf")
        write_tiny_model(path, smollm2_metadata(), context=CONTEXT)
        write_projector(path.with_name("mmproj-Tiny.gguf"))
        loop = asyncio.get_running_loop()
        async with aiohttp.ClientSession() as http:
            for way, flags in (("chained", ()), ("whole", ("--recognised-s", "0"))):
                with ExitStack() as stack:
                    spec = f"llama:{path},threads=1,context=16384"
                    url = await loop.run_in_executor(None, stack.enter_context, slipring(spec, *flags))
                    found[way] = await measured(responses(http, url, chained=way == "chained"), None)
    return found


def seeing_vllm() -> AbstractContextManager[Server]:
    if not (SEEING / "model.safetensors").exists():
        write_seeing_vocabulary(SEEING, CONTEXT)
        python = DIRECTORY / "vllm" / "bin" / "python"
        subprocess.run([str(python), str(Path(__file__).with_name("weights.py")), str(SEEING)], check=True)
    flags = ("--enable-scale-out", "--limit-mm-per-prompt", '{"image": 16}', "--tool-call-parser", "hermes")
    return vllm(1, SEEING, flags)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("engines", nargs="+", choices=("vllm", "llama"))
    parser.add_argument("--write", action="store_true", help=f"write {RECORD.name}")
    given = parser.parse_args()
    record: dict[str, Any] = {"screenshot_bytes": len(SCREENSHOT), "turns": TURNS, "engines": {}}
    if "llama" in given.engines:
        record["engines"]["llama"] = asyncio.run(measure_llama())
    if "vllm" in given.engines:
        with seeing_vllm() as engine:
            record["engines"]["vllm"] = asyncio.run(measure_vllm(engine))
    wrong = 0
    for engine_name, ways in record["engines"].items():
        same = [a["answer"] == b["answer"] for a, b in zip(ways["chained"], ways["whole"], strict=True)]
        wrong += not all(same)
        print(f"{engine_name}: answers equal with and without chaining: {same}")
        for way, turns in ways.items():
            for number, turn in enumerate(turns, 1):
                shown = {key: value for key, value in turn.items() if key != "answer"}
                print(f"  {way} turn {number}: {shown}")
    if given.write:
        RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return wrong


if __name__ == "__main__":
    raise SystemExit(main())
