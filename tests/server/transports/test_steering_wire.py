"""Steering over a real socket, with a scripted engine and with the simulated one."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from slipring.base.errors import InvalidRequest, ServerError
from slipring.core.generation import CallArguments, CallStarted, Thought
from slipring.core.limits import Limits
from tests.harness import TERMINAL, PuppetEngine, Socket, serve
from tests.mcp.fakes import Exchange, FakeServer, Reply, serving, text

Json = dict[str, Any]
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
STEERED = {"reason": "steered"}


async def created(socket: Socket, **fields: Any) -> str:
    """Create a response; returns its id."""
    await socket.create(**fields)
    events = await socket.until("response.in_progress", lane=fields.get("stream_id"))
    response_id: str = events[-1]["response"]["id"]
    return response_id


async def steer(socket: Socket, target: str, input: Any = "No, wait.", **fields: Any) -> None:
    await socket.send(type="response.steer", previous_response_id=target, input=input, **fields)


async def steered(socket: Socket, target: str, input: Any = "No, wait.", lane: str | None = None) -> Json:
    """Steer a response; returns the event that answers."""
    await steer(socket, target, input)
    kinds = [f"response.steer.{verb}" for verb in ("accepted", "failed")]
    return (await socket.until(*kinds, lane=lane))[-1]


async def test_a_steered_response_ends_and_another_follows() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        target = await created(socket, input="hi", temperature=0.5)
        first = await engine.next()
        first.say("One", " two")
        await socket.until("response.output_text.delta")
        answer = await steered(socket, target)
        assert answer["type"] == "response.steer.accepted"
        assert answer["steer"]["id"].startswith("steer_")
        assert len(answer["steer"]["id"]) == len("steer_") + 32
        first.say(" three", " four.")
        ended = (await socket.until(*TERMINAL))[-1]["response"]
        assert (ended["status"], ended["incomplete_details"]) == ("incomplete", STEERED)
        assert ended["output"][0]["content"][0]["text"] == "One two three four."
        assert ended["output"][0]["status"] == "incomplete"
        second = await engine.next()
        assert [item.raw for item in second.job.input] == [
            b'{"type":"message","role":"user","content":"No, wait."}'
        ]
        assert second.job.parent is not None
        assert (second.job.parent.id, second.job.settings.temperature) == (target, 0.5)
        second.say("Yes.")
        second.finish()
        completed = (await socket.until(*TERMINAL))[-1]["response"]
        assert (completed["status"], completed["previous_response_id"]) == ("completed", target)
        # A steered response is stored like any other, and can be continued.
        await socket.create(input="again", previous_response_id=target)
        third = await engine.next()
        third.finish()
        assert (await socket.until(*TERMINAL))[-1]["type"] == "response.completed"


async def test_reasoning_is_finished_before_a_steered_response_ends() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        target = await created(socket, input="hi")
        first = await engine.next()
        first.emit(Thought("hm"))
        await socket.until("response.reasoning_text.delta")
        await steered(socket, target)
        first.emit(Thought(" hm"))
        first.say("So.")
        first.finish()
        ended = (await socket.until(*TERMINAL))[-1]["response"]
        assert [item["type"] for item in ended["output"]] == ["reasoning", "message"]
        (await engine.next()).finish()
        await socket.until(*TERMINAL)


async def test_lanes_are_steered_separately_and_successors_run_before_queued_creates() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        ids = {}
        plays = {}
        for lane in ("a", "b"):
            ids[lane] = await created(socket, input=lane, stream_id=lane)
            plays[lane] = await engine.next()
        await socket.create(input="later", stream_id="a")
        answer = await steered(socket, ids["a"], lane="a")
        assert answer["stream_id"] == "a"
        plays["a"].say("Never mind.")
        assert (await socket.until(*TERMINAL, lane="a"))[-1]["response"]["incomplete_details"] == STEERED
        follows = await engine.next()
        assert b"No, wait." in follows.job.input[0].raw
        follows.finish()
        await socket.until(*TERMINAL, lane="a")
        later = await engine.next()
        assert b"later" in later.job.input[0].raw
        later.finish()
        await socket.until(*TERMINAL, lane="a")
        plays["b"].finish()
        assert (await socket.until(*TERMINAL, lane="b"))[-1]["type"] == "response.completed"


async def test_pending_steers_come_after_the_outputs_of_the_continuation() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        target = await created(socket, input="hi", tools=[TOOL])
        first = await engine.next()
        await steered(socket, target, "one")
        await steered(socket, target, [{"role": "user", "content": "two"}])
        first.emit(CallStarted("function", "f"), CallArguments("{}"))
        first.finish()
        call = (await socket.until(*TERMINAL))[-1]["response"]["output"][0]
        for _ in range(2):
            event = await socket.receive()
            assert event["type"] == "response.steer.pending"
            stub = {"type": "function_call_output", "call_id": call["call_id"], "name": "f"}
            assert event["required_input"] == [stub]
        await socket.create(input=[{**stub, "output": "42"}], previous_response_id=target)
        second = await engine.next()
        assert [item.type for item in second.job.input] == ["function_call_output", "message", "message"]
        second.finish()
        await socket.until(*TERMINAL)


async def test_each_failed_steer_has_its_error_code() -> None:
    engine = PuppetEngine()
    async with serve(engine, limits=Limits(max_steers=1)) as server, server.connect() as socket:

        async def code(target: str, input: Any = "wait") -> str:
            answer = await steered(socket, target, input)
            assert answer["steer"]["input"] == input
            return str(answer["error"]["code"])

        assert await code("resp_nobody") == "response_not_found"
        target = await created(socket, input="hi")
        play = await engine.next()
        assert await code(target, []) == "invalid_input"
        async with server.connect() as other:
            assert (await steered(other, target))["error"]["code"] == "response_not_found"
        assert (await steered(socket, target))["type"] == "response.steer.accepted"
        assert await code(target) == "too_many_pending_steers"
        play.fail(ServerError())
        failed = (await socket.until("response.steer.failed"))[-1]
        assert (failed["error"]["code"], failed["steer"]["input"]) == ("response_not_active", "No, wait.")

        target = await created(socket, input="hi")
        (await engine.next()).finish()
        await socket.until(*TERMINAL)
        assert await code(target) == "response_already_completed"
        target = await created(socket, input="hi")
        (await engine.next()).finish("max_output_tokens")
        await socket.until(*TERMINAL)
        assert await code(target) == "response_not_active"

        await socket.create(input="hi", context_management=[{"type": "compaction", "compact_threshold": 99}])
        target = (await socket.until("response.in_progress"))[-1]["response"]["id"]
        assert await code(target) == "steering_not_supported"
        (await engine.next()).finish()
        await socket.until(*TERMINAL)

        target = await created(socket, input="hi")
        play = await engine.next()
        assert (await steered(socket, target))["type"] == "response.steer.accepted"
        engine.accepts = False
        play.finish()
        (await engine.next()).fail(InvalidRequest("Too much."))
        failed = (await socket.until("response.steer.failed"))[-1]
        assert failed["error"]["code"] == "successor_creation_failed"
        assert "Too much." in failed["error"]["message"]
        assert not socket.order.errors


async def test_a_response_in_a_conversation_cannot_be_steered() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        headers = {"Authorization": "Bearer test-key"}
        async with server.http.post(f"{server.url}/conversations", json={}, headers=headers) as made:
            conversation = (await made.json())["id"]
        target = await created(socket, input="hi", conversation=conversation)
        assert (await steered(socket, target))["error"]["code"] == "steering_not_supported"
        (await engine.next()).finish()
        await socket.until(*TERMINAL)


async def test_a_disconnect_drops_pending_steers() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        async with server.connect(abandoned=True) as socket:
            target = await created(socket, input="hi")
            play = await engine.next()
            play.say("One")
            await socket.until("response.output_text.delta")
            await steered(socket, target)
        await play.stopped.wait()
        async with server.connect(abandoned=True) as socket:
            await socket.create(input="hi")
            job = (await engine.next()).job
            assert job.parent is None
            assert b"wait" not in job.input[0].raw


@pytest.mark.parametrize("after_tokens", [1, 5])
async def test_the_simulated_engine_stops_when_steered_and_continues(after_tokens: int) -> None:
    engine = "simulated:tokens_per_s=20,output_tokens=2000"  # a minute and more to steer it
    limits = Limits(steer_after_tokens=after_tokens)
    async with serve(engine, limits=limits) as server, server.connect(abandoned=True) as socket:
        target = await created(socket, input="hi")
        await socket.until("response.output_text.delta")
        await steered(socket, target)
        ended = (await socket.until(*TERMINAL))[-1]["response"]
        assert ended["incomplete_details"] == STEERED
        successor = (await socket.until("response.created"))[-1]["response"]["id"]
        await socket.until("response.output_text.delta")
        await steered(socket, successor, "And again.")
        second = (await socket.until(*TERMINAL))[-1]["response"]
        assert second["usage"]["input_tokens_details"]["cached_tokens"] > ended["usage"]["input_tokens"]


async def test_a_steer_waits_for_a_hosted_call_that_has_begun(tmp_path: Path) -> None:
    """The call may have effects, and the response that follows reads its result."""
    begun, released = asyncio.Event(), asyncio.Event()

    async def slow(exchange: Exchange) -> Reply:
        begun.set()
        await released.wait()
        return text("42")

    fake = FakeServer(modern=True)
    fake.calls["add"] = slow
    call = {"function_call": {"name": "add", "namespace": "fake", "arguments": {}}}
    script = tmp_path / "script.jsonl"
    script.write_text("\n".join(json.dumps(steps) for steps in ([call], [{"text": "Well."}])))
    async with (
        serving(fake),
        serve(f"simulated:tokens_per_s=0,script={script}", mcp_urls="any") as server,
        server.connect() as socket,
    ):
        tool = {"type": "mcp", "server_label": "fake", "server_url": fake.url, "require_approval": "never"}
        target = await created(socket, input="hi", tools=[tool])
        await begun.wait()
        assert (await steered(socket, target))["type"] == "response.steer.accepted"
        released.set()
        ended = (await socket.until(*TERMINAL))[-1]["response"]
        assert ended["incomplete_details"] == STEERED
        made = ended["output"][-1]
        assert (made["type"], made["status"], made["output"]) == ("mcp_call", "completed", "42")
        followed = (await socket.until(*TERMINAL))[-1]["response"]
        assert (followed["status"], followed["previous_response_id"]) == ("completed", target)
