"""Replays a recorded loop of Claude Code over an engine's own Messages API, and over slipring in front of it.

    python benchmarks/peers/claude_code.py                 # once: the recording
    python benchmarks/peers/replay.py vllm llama-server

Counts the tokens that the engine prefills, by its own metrics, and those that have changed: all of a
conversation's first prompt; later, what follows the previous prompt and its answer, or the previous prompt
alone if the client has changed the answer (Claude Code adds defaults to the arguments of some calls).

vLLM's model gives the recorded answers (``scripted_model.py``), and each request contains what this very
server has answered before, with its ids and thoughts. llama-server's model cannot be scripted: its answers
are two tokens that are not sent back, and requests contain the recorded answers, which are then changed for
every server. Each way begins with an empty cache. Written to ``benchmarks/results/claude_code.json``;
``benchmarks/page.py`` shows it.
"""

import argparse
import asyncio
import copy
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import claude_code
import msgspec
from claude_code import Recording
from model import write_gguf, write_vocabulary
from replay_table import RESULT, Replay, ReplayRecord, Turn
from servers import CONTEXT, DIRECTORY, Server, llama_server, slipring_over, vllm
from tokenizers import Tokenizer

from slipring.commands.bench.client.transports import SseParser
from slipring.commands.bench.subject import machine

Json = dict[str, Any]
TEMPLATES = {
    "qwen3_5": ("--tool-call-parser", "qwen3_coder", "--reasoning-parser", "qwen3"),
    "qwen3": ("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"),
}
"""Chat templates, and how vLLM reads what a model with them writes. The first one takes a system message at
the beginning only, the second anywhere."""
_BLOCK = 32
"""The smallest block of vLLM's CPU build. Its prefix cache has whole blocks only."""
_SCRIPT = DIRECTORY / "script.json"
_COMPUTED = DIRECTORY / "computed"
_END = "<|im_end|>"


def written(answer: list[Json], template: str) -> tuple[str, str]:
    """An answer as the model writes it: after a prompt that has opened a thought, and after one that has
    not."""
    thought = "".join(step.get("reasoning", "") for step in answer)
    text = "".join(step.get("text", "") for step in answer)
    calls = [step["function_call"] for step in answer if "function_call" in step]
    if template == "qwen3":
        made = [
            f"<tool_call>\n{json.dumps({key: call[key] for key in ('name', 'arguments')})}\n</tool_call>"
            for call in calls
        ]
        visible = "\n".join([text, *made])
        return visible, f"<think>\n{thought}\n</think>\n\n{visible}" if thought else visible
    for call in calls:
        parameters = "".join(
            f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in call["arguments"].items()
        )
        text += f"\n\n<tool_call>\n<function={call['name']}>\n{parameters}</function>\n</tool_call>"
    return f"{thought}\n</think>\n\n{text}", text


def write_script(recording: Recording, template: str, files: Path) -> None:
    """Write what ``scripted_model.py`` reads."""
    tokenizer = Tokenizer.from_file(str(files / "tokenizer.json"))

    def ids(text: str) -> list[int]:
        found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return found

    end = ids(_END)
    conversations: dict[str, list[dict[str, list[int]]]] = {}
    for request, answer in zip(recording.requests, recording.answers, strict=True):
        opened, unopened = (ids(text) + end for text in written(answer, template))
        conversations.setdefault(task_of(request), []).append({"opened": opened, "unopened": unopened})
    script = {
        # Without the first word, which may be one token with what stands before it.
        "conversations": [
            {"mark": ids(task[task.index(" ") :]), "answers": answers}
            for task, answers in conversations.items()
        ],
        "opening": ids("<|im_start|>assistant"),
        "thinking": ids("<think>\n"),
        "end": end[0],
    }
    _SCRIPT.write_text(json.dumps(script))


def task_of(request: Json) -> str:
    """What the user has asked for: the last text of the first message."""
    task: str = request["messages"][0]["content"][-1]["text"]
    return task


class Wrong(Exception):
    """A request that is refused, or answered otherwise than by the script."""


class Conversation:
    """The answers of a server in one conversation, in their order."""

    def __init__(self) -> None:
        self.answers: list[list[Json]] = []
        self.turns: list[Turn] = []

    def body(self, recorded: Json, model: str, *, scripted: bool) -> tuple[Json, bool]:
        """A recorded request with the answers of this server; whether the client has changed the last."""
        body, is_changed = copy.deepcopy(recorded), not scripted
        body |= {"model": model, "max_tokens": 4_000} if scripted else {"model": model, "max_tokens": 2}
        sent = [message for message in body["messages"] if message["role"] == "assistant"]
        if not scripted:
            return body, is_changed
        renamed: dict[str, str] = {}
        for message, answer in zip(sent, self.answers, strict=True):
            is_changed = False
            calls = [block for block in answer if block["type"] == "tool_use"]
            recorded_calls = [block for block in message["content"] if block["type"] == "tool_use"]
            for call, before in zip(calls, recorded_calls, strict=True):
                renamed[before["id"]] = call["id"]
                is_changed |= call["input"] != before["input"]
            inputs = iter(recorded_calls)
            message["content"] = [
                {**block, "input": next(inputs)["input"]} if block["type"] == "tool_use" else block
                for block in answer
            ]
        for message in body["messages"]:
            for block in message["content"] if isinstance(message["content"], list) else ():
                if block["type"] == "tool_result":
                    block["tool_use_id"] = renamed[block["tool_use_id"]]
        return body, is_changed

    def add(self, answer: list[Json], prompt: int, output: int, *, is_changed: bool) -> Turn:
        before = self.turns[-1] if self.turns else None
        kept = 0
        if before is not None:
            kept = before.prompt if is_changed else before.prompt + before.output
        turn = Turn(prompt=prompt, output=output, changed=prompt - kept, is_first=before is None)
        self.answers.append(answer)
        self.turns.append(turn)
        return turn


async def ask(http: aiohttp.ClientSession, server: Server, body: Json) -> tuple[list[Json], int, int]:
    """Send a request; returns the blocks of the answer, as the client would send them back, and the tokens of
    the prompt and of the answer."""
    headers = {"x-api-key": server.key, "Authorization": f"Bearer {server.key}"}
    headers["anthropic-version"] = "2023-06-01"
    blocks: list[Json] = []
    usage: Json = {}
    async with http.post(f"{server.url}/messages", json=body, headers=headers) as answer:
        if answer.status != 200:
            raise Wrong(f"HTTP {answer.status}: {(await answer.text())[:400]}")
        parser = SseParser()
        async for chunk in answer.content.iter_any():
            for data in parser.feed(chunk):
                _read(json.loads(data), blocks, usage)
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block.pop("json") or "{}")
    cached = (usage.get("cache_read_input_tokens") or 0) + (usage.get("cache_creation_input_tokens") or 0)
    return blocks, usage["input_tokens"] + cached, usage["output_tokens"]


def _read(event: Json, blocks: list[Json], usage: Json) -> None:
    if event["type"] == "error":
        raise Wrong(json.dumps(event)[:400])
    if event["type"] == "message_start":
        usage |= event["message"]["usage"]
    elif event["type"] == "message_delta":
        usage |= event["usage"]
    elif event["type"] == "content_block_start":
        block = event["content_block"]
        blocks.append({**block, "json": ""} if block["type"] == "tool_use" else dict(block))
    elif event["type"] == "content_block_delta":
        delta, block = event["delta"], blocks[-1]
        for field, name in (
            ("text", "text"),
            ("thinking", "thinking"),
            ("signature", "signature"),
            ("partial_json", "json"),
        ):
            if field in delta:
                block[name] = (block.get(name) or "") + delta[field]


class Meter:
    """What an engine has prefilled, by its own count."""

    def __init__(self, http: aiohttp.ClientSession, engine: Server) -> None:
        self._http = http
        self._engine = engine
        self._before = 0

    async def prefilled(self, output: int) -> int:
        """The tokens prefilled since the last call, in which an answer of so many tokens was generated."""
        total = await self._total()
        new, self._before = total - self._before, total
        # vLLM's count includes the tokens of the answer, of which all but the last are computed.
        return new - max(output - 1, 0) if self._engine.name == "vllm" else new

    async def _total(self) -> int:
        if self._engine.name == "vllm":
            return int(_COMPUTED.read_text())
        url = self._engine.url.removesuffix("/v1") + "/metrics"
        headers = {"Authorization": f"Bearer {self._engine.key}"}
        async with self._http.get(url, headers=headers) as answer:
            answer.raise_for_status()
            found = re.search(r"^llamacpp:prompt_tokens_total (\S+)$", await answer.text(), re.M)
        assert found is not None
        return int(float(found[1]))


async def replay(server: Server, recording: Recording, name: str, template: str) -> Replay:
    engine = server.behind or server
    conversations: dict[str, Conversation] = {}
    done = Replay(name, engine.name, template)
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(timeout=timeout, read_bufsize=2**22) as http:
        meter = Meter(http, engine)
        await meter.prefilled(0)
        for number, recorded in enumerate(recording.requests):
            conversation = conversations.setdefault(task_of(recorded), Conversation())
            body, is_changed = conversation.body(recorded, server.model, scripted=engine.name == "vllm")
            try:
                answer, prompt, output = await ask(http, server, body)
            except Wrong as error:
                done.wrong = str(error)
                print(f"  {name} {number}: {error}", file=sys.stderr, flush=True)
                return done
            if engine.name == "vllm":
                _require(answer, recording.answers[number])
            turn = conversation.add(answer, prompt, output, is_changed=is_changed)
            turn.prefilled = await meter.prefilled(output)
            done.turns.append(turn)
            print(f"  {name} {number}: {turn}", file=sys.stderr, flush=True)
    return done


def _require(answer: list[Json], wanted: list[Json]) -> None:
    """Fail unless an answer has the calls of the script."""
    calls = [(block["name"], block["input"]) for block in answer if block["type"] == "tool_use"]
    scripted = [step["function_call"] for step in wanted if "function_call" in step]
    if calls != [(call["name"], call["arguments"]) for call in scripted]:
        raise Wrong(f"the answer is not the script's: {json.dumps(answer)[:400]}")


def model_files(template: str) -> Path:
    """The directory of the tiny model with this template; written if need be."""
    directory = DIRECTORY / f"model-{template}"
    if not (directory / "model.safetensors").exists():
        write_vocabulary(directory, CONTEXT, template)
        script = Path(__file__).with_name("weights.py")
        subprocess.run([str(DIRECTORY / "vllm/bin/python"), str(script), str(directory)], check=True)
    return directory


@contextmanager
def scripted_vllm(recording: Recording, template: str) -> Iterator[Server]:
    """A vLLM whose model answers as recorded."""
    files = model_files(template)
    write_script(recording, template, files)
    _COMPUTED.write_text("0")
    flags = (
        *(*TEMPLATES[template], "--block-size", str(_BLOCK)),
        "--no-async-scheduling",  # which computes a token after the end of an answer
        *("--logits-processors", "scripted_model:ScriptedModel"),
    )
    with vllm(
        1,
        files,
        flags,
        SCRIPT=str(_SCRIPT),
        COMPUTED=str(_COMPUTED),
        PYTHONPATH=str(Path(__file__).parent),
        VLLM_SERVER_DEV_MODE="1",  # which has the endpoint that empties the prefix cache
    ) as engine:
        yield engine


async def empty_cache(engine: Server) -> None:
    async with (
        aiohttp.ClientSession() as http,
        http.post(engine.url.removesuffix("/v1") + "/reset_prefix_cache") as answer,
    ):
        answer.raise_for_status()


def over_vllm(recording: Recording, template: str, record: ReplayRecord) -> None:
    with scripted_vllm(recording, template) as engine:
        record.versions |= engine.versions
        record.replays.append(asyncio.run(replay(engine, recording, "vllm", template)))
        for name, sessions in (("slipring", "off"), ("slipring-sessions", "on")):
            asyncio.run(empty_cache(engine))
            with slipring_over(engine, name, sessions) as server:
                record.replays.append(asyncio.run(replay(server, recording, name, template)))


def over_llama(recording: Recording, template: str, record: ReplayRecord) -> None:
    files = model_files(template)
    gguf = DIRECTORY / f"tiny-{template}-Q8_0.gguf"
    if not gguf.exists():
        write_gguf(gguf, CONTEXT, template)
    script = Path(__file__).with_name("llama_process.py")
    with tempfile.TemporaryDirectory() as directory:
        for embedded in (False, True):
            settings = {"directory": directory, "embedded": embedded}
            with ExitStack() as running:
                engine = running.enter_context(llama_server(1, gguf, files, script, **settings))
                record.versions |= engine.versions
                server = running.enter_context(slipring_over(engine)) if embedded else engine
                record.replays.append(asyncio.run(replay(server, recording, server.name, template)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("engines", nargs="+", choices=("vllm", "llama-server"))
    parser.add_argument("--templates", nargs="+", choices=TEMPLATES, default=list(TEMPLATES))
    given = parser.parse_args()
    recording = claude_code.read()
    record = ReplayRecord(
        when=machine.now(),
        versions={**machine.versions(), "Claude Code": recording.client},
        requests=len(recording.requests),
        tools=len(recording.requests[0]["tools"]),
        reminders=sum(message["role"] == "system" for message in recording.requests[-1]["messages"]),
        replays=[],
    )
    for engine in given.engines:
        for template in given.templates:
            (over_vllm if engine == "vllm" else over_llama)(recording, template, record)
    RESULT.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=0) + b"\n")


if __name__ == "__main__":
    main()
