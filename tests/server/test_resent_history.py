"""Clients that send their whole history with every turn, over HTTP and over WebSocket."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from slipring.core.limits import Limits
from tests.api import Api
from tests.engines.fakes.server import Call, Say, Stop
from tests.engines.fakes.tokens import decoded
from tests.engines.fakes.vllm import fake_vllm
from tests.harness import WEATHER, Running, read_sse, serve
from tests.server.raw import until

pytestmark = pytest.mark.usefixtures("compiled_here")

Json = dict[str, Any]
Create = Callable[..., Awaitable[Json]]
ENGINE = "simulated:tokens_per_s=0,output_tokens=8,tool_calls=2,digest=true"
OFF = Limits(recognised_s=0)
TIMED = {"OpenAI-Beta": "slipring_timing=v1"}
CALL = Call("get_weather", '{"city": "Rome"}')
SPELLINGS = ["as emitted", "without ids", "shorthand"]


async def over_http(server: Running, key: str = "test-key", **body: Any) -> Json:
    """Create a response with a stream; returns its object and its timing."""
    headers = {"Authorization": f"Bearer {key}", **TIMED}
    url = f"{server.url}/responses"
    async with server.http.post(url, json={"stream": True, **body}, headers=headers) as answer:
        *_, terminal, timing = read_sse(await answer.text())
    return {**terminal["response"], "timing": timing["timing"]}


async def over_a_socket(server: Running, key: str = "test-key", **body: Any) -> Json:
    """The same over a connection of its own."""
    async with server.connect(key=key, headers=TIMED) as socket:
        response = await socket.response(**body)
        return {**response, "timing": (await socket.receive())["timing"]}


TRANSPORTS = pytest.mark.parametrize("create", [over_http, over_a_socket])


def spelled(items: list[Json], spelling: str) -> list[Json]:
    """Items as a client sends them back."""
    if spelling == "as emitted":
        return items
    items = [{name: value for name, value in item.items() if name not in ("id", "status")} for item in items]
    if spelling == "shorthand":
        items = [_short(item) if item["type"] == "message" else item for item in items]
    return items


def _short(item: Json) -> Json:
    content = item["content"]
    text = content if isinstance(content, str) else "".join(part["text"] for part in content)
    return {"role": item["role"], "content": text}


async def loop(server: Running, create: Create, spelling: str = "as emitted", **fields: Any) -> list[Json]:
    """A tool loop of three turns and another question, each with the whole history; returns the responses."""
    history: list[Json] = [{"type": "message", "role": "user", "content": "weather?"}]
    responses = []
    for turn in range(4):
        response = await create(
            server, input=spelled(history, spelling), tools=[WEATHER], **{"store": False, **fields}
        )
        responses.append(response)
        history += response["output"]
        calls = [item for item in response["output"] if item["type"] == "function_call"]
        history += [
            {"type": "function_call_output", "call_id": call["call_id"], "output": f"sunny {turn}"}
            for call in calls
        ]
        if not calls:
            history.append({"type": "message", "role": "user", "content": "and tomorrow?"})
    return responses


def texts(responses: list[Json]) -> list[str]:
    """What the responses say; the engine's answers carry a digest of the context that it was given."""
    items = [item for response in responses for item in response["output"]]
    return [item.get("arguments") or item["content"][0]["text"] for item in items]


@TRANSPORTS
@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_a_resent_history_costs_its_delta_and_changes_no_answer(create: Create, spelling: str) -> None:
    async with serve(ENGINE) as server:
        responses = await loop(server, create, spelling)
        again = await loop(server, create, spelling)
    async with serve(ENGINE, limits=OFF) as server:
        plain = await loop(server, create, spelling)
    assert texts(responses) == texts(again) == texts(plain)
    timings = [response["timing"] for response in responses]
    assert [timing.get("recognised_items", 0) for timing in timings] == [0, 2, 4, 6]
    assert [timing["input_items"] for timing in timings] == [1, 3, 5, 7]
    assert all("recognised_items" not in response["timing"] for response in plain)
    rendered, rendered_anew = (
        [response["timing"]["tokens"]["rendered"] for response in loop] for loop in (responses, plain)
    )
    assert rendered_anew == sorted(rendered_anew)
    assert max(rendered) < 10 < min(rendered_anew[1:])
    assert [response["usage"]["input_tokens"] for response in responses] == [
        response["usage"]["input_tokens"] for response in plain
    ]
    assert {response["previous_response_id"] for response in responses} == {None}


async def test_a_stored_response_has_all_the_items_that_its_client_sent() -> None:
    async with serve(ENGINE) as server:
        *_, before, last = await loop(server, over_http, store=True)
        assert last["timing"]["recognised_items"] == 6
        headers = {"Authorization": "Bearer test-key"}
        url = f"{server.url}/responses/{last['id']}"
        async with server.http.get(f"{url}/input_items?order=asc", headers=headers) as answer:
            listed = (await answer.json())["data"]
        assert [item["type"] for item in listed] == [
            "message",
            *(["function_call", "function_call_output"] * 2),
            "message",
            "message",
        ]
        assert listed[5]["id"] == before["output"][0]["id"]
        # A chain continues it, and a deleted ancestor is missed by nobody.
        url = f"{server.url}/responses/{before['id']}"
        async with server.http.delete(url, headers=headers) as answer:
            assert answer.status == 200
        status, _ = await server.post(input="more", previous_response_id=last["id"], tools=[WEATHER])
        assert status == 200


async def test_contexts_of_a_deleted_response_are_forgotten() -> None:
    async with serve(ENGINE) as server:
        service = server.service
        first = await over_http(server, input="hello", tools=[WEATHER])
        assert len(service.known) == 2
        assert service.items.used_bytes > 0
        assert service.heads.used_bytes > 0
        headers = {"Authorization": "Bearer test-key"}
        async with server.http.delete(f"{server.url}/responses/{first['id']}", headers=headers) as answer:
            assert answer.status == 200
        assert len(service.known) == service.items.used_bytes == service.heads.used_bytes == 0


@pytest.mark.parametrize("what", ["conversation", "item"])
async def test_items_of_a_deleted_conversation_are_forgotten(what: str) -> None:
    """Contexts of conversations are never recognised, but their items are."""
    async with serve(ENGINE) as server:
        service, api = server.service, Api(server)
        conversation = (await api.call("POST", "/conversations", json={}))[1]["id"]
        for _ in range(2):
            await over_http(server, input="hello", instructions="Be brief.", conversation=conversation)
        assert len(service.known) == 0
        assert service.items.used_bytes > 0
        path = f"/conversations/{conversation}"
        if what == "item":
            path += f"/items/{(await api.call('GET', path + '/items'))[1]['first_id']}"
        assert (await api.call("DELETE", path))[0] == 200
        assert service.items.used_bytes == service.heads.used_bytes == 0


async def test_a_run_that_ends_while_it_is_deleted_is_forgotten_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serve("simulated:tokens_per_s=0,output_tokens=8,ttft_ms=200") as server:
        service = server.service
        status, run = await server.post(input="hello", tools=[WEATHER], background=True)
        assert status == 200
        delete = service.store.runs.delete

        async def delete_after_its_end(tenant: str, response_id: str) -> bool:
            await until(lambda: len(service.known) > 0)
            return await delete(tenant, response_id)

        monkeypatch.setattr(service.store.runs, "delete", delete_after_its_end)
        headers = {"Authorization": "Bearer test-key"}
        async with server.http.delete(f"{server.url}/responses/{run['id']}", headers=headers) as answer:
            assert answer.status == 200
        assert len(service.known) == service.items.used_bytes == service.heads.used_bytes == 0


@TRANSPORTS
async def test_items_and_tools_that_are_sent_again_are_not_decoded_again(create: Create) -> None:
    async with serve(ENGINE) as server:
        service = server.service
        first = {"role": "user", "content": "one"}
        second = {"type": "message", "role": "user", "content": "two"}
        await create(server, input=[first, second], tools=[WEATHER], store=False)
        (known,) = service.items._by_tenant.values()
        before = list(known.values())
        (head,) = (kept for heads in service.heads._by_tenant.values() for kept in heads.values())
        await create(server, input=[first, second, first], tools=[WEATHER], store=False)
        assert [id(item) for item in known.values()] == [id(item) for item in before]
        (same,) = (kept for heads in service.heads._by_tenant.values() for kept in heads.values())
        assert same is head


async def test_tenants_do_not_recognise_each_others_histories() -> None:
    async with serve(ENGINE, api_key=("a:one", "b:two")) as server:
        for key, count in (("one", None), ("two", None), ("one", 1), ("two", 1)):
            response = await over_http(server, key, input="hello", store=False)
            assert response["timing"].get("recognised_items") == count, key


async def test_nothing_is_kept_for_a_client_that_wants_no_retention() -> None:
    async with serve(ENGINE) as server:
        beta = {"Authorization": "Bearer test-key", "OpenAI-Beta": "slipring_zero_retention=v1"}
        body = {"input": "hello", "store": False, "tools": [WEATHER]}
        async with server.http.post(f"{server.url}/responses", json=body, headers=beta) as answer:
            assert answer.status == 200
        async with server.connect(headers=beta) as socket:
            await socket.response(**body)
        service = server.service
        assert len(service.known) == service.items.used_bytes == service.heads.used_bytes == 0


async def test_nothing_is_kept_of_a_background_response_or_a_compaction_either() -> None:
    async with serve(ENGINE) as server:
        beta = {"Authorization": "Bearer test-key", "OpenAI-Beta": "slipring_zero_retention=v1"}
        body: Json = {"input": "hello", "tools": [WEATHER], "background": True, "stream": True}
        async with server.http.post(f"{server.url}/responses", json=body, headers=beta) as answer:
            assert read_sse(await answer.text())[-1]["type"] == "response.completed"
        body = {"input": "hello", "model": "simulated"}
        async with server.http.post(f"{server.url}/responses/compact", json=body, headers=beta) as answer:
            assert answer.status == 200
        service = server.service
        await until(lambda: not service.clients)
        assert len(service.known) == service.items.used_bytes == service.heads.used_bytes == 0


async def test_a_history_of_a_closed_connection_is_recognised() -> None:
    """As after a reconnect of a client that keeps no response ids."""
    async with serve(ENGINE) as server:
        async with server.connect() as socket:
            first = await socket.response(input="hello", store=False)
            second = await socket.response(input="more", previous_response_id=first["id"], store=False)
        question = {"role": "user", "content": "hello"}
        sent = [question, *first["output"], {"role": "user", "content": "more"}, *second["output"]]
        third = await over_http(server, input=[*sent, {"role": "user", "content": "again"}], store=False)
        assert third["timing"]["recognised_items"] == 4


async def test_a_large_history_is_digested_while_it_is_decoded() -> None:
    async with serve(ENGINE) as server:
        question = {"role": "user", "content": "words " * 25_000}
        first = await over_http(server, input=[question], store=False)
        sent = [question, *first["output"], {"role": "user", "content": "more"}]
        for create in (over_http, over_a_socket):
            response = await create(server, input=sent, store=False)
            assert response["timing"]["recognised_items"] >= 2


async def test_errors_name_the_items_of_the_whole_history() -> None:
    async with serve(ENGINE) as server:
        first = await over_http(server, input="hello", store=False)
        sent = [{"role": "user", "content": "hello"}, *first["output"]]
        status, body = await server.post(input=[*sent, {"role": "user", "content": 7}])
        assert (status, body["error"]["param"]) == (400, "input[2].content")
        status, body = await server.post(
            input=[*sent, {"type": "function_call_output", "call_id": "call_x", "output": ""}]
        )
        assert (status, body["error"]["param"]) == (400, "input[2].call_id")


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_a_server_of_token_ids_gets_the_same_ids(spelling: str) -> None:
    """The answers of the fake are tokenized as their text is, so nothing depends on what is recognised."""
    prompts: list[list[str]] = []
    for limits in (Limits(), OFF):
        async with fake_vllm() as fake, serve(fake.engine(retries=0), limits=limits) as server:
            for step in (CALL, CALL, Say(("It", " is", " sunny.")), Say(("Cloudy.",))):
                fake.script(step, Stop())
            responses = await loop(server, over_http, spelling)
            prompts.append([decoded(request["prompt"]) for request in fake.requests])
            counts = [response["timing"].get("recognised_items", 0) for response in responses]
            assert counts == ([0, 2, 4, 6] if limits is not OFF else [0, 0, 0, 0])
    assert prompts[0] == prompts[1]
