"""Measures what later turns cost after a screenshot of a megabyte, compares the answers of chains with those
of whole histories token by token, and runs Open Responses' case ``image-input``, on real engines with tiny
models that see.

    python benchmarks/peers/pictures.py vllm vllm-chat llama [--rounds 7] [--write]

All that an engine is sent goes through a relay that counts. Ways: ``chained`` (slipring, each turn sends its
new items), ``whole`` (slipring, each turn sends everything, and nothing is recognised), ``own`` (the engine's
chat endpoint, everything). They run in turn, round after round, each of which asks something else; a round
before them, in which servers do what they do only once, is left out. ``vllm`` (CPU build) has
``--enable-scale-out``; ``vllm-chat`` has not, so that slipring uses its chat endpoint. ``--write`` replaces
what the record has of the same engines.

The models answer with words that are one token each: equal texts are equal tokens.
"""

import argparse
import asyncio
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
from model import write_seeing_vocabulary
from servers import CONTEXT, DIRECTORY, ROOT, VLLM_PYTHON, Server, _running, free_port, llama_server, vllm

sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "benchmarks"))

from common import keep

from tests.pictures import data_url, png
from tests.prompts.gguf_writer import write_projector, write_tiny_model
from tests.prompts.vocabulary import smollm2_metadata

TURNS = 5
TOKENS = 24
SEEING = DIRECTORY / "seeing"
RECORD = ROOT / "benchmarks" / "results" / "pictures.json"
OPEN_RESPONSES = ROOT / "tests" / "clients" / "test_open_responses.py"
RESETS = ("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache")
"""Of a vLLM in its development mode."""
SCREENSHOT = data_url(png(1000, 1000))


class Relay:
    """Counts the bytes that go to a server."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._serving: set[asyncio.Task[None]] = set()
        self.sent = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for task in self._serving:
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            await asyncio.gather(self._copy(reader, to, counts=True), self._copy(there, writer, counts=False))
        finally:
            to.close()
            writer.close()

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


def question(turn: int, about: str) -> list[dict[str, Any]]:
    text = {"type": "input_text", "text": f"In {about}, what do you see, number {turn}? " * 8}
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
        text = await answer.text()
        assert answer.status == 200, text
        return json.loads(text or "{}"), 1000 * (time.perf_counter() - begun)


async def responses(
    http: aiohttp.ClientSession, url: str, about: str, *, chained: bool
) -> AsyncIterator[dict[str, Any]]:
    history: list[Any] = []
    before: str | None = None
    for turn in range(TURNS):
        asked = question(turn, about)
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
            "output": usage["output_tokens"],
            "ms": round(took, 1),
            "answer": text,
        }


async def chats(
    http: aiohttp.ClientSession, url: str, model: str, about: str
) -> AsyncIterator[dict[str, Any]]:
    messages: list[Any] = []
    for turn in range(TURNS):
        messages += map(chat_message, question(turn, about))
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
            "output": usage["completion_tokens"],
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


async def measured(turns: AsyncIterator[dict[str, Any]], relay: Relay) -> list[dict[str, Any]]:
    found, before = [], relay.sent
    async for turn in turns:
        turn["uploaded"], before = relay.sent - before, relay.sent
        found.append(turn)
    return found


async def measure(
    engine: Server, spec: str, rounds: int, resets: Sequence[str] = (), **env: str
) -> dict[str, Any]:
    """``spec``: how slipring is given the engine; ``URL`` stands for its address. ``resets``: paths of the
    engine that empty its caches. Returns, for each way, the turns of each round."""
    relay = Relay(int(engine.url.rpartition(":")[2].partition("/")[0]))
    timeout, key = aiohttp.ClientTimeout(total=300), {"Authorization": f"Bearer {engine.key}"}
    found: dict[str, Any] = {}
    with ExitStack() as running:
        async with (
            relay.running() as port,
            aiohttp.ClientSession(timeout=timeout) as http,
            aiohttp.ClientSession(timeout=timeout, headers=key) as own,
        ):
            start, spec = (
                asyncio.get_running_loop().run_in_executor,
                spec.replace("URL", f"http://127.0.0.1:{port}"),
            )
            url = await start(None, running.enter_context, slipring(spec, **env))
            whole = slipring(spec, "--recognised-s", "0", **env)
            whole_url = await start(None, running.enter_context, whole)
            ways: dict[str, Callable[[str], AsyncIterator[dict[str, Any]]]] = {
                "chained": lambda about: responses(http, url, about, chained=True),
                "whole": lambda about: responses(http, whole_url, about, chained=False),
                "own": lambda about: chats(own, f"http://127.0.0.1:{port}/v1", engine.model, about),
            }
            for number in range(rounds + 1):
                for way, turns in ways.items():
                    for path in resets:  # no way finds what another one has left in the engine
                        await post(http, f"http://127.0.0.1:{port}{path}")
                    found.setdefault(way, []).append(await measured(turns(f"round {number}"), relay))
    return {way: turns[1:] for way, turns in found.items()}


def measure_llama(rounds: int) -> dict[str, Any]:
    """A llama-server as slipring embeds it, with the tiny model of the tests."""
    with TemporaryDirectory() as folder:
        path, eyes = Path(folder, "Tiny-Q8_0.gguf"), Path(folder, "mmproj-Tiny.gguf")
        write_tiny_model(path, smollm2_metadata(), ends=True, context=CONTEXT)
        write_projector(eyes)
        marker = f"<__media_{secrets.token_hex(16)}__>"
        with llama_server(1, path, slots=2, projector=str(eyes), media_marker=marker) as engine:
            spec = "llama:URL,key_env=LLAMA_KEY"
            return asyncio.run(measure(engine, spec, rounds, LLAMA_KEY=engine.key))


def measure_vllm(rounds: int, *flags: str) -> dict[str, Any]:
    """A vLLM that serves the tiny model."""
    spec = f"vllm:URL,tokenizer={SEEING}"
    with seeing_vllm(*flags) as engine:
        found = asyncio.run(measure(engine, spec, rounds, RESETS))
        complies("vllm", f"{engine.url.removesuffix('/v1')},tokenizer={SEEING}")
    return found


MEASURED: dict[str, Callable[[int], dict[str, Any]]] = {
    "llama": measure_llama,
    "vllm": lambda rounds: measure_vllm(rounds, "--enable-scale-out"),
    "vllm-chat": measure_vllm,
}


def seeing_vllm(*flags: str) -> AbstractContextManager[Server]:
    if not (SEEING / "model.safetensors").exists():
        write_seeing_vocabulary(SEEING, CONTEXT)
        subprocess.run(
            [str(VLLM_PYTHON), str(Path(__file__).with_name("weights.py")), str(SEEING)], check=True
        )
    given = ("--limit-mm-per-prompt", '{"image": 16}', "--tool-call-parser", "hermes", *flags)
    return vllm(1, SEEING, given, VLLM_SERVER_DEV_MODE="1")


def complies(kind: str, where: str) -> None:
    """Run Open Responses' case with a picture, by the test that needs a real server."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", kind, "-k", "picture", str(OPEN_RESPONSES)]
    env = {**os.environ, f"SLIPRING_TEST_{kind.upper()}": where}
    subprocess.run(command, check=True, cwd=ROOT, env=env)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("engines", nargs="+", choices=tuple(MEASURED))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", action="store_true", help=f"write {RECORD.name}")
    given = parser.parse_args()
    found = {name: MEASURED[name](given.rounds) for name in given.engines}
    wrong = report(found)
    if given.write:
        write(found)
    return wrong


def report(found: dict[str, Any]) -> int:
    """Print what was measured. Returns how many turns have other answers than those of whole histories."""
    wrong = 0
    for engine_name, ways in found.items():
        for way, rounds in ways.items():
            pairs = [
                pair for both in zip(rounds, ways["whole"], strict=True) for pair in zip(*both, strict=True)
            ]
            same = sum(
                (one["answer"], one["input"]) == (as_whole["answer"], as_whole["input"])
                for one, as_whole in pairs
            )
            wrong += len(pairs) - same
            print(f"{engine_name}, {way}: {same} of {len(pairs)} answers and prompts as of whole histories")
            for number, turns in enumerate(zip(*rounds, strict=True), 1):
                shown = {key: value for key, value in turns[0].items() if key not in ("answer", "ms")}
                print(f"  turn {number}: {shown}, ms {sorted(turn['ms'] for turn in turns)}")
    return wrong


def write(found: dict[str, Any]) -> None:
    before = json.loads(RECORD.read_text())["engines"] if RECORD.exists() else {}
    keep("pictures", {"screenshot_bytes": len(SCREENSHOT), "turns": TURNS, "engines": before | found})


if __name__ == "__main__":
    raise SystemExit(main())
