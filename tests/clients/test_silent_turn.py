"""Clients stay connected during a turn that is silent for a long time, as of a thinking model.

The SDKs ping every 20 seconds, and drop the connection when the pong takes another 20. Over HTTP there is no
ping; there the server has to send something to keep the connection alive.
"""

import asyncio
from collections.abc import Callable

import pytest
from openai import AsyncOpenAI, OpenAI

from tests import late
from tests.relay import Served

MODEL = "simulated"
ANSWER = "worth the wait"
SILENT = [{"stall_s": 45}, {"text": ANSWER}]


def ask_blocking(url: str) -> str:
    with (
        OpenAI(base_url=url, api_key="any") as client,
        client.responses.connect() as connection,
    ):
        connection.response.create(model=MODEL, input="think")
        for event in connection:
            if event.type == "response.completed":
                return event.response.output_text
    return "the connection was lost"


async def ask_awaiting(url: str) -> str:
    async with (
        AsyncOpenAI(base_url=url, api_key="any") as client,
        client.responses.connect() as connection,
    ):
        await connection.response.create(model=MODEL, input="think")
        async for event in connection:
            if event.type == "response.completed":
                return event.response.output_text
    return "the connection was lost"


async def ask_agent(url: str) -> str:
    late.agents.set_tracing_disabled(True)
    async with late.agents.responses_websocket_session(base_url=url, api_key="any") as session:
        result = await session.run(late.agents.Agent(name="thinker", model=MODEL), "think")
    return result.final_output


async def ask_over_sse(url: str) -> str:
    async with AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
        stream = await client.responses.create(model=MODEL, input="think", stream=True)
        async with stream:
            return "".join([e.delta async for e in stream if e.type == "response.output_text.delta"])


@pytest.mark.slow
async def test_no_client_is_lost_during_a_silent_turn(served: Served, scripted: Callable[..., str]) -> None:
    with served(scripted(SILENT, SILENT, SILENT, SILENT), patience_s=120) as relay:
        answers = await asyncio.gather(
            asyncio.to_thread(ask_blocking, relay.url),
            ask_awaiting(relay.url),
            ask_agent(relay.url),
            ask_over_sse(relay.url),
        )
    assert answers == [ANSWER] * 4
    assert len(relay.sockets) == 3
    # Each client sent pings while it waited, so that it depended on the server's pongs.
    assert all(socket.pings and socket.pongs for socket in relay.sockets)
    assert relay.exchanges[0].keepalives
