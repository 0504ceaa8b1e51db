"""Steering with an embedded model: the follow-up continues the context of the steered answer."""

import asyncio
from typing import Any

import pytest

from slipring.core.limits import Limits
from slipring.engines.llama.engine import LlamaEngine
from tests.harness import TERMINAL, Socket, serve
from tests.model import ServeModel, SharedModel

GREEDY: dict[str, Any] = {"temperature": 0, "max_output_tokens": 300, "store": False}
"""The tiny model answers with as many tokens as it may."""
LONG = "Tell me a long story about a cat, in many short sentences."
MARKS = 4
"""Tokens that open the answer: they are not kept if the answer is empty."""
TURN = "Stop the story. Answer with the word banana and nothing else."


def cached(response: dict[str, Any]) -> int:
    return int(response["usage"]["input_tokens_details"]["cached_tokens"])


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))


async def steered(socket: Socket, *, after: int, **asked: Any) -> list[dict[str, Any]]:
    """Steer a long answer after ``after`` deltas; returns the steered response and the one that follows."""
    await socket.create(input=LONG, **{**GREEDY, **asked})
    target = (await socket.until("response.in_progress"))[-1]["response"]["id"]
    for _ in range(after):
        await socket.until("response.output_text.delta")
    await socket.send(type="response.steer", previous_response_id=target, input=TURN)
    ended = (await socket.until(*TERMINAL))[-1]["response"]
    follows = (await socket.until(*TERMINAL))[-1]["response"]
    return [ended, follows]


def take_turns(engine: LlamaEngine) -> None:
    """Let the event loop read its sockets between two tokens: the model is so fast that otherwise, on a busy
    machine, the end of an answer may be there before a steer was read."""
    complete = engine._api.complete

    async def one_by_one(body: bytes, consumer: Any) -> None:
        take = consumer.take

        async def take_each(payloads: list[bytes]) -> None:
            for payload in payloads:
                if not consumer.has_ended and (waiting := take([payload])) is not None:
                    await waiting
                await asyncio.sleep(0)

        consumer.take = take_each
        await complete(body, consumer)

    engine._api.complete = one_by_one  # type: ignore[method-assign]


@pytest.mark.parametrize("after", [1, 10])
async def test_a_steered_answer_ends_early_and_the_next_one_continues_its_context(
    tiny_model: SharedModel, after: int
) -> None:
    limits = Limits(steer_after_tokens=8)
    engine = tiny_model.engine(slots=1, context=1024)
    take_turns(engine)
    async with serve(engine, limits=limits) as server, server.connect() as socket:
        await socket.response(input=LONG, **{**GREEDY, "max_output_tokens": 1})
        ended, follows = await steered(socket, after=after)
        assert ended["incomplete_details"] == {"reason": "steered"}
        assert 8 <= ended["usage"]["output_tokens"] < GREEDY["max_output_tokens"]
        assert (follows["status"], follows["previous_response_id"]) == ("incomplete", ended["id"])
        assert follows["incomplete_details"] == {"reason": "max_output_tokens"}
        assert cached(ended) >= 1  # the same prompt was sent before
        assert cached(follows) >= ended["usage"]["total_tokens"]
        assert not server.service.render_fallbacks

        # The same tokens and answers as if the limit had cut it off and the client had continued it.
        limited = {**GREEDY, "max_output_tokens": ended["usage"]["output_tokens"]}
        again = await socket.response(input=LONG, **limited)
        limited["max_output_tokens"] = 50
        by_hand = await socket.response(input=TURN, previous_response_id=again["id"], **limited)
        assert text_of(again) == text_of(ended)
        assert text_of(follows).startswith(text_of(by_hand)), "the model has read the steering message"


async def test_an_answer_without_output_is_ended_at_once(smollm2: ServeModel) -> None:
    # The real model: the tiny one would have output before it is steered.
    async with smollm2(slots=1) as server, server.connect() as socket:
        ended, follows = await steered(socket, after=0, max_output_tokens=4)
        assert ended["incomplete_details"] == {"reason": "steered"}
        assert ended["usage"]["output_tokens"] < 4
        assert cached(follows) >= ended["usage"]["input_tokens"] - MARKS
        assert not server.service.render_fallbacks
