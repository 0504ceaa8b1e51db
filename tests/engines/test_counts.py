"""Counts of a prompt's tokens, exact and estimated, without generating."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from msgspec import structs

from slipring.core.chain.instructions_and_tools import Head
from slipring.core.chain.state import ResponseState
from slipring.core.generation import Accepted, Capabilities, Emit, Finished, Job, Model, Settings, deliver
from slipring.core.token_estimates import _weight, estimated_tokens
from slipring.engines.base import Engine, Level
from slipring.engines.catalog import open_engine
from slipring.protocol import wire
from slipring.protocol.items.items import read_item, user_message
from slipring.protocol.responses import InputTokensDetails, OutputTokensDetails, Usage
from slipring.protocol.tools.tool_choice import Offer
from tests.core.connection import PLAIN, node
from tests.engines.emitting import deltas_of
from tests.engines.fakes.responses import FakeResponsesServer
from tests.engines.fakes.server import started
from tests.engines.fakes.vllm import FakeVllm
from tests.harness import serve
from tests.messages_api import MessagesApi
from tests.model import SharedModel


def job_of(*texts: str, **fields: Any) -> Job:
    job = Job(
        response_id="resp_1",
        tenant="t",
        model=PLAIN,
        head=Head(),
        parent=None,
        input=tuple(map(user_message, texts or ("hello",))),
        offer=Offer(),
        settings=Settings(),
    )
    return structs.replace(job, **fields)


def counted(tokens: int) -> ResponseState:
    """A response whose context was as long as this."""
    state = node("resp_0", text="x" * 1000)
    details = InputTokensDetails(0, 0), OutputTokensDetails(0)
    state.response = structs.replace(
        state.response, usage=Usage(tokens - 1, details[0], 1, details[1], total_tokens=tokens)
    )
    return state


class Warm(Engine):
    """Counts by a warmup, as engines do by default."""

    name = "warm"
    level = Level.TOKENS

    def models(self) -> list[Model]:
        return [Model(name="warm", owner="tests", capabilities=Capabilities())]

    async def generate(self, job: Job, emit: Emit) -> None:
        assert not job.generate
        await deliver(emit, [Accepted()])
        await deliver(emit, [Finished("stop", input_tokens=17, cached_tokens=0, output_tokens=0)])


class Silent(Warm):
    async def generate(self, job: Job, emit: Emit) -> None:
        await deliver(emit, [Accepted()])


async def test_by_default_an_engine_counts_by_a_warmup() -> None:
    assert await Warm().count(job_of()) == 17


async def test_a_warmup_without_finished_raises() -> None:
    with pytest.raises(RuntimeError):
        await Silent().count(job_of())


async def test_the_simulated_engine_counts_as_it_reports() -> None:
    engine = open_engine("simulated:tokens_per_s=0")
    job = job_of("a longer text than this one")
    finished = (await deltas_of(engine, job))[-1]
    assert isinstance(finished, Finished)
    assert await engine.count(job) == finished.input_tokens


@pytest.mark.parametrize("options", ["", ",vocabulary=smollm2"])
@pytest.mark.parametrize("generates", [True, False])
async def test_a_job_is_accepted_with_the_count_that_it_ends_with(options: str, generates: bool) -> None:
    engine = open_engine(f"simulated:tokens_per_s=0{options}")
    await engine.start()
    deltas = await deltas_of(engine, job_of("hello", generate=generates))
    accepted, finished = deltas[0], deltas[-1]
    assert isinstance(accepted, Accepted)
    assert isinstance(finished, Finished)
    assert accepted.prompt_tokens == finished.input_tokens


async def test_the_llama_engine_counts_as_it_reports_and_beyond_what_it_can_read(
    tiny_model: SharedModel,
) -> None:
    engine = tiny_model.engine(slots=1, context=256)
    async with serve(engine) as server:
        _, response = await server.post(input="hello", max_output_tokens=4)
        start, *_, end, _ = await MessagesApi(server).stream("hello", max_tokens=4)
    counted = end["usage"]["input_tokens"] + end["usage"]["cache_read_input_tokens"]
    assert start["message"]["usage"]["input_tokens"] == counted
    assert await engine.count(job_of("hello")) == response["usage"]["input_tokens"]
    assert await engine.count(job_of("many words " * 200)) > 256
    assert engine.models()[0].context_tokens == 256


async def test_a_token_server_engine_counts_without_a_request() -> None:
    fake = FakeVllm()
    await fake.start()
    try:
        async with started(fake.engine()) as engine:
            assert 5 < await engine.count(job_of("hello")) < await engine.count(job_of("hello", "you"))
            assert fake.requests == []
            assert engine.models()[0].context_tokens
    finally:
        await fake.close()


# Estimates.


def test_an_estimate_uses_the_parents_count() -> None:
    head = Head()
    job = job_of("x" * 400, parent=counted(5000), head=head)
    assert 5100 <= estimated_tokens(job) <= 5130


def test_a_new_head_is_counted_again() -> None:
    job = job_of("x", parent=counted(5000), head=Head(instructions="x" * 400))
    assert 5100 <= estimated_tokens(job) <= 5130


@pytest.mark.parametrize("parent", [None, node("resp_0"), counted(0)])
def test_uncounted_contexts_are_estimated_at_four_bytes_a_token(parent: ResponseState | None) -> None:
    before = sum(len(item.raw) for item in parent.context()) if parent is not None else 0
    job = job_of("x" * 400, parent=parent, head=Head(instructions="y" * 200))
    assert abs(estimated_tokens(job) - (before + 400 + 200) / 4) < 30


# An upstream that can count.


@asynccontextmanager
async def upstream() -> AsyncIterator[FakeResponsesServer]:
    fake = FakeResponsesServer("sse")
    await fake.start()
    try:
        yield fake
    finally:
        await fake.close()


async def test_an_upstream_is_asked_with_the_whole_context() -> None:
    async with upstream() as fake:
        fake.counts = web.json_response({"object": "response.input_tokens", "input_tokens": 321})
        engine = fake.engine()
        await engine.start()
        job = job_of("more", parent=node("resp_0", text="hello"), head=Head(instructions="Be kind."))
        assert await engine.count(job) == 321
        await engine.close()
    (asked,) = fake.counted
    assert [item["content"] for item in asked.pop("input")] == ["hello", "more"]
    assert asked == {"model": "m", "instructions": "Be kind."}


async def test_an_upstream_that_cannot_count_is_asked_once() -> None:
    async with upstream() as fake:
        engine = fake.engine()
        await engine.start()
        assert [await engine.count(job_of()) for _ in range(3)] == [estimated_tokens(job_of())] * 3
        await engine.close()
    assert len(fake.counted) == 1


@pytest.mark.parametrize(("status", "body"), [(500, {}), (200, {"tokens": 1}), (429, {}), (400, {})])
async def test_an_upstream_that_fails_to_count_is_asked_again(status: int, body: dict[str, Any]) -> None:
    async with upstream() as fake:
        engine = fake.engine()
        await engine.start()
        fake.counts = web.json_response(body, status=status)
        assert await engine.count(job_of()) == estimated_tokens(job_of())
        fake.counts = web.json_response({"input_tokens": 5})
        assert await engine.count(job_of()) == 5
        await engine.close()


def test_an_image_is_estimated_without_its_bytes() -> None:
    url = "data:image/png;base64," + "A" * 400_000
    parts = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "what is it?"}]
    item = read_item(wire.encode({"type": "message", "role": "user", "content": parts}), "input[0]")
    assert 1000 < _weight(item) // 4 < 3000
