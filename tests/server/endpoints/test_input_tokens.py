"""``POST /v1/responses/input_tokens``."""

from openai import AsyncOpenAI

from slipring.base.errors import ContextLengthExceeded
from slipring.core.generation import Job
from tests.api import Api
from tests.harness import WEATHER, PuppetEngine, serve


async def test_a_count_is_what_a_response_would_be_charged() -> None:
    async with serve() as server:
        api = Api(server)
        for fields in (
            {"input": "hello there"},
            {"input": "hello", "instructions": "Be brief.", "tools": [WEATHER]},
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a b c"}]}]},
        ):
            status, counted = await api.call("POST", "/responses/input_tokens", json=fields)
            assert (status, counted["object"]) == (200, "response.input_tokens")
            _, response = await server.post(**fields)
            assert counted["input_tokens"] == response["usage"]["input_tokens"]


async def test_the_history_counts() -> None:
    async with serve() as server:
        api = Api(server)
        _, first = await server.post(input="one")
        _, conversation = await api.call(
            "POST", "/conversations", json={"items": [{"role": "user", "content": "a long time ago"}]}
        )
        for fields in ({"previous_response_id": first["id"]}, {"conversation": conversation["id"]}):
            _, alone = await api.call("POST", "/responses/input_tokens", json={"input": "two"})
            _, counted = await api.call("POST", "/responses/input_tokens", json={"input": "two", **fields})
            assert counted["input_tokens"] > alone["input_tokens"]
            _, response = await server.post(input="two", **fields)
            assert counted["input_tokens"] == response["usage"]["input_tokens"]


async def test_a_count_stores_nothing() -> None:
    async with serve() as server:
        api = Api(server)
        _, conversation = await api.call("POST", "/conversations")
        body = {"input": "x", "conversation": conversation["id"]}
        assert (await api.call("POST", "/responses/input_tokens", json=body))[0] == 200
        _, page = await api.call("GET", f"/conversations/{conversation['id']}/items")
        assert page["data"] == []
        assert server.service.clients == set()


async def test_invalid_requests_are_refused_like_creates() -> None:
    async with serve() as server:
        for fields, status, param in (
            ({"input": 3}, 400, "input"),
            ({"input": "x", "model": "nobody"}, 404, "model"),
            ({"input": "x", "previous_response_id": "resp_x"}, 400, "previous_response_id"),
            ({"input": "x", "conversation": "conv_x"}, 404, "conversation"),
            ({"input": "x", "stream_id": "a"}, 400, "stream_id"),
        ):
            got, error = await Api(server).call("POST", "/responses/input_tokens", json=fields)
            assert (got, error["error"]["param"]) == (status, param)


class FullEngine(PuppetEngine):
    async def count(self, job: Job, enough: int | None = None) -> int:
        raise ContextLengthExceeded(3, 2)


async def test_an_error_of_the_engine_is_returned() -> None:
    async with serve(FullEngine()) as server:
        status, error = await Api(server).call("POST", "/responses/input_tokens", json={"input": "x"})
        assert (status, error["error"]["code"]) == (400, "context_length_exceeded")


async def test_a_context_to_be_compacted_counts_as_its_compaction_is_charged() -> None:
    """The summary's own prompt is part of the count, and no threshold shortens it."""
    items = [{"role": "user", "content": "word " * 50}, {"type": "compaction_trigger"}]
    async with serve() as server:
        status, counted = await Api(server).call("POST", "/responses/input_tokens", json={"input": items})
        assert status == 200
        _, response = await server.post(input=items)
        assert counted["input_tokens"] == response["usage"]["input_tokens"]


async def test_the_sdk_counts() -> None:
    async with serve() as server, AsyncOpenAI(base_url=server.url, api_key="any") as client:
        counted = await client.responses.input_tokens.count(input="hello", model="simulated")
        assert counted.input_tokens > 0
