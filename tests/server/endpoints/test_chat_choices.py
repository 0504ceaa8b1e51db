"""``n``: several choices of one completion are forks of one context that was processed once."""

import asyncio
from typing import Any

import pytest

from slipring.base.errors import InvalidRequest, RateLimited
from slipring.core.limits import Limits
from tests.chat_api import USER, Chat, joined
from tests.engines.fakes.server import Say, Stop
from tests.engines.fakes.tokens import decoded
from tests.engines.fakes.vllm import fake_vllm
from tests.harness import PuppetEngine, serve
from tests.server.raw import until
from tests.server.test_resent_chat import LOOK, reports_of

pytestmark = pytest.mark.usefixtures("compiled_here")

CACHED = "simulated:tokens_per_s=0,output_tokens=5,vocabulary=smollm2"


@pytest.mark.parametrize("streams", [False, True])
async def test_the_prompt_is_processed_once(streams: bool) -> None:
    async with serve(CACHED) as server:
        chat, reports = Chat(server), reports_of(server)
        question = {"role": "user", "content": "some words " * 100}
        if streams:
            *chunks, last = await chat.stream(question, n=3, stream_options={"include_usage": True})
            usage = last["usage"]
            assert all(joined(chunks, index)["content"] for index in range(3))
        else:
            found = await chat.complete(question, n=3)
            usage = found["usage"]
            assert [choice["index"] for choice in found["choices"]] == [0, 1, 2]
        assert usage["completion_tokens"] == 15
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0
        prompt, *choices = [report.tokens for report in reports]
        assert [tokens.input for tokens in choices] == [usage["prompt_tokens"]] * 3
        assert usage["prompt_tokens"] >= prompt.input > 200
        assert (prompt.cached, prompt.output) == (0, 0)
        assert all(tokens.rendered < 10 and tokens.cached > 190 for tokens in choices)
        assert len(choices) == 3


async def test_a_prompt_that_was_processed_before_is_cached_for_all_choices() -> None:
    async with serve(CACHED) as server:
        chat = Chat(server)
        question = {"role": "user", "content": "some words " * 100}
        await chat.complete(question)
        usage = (await chat.complete(question, n=2))["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] > 190


async def test_choices_have_seeds_of_their_own() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        asked = asyncio.create_task(
            Chat(server).complete(n=3, seed=7, temperature=1, stop="END", tools=[LOOK])
        )
        prompt = await engine.next()
        assert not prompt.job.generate
        prompt.finish(output_tokens=0)
        seeds: list[int] = []
        for _ in range(3):
            choice = await engine.next()
            assert (choice.job.generate, choice.job.fork, choice.job.settings.stop) == (True, True, ("END",))
            assert choice.job.parent is not None
            assert choice.job.parent.id == prompt.job.response_id
            assert choice.job.input == ()
            seeds.append(choice.job.settings.seed or 0)
            choice.say(f"seed {choice.job.settings.seed}")
            choice.finish()
        assert sorted(seeds) == [7, 8, 9]
        texts = [choice["message"]["content"] for choice in (await asked)["choices"]]
        assert texts == ["seed 7", "seed 8", "seed 9"]


async def test_choices_are_streamed_side_by_side() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        asked = asyncio.create_task(Chat(server).stream(n=2))
        (await engine.next()).finish(output_tokens=0)
        one, two = await engine.next(), await engine.next()
        for word in ("a", "b"):
            one.say(word)
            two.say(word.upper())
        two.finish("max_output_tokens")
        await until(lambda: server.service.clients and len(_running(server)) == 1)
        one.say("c")
        one.finish()
        chunks = await asked
        assert joined(chunks, 0)["content"] + joined(chunks, 1)["content"] == "abcAB"
        assert [joined(chunks, index)["finish_reason"] for index in (0, 1)] == ["stop", "length"]


def _running(server: Any) -> list[Any]:
    (client,) = server.service.clients
    return list(client.driver.session.shared.lanes.running())


async def test_calls_of_two_choices_have_different_ids() -> None:
    async with serve("simulated:tokens_per_s=0,output_tokens=5,tool_calls=1") as server:
        chat = Chat(server)
        found = await chat.complete(n=2, tools=[LOOK])
        messages = [choice["message"] for choice in found["choices"]]
        assert len({message["tool_calls"][0]["id"] for message in messages}) == 2
        # Either of them can be continued, and is recognised.
        reports = reports_of(server)
        for message in messages:
            result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sunny"}
            assert (await chat.message(USER, message, result, tools=[LOOK]))["content"]
        assert [report.recognised_items for report in reports] == [2, 3]


async def test_a_server_of_token_ids_gets_the_prompt_and_then_each_choice() -> None:
    async with fake_vllm() as fake, serve(fake.engine(retries=0)) as server:
        for words in ((), ("One.",), ("Two.",)):
            fake.script(*([Say(words)] if words else []), Stop())
        found = await Chat(server).complete(n=2)
        assert sorted(choice["message"]["content"] for choice in found["choices"]) == ["One.", "Two."]
        prompt, one, two = [decoded(request["prompt"]) for request in fake.requests]
        assert one == two == prompt + "<|im_start|>assistant\n"


# Failures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [False, True])
async def test_a_request_that_is_not_valid_is_refused_once(streams: bool) -> None:
    async with serve() as server:
        reports = reports_of(server)
        status, error = await Chat(server).error(n=3, model="nope", stream=streams)
        assert (status, error["param"]) == (404, "model")
        assert len(reports) == 1


async def test_a_prompt_that_the_engine_refuses_is_answered_with_a_status() -> None:
    engine = PuppetEngine()
    engine.accepts = False
    async with serve(engine) as server:
        for streams in (False, True):
            asked = asyncio.create_task(Chat(server).error(n=2, stream=streams))
            (await engine.next()).fail(RateLimited("Busy.", retry_after_s=1))
            assert (await asked)[0] == 429


async def test_a_choice_that_is_refused_ends_the_stream_of_all() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        asked = asyncio.create_task(Chat(server).stream(n=2))
        (await engine.next()).finish(output_tokens=0)
        engine.accepts = False
        one, two = await engine.next(), await engine.next()
        one.say("a")
        two.fail(RateLimited("Busy."))
        *_, last = await asked
        assert last["error"] == {
            "type": "rate_limit_error",
            "code": "rate_limit_exceeded",
            "message": "Busy.",
            "param": None,
        }
        await asyncio.wait_for(one.stopped.wait(), 300)
        await until(lambda: not server.service.clients)


async def test_a_choice_that_fails_is_the_failure_of_all() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        asked = asyncio.create_task(Chat(server).error(n=2))
        (await engine.next()).finish(output_tokens=0)
        one, two = await engine.next(), await engine.next()
        one.say("a")
        two.fail(RuntimeError("secret"))
        status, error = await asked
        assert (status, error["code"]) == (500, "server_error")
        await asyncio.wait_for(one.stopped.wait(), 300)


async def test_a_choice_that_is_refused_has_its_own_status_if_nothing_is_streamed() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        asked = asyncio.create_task(Chat(server).error(n=2))
        (await engine.next()).finish(output_tokens=0)
        engine.accepts = False
        (await engine.next()).fail(RateLimited("Busy."))
        assert (await asked)[0] == 429


@pytest.mark.parametrize("is_prefilled", [False, True])
async def test_a_client_that_leaves_ends_all_turns(is_prefilled: bool) -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        body = {"messages": [USER], "stream": True, "n": 2}
        async with server.http.post(Chat(server).url, json=body) as answer:
            jobs = [await engine.next()]
            if is_prefilled:
                jobs[0].finish(output_tokens=0)
                jobs = [await engine.next(), await engine.next()]
            await answer.content.readuntil(b"\n\n")
            answer.close()
        for job in jobs:
            await asyncio.wait_for(job.stopped.wait(), 300)
        await until(lambda: not server.service.clients)


async def test_a_connection_with_few_lanes_refuses_many_choices() -> None:
    async with serve(limits=Limits(max_lanes=2)) as server:
        chat = Chat(server)
        assert len((await chat.complete(n=2))["choices"]) == 2
        status, error = await chat.error(n=3)
        assert (status, error["param"]) == (400, "n")


async def test_nothing_of_the_choices_stays_in_memory() -> None:
    async with serve() as server:
        service = server.service
        chat = Chat(server)
        chat.headers["OpenAI-Beta"] = "slipring_zero_retention=v1"
        await chat.complete(n=4)
        await until(lambda: not service.clients)
        assert service.requests.used_bytes == 0
        assert len(service.known) == 0


@pytest.mark.parametrize("n", [1, 2])
async def test_a_failure_within_a_stream_names_the_client_s_own_fields(n: int) -> None:
    engine = PuppetEngine()
    failure = InvalidRequest("Invalid 'input[1].content': call_0 is 'input[1]x'.", param="input[1].content")
    messages = (
        {"role": "system", "content": "x"},
        {"role": "user", "content": "y"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "mine", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "mine", "content": "z"},
    )
    async with serve(engine) as server:
        asked = asyncio.create_task(Chat(server).stream(*messages, n=n))
        if n > 1:
            (await engine.next()).finish(output_tokens=0)
        job = await engine.next()
        job.say("a")
        job.fail(failure)
        *_, last = await asked
        assert last["error"]["message"] == "Invalid 'messages[1].content': mine is 'input[1]x'."
