"""Stage timings as clients and operators see them."""

import logging
from typing import Any

import pytest

from slipring.core.generation import Accepted
from tests.harness import PuppetEngine, Running, read_sse, serve
from tests.wire import TIMING

ASKED = {"OpenAI-Beta": "responses_websockets=v2, slipring_timing=v1"}
STAGES = ["decode", "queue", "resolve", "validate", "render", "engine_queue", "prefill", "generate"]


def names(timing: dict[str, Any]) -> list[str]:
    return [stage["name"] for stage in timing["stages"]]


async def test_a_socket_that_asks_is_told_after_each_response() -> None:
    async with serve() as server, server.connect(headers=ASKED) as socket:
        first = await socket.response(input="hello", stream_id="a")
        told = await socket.receive()
        assert (told["type"], told["stream_id"]) == (TIMING, "a")
        timing = told["timing"]
        assert timing["response_id"] == first["id"]
        assert names(timing) == [*STAGES, "store", "terminal"]
        assert timing["tokens"]["input"] == first["usage"]["input_tokens"]
        second = await socket.response(
            input="more", previous_response_id=first["id"], store=False, stream_id="a"
        )
        timing = (await socket.receive())["timing"]
        assert timing["previous_response_id"] == first["id"]
        assert timing["response_id"] == second["id"]
        assert names(timing) == [*STAGES, "terminal"]
        assert timing["tokens"]["cached"] == second["usage"]["input_tokens_details"]["cached_tokens"]


async def test_a_socket_that_did_not_ask_is_not_told() -> None:
    async with serve() as server, server.connect() as socket:
        await socket.response(input="hello")
        assert (await socket.turn(input="hello"))[0]["type"] == "response.created"


async def post(server: Running, **body: Any) -> tuple[Any, str]:
    headers = {"Authorization": "Bearer test-key", **ASKED}
    async with server.http.post(f"{server.url}/responses", json=body, headers=headers) as answer:
        return answer.headers, await answer.text()


async def test_http_has_a_header_and_streams_the_event_too() -> None:
    async with serve() as server:
        headers, _ = await post(server, input="hello")
        assert [part.split(";")[0] for part in headers["Server-Timing"].split(", ")] == [
            *STAGES,
            *("store", "terminal"),
        ]
        headers, text = await post(server, input="hello", stream=True)
        # Headers go out when the response begins.
        assert [part.split(";")[0] for part in headers["Server-Timing"].split(", ")][:5] == STAGES[:5]
        *_, terminal, timing = read_sse(text)
        assert timing["type"] == TIMING
        assert timing["timing"]["response_id"] == terminal["response"]["id"]


async def test_a_refusal_over_http_says_where_its_time_went() -> None:
    async with serve() as server:
        headers, _ = await post(server, input="hello", model="nobody")
        assert headers["Server-Timing"].startswith("decode;dur=")


async def test_the_recent_turns_of_open_sockets_can_be_looked_at_by_their_tenant() -> None:
    async with serve(api_key=("a:key-a", "b:key-b")) as server, server.connect(key="key-a") as socket:
        for text in ("one", "two"):
            last = await socket.response(input=text)
        await socket.error(input="three", model="nobody")
        turns = await recent(server, "key-a")
        assert [turn["status"] for turn in turns] == ["refused", "completed", "completed"]
        assert turns[1]["response_id"] == last["id"]
        assert turns[0]["error_code"] == "model_not_found"
        assert await recent(server, "key-b") == []
        for number in range(20):
            await socket.response(input=str(number))
        assert len(await recent(server, "key-a")) == 16


async def recent(server: Running, key: str) -> list[dict[str, Any]]:
    headers = {"Authorization": f"Bearer {key}"}
    async with server.http.get(f"{server.url}/slipring/turns", headers=headers) as answer:
        assert answer.status == 200
        body: dict[str, Any] = await answer.json()
        turns: list[dict[str, Any]] = body["data"]
        return turns


async def test_each_turn_is_one_line_in_the_log_without_a_word_of_content(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="slipring.turns")
    async with serve() as server, server.connect() as socket:
        response = await socket.response(input="my secret", stream_id="lane-1")
        await socket.error(input="my secret", model="nobody", previous_response_id=None)
        await socket.error(input="my secret", previous_response_id="x\nresponse=forged y")
    done, refused, forged = [each.getMessage() for each in caplog.records if each.name == "slipring.turns"]
    assert done.startswith(f"response={response['id']} lane=lane-1 status=completed model=simulated bytes=")
    assert "prefill_ms=" in done
    assert "status=refused error=model_not_found" in refused
    assert "secret" not in done + refused + forged
    assert "previous='x\\nresponse=forged_y' status=refused" in forged


async def test_a_client_that_reads_is_not_waited_for() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect(headers=ASKED) as socket:
        await socket.create(input="hello", store=False)
        performance = await engine.next()
        performance.say("hi")
        performance.finish()
        await socket.until("response.completed")
        assert (await socket.receive())["timing"]["send_ms"] == 0


async def test_contexts_that_were_rendered_in_full_are_counted_by_reason() -> None:
    engine = PuppetEngine()
    engine.accepts = False
    async with serve(engine) as server, server.connect() as socket:
        for reason in ("the head changed", None, "the head changed"):
            await socket.create(input="hello", store=False)
            performance = await engine.next()
            performance.emit(Accepted(7, reason))
            performance.finish()
            await socket.until("response.completed")
        async with server.http.get(server.url.removesuffix("/v1") + "/health") as answer:
            assert (await answer.json())["render_fallbacks"] == {"the head changed": 2}
