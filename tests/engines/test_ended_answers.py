"""What an answer held is freed when it ends, however it ends, without a garbage collection: it may be all ids
of a long context, and a process at rest does not look for garbage."""

import asyncio
import gc
from collections.abc import Iterator

import pytest

from slipring.core.generation import Job
from slipring.core.turn.turn import Turn
from slipring.engines.chat.answer import ChatAnswer
from slipring.engines.remote.http_connection import Answer, EventStream
from slipring.engines.remote.streamed_answer import AnswerReader
from slipring.engines.responses.answer import ResponsesAnswer
from slipring.engines.scheduling.job_queue import Ticket
from slipring.engines.tokens.job_exchange import JobExchange
from slipring.engines.tokens.sessions import Lease, SessionExchange
from slipring.engines.tokens.token_answer import TokenAnswer
from tests.engines.chains import turns
from tests.engines.fakes.server import (
    FakeServer,
    Garbage,
    HangUp,
    Refuse,
    Say,
    Stall,
    Step,
    Stop,
    in_front_of,
)
from tests.engines.fakes.vllm_sessions import FakeVllmWithSessions
from tests.engines.test_contract import ASK, EVERY, running
from tests.harness import Running
from tests.server.raw import gone

HOLDERS = (
    *(AnswerReader, ChatAnswer, EventStream, JobExchange, Job, Lease, Answer, ResponsesAnswer, Ticket),
    *(TokenAnswer, Turn, SessionExchange),
)
ENDINGS: list[tuple[Step, ...]] = [
    (Say(("one", "two")), Stop()),
    (Refuse(400, "no"),),
    (Refuse(503, "no"),),
    (HangUp(),),
    (Garbage(),),
    (Say(("one", "two")), HangUp()),
    (Say(("one", "two")), Garbage()),
]


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    gc.freeze()  # what exists is not listed by ``gc.get_objects``
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


async def nothing_is_left(server: Running, ending: object = "") -> None:
    """Require that everything of the ended answers is freed, at the latest some steps of the loop later."""
    await gone(server)
    left: list[str] = []
    for _ in range(20):
        left = [type(each).__name__ for each in gc.get_objects() if isinstance(each, HOLDERS)]
        if not left:
            return
        for _ in range(20):
            await asyncio.sleep(0)
    pytest.fail(f"only a garbage collection frees {left} {ending}")


@EVERY
async def test_answers_that_end_in_any_way(kind: str) -> None:
    async with running(kind, failures_to_close=100) as (fake, server):
        for ending in ENDINGS:
            async with server.connect() as socket:
                fake.script(*ending)
                await socket.response(**ASK)
            await nothing_is_left(server, ending)


@EVERY
async def test_attempts_that_are_repeated(kind: str) -> None:
    async with running(kind, retries=1) as (fake, server):
        for fault in (Refuse(503), HangUp()):
            async with server.connect() as socket:
                fake.script(fault)
                assert (await socket.response(**ASK))["status"] == "completed"
            await nothing_is_left(server, fault)


@EVERY
async def test_an_answer_whose_client_leaves(kind: str) -> None:
    async with running(kind) as (fake, server):
        await leave_during_an_answer(fake, server)
        await nothing_is_left(server)


async def leave_during_an_answer(fake: FakeServer, server: Running) -> None:
    fake.script(Say(("one",)), Stall())
    async with server.connect(abandoned=True) as socket:
        await socket.create(**ASK)
        await socket.until("response.output_text.delta")
    await asyncio.wait_for(fake.left.wait(), 300)


@EVERY
@pytest.mark.parametrize("limit", ["first_token_timeout_s", "idle_timeout_s"])
async def test_an_answer_that_takes_too_long(kind: str, limit: str) -> None:
    async with running(kind, **{limit: 0.05}) as (fake, server):
        fake.script(*([Say(("one",))] if limit.startswith("idle") else []), Stall())
        async with server.connect() as socket:
            assert (await socket.response(**ASK))["status"] == "failed"
        await nothing_is_left(server)


async def test_answers_in_sessions() -> None:
    """And with the chain ends its session."""
    endings = ENDINGS[0], (Refuse(500, "no"),), (Say(("one", "two")), HangUp())
    async with in_front_of(FakeVllmWithSessions(), failures_to_close=100) as (fake, server):
        for ending in endings:
            async with server.connect(headers={"OpenAI-Beta": "slipring_zero_retention=v1"}) as socket:
                two = (await turns(socket, "one", "two"))[-1]
                fake.script(*ending)
                await socket.response(input="three", previous_response_id=two["id"], store=False)
            await nothing_is_left(server, ending)
            assert await asyncio.wait_for(fake.closed.get(), 300) == fake.opened[-1]
