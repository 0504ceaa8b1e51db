"""What a server is asked that has refused a request with several new pictures, and for how long."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from slipring.core.limits import Limits
from tests.engines.fakes.server import Refuse
from tests.engines.fakes.sglang import FakeSglang
from tests.engines.fakes.tokens import FakeTokenServer
from tests.engines.fakes.vllm_pictures import FakeSeeingVllm, seeing_directory
from tests.engines.llama.test_llama_pictures import image, text_of, user
from tests.harness import Running, Socket, serve
from tests.loop_clock import LoopClock

NUMBERS = range(1, 10)
REFUSAL = "cannot identify image file"
BY_EVERY = pytest.mark.parametrize("make", [FakeSeeingVllm, FakeSglang])


@asynccontextmanager
async def served(
    make: type[FakeTokenServer], **options: Any
) -> AsyncIterator[tuple[FakeTokenServer, Running]]:
    """A server that sees, and that refuses the next request; and a slipring in front of it, which does not
    ping clients: a test may set the clock forward."""
    fake = make()
    if isinstance(fake, FakeSglang):
        fake.sees, fake.checks_prompts = True, False
    await fake.start()
    try:
        engine = fake.engine(tokenizer=seeing_directory(), retries=0, **options)
        async with serve(engine, limits=Limits(ping_interval_s=0)) as server:
            fake.script(Refuse(400, REFUSAL))
            yield fake, server
    finally:
        await fake.close()


async def refused(socket: Socket) -> str:
    """The message with which a request with many pictures fails."""
    failed = await socket.response(input=[user("Look: ", *map(image, NUMBERS))])
    message: str = failed["error"]["message"]
    assert REFUSAL in message
    return message


@BY_EVERY
async def test_a_server_that_decides_slowly_is_asked_for_five_seconds_at_most(
    make: type[FakeTokenServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(make) as (fake, server), server.connect() as socket:
        clock, before = LoopClock(monkeypatch), fake.questions
        fake.cannot_decode = image(7)["image_url"]
        fake.questioned = lambda: clock.advance(2)
        assert "Invalid" not in await refused(socket)
        assert 0 < fake.questions - before <= 3


@BY_EVERY
async def test_a_server_that_refuses_every_picture_when_asked_says_nothing_about_one(
    make: type[FakeTokenServer],
) -> None:
    """The last question is about a picture that every decoder takes."""
    async with served(make) as (fake, server), server.connect() as socket:
        fake.questioned = lambda: Refuse(400, "no pictures here")
        assert "Invalid" not in await refused(socket)


@BY_EVERY
async def test_a_question_that_is_not_answered_is_no_failure_of_the_server(
    make: type[FakeTokenServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time that it takes is part of that in which an answer has to begin."""
    options = {"failures_to_close": 1, "first_token_timeout_s": 300.0}
    async with served(make, **options) as (fake, server), server.connect() as socket:
        clock = LoopClock(monkeypatch)
        fake.questioned = lambda: clock.advance(100)
        assert "Invalid" not in await refused(socket)
        assert text_of(await socket.response(input="Hello")) == "ok"


@BY_EVERY
async def test_a_question_that_fails_is_no_failure_of_the_server(make: type[FakeTokenServer]) -> None:
    async with served(make, failures_to_close=1) as (fake, server), server.connect() as socket:
        fake.questioned = lambda: Refuse(503, "overloaded")
        assert "Invalid" not in await refused(socket)
        assert text_of(await socket.response(input="Hello")) == "ok"
