"""Messages and Chat Completions with several workers: a client may reach another worker with every request.

A worker recognises the histories that it has seen itself. What a client sends back must be enough for every
other one: the model reads the same, whichever worker it goes through.
"""

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from slipring.core.limits import Limits
from slipring.stores.keys import Key, Token
from slipring.stores.store import open_store
from tests import chat_wire, messages_wire, wire
from tests.chat_api import USER, Chat
from tests.commands.test_cli import FAST, Process
from tests.engines.fakes.server import Call, Stop, Think
from tests.engines.fakes.tokens import CONTEXT, decoded, tokenizer_directory
from tests.engines.fakes.vllm import FakeVllm, fake_vllm
from tests.messages_api import MessagesApi, Refused
from tests.messages_wire import Json
from tests.prompts import templates
from tests.server.process.test_workers import PATIENCE_S, workers

MODEL = "simulated"
TOOL: Json = {"name": "look", "input_schema": {"type": "object"}}
FUNCTION: Json = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
THINKING: Json = {"type": "enabled", "budget_tokens": 1024}


class Worker:
    """One worker of a server, by a connection that stays open."""

    def __init__(self, url: str, http: aiohttp.ClientSession, pid: int) -> None:
        self.url = url
        self.http = http
        self.pid = pid

    async def remains(self) -> bool:
        """Whether its requests still reach the same process."""
        async with self.http.get(self.url.removesuffix("/v1") + "/health") as answer:
            return bool((await answer.json())["pid"] == self.pid)


@asynccontextmanager
async def both(server: Process) -> AsyncIterator[tuple[Worker, Worker]]:
    """A connection to each of two workers. The kernel chooses one for a new connection."""
    found: dict[int, Worker] = {}
    async with AsyncExitStack() as opened, asyncio.timeout(PATIENCE_S):
        while len(found) < 2:
            http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1))
            await opened.enter_async_context(http)
            async with http.get(server.url.removesuffix("/v1") + "/health") as answer:
                pid = (await answer.json())["pid"]
            found.setdefault(pid, Worker(server.url, http, pid))
        one, other = found.values()
        yield one, other
        assert await one.remains()
        assert await other.remains()


@asynccontextmanager
async def over_vllm(fake: FakeVllm, directory: Path, *arguments: str) -> AsyncIterator[Process]:
    """Workers in front of one vLLM, whose model reads its thoughts. ``directory``: for its tokenizer."""
    template = (Path(templates.__file__).with_name("families") / "qwen3.jinja").read_text()
    files = shutil.copytree(tokenizer_directory(), directory / "tokenizer", dirs_exist_ok=True)
    (files / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    options = f"tokenizer={files},model={fake.model_name},context={CONTEXT}"
    async with workers("--engine", f"vllm:{fake.url},{options}", *arguments) as server:
        yield server


def prompts_of(fake: FakeVllm) -> list[str]:
    """What the model has read. It writes no lines around a thought, and its template does."""
    return [re.sub(r"\s*(</?think>)\s*", r"\1", decoded(prompt)) for prompt in fake.prompts]


async def messages_loop(*through: Worker, drops: str = "") -> None:
    """A loop of the Messages API, the requests in turn through these workers. ``drops``: a field of thinking
    blocks that the client does not send back."""
    history: list[Json] = [{"role": "user", "content": "Weather?"}]
    for worker in through:
        answer = await MessagesApi(worker, model="smollm2").create(
            *history, tools=[TOOL], thinking=THINKING, system="Be kind."
        )
        sent = [{**block, drops: ""} if drops in block else block for block in answer["content"]]
        result = {"type": "tool_result", "tool_use_id": sent[-1]["id"], "content": "sunny"}
        history += [{"role": "assistant", "content": sent}, {"role": "user", "content": [result]}]


def script(fake: FakeVllm) -> None:
    """Answers that all end with a call: after others, an engine would prefill what comes next."""
    fake.prompts.clear()
    for city in ("Rome", "Bern", "Oslo"):
        fake.script(Think(("hm", f" {city}")), Call("look", f'{{"city": "{city}"}}'), Stop())


async def test_the_model_reads_the_same_through_one_worker_and_through_two(tmp_path: Path) -> None:
    """Also its thoughts, which another worker has sealed: even if the client sends only the signature."""
    async with fake_vllm() as fake:
        async with over_vllm(fake, tmp_path) as server, both(server) as (one, other):
            prompts = []
            for path, drops in (
                ((one, one, one), ""),
                ((one, other, one), ""),
                ((other, one, other), "thinking"),
            ):
                script(fake)
                await messages_loop(*path, drops=drops)
                prompts.append(prompts_of(fake))
        assert prompts[0] == prompts[1] == prompts[2]
        assert "<think>hm Rome</think>" in prompts[0][-1]
        assert "<think>hm Bern</think>" in prompts[0][-1]


async def test_a_signature_is_read_after_a_restart(tmp_path: Path) -> None:
    store = ("--store", f"sqlite:{tmp_path / 'slipring.db'}")
    history: list[Json] = [{"role": "user", "content": "Weather?"}]
    async with fake_vllm() as fake:
        async with over_vllm(fake, tmp_path, *store) as server, both(server) as (one, _):
            script(fake)
            answer = await MessagesApi(one, model="smollm2").create(*history, tools=[TOOL], thinking=THINKING)
        thought, use = answer["content"]
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": "sunny"}
        history += [
            {"role": "assistant", "content": [{**thought, "thinking": "not the model's"}, use]},
            {"role": "user", "content": [result]},
        ]
        async with over_vllm(fake, tmp_path, *store) as server, both(server) as found:
            for worker in found:
                await MessagesApi(worker, model="smollm2").create(*history, tools=[TOOL], thinking=THINKING)
        *_, first, second = prompts_of(fake)
        assert first == second
        assert "hm Rome" in first
        assert "not the model's" not in first


async def chat_loop(*through: Worker) -> None:
    """A loop of Chat Completions whose client sends `reasoning_content` back."""
    history: list[Json] = [{"role": "user", "content": "Weather?"}]
    for worker in through:
        message = await Chat(worker).message(*history, tools=[FUNCTION], model="smollm2")
        (call,) = message["tool_calls"]
        history += [message, {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}]


async def test_chat_completions_through_one_worker_and_through_two(tmp_path: Path) -> None:
    async with fake_vllm() as fake, over_vllm(fake, tmp_path) as server, both(server) as (one, other):
        prompts = []
        for path in ((one, one, one), (one, other, one), (other, one, other)):
            script(fake)
            await chat_loop(*path)
            prompts.append(prompts_of(fake))
        assert prompts[0] == prompts[1] == prompts[2]
        assert "hm Rome" in prompts[0][-1]


async def test_a_worker_recognises_what_it_has_seen_itself() -> None:
    """Documented: a client that keeps its connection open reaches the same worker."""
    engine = ("--engine", "simulated:tokens_per_s=0,output_tokens=40,tool_calls=0,prefix_cache=true")
    async with workers(*engine) as server, both(server) as (one, other):
        api, elsewhere = MessagesApi(one, model=MODEL), MessagesApi(other, model=MODEL)
        question = "word " * 200
        first = await api.create(question)
        again = (question, {"role": "assistant", "content": first["content"]}, "and?")
        assert (await api.create(*again))["usage"]["cache_read_input_tokens"] > 200
        # The simulated engine is the worker's own; a server that workers share has its own prefix cache.
        assert (await elsewhere.create(*again))["usage"]["cache_read_input_tokens"] == 0
        assert (await elsewhere.create(*again))["usage"]["cache_read_input_tokens"] > 200


async def test_every_worker_counts_the_same_tokens_and_lists_the_same_models() -> None:
    async with workers(*FAST) as server, both(server) as (one, other):
        answer = await MessagesApi(one, model=MODEL).create("hello", tools=[TOOL])
        history = ("hello", {"role": "assistant", "content": answer["content"]})
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "sunny"}
            for block in answer["content"]
            if block["type"] == "tool_use"
        ]
        asked: Json = {"role": "user", "content": results or "and?"}
        counts, lists = set(), []
        for worker in (one, other):
            api = MessagesApi(worker, model=MODEL)
            counts.add(await api.count(*history, asked, tools=[TOOL]))
            lists.append(messages_wire.check_models(wire.parse(await api.call("GET", "/models"))))
        assert len(counts) == 1
        assert lists[0] == lists[1]
        assert [model["id"] for model in lists[0]["data"]] == [MODEL]


async def new_key(store: str, **fields: Any) -> Token:
    """Create a key in a store that a server uses, as `slipring keys create` does."""
    opened, token = open_store(store, Limits()), Token.generate()
    await opened.start()
    await opened.keys.create(Key(id=token.id, tenant="team", digest=token.digest, created_at=1, **fields))
    await opened.close()
    return token


async def test_workers_share_the_quota_of_a_key(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'slipring.db'}"
    async with workers(*FAST, "--store", store) as server, both(server) as (one, other):
        key = (await new_key(store, tokens_per_day=1)).reveal()
        api, refusal = MessagesApi(other, key, model=MODEL), None
        async with asyncio.timeout(PATIENCE_S):
            # What a worker has counted reaches the others within about a second. It counts again each time,
            # because a day may have ended meanwhile.
            while refusal is None:
                status, _ = await Chat(one, key).post(USER, model=MODEL)
                assert status in {200, 429}
                try:
                    await api.count("hello")
                except Refused as error:
                    refusal = error
        assert (refusal.status, refusal.kind) == (429, "rate_limit_error")
        assert refusal.headers["anthropic-ratelimit-tokens-remaining"] == "0"
        assert (await api.refused("hello")).status == 429
        assert (await Chat(other, key).error(USER, model=MODEL))[0] == 429


async def test_a_revoked_key_is_refused_by_every_worker_at_once(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'slipring.db'}"
    async with workers(*FAST, "--store", store) as server, both(server) as found:
        token = await new_key(store)
        for worker in found:
            await MessagesApi(worker, token.reveal(), model=MODEL).create("hello")
            chat_wire.check_completion(await Chat(worker, token.reveal()).complete(USER, model=MODEL))
        opened = open_store(store, Limits())
        await opened.start()
        assert await opened.keys.revoke(token.id, 2)
        await opened.close()
        for worker in found:
            refusal = await MessagesApi(worker, token.reveal(), model=MODEL).refused("hello")
            assert (refusal.status, refusal.kind) == (401, "authentication_error")
            assert (await Chat(worker, token.reveal()).error(USER, model=MODEL))[0] == 401
