"""Rollouts over real sockets: the loop, storing, and connections that end in the middle."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from slipring.core.generation import CallArguments, CallStarted
from slipring.core.limits import Limits
from tests.api import Api
from tests.harness import TERMINAL, WEATHER, PuppetEngine, Socket, serve
from tests.server.raw import until
from tests.server.test_parking import cut

pytestmark = pytest.mark.usefixtures("compiled_here")

Json = dict[str, Any]
HEADER = {"OpenAI-Beta": "slipring_rollout=v1, responses_multi_agent=v1"}
LOOP = "simulated:tokens_per_s=0,output_tokens=4,tool_calls=3"
ASK: Json = {"input": "How is the weather?", "tools": [WEATHER], "rollout": True}


def outputs(done: Json, result: str = "sunny") -> list[Json]:
    calls = done["required_input"]
    return [{"type": "function_call_output", "call_id": call["call_id"], "output": result} for call in calls]


async def roll(socket: Socket, event: str = "append", **fields: Any) -> Json:
    """Run a whole loop; returns the response."""
    await socket.create(**{**ASK, **fields})
    while True:
        last = (await socket.until("response.done", "error", *TERMINAL, lane=fields.get("stream_id")))[-1]
        if last["type"] != "response.done":
            assert last["type"] in TERMINAL, last
            response: Json = last["response"]
            return response
        await socket.send(type=f"response.{event}", response_id=last["response_id"], input=outputs(last))


async def wait_for(socket: Socket, **fields: Any) -> Json:
    """Start a rollout; returns the event that asks for tool outputs."""
    await socket.create(**{**ASK, **fields})
    return (await socket.until("response.done"))[-1]


@pytest.mark.parametrize("event", ["append", "inject"])
async def test_a_loop_is_one_response(event: str) -> None:
    async with serve(LOOP) as server, server.connect(headers=HEADER) as socket:
        response = await roll(socket, event)
        kinds = [item["type"] for item in response["output"]]
        assert kinds == [*(3 * ["function_call", "function_call_output"]), "message"]
        assert response["status"] == "completed"
        loop = await socket.response(input="And tomorrow?", previous_response_id=response["id"])
        assert loop["status"] == "completed"


async def test_rollouts_run_on_several_lanes_at_once() -> None:
    async with serve(LOOP) as server, server.connect(headers=HEADER) as socket:
        for lane in ("a", "b"):
            await socket.create(**ASK, stream_id=lane)
        waiting: dict[str, Json] = {}
        finished: list[str] = []
        while len(finished) < 2:
            event = await socket.receive()
            lane = event["stream_id"]
            if event["type"] == "response.done":
                waiting[lane] = event
                await socket.send(
                    type="response.append", response_id=event["response_id"], input=outputs(event)
                )
            elif event["type"] == "response.completed":
                finished.append(lane)
        assert waiting.keys() == set(finished)


async def test_a_rollout_is_stored_once_and_found_by_another_server(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path}/responses.db"
    async with serve(LOOP, store=store) as server:
        async with server.connect(headers=HEADER) as socket:
            response = await roll(socket)
        status, kept = await Api(server).call("GET", f"/responses/{response['id']}")
        assert (status, kept) == (200, response)
    async with serve(LOOP, store=store) as server, server.connect() as socket:
        more = await socket.response(input="more", previous_response_id=response["id"])
        assert more["usage"]["input_tokens_details"]["cached_tokens"] == 0
        listed = await Api(server).call("GET", f"/responses/{more['id']}/input_items?limit=100&order=asc")
        assert listed[0] == 200
        kinds = [item["type"] for item in listed[1]["data"]]
        assert kinds == ["message", *(3 * ["function_call", "function_call_output"]), "message", "message"]


async def test_a_rollout_may_be_part_of_a_conversation() -> None:
    async with serve(LOOP) as server, server.connect(headers=HEADER) as socket:
        status, conversation = await Api(server).call("POST", "/conversations", json={})
        assert status == 200
        first = await roll(socket, conversation=conversation["id"])
        again = await socket.response(input="more", conversation=conversation["id"])
        assert again["usage"]["input_tokens"] > first["usage"]["output_tokens"]
        status, items = await Api(server).call("GET", f"/conversations/{conversation['id']}/items?limit=100")
        assert status == 200
        assert len(items["data"]) == 1 + 7 + 1 + len(again["output"])


async def test_a_rollout_over_http_is_refused() -> None:
    async with serve(LOOP) as server:
        headers = {"Authorization": "Bearer test-key", **HEADER}
        async with server.http.post(f"{server.url}/responses", json=ASK, headers=headers) as answer:
            error = (await answer.json())["error"]
        assert (answer.status, error["param"]) == (400, "rollout")


async def test_a_disconnected_client_continues_its_rollout() -> None:
    async with serve(LOOP) as server:
        async with server.connect(headers=HEADER, abandoned=True) as socket:
            done = await wait_for(socket, store=False)
            await cut(server, socket)
        async with server.connect(headers=HEADER) as socket:
            last = await socket.response(
                **{**ASK, "rollout": False, "input": outputs(done)}, previous_response_id=done["response_id"]
            )
            assert last["status"] == "completed"


async def test_a_rollout_is_stored_when_its_client_disconnects() -> None:
    async with serve(LOOP) as server:
        async with server.connect(headers=HEADER, abandoned=True) as socket:
            done = await wait_for(socket)
        await until(lambda: not server.service.sockets)
        status, kept = await Api(server).call("GET", f"/responses/{done['response_id']}")
        assert status == 200
        assert (kept["status"], [item["type"] for item in kept["output"]]) == ("completed", ["function_call"])


@pytest.mark.parametrize("store", [False, True])
async def test_a_disconnect_during_a_step_keeps_the_steps_before_it(store: bool) -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        async with server.connect(headers=HEADER, abandoned=True) as socket:
            await socket.create(**ASK, store=store)
            performance = await engine.next()
            performance.emit(CallStarted(kind="function", name="get_weather"), CallArguments("{}"))
            performance.finish()
            done = (await socket.until("response.done"))[-1]
            await socket.send(type="response.append", response_id=done["response_id"], input=outputs(done))
            performance = await engine.next()
            performance.say("It is")
            await socket.until("response.output_text.delta")
            await cut(server, socket)
        await asyncio.wait_for(performance.stopped.wait(), 300)
        async with server.connect(headers=HEADER) as socket:
            await socket.create(**{**ASK, "input": "Go on."}, previous_response_id=done["response_id"])
            again = await engine.next()
            kinds = [item.type for item in again.job.context()]
            assert kinds == ["message", "function_call", "function_call_output", "message", "message"]
            again.say("sunny.")
            again.finish()
            last = (await socket.until(*TERMINAL))[-1]["response"]
            assert last["status"] == "completed"


async def test_a_shutdown_does_not_wait_for_tool_outputs() -> None:
    async with serve(LOOP) as server, server.connect(headers=HEADER) as socket:
        done = await wait_for(socket)
        stopping = asyncio.create_task(server.server.stop())
        last = (await socket.until(*TERMINAL))[-1]["response"]
        assert (last["id"], last["status"]) == (done["response_id"], "completed")
        assert (await socket.receive())["error"]["code"] == "server_shutting_down"
        await socket.closed()
        await stopping


async def test_a_rollout_ends_when_its_client_does_not_answer_in_time() -> None:
    limits = Limits(rollout_wait_s=0.01)
    async with serve(LOOP, limits=limits) as server, server.connect(headers=HEADER) as socket:
        done = await wait_for(socket)
        last = (await socket.until(*TERMINAL))[-1]["response"]
        assert (last["id"], last["status"]) == (done["response_id"], "completed")
        await socket.send(type="response.append", response_id=done["response_id"], input=outputs(done))
        failed = await socket.receive()
        assert failed["error"]["code"] == "response_already_completed"
        assert failed["input"] == outputs(done)


async def test_a_malformed_injection_closes_the_connection() -> None:
    async with serve(LOOP) as server, server.connect(headers=HEADER, abandoned=True) as socket:
        done = await wait_for(socket)
        await socket.send(type="response.inject", response_id=done["response_id"], input="sunny")
        error = await socket.receive()
        assert (error["type"], error["status"], error["error"]["param"]) == ("error", 400, "input")
        assert await socket.closed() == 1008


async def test_tool_outputs_may_arrive_while_the_model_generates() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect(headers=HEADER) as socket:
        await socket.create(**ASK)
        performance = await engine.next()
        performance.emit(CallStarted(kind="function", name="get_weather"), CallArguments("{}"))
        performance.say("One moment.")
        called = (await socket.until("response.output_item.done"))[-1]["item"]
        created = socket.order._open[None].response
        result = {"type": "function_call_output", "call_id": called["call_id"], "output": "sunny"}
        await socket.send(type="response.append", response_id=created["id"], input=[result])
        # A pong shows that the server has read everything sent before the ping.
        await socket.send(type="response.append", response_id="resp_unknown", input=[result])
        await socket.until("response.append.failed")
        performance.finish()
        again = await engine.next()
        assert [item.call_id for item in again.job.input] == [called["call_id"]]
        again.say("Sunny.")
        again.finish()
        events = await socket.until(*TERMINAL)
        assert "response.done" not in [event["type"] for event in events]


async def test_other_connections_cannot_append_to_a_rollout() -> None:
    async with serve(LOOP) as server, server.connect(headers=HEADER, abandoned=True) as socket:
        done = await wait_for(socket)
        async with server.connect(key="somebody-else", headers=HEADER) as other:
            await other.send(type="response.append", response_id=done["response_id"], input=outputs(done))
            assert (await other.receive())["error"]["code"] == "response_not_found"
        # The next event that its own client receives is the answer to its own frame.
        await socket.send(type="response.append", response_id="resp_unknown", input=outputs(done))
        assert (await socket.receive())["response_id"] == "resp_unknown"
