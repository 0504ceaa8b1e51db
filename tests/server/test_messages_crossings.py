"""Messages and what else a server does with turns: keys, quotas, checks, recordings, traces, draining, slow
clients."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from slipring.core.limits import Limits
from slipring.server.process.shutdown import shutting_down
from tests import messages_wire
from tests.chat_api import Chat
from tests.harness import PuppetEngine, serve
from tests.messages_api import MessagesApi, Refused
from tests.messages_wire import Json
from tests.server.issuing import issue, revoke, serve_stored
from tests.server.observation.recordings import only, texts
from tests.server.raw import until
from tests.server.test_safety_checks import Guard, entry
from tests.server.tracing.collector import collect

pytestmark = pytest.mark.usefixtures("compiled_here")

CALLS = "simulated:tokens_per_s=0,output_tokens=5,tool_calls=1"
TOOL: Json = {"name": "look", "input_schema": {"type": "object"}}

# Keys and quotas ---------------------------------------------------------------------------------


async def test_messages_count_towards_the_quota_of_a_key(tmp_path: Path) -> None:
    async with serve_stored(tmp_path) as server:
        api = MessagesApi(server, await issue(server, requests_per_minute=2))
        await api.create("hello")
        await api.stream("hello")
        refusal = await api.refused("hello")
        assert (refusal.status, refusal.kind) == (429, "rate_limit_error")
        assert refusal.headers["retry-after"] == "45"
        with pytest.raises(Refused) as counting:
            await api.count("hello")
        assert counting.value.status == 429


async def test_a_revoked_key_is_refused_in_the_shape_of_each_api(tmp_path: Path) -> None:
    async with serve_stored(tmp_path) as server:
        key = await issue(server)
        api, chat = MessagesApi(server, key), Chat(server, key)
        await api.create("hello")
        await revoke(server, key)
        refusal = await api.refused("hello")
        assert (refusal.status, refusal.kind) == (401, "authentication_error")
        assert (await chat.error())[0] == 401


async def test_a_key_may_be_bound_to_models(tmp_path: Path) -> None:
    async with serve_stored(tmp_path) as server:
        api = MessagesApi(server, await issue(server, models=("other",)))
        refusal = await api.refused("hello")
        assert (refusal.status, refusal.kind) == (404, "not_found_error")


# Safety checks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [False, True])
async def test_a_request_that_a_check_blocks_before_the_answer(streams: bool) -> None:
    Guard("guard")
    async with serve(checks=(entry(before=True),)) as server:
        with pytest.raises(Refused) as found:
            await MessagesApi(server).create("so bad", stream=streams)
        assert (found.value.status, found.value.kind) == (400, "invalid_request_error")
        # By which Claude Code knows that it must not send the request again.
        assert found.value.error["details"] == {"error_code": "dlp_request_denied"}
        with pytest.raises(Refused) as found:
            await MessagesApi(server).create("hello", temperature=9, stream=streams)
        assert "details" not in found.value.error


async def test_a_stream_that_a_check_blocks_ends_with_an_error_event() -> None:
    engine = PuppetEngine()
    Guard("guard")
    async with serve(engine, checks=(entry(subjects=("answer",)),)) as server:
        asked = asyncio.create_task(MessagesApi(server).stream("hello"))
        job = await engine.next()
        job.say("bad")
        job.finish()
        *_, last = await asked
        assert (last["type"], last["error"]["type"]) == ("error", "invalid_request_error")
        assert last["error"]["details"] == {"error_code": "dlp_request_denied"}


@pytest.mark.parametrize("streams", [False, True])
async def test_an_answer_that_a_check_cuts_off_is_a_refusal(streams: bool) -> None:
    engine = PuppetEngine()
    Guard("guard")
    check = entry(action="cut", mode="hold", subjects=("answer",))
    async with serve(engine, checks=(check,)) as server:
        api = MessagesApi(server)
        asked: asyncio.Task[Any] = asyncio.create_task(api.stream("x") if streams else api.create("x"))
        job = await engine.next()
        job.say("bad")
        job.finish()
        found = await asked
        message = messages_wire.message_of(found) if streams else found
        assert message["stop_reason"] == "refusal"
        assert "bad" not in str(message["content"])


# Recordings, traces, logs ------------------------------------------------------------------------


async def test_a_loop_is_recorded_by_its_deltas(tmp_path: Path) -> None:
    async with serve(CALLS, record=str(tmp_path)) as server:
        api = MessagesApi(server)
        asked = await api.create("Weather?", tools=[TOOL], stop_sequences=["END"], top_k=3)
        (call,) = [block for block in asked["content"] if block["type"] == "tool_use"]
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "sunny"}
        answer = {"role": "assistant", "content": asked["content"]}
        await api.create("Weather?", answer, {"role": "user", "content": [result]}, tools=[TOOL])
    begun, continued = only(tmp_path)
    assert texts(begun) == ["Weather?"]
    assert (begun["api"], begun["request"]["stop"], begun["request"]["top_k"]) == ("messages", ["END"], 3)
    assert (continued["continues"], texts(continued)) == (0, ["sunny"])


async def test_the_span_of_the_client_is_the_parent_of_its_turn() -> None:
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    async with collect() as collector, serve(trace_endpoint=collector.url, trace_sample=1.0) as server:
        api = MessagesApi(server)
        api.headers["traceparent"] = f"00-{trace}-{parent}-01"
        await api.stream("hello")
        with pytest.raises(Refused):
            await api.create("hello", temperature=9)
    assert [turn.span.trace_id.hex() for turn in collector.turns] == [trace] * 2
    assert [turn.span.parent_span_id.hex() for turn in collector.turns] == [parent] * 2


async def test_a_request_that_is_refused_is_a_turn_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "slipring")
    async with serve() as server:
        await MessagesApi(server).refused({"role": "user"})
    lines = [record.getMessage() for record in caplog.records if record.name == "slipring.turns"]
    assert len(lines) == 2
    assert all("api=messages status=refused error=missing_required_parameter" in line for line in lines)


# The end of the server, slow clients -------------------------------------------------------------


async def test_a_running_answer_is_finished_before_the_server_stops() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        asked = asyncio.create_task(MessagesApi(server).stream("hello"))
        job = await engine.next()
        (client,) = server.service.clients
        client.wind_down(shutting_down(), 60)
        job.say("all of it")
        job.finish()
        assert messages_wire.message_of(await asked)["content"][0]["text"] == "all of it"


async def test_a_server_that_stops_refuses_new_requests_as_overloaded() -> None:
    async with serve() as server:
        server.service.draining = True
        refusal = await MessagesApi(server).refused("hello")
        assert (refusal.status, refusal.kind) == (529, "overloaded_error")
        server.service.draining = False


async def test_a_client_that_does_not_read_holds_the_engine_back() -> None:
    engine = PuppetEngine()
    async with serve(engine, limits=Limits(send_buffer_bytes=20_000)) as server:
        body = MessagesApi(server).body("hello", stream=True)
        async with server.http.post(f"{server.url}/messages", json=body) as answer:
            job = await engine.next()
            for _ in range(100):
                job.say("x" * 100_000)
            (client,) = server.service.clients
            await until(lambda: client.reply._outbox.full)
            assert job.cues.qsize()
            job.finish()
            events = messages_wire.read_events((await answer.read()).decode())
        assert len(messages_wire.message_of(events)["content"][0]["text"]) == 10_000_000
