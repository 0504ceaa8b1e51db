"""Stage timings as clients and operators see them."""

from typing import Any

from slipring.core.generation import Accepted
from tests.harness import PuppetEngine, Running, read_sse, serve
from tests.wire import TIMING

ASKED = {"OpenAI-Beta": "responses_websockets=v2, slipring_timing=v1"}
STAGES = ["decode", "queue", "resolve", "validate", "render", "engine_queue", "prefill", "generate"]


def names(timing: dict[str, Any]) -> list[str]:
    return [stage["name"] for stage in timing["stages"]]


async def test_a_socket_that_asks_gets_a_timing_event_after_each_response() -> None:
    async with serve() as server, server.connect(headers=ASKED) as socket:
        first = await socket.response(input="hello", stream_id="a")
        event = await socket.receive()
        assert (event["type"], event["stream_id"]) == (TIMING, "a")
        timing = event["timing"]
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


async def test_a_socket_that_did_not_ask_gets_no_timing_event() -> None:
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
        # Headers are sent when the response begins.
        assert [part.split(";")[0] for part in headers["Server-Timing"].split(", ")][:5] == STAGES[:5]
        *_, terminal, timing = read_sse(text)
        assert timing["type"] == TIMING
        assert timing["timing"]["response_id"] == terminal["response"]["id"]


async def test_an_http_error_has_a_server_timing_header() -> None:
    async with serve() as server:
        headers, _ = await post(server, input="hello", model="nobody")
        assert headers["Server-Timing"].startswith("decode;dur=")


async def test_a_tenant_can_list_the_recent_turns_of_its_open_sockets() -> None:
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


async def test_send_ms_is_zero_for_a_client_that_reads() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect(headers=ASKED) as socket:
        await socket.create(input="hello", store=False)
        performance = await engine.next()
        performance.say("hi")
        performance.finish()
        await socket.until("response.completed")
        assert (await socket.receive())["timing"]["send_ms"] == 0


async def test_health_counts_full_renderings_by_reason() -> None:
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
