"""The responses engine in front of a fake server: what is sent on which socket, and what clients see."""

import asyncio
import gc
import json
import weakref
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp
import pytest

from slipring.base.errors import StartupError
from slipring.config.settings import Config
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.generation import Delta, Job, Settings, Text
from slipring.engines.base import Engine
from slipring.engines.catalog import Catalog, Entry
from slipring.engines.responses.engine import ResponsesEngine
from slipring.engines.responses.options import ResponsesOptions, read_options
from slipring.engines.responses.sockets import _SILENCE_S
from slipring.protocol.items.items import user_message
from slipring.protocol.tools.tool_choice import Offer
from slipring.server.process.server import Server
from tests.engines.emitting import deltas_of
from tests.engines.fakes.responses import FakeResponsesServer, settle
from tests.engines.fakes.server import (
    Call,
    Garbage,
    HangUp,
    Refuse,
    Say,
    Stall,
    Stop,
    Think,
    in_front_of,
    started,
)
from tests.harness import WEATHER, Running, Socket, serve
from tests.loop_clock import LoopClock
from tests.server.raw import gone, until

ASK: dict[str, Any] = {"input": "hello", "store": False}
ZERO_RETENTION = {"OpenAI-Beta": "slipring_zero_retention=v1"}
HELLO = b'{"type":"message","role":"user","content":"hello"}'
MORE = b'{"type":"message","role":"user","content":"more"}'
WORDS = (
    b'{"type":"message","status":"completed","content":[{"type":"output_text","text":"ok","annotations":[],'
    b'"logprobs":[]}],"role":"assistant"}'
)


@pytest.fixture(autouse=True)
def only_kept_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool closes sockets that no response needs when a second begins: here, only in tests of that."""
    monkeypatch.setattr("slipring.engines.responses.sockets._TICK_S", 1e9)


def running(
    transport: str = "websocket", **options: Any
) -> AbstractAsyncContextManager[tuple[FakeResponsesServer, Running]]:
    return in_front_of(FakeResponsesServer(transport), **options)


def job_for(engine: Engine, **fields: Any) -> Job:
    return Job(
        **{
            **{"response_id": "resp_1", "tenant": "t", "model": engine.models()[0], "head": Head()},
            **{"parent": None, "input": (user_message("hello"),), "offer": Offer(), "settings": Settings()},
            **fields,
        }
    )


def text_of(response: dict[str, Any]) -> str:
    return "".join(
        part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"]
    )


async def go_on(
    socket: Socket, previous: dict[str, Any], text: str = "more", **fields: Any
) -> dict[str, Any]:
    asked = {"input": text, "previous_response_id": previous["id"], "store": False, **fields}
    response = await socket.response(**asked)
    assert response["status"] == "completed", response["error"]
    return response


async def lost(server: Running) -> None:
    """Wait until the engine knows that it can use none of its sockets any more."""
    (engine,) = server.service.catalog.engines
    pool = engine._pool
    async with asyncio.timeout(300):
        while any(map(pool._is_usable, pool._sockets)):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)


@pytest.fixture
def untended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets on which no response can be continued stay open, however long the test takes."""
    monkeypatch.setattr("slipring.engines.responses.sockets._TICK_S", 1e9)


# What is sent.


async def test_a_continuation_sends_new_items_on_the_same_socket() -> None:
    async with running() as (fake, server), server.connect() as socket:
        first = await socket.response(**ASK)
        await go_on(socket, first)
        assert len(fake.peers) == 1
        (upstream_id, _) = fake.peers[0].memory
        assert fake.raw == [
            b'{"type":"response.create","model":"up","store":false,"input":[' + HELLO + b"]}",
            b'{"type":"response.create","model":"up","store":false,"previous_response_id":"'
            + upstream_id.encode()
            + b'","input":['
            + MORE
            + b"]}",
        ]


async def test_without_sockets_the_whole_context_is_sent_without_our_ids() -> None:
    async with running("sse") as (fake, server), server.connect() as socket:
        first = await socket.response(**ASK)
        await go_on(socket, first)
        assert fake.raw[1] == (
            b'{"stream":true,"model":"up","store":false,"input":[' + b",".join([HELLO, WORDS, MORE]) + b"]}"
        )


async def test_a_server_that_stores_gets_only_new_items_by_post_too() -> None:
    async with running("sse", chain=True) as (fake, server), server.connect() as socket:
        first = await socket.response(**ASK)
        second = await go_on(socket, first)
        assert fake.requests[1]["previous_response_id"] in fake.stored
        assert (fake.requests[1]["store"], len(fake.requests[1]["input"])) == (True, 1)
        fake.stored.clear()
        await go_on(socket, second)
        assert [len(request["input"]) for request in fake.requests[2:]] == [1, 5]


async def test_a_request_carries_the_clients_settings() -> None:
    custom = {"type": "custom", "name": "shell"}
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    asked = {
        **{"instructions": "Be kind.", "tools": [WEATHER, custom], "parallel_tool_calls": False},
        **{"temperature": 0.5, "top_p": 0.9, "max_output_tokens": 9, "text": {"format": schema}},
        **{"reasoning": {"effort": "low"}, "top_logprobs": 2, "prompt_cache_key": "k", "truncation": "auto"},
        **{"presence_penalty": 0.1, "frequency_penalty": 0.2, "seed": 3},
    }
    async with (
        running(summary="auto", reasoning="encrypted") as (fake, server),
        server.connect() as socket,
    ):
        await socket.response(**ASK, **asked)
        (sent,) = fake.requests
        assert {name: sent[name] for name in asked} == {
            **asked,
            "reasoning": {"effort": "low", "summary": "auto"},
        }
        assert sent["include"] == ["message.output_text.logprobs", "reasoning.encrypted_content"]


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", None),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "name": "get_weather"}, {"type": "function", "name": "get_weather"}),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "shell"}]},
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "shell"}]},
        ),
    ],
)
async def test_tool_choices_are_translated(choice: Any, sent: Any) -> None:
    tools = [WEATHER, {"type": "custom", "name": "shell"}]
    async with running() as (fake, server), server.connect() as socket:
        await socket.response(**ASK, tools=tools, tool_choice=choice)
        assert fake.requests[0].get("tool_choice") == sent


async def test_tools_from_items_are_available() -> None:
    more = {"type": "additional_tools", "role": "developer", "tools": [{"type": "custom", "name": "shell"}]}
    async with running() as (fake, server), server.connect() as socket:
        asked = {"tools": [WEATHER], "tool_choice": {"type": "custom", "name": "shell"}, "store": False}
        await socket.response(input=[more, {"role": "user", "content": "ls"}], **asked)
        assert fake.requests[0]["tool_choice"] == {"type": "custom", "name": "shell"}
        assert fake.requests[0]["input"][0] == more


async def test_warmups_are_passed_on_to_sockets() -> None:
    async with running() as (fake, server), server.connect() as socket:
        warm = await socket.response(**ASK, generate=False)
        assert (warm["output"], warm["usage"]["input_tokens"]) == ([], 7)
        assert fake.requests[0]["generate"] is False
        await go_on(socket, warm)
        assert len(fake.requests[1]["input"]) == 1
    async with running("sse") as (fake, server), server.connect() as socket:
        warm = await socket.response(**ASK, generate=False)
        assert fake.requests == []
        await go_on(socket, warm)
        assert len(fake.requests[0]["input"]) == 2


# Ids.


async def test_outputs_carry_the_upstreams_call_ids_and_none_leaks() -> None:
    async with running() as (fake, server), server.connect() as socket:
        fake.script(Say(("looking",)), Call("get_weather", "{}"), Call("get_weather", "{}"), Stop())
        events = await socket.turn(**ASK, tools=[WEATHER])
        assert "upstream" not in json.dumps(events)
        first = events[-1]["response"]
        calls = [item["call_id"] for item in first["output"] if item["type"] == "function_call"]
        outputs = [
            {"type": "function_call_output", "call_id": call_id, "output": str(number)}
            for number, call_id in enumerate(calls)
        ]
        second = await go_on(socket, first, outputs[::-1], tools=[WEATHER])  # type: ignore[arg-type]
        assert [item["output"] for item in fake.requests[1]["input"]] == ["1", "0"]
        assert not set(calls) & {item["call_id"] for item in fake.requests[1]["input"]}
        # The same chain again, on a new socket: there everything has our ids.
        await fake.peers[0].ws.close()
        await go_on(socket, second, tools=[WEATHER])
        assert {item["call_id"] for item in fake.requests[-1]["input"] if "call_id" in item} == set(calls)
        assert "id" not in {name for item in fake.requests[-1]["input"] for name in item}


async def test_outputs_of_older_calls_carry_their_ids_across_sockets() -> None:
    async with running() as (fake, server), server.connect() as socket:
        fake.is_strict = False
        responses: list[dict[str, Any]] = []
        for _ in range(3):
            # A call that was cut off may be answered at any time.
            fake.script(Call("get_weather", "{"), Stop("length"))
            previous = {"previous_response_id": responses[-1]["id"]} if responses else {}
            responses.append(await socket.response(**ASK, **previous, tools=[WEATHER]))
            if len(responses) == 2:
                await fake.peers[0].ws.close()
                await lost(server)
        calls = [response["output"][0]["call_id"] for response in responses]
        outputs = [{"type": "function_call_output", "call_id": call_id, "output": "x"} for call_id in calls]
        await go_on(socket, responses[2], outputs, tools=[WEATHER])  # type: ignore[arg-type]
        assert [len(peer.creates) for peer in fake.peers] == [2, 2]
        sent = [item["call_id"] for item in fake.requests[-1]["input"]]
        # The third was made on this socket; the others were sent in the whole context, with our ids.
        assert sent[:2] == calls[:2]
        assert "upstream" in sent[2]


async def test_error_messages_name_no_ids_of_the_upstream() -> None:
    async with running() as (fake, server), server.connect() as socket:
        fake.script(Refuse(400, "No tool call found for call_upstream0000000007."))
        events = await socket.turn(**ASK)
        assert "upstream" not in json.dumps(events)


async def test_calls_of_clients_keep_their_ids() -> None:
    call = {"type": "function_call", "call_id": "mine", "name": "get_weather", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "mine", "output": "sun"}
    async with running() as (fake, server), server.connect() as socket:
        first = await socket.response(**ASK)
        await go_on(socket, first, [call, output])  # type: ignore[arg-type]
        assert fake.requests[1]["input"] == [call, output]


async def test_items_from_clients_lose_their_ids_and_nothing_else() -> None:
    answer = {
        "id": "msg_1",
        "content": [{"type": "output_text", "text": "é😀 "}],
        "role": "assistant",
        "x": 1,
    }
    async with running() as (fake, server), server.connect() as socket:
        await socket.response(
            input=[{"type": "message", **answer}, {"role": "user", "content": "a"}], store=False
        )
        assert fake.requests[0]["input"][0] == {
            "type": "message",
            **{k: answer[k] for k in answer if k != "id"},
        }


# Forks.


async def test_forks_run_in_parallel_on_lanes_of_one_socket() -> None:
    async with running() as (fake, server), server.connect() as socket:
        first = await socket.response(**ASK)
        asked = {"previous_response_id": first["id"], "input": "more", "store": False}
        fake.script(Say(("left",)), Stop())
        fake.script(Say(("right",)), Stop())
        await socket.create(**asked, stream_id="a")
        await socket.create(**asked, stream_id="b")
        ends: list[Any] = []
        while len(ends) < 2:
            event = await socket.receive()
            if event["type"] == "response.completed":
                ends.append(event["response"])
        assert sorted(text_of(end) for end in ends) == ["left", "right"]
        await go_on(socket, first)
        assert len(fake.peers) == 1
        lanes = [request.get("stream_id") for request in fake.requests]
        assert (lanes[0], lanes[3], len(set(lanes))) == (None, None, 3)
        assert {request.get("previous_response_id") for request in fake.requests[1:]} == {
            next(iter(fake.peers[0].memory))
        }
        await go_on(socket, ends[0], stream_id="a")
        assert fake.requests[-1]["stream_id"] in lanes[1:3]


async def test_an_earlier_response_of_a_chain_can_be_forked() -> None:
    async with running() as (fake, server), server.connect() as socket:
        first = await socket.response(**ASK)
        await go_on(socket, first)
        await go_on(socket, first, "again")
        assert [request.get("stream_id") for request in fake.requests] == [None, None, "fork-1"]
        assert len(fake.requests[2]["input"]) == 1


async def test_a_fork_that_the_upstream_refuses_gets_its_own_socket() -> None:
    async with running() as (fake, server), server.connect() as socket:
        first = await socket.response(**ASK)
        fake.script(Refuse(400, "Unsupported parameter: stream_id"))
        await go_on(socket, first, stream_id="a")
        assert [len(peer.creates) for peer in fake.peers] == [2, 1]
        assert len(fake.requests[-1]["input"]) == 3
    async with running(lanes=False) as (fake, server), server.connect() as socket:
        first = await socket.response(**ASK)
        await go_on(socket, first, stream_id="a")
        assert [len(peer.creates) for peer in fake.peers] == [1, 1]


@pytest.mark.parametrize("refuses", [True, False])
async def test_an_upstream_that_ignores_lanes_is_detected(refuses: bool) -> None:
    async with running() as (fake, server), server.connect() as socket:
        first = await socket.response(**ASK)
        fake.names_lanes = False
        if refuses:
            fake.script(Refuse(400, "no idea what that is"))
        await go_on(socket, first, stream_id="a")
        assert [len(peer.creates) for peer in fake.peers] == [2, 1]
        second = await go_on(socket, first)
        await go_on(socket, second, stream_id="b")


# What is lost.


async def test_a_socket_lost_between_turns_is_replaced() -> None:
    async with running() as (fake, server), server.connect() as socket:
        first = await socket.response(**ASK)
        await fake.peers[0].ws.close()
        await lost(server)
        second = await go_on(socket, first)
        assert [len(request["input"]) for request in fake.requests] == [1, 3]
        await go_on(socket, second)
        assert [len(peer.creates) for peer in fake.peers] == [1, 2]


async def test_a_socket_lost_at_the_next_turn_is_replaced() -> None:
    async with running() as (fake, server), server.connect() as socket:
        first = await socket.response(**ASK)
        fake.script(HangUp())
        await go_on(socket, first)
        assert [len(request["input"]) for request in fake.requests] == [1, 1, 3]


async def test_a_lost_response_is_replaced_by_the_whole_context() -> None:
    async with running() as (fake, server), server.connect() as socket:
        first = await socket.response(**ASK)
        fake.peers[0].memory.clear()
        await go_on(socket, first)
        assert fake.raw[-1] == (
            b'{"type":"response.create","model":"up","store":false,"input":['
            + b",".join([HELLO, WORDS, MORE])
            + b"]}"
        )


async def test_the_whole_context_is_sent_once_and_not_after_other_refusals() -> None:
    async with running() as (fake, server), server.connect() as socket:
        first = await socket.response(**ASK)
        fake.script(HangUp())
        fake.script(HangUp())
        failed = await socket.response(input="more", previous_response_id=first["id"], store=False)
        assert (failed["status"], len(fake.requests)) == ("failed", 3)
        other = await socket.response(**ASK)
        fake.script(Refuse(400, "too hot"))
        failed = await socket.response(input="more", previous_response_id=other["id"], store=False)
        assert (failed["error"]["code"], len(fake.requests)) == ("invalid_prompt", 5)


async def test_nothing_is_sent_again_after_the_first_delta() -> None:
    async with running(retries=2) as (fake, server), server.connect() as socket:
        first = await socket.response(**ASK)
        fake.script(Say(("one",)), HangUp())
        failed = await socket.response(input="more", previous_response_id=first["id"], store=False)
        assert (failed["status"], text_of(failed), len(fake.requests)) == ("failed", "one", 2)


LIMIT = {
    "type": "error",
    "status": 400,
    "error": {
        "type": "invalid_request_error",
        "code": "websocket_connection_limit_reached",
        "message": "Responses websocket connection limit reached (60 minutes).",
    },
}


async def test_a_socket_at_its_limit_is_replaced() -> None:
    async with running() as (fake, server), server.connect() as socket:
        first = await socket.response(**ASK)
        await fake.peers[0].ws.send_str(json.dumps(LIMIT))
        await lost(server)
        second = await go_on(socket, first)
        assert [len(peer.creates) for peer in fake.peers] == [1, 1]
        assert len(fake.requests[-1]["input"]) == 3
        fake.script(Stall())
        turn = asyncio.create_task(go_on(socket, second))
        await asyncio.wait_for(fake.stalled.wait(), 300)
        # The response has begun, so this is about the connection; it ends with it.
        await fake.peers[1].ws.send_str(json.dumps(LIMIT))
        await fake.peers[1].ws.close()
        assert (await turn)["status"] == "completed"
        assert len(fake.requests[-1]["input"]) == 5


async def test_old_sockets_take_no_more_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(socket_max_age_s=10) as (fake, server), server.connect() as socket:
        first = await socket.response(**ASK)
        LoopClock(monkeypatch).advance(11)
        await go_on(socket, first)
        assert [len(peer.creates) for peer in fake.peers] == [1, 1]


async def test_at_max_sockets_the_one_idle_longest_is_closed() -> None:
    async with running(max_sockets=2, max_jobs=2) as (fake, server), server.connect() as socket:
        chains = [await socket.response(**ASK, stream_id=name) for name in ("a", "b")]
        chains[0] = await go_on(socket, chains[0], stream_id="a")
        await socket.response(**ASK, stream_id="c")
        await asyncio.wait_for(fake.peers[1].is_closed.wait(), 300)
        assert not fake.peers[0].is_closed.is_set()
        await go_on(socket, chains[0], stream_id="a")
        await go_on(socket, chains[1], stream_id="b")
        assert [len(peer.creates) for peer in fake.peers] == [3, 1, 1, 1]


async def test_idle_sockets_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipring.engines.responses.sockets._TICK_S", 0.01)
    async with running(socket_idle_s=0.05) as (fake, server), server.connect() as socket:
        first = await socket.response(**ASK)
        await asyncio.wait_for(fake.peers[0].is_closed.wait(), 300)
        await go_on(socket, first)


async def test_sockets_without_a_response_to_continue_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipring.engines.responses.sockets._TICK_S", 0.01)
    async with running() as (fake, server):
        async with server.connect() as socket:
            await socket.response(**ASK)
        await asyncio.wait_for(fake.peers[0].is_closed.wait(), 300)


@pytest.mark.usefixtures("untended")
async def test_a_socket_that_no_response_can_be_continued_on_is_used_for_the_next_chain() -> None:
    async with running() as (fake, server):
        for _ in range(3):
            await server.post(**ASK)
            await gone(server)
        assert [len(peer.creates) for peer in fake.peers] == [3]


@pytest.mark.usefixtures("untended")
async def test_tenants_share_no_sockets() -> None:
    fake = FakeResponsesServer("websocket")
    await fake.start()
    async with started(fake.engine()) as engine:
        for tenant in ("a", "b", "a"):
            await deltas_of(engine, job_for(engine, tenant=tenant))
        assert [len(peer.creates) for peer in fake.peers] == [2, 1]
    await fake.close()


async def test_a_tenant_with_many_sockets_has_further_chains_share_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slipring.engines.responses.sockets._OWN_SOCKETS", 2)
    async with running() as (fake, server), server.connect() as socket:
        chains = [await socket.response(**ASK, stream_id=f"c{number}") for number in range(5)]
        assert [len(peer.creates) for peer in fake.peers] == [3, 2]
        for number, response in enumerate(chains):
            await go_on(socket, response, stream_id=f"c{number}")
        assert [len(request["input"]) for request in fake.requests] == [1] * 10, "all are continued"
        assert [len(peer.creates) for peer in fake.peers] == [6, 4]


async def test_without_lanes_chains_share_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipring.engines.responses.sockets._OWN_SOCKETS", 1)
    async with running(lanes=False) as (fake, server), server.connect() as socket:
        for number in range(2):
            await socket.response(**ASK, stream_id=f"c{number}")
        assert [len(peer.creates) for peer in fake.peers] == [1, 1]


async def test_chains_get_their_own_sockets_from_an_upstream_that_ignores_lanes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slipring.engines.responses.sockets._OWN_SOCKETS", 1)
    async with running() as (fake, server), server.connect() as socket:
        fake.names_lanes = False
        for number in range(3):
            assert (await socket.response(**ASK, stream_id=f"c{number}"))["status"] == "completed"
        assert [len(peer.creates) for peer in fake.peers] == [2, 1, 1], "the second was sent twice"


@pytest.mark.usefixtures("untended")
async def test_a_reused_socket_that_was_lost_is_replaced() -> None:
    async with running() as (fake, server):
        await server.post(**ASK)
        await gone(server)
        fake.script(HangUp())
        status, _ = await server.post(**ASK)
        assert status == 200
        assert [len(peer.creates) for peer in fake.peers] == [2, 1]


async def test_silent_sockets_are_pinged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipring.engines.responses.sockets._TICK_S", 0.01)
    async with running() as (fake, server), server.connect() as socket:
        first = await socket.response(**ASK)
        (engine,) = server.service.catalog.engines
        (upstream,) = engine._pool._sockets
        for _ in range(3):
            upstream.heard_at = upstream.pinged_at = upstream.heard_at - _SILENCE_S - 1
            await asyncio.wait_for(fake.peers[0].pings.get(), 300)
            async with asyncio.timeout(300):
                while upstream.heard_at < upstream.pinged_at:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.01)
        await go_on(socket, first)
        assert len(fake.peers) == 1


async def test_sockets_that_do_not_answer_pings_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipring.engines.responses.sockets._TICK_S", 0.01)
    monkeypatch.setattr("slipring.engines.responses.sockets._SILENCE_S", 0.05)
    async with running() as (fake, server), server.connect() as socket:
        fake.is_deaf = True
        first = await socket.response(**ASK)
        await asyncio.wait_for(fake.peers[0].is_closed.wait(), 300)
        monkeypatch.setattr("slipring.engines.responses.sockets._SILENCE_S", 3600.0)
        await go_on(socket, first)
        assert len(fake.peers) == 2


async def test_a_context_too_large_for_a_frame_is_posted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running("auto") as (fake, server), server.connect() as socket:
        monkeypatch.setattr("slipring.engines.responses.engine.MOST_FRAME_BYTES", 64 * 1024 + 100)
        first = await socket.response(**ASK)
        await fake.peers[0].ws.close()
        await lost(server)
        second = await go_on(socket, first, "x" * 200)
        assert (fake.upgrades, fake.requests[-1]["stream"]) == (1, True)
        await go_on(socket, second)
        assert (fake.upgrades, len(fake.requests[-1]["input"])) == (1, 5)


# Cancelling and holding back.


async def test_a_client_that_leaves_closes_only_the_socket_of_its_chain() -> None:
    async with running() as (fake, server), server.connect() as other:
        first = await other.response(**ASK)
        fake.script(Say(("one",)), Stall())
        async with server.connect(abandoned=True) as socket:
            await socket.create(**ASK)
            await socket.until("response.output_text.delta")
        await asyncio.wait_for(fake.peers[1].is_closed.wait(), 300)
        await go_on(other, first)
        assert len(fake.peers) == 2


async def test_a_cancelled_answer_is_read_to_its_end_if_its_socket_is_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(idle_timeout_s=600) as (fake, server), server.connect() as socket:
        clock = LoopClock(monkeypatch)
        first = await socket.response(**ASK)
        asked = {"previous_response_id": first["id"], "input": "more", "store": False}
        fake.script(Say(("kept",)), Stall())
        await socket.create(**asked, stream_id="a")
        await socket.until("response.output_text.delta", lane="a")
        clock.advance(400)
        fake.script(Say(("gone",)), Stall())
        await socket.create(**asked, stream_id="b")
        await socket.until("response.output_text.delta", lane="b")
        clock.advance(400)
        failed = (await socket.until("response.failed", lane="a"))[-1]["response"]
        assert text_of(failed) == "kept"
        # The socket stayed open, because another job used it.
        clock.advance(400)
        failed = (await socket.until("response.failed", lane="b"))[-1]["response"]
        assert text_of(failed) == "gone"
        await asyncio.wait_for(fake.peers[0].is_closed.wait(), 300)


async def test_a_slow_reader_slows_the_upstream_down() -> None:
    words = tuple(f"{number} " + "x" * 20_000 for number in range(800))
    fake = FakeResponsesServer("websocket")
    await fake.start()
    engine = fake.engine()
    await engine.start()
    try:
        fake.script(Say(words), Stop())
        reads, received = asyncio.Event(), list[str]()

        def take(deltas: list[Delta]) -> Awaitable[None] | None:
            texts = [delta.text for delta in deltas if isinstance(delta, Text)]
            received.extend(texts)
            return wait_for_reader() if texts else None

        async def wait_for_reader() -> None:
            await reads.wait()

        running = asyncio.create_task(engine.generate(job_for(engine), take))
        before = -1
        while before != fake.pulled or not received:
            before = fake.pulled
            await asyncio.sleep(0.2)
        assert fake.pulled < len(words)
        reads.set()
        await running
        assert tuple(received) == words
    finally:
        await engine.close()
        await fake.close()


async def test_pings_of_the_upstream_are_answered() -> None:
    async with running() as (fake, server), server.connect() as socket:
        first = await socket.response(**ASK)
        for _ in range(3):
            await fake.peers[0].ws.ping()
        await settle()
        await go_on(socket, first)
        assert len(fake.peers) == 1


# Which transport.


@pytest.mark.parametrize("status", [400, 403, 404, 405, 426])
async def test_after_a_refused_upgrade_all_requests_are_posted(status: int) -> None:
    async with running("auto") as (fake, server), server.connect() as socket:
        fake.refuses_upgrade = status
        first = await socket.response(**ASK)
        await go_on(socket, first)
        assert (fake.upgrades, len(fake.requests[1]["input"])) == (1, 3)


async def test_a_named_transport_is_never_replaced() -> None:
    async with running() as (fake, server), server.connect() as socket:
        fake.refuses_upgrade = 404
        assert (await socket.response(**ASK))["status"] == "failed"
        assert fake.requests == []


@pytest.mark.parametrize("status", [500, 502, 503])
async def test_requests_are_posted_for_a_while_after_an_upgrade_that_failed(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running("auto") as (fake, server), server.connect() as socket:
        fake.refuses_upgrade = status
        assert (await socket.response(**ASK))["status"] == "completed"
        assert (await socket.response(**ASK))["status"] == "completed"
        assert (fake.upgrades, len(fake.peers)) == (1, 0)
        fake.refuses_upgrade = None
        engine = server.server.catalog.engines[0]
        assert isinstance(engine, ResponsesEngine)
        monkeypatch.setattr(engine._pool, "_posts_until", 0.0)
        assert (await socket.response(**ASK))["status"] == "completed"
        assert (fake.upgrades, len(fake.peers)) == (2, 1)


@pytest.mark.parametrize(
    "location",
    [
        *("http://[::1/x", "//127.0.0.1:99999/", "http://127.0.0.1:1/elsewhere", "http://me:hush@localhost/"),
        *("/v1/responses", "ftp://127.0.0.1/x", ""),
    ],
)
async def test_requests_are_posted_after_an_upgrade_that_is_redirected(location: str) -> None:
    async with running("auto") as (fake, server), server.connect() as socket:
        fake.refuses_upgrade, fake.refusal_headers = 301, {"Location": location}
        assert (await socket.response(**ASK))["status"] == "completed"
        assert (await socket.response(**ASK))["status"] == "completed"
        assert len(fake.peers) == 0


async def test_an_upgrade_that_fails_is_an_error_if_only_sockets_are_wanted() -> None:
    async with running("websocket", retries=1) as (fake, server), server.connect() as socket:
        fake.refuses_upgrade = 503
        assert (await socket.response(**ASK))["status"] == "failed"
        fake.refuses_upgrade = None
        assert (await socket.response(**ASK))["status"] == "completed"
        assert (fake.upgrades, len(fake.peers)) == (3, 1)


async def test_the_upgrade_carries_key_beta_and_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UP_KEY", "sk-up")
    async with (
        running(key_env="UP_KEY", key_header="api-key") as (fake, server),
        server.connect() as socket,
    ):
        await socket.response(**ASK)
        headers = fake.headers[0]
        assert (headers["api-key"], headers["openai-beta"]) == ("sk-up", "responses_websockets=2026-02-06")
        assert "authorization" not in headers
        assert "x-session-id" in headers
    async with running("sse", key_env="UP_KEY") as (fake, server), server.connect() as socket:
        await socket.response(**ASK)
        assert fake.headers[0]["authorization"] == "Bearer sk-up"


# Reasoning.


async def test_encrypted_reasoning_is_sent_back_at_its_place() -> None:
    async with running("sse", reasoning="encrypted") as (fake, server), server.connect() as socket:
        fake.script(Think(("hm",)), Say(("a",)), Think(("ah",)), Call("get_weather", "{}"), Stop())
        first = await socket.response(**ASK, tools=[WEATHER])
        assert "c2VjcmV0" not in json.dumps(first)
        output = {"type": "function_call_output", "call_id": first["output"][3]["call_id"], "output": "sun"}
        await go_on(socket, first, [output], tools=[WEATHER])  # type: ignore[arg-type]
        sent = fake.requests[1]["input"]
        kinds = ["message", "reasoning", "message", "reasoning", "function_call", "function_call_output"]
        assert [item["type"] for item in sent] == kinds
        assert (sent[1]["encrypted_content"], "id" in sent[1]) == ("c2VjcmV0", False)


@pytest.mark.parametrize(("option", "kinds"), [("drop", ["message"] * 3), ("text", None)])
async def test_reasoning_is_dropped_or_sent_as_text(option: str, kinds: list[str] | None) -> None:
    async with running("sse", reasoning=option) as (fake, server), server.connect() as socket:
        fake.script(Think(("hm",)), Say(("a",)), Stop())
        await go_on(socket, await socket.response(**ASK))
        sent = [item["type"] for item in fake.requests[1]["input"]]
        assert sent == (kinds or ["message", "reasoning", "message", "message"])


# ResponsesOptions.


def test_addresses() -> None:
    assert read_options("http://h:1").url == "http://h:1/v1"
    assert read_options("https://h/openai/v1/").url == "https://h/openai/v1"
    azure = read_options("https://h/openai/v1?api-version=preview,model=m,key_header=api-key")
    assert (azure.url, azure.query, azure.model) == ("https://h/openai/v1", "api-version=preview", "m")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "needs the address of a server"),
        ("model=x", "needs the address of a server"),
        ("http://h,transport=pigeon", "'transport' must be auto, websocket or sse"),
        ("http://h,max_sockets=3", "'max_sockets' must not be less than 'max_jobs'"),
        ("http://h,nonsense=1", "unknown option 'nonsense'"),
    ],
)
def test_unusable_options_fail_with_one_line(text: str, complaint: str) -> None:
    with pytest.raises(StartupError, match=complaint):
        read_options(text)


async def test_models_are_listed_by_the_upstream() -> None:
    async with (
        serve("simulated:tokens_per_s=0", model=("one", "two")) as other,
        started(ResponsesEngine(ResponsesOptions(url=other.url))) as engine,
    ):
        assert [model.name for model in engine.models()] == ["one", "two"]
    with pytest.raises(StartupError, match="cannot reach"):
        async with started(ResponsesEngine(ResponsesOptions(url="http://127.0.0.1:9/v1"))):
            pass


async def test_ids_and_thoughts_of_one_upstream_never_reach_another() -> None:
    one, other = FakeResponsesServer("websocket"), FakeResponsesServer("websocket")
    await one.start()
    await other.start()
    engines = {name: fake.engine(reasoning="encrypted") for name, fake in (("a", one), ("b", other))}
    server = Server(Config(port=0), engine=engines["a"])
    server.catalog = server.service.catalog = Catalog(engines, [Entry("a", "a"), Entry("b", "b")])
    await server.start()
    try:
        async with aiohttp.ClientSession() as http, Running(server, http).connect() as socket:
            one.script(Think(("hm",)), Say(("yes",)), Stop())
            first = await socket.response(**ASK, model="a")
            await go_on(socket, first, model="b")
    finally:
        await server.stop()
        await one.close()
        await other.close()
    (sent,) = other.requests
    assert "previous_response_id" not in sent
    assert "encrypted_content" not in json.dumps(sent["input"])


@pytest.mark.parametrize("ending", [Stall(), HangUp(), Stop()])
async def test_a_socket_that_is_closed_is_freed_without_a_garbage_collection(
    ending: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipring.engines.responses.sockets._TICK_S", 0.01)
    async with running() as (fake, server):
        pool = server.service.catalog.engines[0]._pool
        gc.disable()
        try:
            rest = asyncio.Event()
            fake.script(Say(("one", "two"), rest=rest), ending)
            async with server.connect(abandoned=True, headers=ZERO_RETENTION) as socket:
                await socket.create(**ASK)
                await socket.until("response.output_text.delta")
                (used,) = map(weakref.ref, pool._sockets)
                rest.set()
            await gone(server)
            await until(lambda: used() is None)
        finally:
            gc.enable()


DEEP = '{"type":"response.output_item.done","item":' + "[" * 5000 + "]" * 5000 + "}"
MALFORMED = '{"type":"response.completed","response":{"id":"resp_1","output":[{"type":7}]}}'


@pytest.mark.parametrize(
    ("transport", "event"),
    [("sse", DEEP), ("websocket", DEEP), ("sse", MALFORMED)],
    ids=["sse-deep", "websocket-deep", "sse-malformed"],
)
async def test_an_event_that_cannot_be_read_fails_its_response_once(
    transport: str, event: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(transport) as (fake, server), server.connect() as socket:
        fake.garbage = event
        fake.script(Garbage())
        response = await socket.response(**ASK)
        assert response["error"]["message"] == "The engine's answer cannot be read."
        assert (await socket.response(**ASK))["status"] == "completed"
    assert "unexpectedly" not in caplog.text
