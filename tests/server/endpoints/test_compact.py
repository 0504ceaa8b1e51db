"""Compaction over HTTP and sockets: thresholds, triggers, the endpoint, and encrypted content."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from slipring.base.errors import ServerError
from slipring.core.generation import CallArguments, CallStarted, Job, Text, Thought
from tests.api import Api
from tests.harness import FAST, TERMINAL, WEATHER, PuppetEngine, Running, serve

Json = dict[str, Any]
MANAGED = [{"type": "compaction", "compact_threshold": 1000}]
TRIGGER = {"type": "compaction_trigger"}
COMPACTED = ["response.output_item.added", "response.compaction.compacting", "response.output_item.done"]


def user(text: str) -> Json:
    return {"type": "message", "role": "user", "content": text}


def context_of(job: Job) -> list[Json]:
    return [json.loads(item.raw) for item in job.context()]


def words(job: Job) -> list[str]:
    """The texts of a context, message by message."""
    texts = []
    for item in context_of(job):
        content = item.get("content", "")
        texts.append(content if isinstance(content, str) else "".join(part["text"] for part in content))
    return texts


async def speak(engine: PuppetEngine, *texts: str) -> list[Job]:
    """Answer the next jobs with one text each."""
    jobs = []
    for text in texts:
        performance = await engine.next()
        performance.say(text)
        performance.finish()
        jobs.append(performance.job)
    return jobs


async def played(engine: PuppetEngine, asking: Any, *texts: str) -> tuple[Any, list[Job]]:
    """The result of a request, and its jobs, answered with one text each."""
    answer, jobs = await asyncio.gather(asking, speak(engine, *texts))
    return answer, jobs


def long_engine(tokens: int = 5000) -> PuppetEngine:
    engine = PuppetEngine()
    engine.tokens = tokens
    return engine


# The threshold.


@pytest.mark.parametrize(("tokens", "texts"), [(999, ["hello"]), (1000, ["so far", "hello"])])
async def test_a_compaction_over_sse(tokens: int, texts: list[str]) -> None:
    engine = long_engine(tokens)
    async with serve(engine) as server:
        events, _ = await played(engine, server.stream(input="hi", context_management=MANAGED), *texts)
    kinds = [event["type"] for event in events]
    assert (kinds[2:5] == COMPACTED) == (len(texts) == 2)
    assert events[-1]["response"]["output"][-1]["content"][0]["text"] == "hello"
    assert events[-1]["response"]["usage"]["output_tokens"] == 2 * len(texts)


async def test_a_compaction_over_plain_http() -> None:
    engine = long_engine()
    async with serve(engine) as server:
        asking = server.post(input="hi", context_management=MANAGED)
        (status, response), jobs = await played(engine, asking, "so far", "hello")
    assert status == 200
    assert [item["type"] for item in response["output"]] == ["compaction", "message"]
    assert jobs[0].offer.forbidden
    assert words(jobs[1])[0].endswith("so far")


async def test_a_chain_on_a_socket_continues_from_its_compaction() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        first, _ = await played(engine, socket.response(input="one", store=False), "two")
        engine.tokens = 1000
        fields = {"store": False, "context_management": MANAGED, "previous_response_id": first["id"]}
        second, jobs = await played(engine, socket.response(input="three", **fields), "so far", "four")
        assert words(jobs[0])[:3] == ["one", "two", "three"]
        assert second["previous_response_id"] == first["id"]
        asking = socket.response(input="five", store=False, previous_response_id=second["id"])
        _, jobs = await played(engine, asking, "six")
    texts = words(jobs[0])
    assert texts[0] == "one"
    assert texts[1].endswith("so far")
    assert texts[2:] == ["three", "four", "five"]


async def test_a_stored_chain_continues_from_its_compaction_after_a_restart(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path}/slipring.db"
    engine = long_engine()
    async with serve(engine, store=store) as server:
        _, first = (await played(engine, server.post(input="one"), "two"))[0]
        asking = server.post(input="three", previous_response_id=first["id"], context_management=MANAGED)
        _, second = (await played(engine, asking, "so far", "four"))[0]
    engine = long_engine()
    async with serve(engine, store=store) as server:
        _, listed = await Api(server).call("GET", f"/responses/{second['id']}/input_items")
        assert [item["content"][0]["text"] for item in listed["data"]] == ["three"]
        asking = server.post(input="five", previous_response_id=second["id"])
        _, jobs = await played(engine, asking, "six")
        assert words(jobs[0])[1].endswith("so far")
        assert words(jobs[0])[2:] == ["three", "four", "five"]
        asking = server.post(input=[*second["output"], user("five")])
        _, jobs = await played(engine, asking, "six")
        assert words(jobs[0])[2:] == ["three", "four", "five"]


async def test_a_compaction_in_the_background() -> None:
    engine = long_engine()
    async with serve(engine) as server:
        asking = server.stream(input="hi", background=True, context_management=MANAGED)
        events, _ = await played(engine, asking, "so far", "hello")
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert kinds[3:6] == COMPACTED
    assert kinds[-1] == "response.completed"


async def test_a_background_run_is_cancelled_while_it_compacts() -> None:
    engine = long_engine()
    async with serve(engine) as server:
        _, made = await server.post(input="hi", background=True, context_management=MANAGED)
        performance = await engine.next()
        assert performance.job.offer.forbidden
        answer = await server.http.post(f"{server.url}/responses/{made['id']}/cancel")
        assert (await answer.json())["status"] == "cancelled"
        await asyncio.wait_for(performance.stopped.wait(), 300)


async def test_a_background_run_fails_if_the_engine_cannot_count() -> None:
    class Clueless(PuppetEngine):
        async def count(self, job: Job, enough: int | None = None) -> int:
            raise ServerError("who knows")

    async with serve(Clueless()) as server:
        events = await server.stream(input="hi", background=True, context_management=MANAGED)
        refused = await server.post(input="hi", context_management=MANAGED)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["message"] == "who knows"
    assert refused[0] == 500


async def test_a_compaction_in_a_conversation() -> None:
    engine = long_engine()
    async with serve(engine) as server:
        made = await server.http.post(f"{server.url}/conversations", json={"items": [user("one")]})
        conversation = (await made.json())["id"]
        fields = {"conversation": conversation, "context_management": MANAGED}
        await played(engine, server.post(input="two", **fields), "so far", "three")
        asking = server.post(input="four", conversation=conversation)
        _, jobs = await played(engine, asking, "five")
        _, listed = await Api(server).call("GET", f"/conversations/{conversation}/items?order=asc")
        kept = [item["type"] for item in listed["data"]]
    assert [text for text in words(jobs[0]) if "so far" not in text] == ["one", "two", "three", "four"]
    assert kept == ["message", "message", "compaction", "message", "message", "message"]


async def test_a_conversation_whose_last_response_was_deleted_continues_from_its_compaction() -> None:
    engine = long_engine()
    async with serve(engine) as server:
        made = await server.http.post(f"{server.url}/conversations", json={"items": [user("one")]})
        conversation = (await made.json())["id"]
        await played(engine, server.post(input="two", conversation=conversation), "three")
        fields = {"conversation": conversation, "context_management": MANAGED}
        (_, last), _ = await played(engine, server.post(input="four", **fields), "so far", "five")
        assert (await Api(server).call("DELETE", f"/responses/{last['id']}"))[0] == 200
        _, jobs = await played(engine, server.post(input="six", conversation=conversation), "seven")
    assert [text for text in words(jobs[0]) if "so far" not in text] == ["one", "two", "four", "five", "six"]
    assert sum("so far" in text for text in words(jobs[0])) == 1


async def test_a_failed_summary_fails_the_response() -> None:
    engine = long_engine()
    async with serve(engine) as server, server.connect() as socket:
        await socket.create(input="hi", store=False, context_management=MANAGED)
        performance = await engine.next()
        performance.say("so")
        performance.fail(ServerError("the engine is gone"))
        events = await socket.until(*TERMINAL)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["output"] == []


async def test_a_disconnect_stops_the_summary() -> None:
    engine = long_engine()
    async with serve(engine) as server:
        async with server.connect(abandoned=True) as socket:
            await socket.create(input="hi", store=False, context_management=MANAGED)
            await socket.until("response.compaction.compacting")
            performance = await engine.next()
        await asyncio.wait_for(performance.stopped.wait(), 300)


# The trigger.


async def test_a_trigger_over_every_transport() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        asked: dict[str, Any] = {"input": [user("one"), TRIGGER], "store": False}
        (_, posted), _ = await played(engine, server.post(**asked), "so far")
        streamed, _ = await played(engine, server.stream(**asked), "so far")
        received, _ = await played(engine, socket.response(**asked), "so far")
        for response in (posted, streamed[-1]["response"], received):
            assert [item["type"] for item in response["output"]] == ["compaction"]
        assert [event["type"] for event in streamed[2:]] == [*COMPACTED, "response.completed"]
        asking = socket.response(input="two", store=False, previous_response_id=received["id"])
        _, jobs = await played(engine, asking, "three")
    assert words(jobs[0])[1:] == ["one", "two"]


async def test_open_calls_outlive_a_compaction() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        await socket.create(input="weather?", store=False, tools=[WEATHER])
        performance = await engine.next()
        performance.emit(CallStarted("function", "get_weather"), CallArguments('{"city":"Oslo"}'))
        performance.finish()
        first = (await socket.until(*TERMINAL))[-1]["response"]
        call_id = first["output"][0]["call_id"]
        asked = {"store": False, "tools": [WEATHER]}
        asking = socket.response(input=[TRIGGER], previous_response_id=first["id"], **asked)
        second, _ = await played(engine, asking, "asked for the weather")
        output = {"type": "function_call_output", "call_id": call_id, "output": "rain"}
        by_id = socket.response(input=[output], previous_response_id=second["id"], **asked)
        _, jobs = await played(engine, by_id, "It rains.")
        by_history = socket.response(input=[*second["output"], output], **asked)
        _, again = await played(engine, by_history, "It rains.")
    for job in (*jobs, *again):
        assert [item["type"] for item in context_of(job)][-2:] == ["function_call", "function_call_output"]


# The endpoint.


async def test_a_compacted_window_starts_a_new_chain() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        (_, first), _ = await played(engine, server.post(input="one"), "two")
        asking = server.compact(model="puppet", previous_response_id=first["id"], input=[user("three")])
        (status, window), jobs = await played(engine, asking, "so far")
        assert status == 200
        assert words(jobs[0])[:3] == ["one", "two", "three"]
        assert [item["type"] for item in window["output"]] == ["message", "message", "compaction"]
        assert window["usage"]["total_tokens"] == 5
        asking = server.post(input=[*window["output"], user("four")], tools=[])
        (status, _), jobs = await played(engine, asking, "five")
        assert status == 200
    texts = words(jobs[0])
    assert texts[:2] == ["one", "three"]
    assert texts[2].endswith("so far")
    assert texts[3:] == ["four"]


async def test_compacting_a_window_again_repeats_nothing() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        asking = server.compact(model="puppet", input="one", instructions="Be brief.")
        (_, window), jobs = await played(engine, asking, "first")
        assert jobs[0].head.instructions == "Be brief."
        asking = server.compact(model="puppet", input=[*window["output"], user("two")])
        (_, window), _ = await played(engine, asking, "second")
        asking = server.post(input=[*window["output"], user("three")])
        _, jobs = await played(engine, asking, "four")
    texts = words(jobs[0])
    assert texts[:2] == ["one", "two"]
    assert texts[2].endswith("second")
    assert texts[3:] == ["three"]


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"input": "one"}, "model", "missing_required_parameter"),
        ({"model": "nobody", "input": "one"}, "model", "model_not_found"),
        ({"model": "simulated"}, "input", "missing_required_parameter"),
        ({"model": "simulated", "input": 5}, "input", "invalid_type"),
        ({"model": "simulated", "input": [{"type": "nothing"}]}, "input[0].type", "invalid_value"),
        ({"model": "simulated", "input": [user("one"), TRIGGER]}, "input[1]", "invalid_value"),
        (
            {"model": "simulated", "previous_response_id": "resp_1"},
            "previous_response_id",
            "previous_response_not_found",
        ),
    ],
)
async def test_an_invalid_compact_request_is_refused(body: Json, param: str, code: str) -> None:
    async with serve() as server:
        status, refused = await server.compact(**body)
    assert status in (400, 404)
    assert (refused["error"]["param"], refused["error"]["code"]) == (param, code)


async def test_a_failed_compaction_is_an_http_error() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        (status, refused), _ = await played(engine, server.compact(model="puppet", input="one"), " ")
    assert status == 500
    assert "no summary" in refused["error"]["message"]


async def test_a_compacted_window_is_not_a_stored_response() -> None:
    async with serve() as server:
        _, window = await server.compact(model="simulated", input="one")
        status, _ = await server.post(input="two", previous_response_id=window["id"])
        assert status == 400


async def test_the_openai_client_compacts_and_continues() -> None:
    async with serve() as server, AsyncOpenAI(base_url=server.url, api_key="any") as client:
        first = await client.responses.create(model="simulated", input="one")
        window = await client.responses.compact(model="simulated", previous_response_id=first.id)
        assert window.object == "response.compaction"
        assert window.output[-1].type == "compaction"
        # The package expects every output message to be an assistant's, and would warn.
        kept: Any = [item.to_dict(warnings=False) for item in window.output]
        again = await client.responses.create(model="simulated", input=[*kept, user("two")], tools=[])
        assert again.output_text


async def test_the_simulated_engine_compacts_by_its_own_count() -> None:
    long = "word " * 1000
    async with serve(FAST) as server, server.connect() as socket:
        first = await socket.response(input=long)
        asked = {"previous_response_id": first["id"], "context_management": MANAGED}
        second = await socket.response(input="and?", **asked)
        assert [item["type"] for item in second["output"]] == ["compaction", "message"]
        third = await socket.response(input="and?", **{**asked, "previous_response_id": second["id"]})
        assert [item["type"] for item in third["output"]] == ["message"]
        assert third["usage"]["input_tokens"] < 1000


# Encrypted content.


async def test_encrypted_reasoning_is_passed_to_the_model_again() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        asked = {"store": False, "include": ["reasoning.encrypted_content"]}
        await socket.create(input="6*7", **asked)
        performance = await engine.next()
        performance.emit(Thought("six sevens"), Text("42"))
        performance.finish()
        events = await socket.until(*TERMINAL)
        reasoning, message = events[-1]["response"]["output"]
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        assert done[0] == reasoning
        kept = {key: reasoning[key] for key in ("type", "id", "summary", "encrypted_content")}
        asking = socket.response(input=[user("6*7"), kept, message, user("sure?")], **asked)
        _, jobs = await played(engine, asking, "yes")
    assert words(jobs[0]) == ["6*7", "six sevens", "42", "sure?"]


async def sealed(server: Running, key: str = "test-key") -> Json:
    _, response = await server.post(key=key, input=[user("one"), TRIGGER], store=False)
    item: Json = response["output"][0]
    return item


async def opens(server: Running, item: Json, key: str = "test-key") -> bool:
    status, answer = await server.post(key=key, input=[item, user("two")], store=False)
    if status == 200:
        return True
    assert status == 400
    assert answer["error"]["code"] == "invalid_encrypted_content"
    assert answer["error"]["param"] == "input[0].encrypted_content"
    return False


def key_file(path: Path, *keys: bytes) -> str:
    path.write_text("\n".join(base64.b64encode(key).decode() for key in keys))
    return str(path)


async def test_servers_with_the_same_key_open_each_others_blobs(tmp_path: Path) -> None:
    shared = key_file(tmp_path / "shared", b"a" * 32)
    rotated = key_file(tmp_path / "rotated", b"b" * 32, b"a" * 32)
    async with serve(seal_key_file=shared) as one:
        item = await sealed(one)
    async with serve(seal_key_file=shared) as other:
        assert await opens(other, item)
    async with serve(seal_key_file=rotated) as other:
        assert await opens(other, item)
        newer = await sealed(other)
    async with serve(seal_key_file=shared) as other:
        assert not await opens(other, newer)
    async with serve() as other:
        assert not await opens(other, item)


async def test_servers_on_one_store_share_a_key(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path}/slipring.db"
    async with serve(store=store) as one:
        item = await sealed(one)
    async with serve(store=store) as other:
        assert await opens(other, item)


async def test_encrypted_content_can_be_opened_by_its_tenant_only() -> None:
    async with serve(api_key=("alice:a-key", "bob:b-key")) as server:
        item = await sealed(server, key="a-key")
        assert await opens(server, item, key="a-key")
        assert not await opens(server, item, key="b-key")


async def test_a_conversation_refuses_encrypted_content_of_another_tenant() -> None:
    foreign = {"type": "compaction", "encrypted_content": "gAAAAA"}
    async with serve() as server:
        for item, param in ((foreign, "items[0].encrypted_content"), (TRIGGER, "items[0].type")):
            answer = await server.http.post(f"{server.url}/conversations", json={"items": [item]})
            assert answer.status == 400
            assert (await answer.json())["error"]["param"] == param
