"""The responses engine and responses of several steps: what is kept of each step when its socket is lost."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipring.core.chain.instructions_and_tools import Head
from slipring.engines.responses.options import ResponsesOptions
from slipring.engines.responses.positions import KeptStep, Position, PositionCodec
from tests.engines.fakes.responses import FakeResponsesServer
from tests.engines.fakes.server import Call, Refuse, Say, Stop, Think, in_front_of
from tests.harness import TERMINAL, WEATHER, Socket, serve

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


STORED: dict[str, Any] = {"input": "hello", "tools": [WEATHER]}


async def test_another_process_sends_the_thoughts_of_stored_responses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every step: it sends what the first process would have sent."""
    monkeypatch.setenv("OTHER_KEY", "of another account")
    fake = FakeResponsesServer("sse")
    await fake.start()
    store = f"sqlite:{tmp_path}/store.db"
    try:
        async with serve(fake.engine(reasoning="encrypted"), store=store) as server:
            async with server.connect(headers=ROLLOUTS) as socket:
                fake.script(Think(("1",), "b25l"), Call("get_weather", "{}"), Stop())
                fake.script(Say(("hm",)), Think(("2",), "dHdv"), Call("get_weather", "{}"), Stop())
                fake.script(Think(("3",), "dGhyZWU="), Say(("sunny",)), Stop())
                await socket.create(**STORED, rollout=True)
                await answer_calls(socket)
                await answer_calls(socket)
                first = (await socket.until("response.completed"))[-1]["response"]
            _, here = await server.post(input="more", previous_response_id=first["id"], store=False)
        async with serve(fake.engine(reasoning="encrypted"), store=store) as server:
            _, there = await server.post(input="more", previous_response_id=first["id"], store=False)
        async with serve(fake.engine(reasoning="encrypted", key_env="OTHER_KEY"), store=store) as server:
            _, other = await server.post(input="more", previous_response_id=first["id"], store=False)
    finally:
        await fake.close()
    assert here["status"] == there["status"] == other["status"] == "completed"
    by_first, by_second, by_other = fake.requests[3:]
    assert sent(by_first) == WHOLE
    assert by_first["input"] == by_second["input"]
    assert "encrypted_content" not in json.dumps(by_other["input"]), "another account cannot read them"


async def test_another_process_continues_by_id_what_the_upstream_stores(tmp_path: Path) -> None:
    fake = FakeResponsesServer("sse")
    await fake.start()
    store = f"sqlite:{tmp_path}/store.db"
    try:
        async with serve(fake.engine(chain=True), store=store) as server:
            fake.script(Call("get_weather", "{}"), Stop())
            _, first = await server.post(**STORED)
        async with serve(fake.engine(chain=True), store=store) as server:
            _, second = await server.post(
                input=outputs(first["output"]), tools=[WEATHER], previous_response_id=first["id"]
            )
    finally:
        await fake.close()
    assert second["status"] == "completed"
    (item,) = fake.requests[1]["input"]
    assert "previous_response_id" in fake.requests[1]
    assert (item["type"], item["call_id"] == first["output"][0]["call_id"]) == ("function_call_output", False)


async def test_thoughts_that_the_upstream_cannot_read_any_more_are_left_out() -> None:
    fake = FakeResponsesServer("sse")
    async with in_front_of(fake, reasoning="encrypted") as (_, server):
        fake.script(Think(("1",), "b25l"), Say(("one",)), Stop())
        _, first = await server.post(input="hello")
        fake.script(Refuse(400, "The encrypted content b25l could not be verified."))
        status, second = await server.post(input="more", previous_response_id=first["id"])
        assert (status, second["status"]) == (200, "completed")
        assert [sent(request) for request in fake.requests[1:]] == [
            ["message", "b25l", "message", "message"],
            ["message", "message", "message"],
        ]
        _, alone = await server.post(input="hello")
        fake.script(Refuse(400, "No encrypted content here."))
        status, _ = await server.post(input="more", previous_response_id=alone["id"])
        assert (status, len(fake.requests)) == (400, 5)


def codec_of(home: object, **options: Any) -> PositionCodec:
    return PositionCodec(home, ResponsesOptions(url="http://h/v1", **options))


def test_positions_that_another_process_has_no_use_for_are_not_stored() -> None:
    home = object()
    codec = codec_of(home)
    plain = Position("up_1", home=home, before=None, step=KeptStep(("call_1",), whole=True, before=None))
    large = KeptStep((), ((0, b"x" * (4 * 2**20 + 1)),), whole=True, before=None)
    for position in (plain, Position("up_2", home=home, before=None, step=large), object()):
        assert codec.pack(position, None) is None
    stored = codec_of(home, chain=True).pack(Position("up_2", home=home, before=None, step=large), None)
    assert stored is not None
    assert len(stored) < 100, "without its thoughts"
    assert codec_of(object(), chain=True).pack(plain, None) is None


def test_bytes_that_cannot_be_read_are_no_position() -> None:
    home = object()
    codec = codec_of(home)
    step = KeptStep(("call_1",), ((0, b"{}"),), others=1, whole=True, before=None)
    data = codec.pack(Position("up_1", home=home, before=None, step=step), None)
    assert data is not None
    restored = codec.unpack(data, None, Head())
    assert restored is not None
    assert (restored.upstream_id, restored.step.thoughts, restored.socket) == ("", ((0, b"{}"),), None)
    empty = data[:9] + msgspec.msgpack.encode(["", []])
    for bad in (data[:-1], data[:9], b"", b"\x02" + data[1:], empty):
        assert codec.unpack(bad, None, Head()) is None
    assert codec_of(home, model="other").unpack(data, None, Head()) is None


def test_a_position_counts_the_steps_of_its_own_response() -> None:
    home = object()
    thought = KeptStep((), ((0, b"x" * 1000),), whole=True, before=None)
    first = Position("up_1", home=home, before=None, step=thought)
    call = KeptStep(("call_1",), (), others=1, whole=False, before=None)
    second = Position("up_2", home=home, before=first, step=call)
    assert second.unshared_bytes(first) == second.size_bytes - first.size_bytes
    last = KeptStep((), ((0, b"x" * 1000),), whole=False, before=thought)
    of_two_steps = Position("up_3", home=home, before=None, step=last)
    assert of_two_steps.unshared_bytes(second) > 2000
