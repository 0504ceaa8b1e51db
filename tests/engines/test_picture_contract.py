"""One contract for pictures in front of every engine that is sent ids or text: a real llama.cpp with a tiny
model that sees, and fakes of vLLM and SGLang, each in both of its ways.

What is asserted is what the engine was sent: how many pictures, request by request.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from slipring.core.limits import Limits
from slipring.engines.base import Engine
from tests.engines.fakes.server import Call, Say, Stop
from tests.engines.fakes.sglang import FakeSglang
from tests.engines.fakes.tokens import FakeTokenServer
from tests.engines.fakes.vllm_pictures import FakeSeeingVllm, seeing_directory
from tests.engines.llama.test_llama_pictures import image, user
from tests.engines.llama.test_llama_steering import take_turns
from tests.harness import TERMINAL, Running, Socket, serve
from tests.model import SharedModel, loaded
from tests.prompts.gguf_writer import write_projector, write_tiny_model
from tests.prompts.vocabulary import short_metadata
from tests.server.test_parking import cut

Json = dict[str, Any]
KINDS = ("llama", "vllm", "vllm-chat", "sglang", "sglang-text")
EVERY = pytest.mark.parametrize("kind", KINDS)
GREEDY: Json = {"temperature": 0, "max_output_tokens": 8, "store": False}
CONTEXT = 1024
FILLER = "one two three four five six " * 60
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
TOOL = {
    **{"type": "function", "name": "look", "strict": True},
    "parameters": {**CITY, "additionalProperties": False},
}
HEADER = {"OpenAI-Beta": "slipring_rollout=v1"}


class Front:
    """An engine that sees, and what it sends to its server."""

    def __init__(self, make: Callable[[], Engine], fake: FakeTokenServer | None) -> None:
        self.make = make
        """Another engine in front of the same server."""
        self.fake = fake
        self._seen: list[int] = []

    @property
    def sent(self) -> list[int]:
        """How many pictures each request had that generated."""
        return self._seen if self.fake is None else [_pictures_in(body) for body in self.fake.requests]

    def observe(self, body: bytes) -> None:
        prompt = json.loads(body)["prompt"]
        self._seen.append(len(prompt["multimodal_data"]) if isinstance(prompt, dict) else 0)

    def script(self, *steps: Any) -> None:
        """What a fake answers next. A model answers as it likes."""
        if self.fake is not None:
            self.fake.script(*steps)


def _pictures_in(body: Json) -> int:
    if "messages" in body:
        return json.dumps(body["messages"]).count('"image_url": {')
    return len(body.get("content_parts") or body.get("image_data") or ())


@pytest.fixture(scope="module")
def endless_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedModel]:
    """A model that sees and never ends an answer by itself."""
    path = tmp_path_factory.mktemp("endless") / "Tiny-Q8_0.gguf"
    write_tiny_model(path, short_metadata())
    write_projector(path.with_name("mmproj-Tiny-F32.gguf"))
    with loaded(str(path)) as model:
        yield model


Fronts = Callable[..., Any]


@pytest.fixture
def front(endless_model: SharedModel) -> Fronts:
    @asynccontextmanager
    async def opened(kind: str, context: int = CONTEXT) -> AsyncIterator[Front]:
        if kind == "llama":
            front: Front

            def make_llama() -> Engine:
                engine = endless_model.engine(slots=2, context=CONTEXT)
                take_turns(engine)
                complete = engine._api.complete

                async def observed(body: bytes, consumer: Any) -> None:
                    front.observe(body)
                    await complete(body, consumer)

                engine._api.complete = observed  # type: ignore[method-assign]
                return engine

            front = Front(make_llama, None)
            yield front
            return
        fake = _fake(kind)
        await fake.start()
        patient = {"first_token_timeout_s": 600.0, "idle_timeout_s": 600.0, "retries": 0}
        try:
            yield Front(lambda: fake.engine(tokenizer=seeing_directory(), context=context, **patient), fake)
        finally:
            await fake.close()

    return opened


def _fake(kind: str) -> FakeTokenServer:
    if kind.startswith("vllm"):
        vllm = FakeSeeingVllm()
        vllm.scale_out = kind == "vllm"
        return vllm
    sglang = FakeSglang()
    sglang.sees, sglang.checks_prompts = True, False
    sglang.reads_pictures_beside = "ids" if kind == "sglang" else "text"
    return sglang


async def asked(socket: Socket, *parts: str | Json, after: Json | None = None, **fields: Any) -> Json:
    previous = {"previous_response_id": after["id"]} if after is not None else {}
    response = await socket.response(**{**GREEDY, "input": [user(*parts)], **previous, **fields})
    assert response["status"] in ("completed", "incomplete"), response
    return response


@EVERY
async def test_forks_and_warmups_have_the_pictures_of_their_parent(kind: str, front: Fronts) -> None:
    async with front(kind) as engine, serve(engine.make()) as server, server.connect() as socket:
        warm = await asked(socket, "Look: ", image(1), generate=False)
        for lane in ("a", "b"):
            await asked(socket, "And ", image(2), after=warm, stream_id=lane)
        assert engine.sent == [1, 2, 2]


@EVERY
async def test_a_history_with_pictures_that_is_sent_again_is_continued(kind: str, front: Fronts) -> None:
    async with front(kind) as engine, serve(engine.make()) as server, server.connect() as socket:
        first = await asked(socket, "Look: ", image(1))
        again = [user("Look: ", image(1)), *first["output"], user("And?")]
        second = await socket.response(**{**GREEDY, "input": again})
        assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
        assert engine.sent == [1, 1]
        if isinstance(engine.fake, FakeSeeingVllm) and engine.fake.scale_out:
            assert engine.fake.uploaded == [1, 0], "recognised by the digest of its picture"


@EVERY
async def test_a_steer_brings_a_picture(kind: str, front: Fronts) -> None:
    limits = Limits(steer_after_tokens=2)
    async with (
        front(kind, 8192) as engine,  # a fake may have sent much of its answer before that is cut
        serve(engine.make(), limits=limits) as server,
        server.connect() as socket,
    ):
        rest = asyncio.Event()
        engine.script(Say(("one ",) * 2000, rest=rest), Stop(output_tokens=2000))
        await socket.create(**{**GREEDY, "max_output_tokens": 300}, input=[user("Look: ", image(1))])
        target = (await socket.until("response.in_progress"))[-1]["response"]["id"]
        await socket.until("response.output_text.delta")
        await socket.send(type="response.steer", previous_response_id=target, input=[user("Now ", image(2))])
        await socket.until("response.steer.accepted")
        rest.set()
        ended = (await socket.until(*TERMINAL))[-1]["response"]
        assert ended["incomplete_details"] == {"reason": "steered"}
        follows = (await socket.until(*TERMINAL))[-1]["response"]
        assert follows["previous_response_id"] == target
        await asked(socket, "Go on.", after=follows)
        assert engine.sent == [1, 2, 2]


@EVERY
async def test_the_output_of_a_call_in_a_rollout_has_a_picture(kind: str, front: Fronts) -> None:
    async with (
        front(kind) as engine,
        serve(engine.make()) as server,
        server.connect(headers=HEADER, abandoned=True) as socket,
    ):
        for _ in range(2):
            engine.script(Call("look", '{"city": "Rome"}'), Stop())
        fields = {**GREEDY, "max_output_tokens": 100, "tools": [TOOL], "tool_choice": "required"}
        await socket.create(**fields, rollout=True, input=[user("Look: ", image(1))])
        done = (await socket.until("response.done"))[-1]
        (call,) = done["required_input"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": [image(2)]}
        await socket.send(type="response.append", response_id=done["response_id"], input=[output])
        await socket.until("response.done", *TERMINAL)
        # Before the first answer, fakes are asked whether they enforce a constraint.
        assert engine.sent[-2:] == [1, 2]


@EVERY
async def test_a_compaction_sees_the_pictures_and_the_chain_goes_on_without_them(
    kind: str, front: Fronts
) -> None:
    async with front(kind) as engine, serve(engine.make()) as server, server.connect() as socket:
        first = await asked(socket, "Look: ", image(1))
        managed = [{"type": "compaction", "compact_threshold": 20}]
        second = await asked(socket, "And?", after=first, context_management=managed)
        assert "compaction" in [item["type"] for item in second["output"]]
        third = await asked(socket, "Then ", image(2), after=second)
        assert third["status"] != "failed"
        assert engine.sent[:2] == [1, 1], "the summary is written with the picture"
        assert engine.sent[-2:] == [0, 1]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "vllm-chat"])
async def test_truncation_drops_pictures_and_they_count_no_longer(kind: str, front: Fronts) -> None:
    limits = Limits(max_pictures=2)
    async with (
        front(kind) as engine,
        serve(engine.make(), limits=limits) as server,
        server.connect() as socket,
    ):
        last: Json | None = None
        for number in range(6):
            last = await asked(
                socket, FILLER, image(number), after=last, truncation="auto", max_output_tokens=4
            )
            last = await asked(socket, FILLER, after=last, truncation="auto", max_output_tokens=4)
        assert max(engine.sent) <= 2
        assert engine.sent[-1] >= 1


@EVERY
async def test_a_parked_chain_goes_on_with_its_pictures(kind: str, front: Fronts) -> None:
    async with front(kind) as engine, serve(engine.make()) as server:
        async with server.connect(abandoned=True) as socket:
            first = await asked(socket, "Look: ", image(1))
            await cut(server, socket)
        async with server.connect() as socket:
            await asked(socket, "And ", image(2), after=first)
        assert engine.sent == [1, 2]


@EVERY
async def test_another_server_goes_on_with_a_stored_chain(kind: str, front: Fronts, tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'slipring.db'}"

    def running() -> Any:
        return serve(engine.make(), store=store)

    async with front(kind) as engine:
        async with running() as server, server.connect() as socket:
            first = await asked(socket, "Look: ", image(1), store=True)
        async with running() as server, server.connect() as socket:
            second = await asked(socket, "And ", image(2), after=first, store=True)
            await asked(socket, "Then?", after=second, store=True)
        assert engine.sent == [1, 2, 2]


@EVERY
async def test_a_model_that_sees_says_so(kind: str, front: Fronts) -> None:
    async with front(kind) as engine, serve(engine.make()) as server:
        (model,) = await _models(server)
        assert "image" in model["input_modalities"]


async def _models(server: Running) -> list[Json]:
    headers = {"Authorization": "Bearer test-key"}
    async with server.http.get(f"{server.url}/models", headers=headers) as answer:
        models: list[Json] = (await answer.json())["data"]
        return models
