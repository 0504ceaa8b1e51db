"""Steering with the real embedded model: it changes its course, and nothing is read twice."""

from typing import Any

import pytest

from slipring.core.limits import Limits
from tests.harness import TERMINAL, Socket
from tests.model import ServeModel

GREEDY = {"temperature": 0, "max_output_tokens": 32, "store": False}
LONG = "Tell me a long story about a cat, in many short sentences."
MARKS = 4
"""Tokens that open a message: what was said to nobody is not kept."""
TURN = "Stop the story. Answer with the word banana and nothing else."


def cached(response: dict[str, Any]) -> int:
    return int(response["usage"]["input_tokens_details"]["cached_tokens"])


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))


async def steered(socket: Socket, *, after: int) -> list[dict[str, Any]]:
    """A long answer that is steered after so many words, and what follows on it."""
    await socket.create(input=LONG, **GREEDY)
    target = (await socket.until("response.in_progress"))[-1]["response"]["id"]
    for _ in range(after):
        await socket.until("response.output_text.delta")
    await socket.send(type="response.steer", previous_response_id=target, input=TURN)
    ended = (await socket.until(*TERMINAL))[-1]["response"]
    follows = (await socket.until(*TERMINAL))[-1]["response"]
    return [ended, follows]


@pytest.mark.parametrize("after", [1, 10])
async def test_a_steered_answer_changes_its_course_and_goes_on_from_where_it_was_ended(
    smollm2: ServeModel, after: int
) -> None:
    limits = Limits(steer_after_tokens=8)
    async with smollm2(slots=1, limits=limits) as server, server.connect() as socket:
        whole = await socket.response(input=LONG, **GREEDY)
        ended, follows = await steered(socket, after=after)
        assert ended["incomplete_details"] == {"reason": "steered"}
        assert text_of(whole).startswith(text_of(ended))
        assert len(text_of(ended)) < len(text_of(whole))
        assert (follows["status"], follows["previous_response_id"]) == ("completed", ended["id"])
        # What exactly a model this small makes of it differs between machines.
        assert not text_of(whole).endswith(text_of(follows)), "the turn that was added has been read"
        assert cached(ended) >= 1  # the very same was asked before
        assert cached(follows) >= ended["usage"]["total_tokens"]
        assert not server.service.render_fallbacks

        # As if it had been cut by its limit and continued by hand: the same tokens, the same answer.
        limited = {**GREEDY, "max_output_tokens": ended["usage"]["output_tokens"]}
        again = await socket.response(input=LONG, **limited)
        by_hand = await socket.response(input=TURN, previous_response_id=again["id"], **GREEDY)
        assert (text_of(again), text_of(by_hand)) == (text_of(ended), text_of(follows))


async def test_an_answer_that_was_not_begun_gives_way_at_once(smollm2: ServeModel) -> None:
    async with smollm2(slots=1) as server, server.connect() as socket:
        whole = await socket.response(input=LONG, **GREEDY)
        ended, follows = await steered(socket, after=0)
        assert ended["incomplete_details"] == {"reason": "steered"}
        assert text_of(whole).startswith(text_of(ended))
        assert cached(follows) >= ended["usage"]["input_tokens"] - MARKS
        assert not server.service.render_fallbacks
