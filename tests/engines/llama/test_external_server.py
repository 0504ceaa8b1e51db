"""Models that a server tokenizes: of an external llama-server, or with a vocabulary slipring cannot build."""

import asyncio
from typing import Any

import pytest

from slipring.base.errors import StartupError, Unavailable
from slipring.engines.llama.engine import LlamaEngine
from slipring.engines.llama.options import LlamaOptions
from slipring.engines.remote.http_client import HttpClient
from slipring.engines.tokens.remote_vocabulary import LlamaVocabulary
from slipring.prompts.rendering import Renderer
from slipring.prompts.tokenization.tokenizer import Tokenizer, UnknownVocabulary
from tests.engines.fakes.server import started
from tests.engines.llama.test_llama_engine import (
    ASK,
    FAMILY,
    GREEDY,
    LONG,
    SAY_FAMILY,
    SHORT_CITY,
    cached,
    text_of,
)
from tests.harness import serve
from tests.model import SharedModel
from tests.prompts.corpus import CORPUS


async def test_an_external_server_describes_its_model(elsewhere: LlamaEngine) -> None:
    async with started(elsewhere) as engine:
        model = engine.model
        assert model.name == "tiny"
        assert (model.context, model.slots) == (SharedModel.context, SharedModel.slots)
        assert model.llguidance
        assert not engine.renderer.vocabulary.is_local


async def test_chains_forks_and_constraints_work_with_an_external_server(elsewhere: LlamaEngine) -> None:
    async with serve(elsewhere) as server, server.connect() as socket:
        first = await socket.response(input=LONG, **GREEDY)
        second = await socket.response(input="Go on.", previous_response_id=first["id"], **GREEDY)
        assert cached(second) >= first["usage"]["total_tokens"]
        fork = await socket.response(input="Stop.", previous_response_id=first["id"], stream_id="f", **GREEDY)
        assert cached(fork) >= 0.9 * first["usage"]["total_tokens"]
        asked = {**GREEDY, "max_output_tokens": 100, "parallel_tool_calls": False}
        call = await socket.response(input="Rome?", tools=[SHORT_CITY], tool_choice="required", **asked)
        assert call["status"] == "completed"
        assert call["output"][0]["name"] == "get_weather"


async def test_the_servers_tokenizer_and_ours_give_the_same_ids(
    elsewhere: LlamaEngine, tiny_model: SharedModel
) -> None:
    async with started(elsewhere) as engine:
        ours = tiny_model.engine(context=512).renderer
        theirs = engine.renderer

        def differing() -> list[str]:
            texts = [*CORPUS[:60], "<tool_call>{}</tool_call> <|im_end|> <think>"]
            return [text for text in texts if not same(ours, theirs, text)]

        assert await asyncio.to_thread(differing) == []
        assert await asyncio.to_thread(theirs.stop_ids) == ours.stop_ids()


def same(ours: Renderer, theirs: Renderer, text: str) -> bool:
    # Text that looks like a mark is cut in two: its tokens may differ, but none is the mark.
    ids = theirs.vocabulary.encode(text)
    if "<tool_call>" in text or "think>" in text:
        return not set(ids) & ours.stop_ids()
    return ours.vocabulary.encode(text) == ids


async def test_the_engine_tokenizes_for_a_vocabulary_that_slipring_cannot_build(
    tiny_model: SharedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(tiny_model.engine(slots=1, context=512)) as server:
        _, expected = await server.post(input=ASK, **GREEDY)

    def unknown(metadata: object) -> Tokenizer:
        raise UnknownVocabulary("of another kind")

    monkeypatch.setattr(Tokenizer, "from_gguf", unknown)
    engine = tiny_model.engine(slots=1, context=512)
    assert isinstance(engine.renderer.vocabulary, LlamaVocabulary)
    async with serve(engine) as server, server.connect() as socket:
        response = await socket.response(input=ASK, **GREEDY)
        assert text_of(response) == text_of(expected)
        asked: dict[str, Any] = {**GREEDY, "max_output_tokens": 60, "text": SAY_FAMILY}
        emoji = await socket.response(input=ASK, **asked)
        assert FAMILY in text_of(emoji)
        # The server does not send the ids of split characters, so this turn is rendered from its items.
        more = await socket.response(input="More.", previous_response_id=emoji["id"], **asked)
        assert more["usage"]["input_tokens"] > emoji["usage"]["input_tokens"]


async def test_an_unreachable_server_or_a_missing_key_is_a_startup_error() -> None:
    with pytest.raises(StartupError, match=r"cannot reach http://127\.0\.0\.1:9"):
        async with started(LlamaEngine(LlamaOptions(model="http://127.0.0.1:9"))):
            pass
    with pytest.raises(StartupError, match="the variable NO_SUCH_KEY"):
        LlamaEngine(LlamaOptions(model="http://127.0.0.1:9", key_env="NO_SUCH_KEY"))


def test_a_key_that_no_header_can_carry_is_a_startup_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWO_KEYS", "sk-one\nsk-two")
    with pytest.raises(StartupError, match=r"the variable TWO_KEYS .* holds more than a key"):
        LlamaEngine(LlamaOptions(model="http://127.0.0.1:9", key_env="TWO_KEYS"))


async def test_a_server_that_is_not_a_llama_server_is_a_startup_error() -> None:
    async with serve() as other:
        url = other.url.removesuffix("/v1")
        with pytest.raises(StartupError, match="answers with 404"):
            async with started(LlamaEngine(LlamaOptions(model=url))):
                pass


async def test_tokenizing_without_a_server_raises_unavailable() -> None:
    async with HttpClient("http://127.0.0.1:9", {}) as client:
        vocabulary = LlamaVocabulary(client.query_from_thread, "unreachable")
        with pytest.raises(Unavailable):
            await asyncio.to_thread(vocabulary.encode, "hello")
