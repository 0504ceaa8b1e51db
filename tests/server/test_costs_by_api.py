"""The same conversation by all three APIs: what it cost, and why, is the same story."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.chat_api import Chat
from tests.harness import Running, serve
from tests.messages_api import MessagesApi

pytestmark = pytest.mark.usefixtures("compiled_here")

Json = dict[str, Any]
ENGINE = "simulated:tokens_per_s=0,vocabulary=smollm2,output_tokens=12"
ASKED = "Which towns lie on the coast of the fjord? " * 20
Turn = Callable[..., Awaitable[tuple[str, Json]]]
"""Sends a history of texts, the user's and the model's by turns; returns the answer and its usage as
``input``, ``cached``, ``output``."""


def responses(server: Running) -> Turn:
    async def turn(*texts: str) -> tuple[str, Json]:
        _, body = await server.post(input=_messages(texts), store=False)
        usage = body["usage"]
        details = usage["input_tokens_details"]
        counted = _counted(usage["input_tokens"], details["cached_tokens"], usage["output_tokens"])
        assert details["cache_write_tokens"] == usage["input_tokens"] - details["cached_tokens"]
        return body["output"][0]["content"][0]["text"], counted

    return turn


def chat(server: Running) -> Turn:
    async def turn(*texts: str) -> tuple[str, Json]:
        body = await Chat(server).complete(*_messages(texts))
        usage = body["usage"]
        details = usage["prompt_tokens_details"]
        assert details["cache_write_tokens"] == usage["prompt_tokens"] - details["cached_tokens"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        counted = _counted(usage["prompt_tokens"], details["cached_tokens"], usage["completion_tokens"])
        return body["choices"][0]["message"]["content"], counted

    return turn


def messages(server: Running) -> Turn:
    async def turn(*texts: str) -> tuple[str, Json]:
        body = await MessagesApi(server).create(*_messages(texts))
        usage = body["usage"]
        read = usage["cache_read_input_tokens"]
        # A token is counted in one of the three.
        total = usage["input_tokens"] + usage["cache_creation_input_tokens"] + read
        return body["content"][0]["text"], _counted(total, read, usage["output_tokens"])

    return turn


def _messages(texts: tuple[str, ...]) -> list[Json]:
    return [
        {"role": "assistant" if number % 2 else "user", "content": text} for number, text in enumerate(texts)
    ]


def _counted(read: int, cached: int, written: int) -> Json:
    return {"input": read, "cached": cached, "output": written}


@asynccontextmanager
async def speaking(api: Callable[[Running], Turn]) -> AsyncIterator[tuple[Running, Turn]]:
    async with serve(ENGINE) as server:
        yield server, api(server)


async def test_all_apis_count_the_same_tokens() -> None:
    counted = []
    for api in (responses, chat, messages):
        async with speaking(api) as (_, turn):
            answer, first = await turn(ASKED)
            again, second = await turn(ASKED, answer, "And which do not?")
            _, third = await turn(ASKED, "Changed.", "And which do not?")
            counted.append((answer, again, first, second, third))
    assert counted[0] == counted[1] == counted[2]
    _, _, first, second, third = counted[0]
    assert first["cached"] < second["cached"] > third["cached"] > 0


@pytest.mark.parametrize("api", [responses, chat, messages])
async def test_all_apis_say_where_a_history_departs(
    api: Callable[[Running], Turn], caplog: pytest.LogCaptureFixture
) -> None:
    async with speaking(api) as (_, turn):
        with caplog.at_level("INFO", "slipring.turns"):
            answer, _ = await turn(ASKED)
            await turn(ASKED, answer, "And which do not?")
            assert "recognised=2" in caplog.text
            assert "departed=" not in caplog.text
            await turn(ASKED, "Changed.", "And which do not?")
            assert "departed=input[1].content" in caplog.text
            await turn("At noon: " + ASKED, "Changed.", "And which do not?", "Those.", "Why?")
            assert "departed=input[0].content" in caplog.text
