"""The responses engine and responses of several steps: what is kept of each step when its socket is lost."""

import asyncio
from typing import Any

from slipring.engines.responses.positions import Position, Step
from tests.engines.fakes.responses import FakeResponsesServer
from tests.engines.fakes.server import Call, Say, Stop, Think, in_front_of
from tests.harness import TERMINAL, WEATHER, Socket

ROLLOUTS = {"OpenAI-Beta": "slipring_rollout=v1"}
ASK: dict[str, Any] = {"input": "hello", "store": False, "tools": [WEATHER], "rollout": True}


def outputs(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "function_call_output", "call_id": call["call_id"], "output": "sun"} for call in calls]


async def answer_calls(socket: Socket) -> None:
    """Append outputs of the calls that the running rollout waits for."""
    done = (await socket.until("response.done"))[-1]
    appended = outputs(done["required_input"])
    await socket.send(type="response.append", response_id=done["response_id"], input=appended)


async def rollout_of_three(fake: FakeResponsesServer, socket: Socket) -> dict[str, Any]:
    """A rollout whose first two steps think and call, and whose last one thinks and answers."""
    fake.script(Think(("1",), "b25l"), Call("get_weather", "{}"), Stop())
    fake.script(Say(("hm",)), Think(("2",), "dHdv"), Call("get_weather", "{}"), Stop())
    fake.script(Think(("3",), "dGhyZWU="), Say(("sunny",)), Stop())
    await socket.create(**ASK)
    await answer_calls(socket)
    await answer_calls(socket)
    response: dict[str, Any] = (await socket.until("response.completed"))[-1]["response"]
    return response


def sent(request: dict[str, Any]) -> list[str]:
    """The types of a request's items; of reasoning, its encrypted form."""
    return [item.get("encrypted_content", item["type"]) for item in request["input"]]


WHOLE = [
    *("message", "b25l", "function_call", "function_call_output"),
    *("message", "dHdv", "function_call", "function_call_output"),
    *("dGhyZWU=", "message", "message"),
]


async def test_thoughts_of_every_step_are_sent_again_when_the_socket_is_lost() -> None:
    fake = FakeResponsesServer("websocket")
    async with in_front_of(fake, reasoning="encrypted") as (_, server):
        async with server.connect(headers=ROLLOUTS) as socket:
            first = await rollout_of_three(fake, socket)
            assert [len(request["input"]) for request in fake.requests] == [1, 1, 1]
            await fake.peers[0].ws.close()
            next_turn = {"input": "more", "tools": [WEATHER], "store": False}
            second = await socket.response(**next_turn, previous_response_id=first["id"])
            assert second["status"] == "completed"
        assert sent(fake.requests[3]) == WHOLE


async def test_thoughts_of_every_step_are_sent_again_where_there_are_no_sockets() -> None:
    """The second step has no thoughts: what is kept of the first is passed on."""
    fake = FakeResponsesServer("sse")
    async with in_front_of(fake, reasoning="encrypted") as (_, server):
        async with server.connect(headers=ROLLOUTS) as socket:
            fake.script(Think(("1",), "b25l"), Call("get_weather", "{}"), Stop())
            fake.script(Say(("no",)), Stop())
            await socket.create(**ASK)
            await answer_calls(socket)
            first = (await socket.until("response.completed"))[-1]["response"]
            await socket.response(input="more", store=False, previous_response_id=first["id"])
        kept = ["message", "b25l", "function_call", "function_call_output"]
        assert [sent(request) for request in fake.requests[1:]] == [kept, [*kept, "message", "message"]]


async def test_a_steered_answer_keeps_the_thoughts_of_the_steps_before_it() -> None:
    fake = FakeResponsesServer("websocket")
    async with in_front_of(fake, reasoning="encrypted") as (_, server):
        async with server.connect(headers=ROLLOUTS) as socket:
            rest = asyncio.Event()
            fake.script(Think(("1",), "b25l"), Call("get_weather", "{}"), Stop())
            fake.script(Say(("one ",) * 2000, rest=rest), Stop())
            await socket.create(**ASK)
            target = (await socket.until("response.created"))[-1]["response"]["id"]
            await answer_calls(socket)
            await socket.until("response.output_text.delta")
            await socket.send(type="response.steer", previous_response_id=target, input="two")
            await socket.until("response.steer.accepted")
            rest.set()
            ended = (await socket.until(*TERMINAL))[-1]["response"]
            assert ended["incomplete_details"] == {"reason": "steered"}
            await socket.until(*TERMINAL)
        kept = ["message", "b25l", "function_call", "function_call_output", "message", "message"]
        assert sent(fake.requests[2]) == kept


def test_a_position_counts_the_steps_of_its_own_response() -> None:
    home = object()
    thought = Step((), [(0, b"x" * 1000)], whole=True, before=None)
    first = Position("up_1", home=home, before=None, step=thought)
    call = Step(("call_1",), (), others=1, whole=False, before=None)
    second = Position("up_2", home=home, before=first, step=call)
    assert second.unshared_bytes(first) == second.size_bytes - first.size_bytes
    last = Step((), [(0, b"x" * 1000)], whole=False, before=thought)
    of_two_steps = Position("up_3", home=home, before=None, step=last)
    assert of_two_steps.unshared_bytes(second) > 2000
