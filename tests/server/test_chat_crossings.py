"""Chat completions and what else a server does with turns: checks, quotas, recordings, draining."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from slipring.core.limits import Limits
from slipring.server.process.shutdown import shutting_down
from slipring.stores.keys import Token
from tests.chat_api import USER, Chat, Json, joined
from tests.chat_wire import read_stream
from tests.harness import PuppetEngine, serve
from tests.server.issuing import issue, serve_stored
from tests.server.observation.recordings import only, texts
from tests.server.raw import until
from tests.server.test_safety_checks import Guard, entry

pytestmark = pytest.mark.usefixtures("compiled_here")

CALLS = "simulated:tokens_per_s=0,output_tokens=5,tool_calls=1"
LOOK: Json = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALLED: Json = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
}


def user(text: str) -> Json:
    return {"role": "user", "content": text}


# Safety checks -----------------------------------------------------------------------------------

BAD: dict[str, tuple[tuple[Json, ...], Json]] = {
    "a system message": (({"role": "system", "content": "bad"}, USER), {}),
    "a part": (({"role": "user", "content": [{"type": "text", "text": "so bad"}]},), {}),
    "a result": ((USER, CALLED, {"role": "tool", "tool_call_id": "a", "content": "bad"}), {}),
    "a tool": ((USER,), {"tools": [{"type": "function", "function": {"name": "f", "description": "bad"}}]}),
    "a format": (
        (USER,),
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"type": "object", "description": "bad"}},
            }
        },
    ),
}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("case", BAD)
async def test_a_check_sees_every_text_of_a_request(case: str, streams: bool) -> None:
    messages, fields = BAD[case]
    Guard("guard")
    async with serve(checks=(entry(before=True),)) as server:
        status, error = await Chat(server).error(*messages, **fields, stream=streams)
        assert (status, error["code"]) == (400, "invalid_prompt")


@pytest.mark.parametrize("n", [1, 2])
async def test_a_blocked_answer_is_an_error(n: int) -> None:
    engine = PuppetEngine()
    Guard("guard")
    for streams in (False, True):
        async with serve(engine, checks=(entry(subjects=("answer",)),)) as server:
            chat = Chat(server)
            asked: asyncio.Task[Any] = asyncio.create_task(chat.stream(n=n) if streams else chat.error(n=n))
            if n > 1:
                (await engine.next()).finish(output_tokens=0)
            job = await engine.next()
            job.say("bad")
            job.finish()
            found = await asked
            error = found[-1]["error"] if streams else found[1]
            assert (error["code"], error["type"]) == ("invalid_prompt", "invalid_request_error")
            assert not streams or joined(found[:-1])["content"] == ""


@pytest.mark.parametrize("streams", [False, True])
async def test_an_answer_that_a_check_cuts_off_says_so(streams: bool) -> None:
    engine = PuppetEngine()
    Guard("guard")
    check = entry(action="cut", mode="hold", subjects=("answer",))
    async with serve(engine, checks=(check,)) as server:
        chat = Chat(server)
        asked: asyncio.Task[Any] = asyncio.create_task(chat.stream() if streams else chat.complete())
        job = await engine.next()
        job.say("bad")
        job.finish()
        found = await asked
        choice = joined(found) if streams else found["choices"][0]
        assert choice["finish_reason"] == "content_filter"


async def test_checks_report_what_they_found_if_the_request_asks() -> None:
    Guard("guard")
    async with serve(checks=(entry(action="flag", mode="follow"),)) as server:
        found = await Chat(server).complete(user("bad"), moderation={"model": "guard"})
        assert found["moderation"]["input"]["results"][0]["flagged"] is True
        *_, last = await Chat(server).stream(user("bad"), moderation={"model": "guard"})
        assert last["moderation"]["input"]["results"][0]["flagged"] is True


# Keys and quotas ---------------------------------------------------------------------------------


async def test_completions_count_towards_the_quota_of_a_key(tmp_path: Path) -> None:
    async with serve_stored(tmp_path) as server:
        chat = Chat(server, await issue(server, requests_per_minute=2))
        await chat.complete()
        await chat.complete(n=2)
        for fields in ({}, {"n": 2}, {"stream": True}):
            status, error = await chat.error(**fields)
            assert (status, error["code"]) == (429, "rate_limit_exceeded")


async def test_choices_cost_as_many_tokens_of_a_quota_as_the_usage_says(tmp_path: Path) -> None:
    async with serve_stored(tmp_path) as server:
        key = await issue(server, tokens_per_day=10_000)
        body = await Chat(server, key).complete(user("word " * 100), n=3)
        token = Token.parse(key)
        assert token is not None
        (standing,) = server.service.quotas.standing(await server.service.store.keys.find(token.id))
        assert standing.remaining == 10_000 - body["usage"]["total_tokens"]


async def test_a_key_may_be_bound_to_models(tmp_path: Path) -> None:
    async with serve_stored(tmp_path) as server:
        chat = Chat(server, await issue(server, models=("other",)))
        assert (await chat.error(model="simulated"))[0] == 404


# Recordings, logs --------------------------------------------------------------------------------


async def test_a_loop_is_recorded_by_its_deltas(tmp_path: Path) -> None:
    async with serve(CALLS, record=str(tmp_path)) as server:
        chat = Chat(server)
        asked = await chat.message(user("Weather?"), tools=[LOOK], stop="END", top_k=3)
        (call,) = asked["tool_calls"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
        await chat.message(user("Weather?"), asked, result, tools=[LOOK])
    begun, continued = only(tmp_path)
    assert texts(begun) == ["Weather?"]
    assert (begun["request"]["stop"], begun["request"]["top_k"]) == (["END"], 3)
    assert (continued["continues"], texts(continued)) == (0, ["sunny"])


async def test_a_request_that_is_refused_is_a_turn_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "slipring")
    async with serve() as server:
        await Chat(server).error({"role": "user"})
        await Chat(server).complete()
    refused, completed = [record.getMessage() for record in caplog.records if record.name == "slipring.turns"]
    assert "status=refused error=missing_required_parameter" in refused
    assert "status=completed" in completed


# The end of the server, slow clients ------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2])
async def test_a_running_completion_is_finished_before_the_server_stops(n: int) -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        asked = asyncio.create_task(Chat(server).stream(n=n))
        if n > 1:
            (await engine.next()).finish(output_tokens=0)
        jobs = [await engine.next() for _ in range(n)]
        (client,) = server.service.clients
        client.wind_down(shutting_down(), 60)
        for job in jobs:
            job.say("all of it")
            job.finish()
        chunks = await asked
        assert [joined(chunks, index)["content"] for index in range(n)] == ["all of it"] * n


async def test_choices_do_not_begin_on_a_server_that_stops() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        asked = asyncio.create_task(Chat(server).error(n=2))
        prompt = await engine.next()
        (client,) = server.service.clients
        client.wind_down(shutting_down(), 60)
        prompt.finish(output_tokens=0)
        status, error = await asked
        assert (status, error["code"]) == (503, "server_shutting_down")


@pytest.mark.parametrize("n", [1, 2])
async def test_a_client_that_does_not_read_holds_the_engine_back(n: int) -> None:
    engine = PuppetEngine()
    limits = Limits(send_buffer_bytes=20_000)
    async with serve(engine, limits=limits) as server:
        body = {"messages": [USER], "stream": True, "n": n}
        async with server.http.post(Chat(server).url, json=body) as answer:
            if n > 1:
                (await engine.next()).finish(output_tokens=0)
            jobs = [await engine.next() for _ in range(n)]
            for job in jobs:
                for _ in range(100):
                    job.say("x" * 100_000)
            (client,) = server.service.clients
            await until(lambda: client.reply._outbox.full)
            assert all(job.cues.qsize() for job in jobs)
            for job in jobs:
                job.finish()
            chunks = read_stream((await answer.read()).decode())
        assert len(joined(chunks)["content"]) == 10_000_000


async def test_a_stream_that_is_silent_for_long_gets_comments() -> None:
    engine = PuppetEngine()
    async with serve(engine, limits=Limits(ping_interval_s=0.01)) as server:
        async with server.http.post(Chat(server).url, json={"messages": [USER], "stream": True}) as answer:
            job = await engine.next()
            await answer.content.readuntil(b"\n\n")
            assert await answer.content.readuntil(b"\n\n") == b": keepalive\n\n"
            job.finish()
            rest = (await answer.read()).decode()
        assert json.loads(rest.split("data: ")[1])["choices"][0]["finish_reason"] == "stop"
