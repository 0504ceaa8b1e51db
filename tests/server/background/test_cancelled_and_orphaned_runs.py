"""Background responses that were cancelled or have failed: they can be listed, continued and compacted."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from slipring.core.generation import CallArguments, CallEnded, CallStarted, Text
from slipring.server.background.cancelled_and_orphaned_runs import Claim, fail_abandoned
from tests.api import Api
from tests.harness import Performance, PuppetEngine, Running, serve
from tests.mcp.fakes import FakeServer, serving
from tests.server.background.test_runs import running, written
from tests.server.hosted_tools.running import registered
from tests.server.hosted_tools.turns import server as hosted
from tests.server.raw import until
from tests.server.test_safety_checks import Guard, entry

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


async def cancel(api: Api, performance: Performance, response_id: str) -> dict[str, Any]:
    return await api.cancel(response_id)


async def fail(api: Api, performance: Performance, response_id: str) -> dict[str, Any]:
    performance.fail(RuntimeError("gone"))
    return await api.ended(response_id)


async def abandon(api: Api, performance: Performance, response_id: str) -> dict[str, Any]:
    """Its owner dies, and another node ends it."""
    service = api.server.service
    run = await service.store.runs.read("default", response_id)
    claim = Claim("other", run.lease_until, service.seal)
    await fail_abandoned(service.store, run, claim)
    performance.say("the owner finds out that it has lost the run")
    return await api.ended(response_id)


ENDINGS = pytest.mark.parametrize(
    ("end", "status"), [(cancel, "cancelled"), (fail, "failed"), (abandon, "failed")]
)


async def texts(api: Api, response_id: str) -> list[str]:
    status, page = await api.call("GET", f"/responses/{response_id}/input_items", params={"order": "asc"})
    assert status == 200, page
    return [item["content"][0]["text"] for item in page["data"]]


async def context_of_next(engine: PuppetEngine, server: Running, **fields: Any) -> list[str]:
    """The types of the items that the model reads of the next request, which ends then."""
    posting = asyncio.create_task(server.post(**fields))
    performance = await engine.next()
    types = [item.type for item in performance.job.context()]
    performance.finish()
    status, body = await posting
    assert status == 200, body
    return types


@ENDINGS
async def test_it_is_listed_and_continued_with_what_was_complete(end: Any, status: str) -> None:
    async with running() as (engine, api):
        posting = asyncio.create_task(api.server.post(input="first"))
        (await engine.next()).finish()
        _, first = await posting
        begun = await api.begin(
            input="second",
            previous_response_id=first["id"],
            instructions="Be short.",
            tools=[TOOL],
            metadata={"a": "b"},
        )
        performance = await engine.next()
        assert await texts(api, begun["id"]) == ["first", "second"], "while it is made, too"
        performance.emit(CallStarted("function", "f"), CallArguments("{}"), CallEnded(), Text("unfinished"))
        await written(api, begun["id"], 8)
        ended = await end(api, performance, begun["id"])
        await until(lambda: not api.server.server.background._runs)
        assert ended["status"] == status
        assert (ended["instructions"], ended["metadata"]) == ("Be short.", {"a": "b"})
        assert ended["tools"] == begun["tools"]
        assert await api.read(begun["id"]) == ended
        assert await texts(api, begun["id"]) == ["first", "second"]
        call = next(item for item in ended["output"] if item["type"] == "function_call")
        code, error = await api.server.post(input="more", previous_response_id=begun["id"])
        assert (code, error["error"]["param"]) == (400, "input")
        answer = {"type": "function_call_output", "call_id": call["call_id"], "output": "3"}
        context = await context_of_next(
            engine, api.server, input=[answer], previous_response_id=begun["id"], tools=[TOOL]
        )
        kept = [item["type"] for item in ended["output"]]
        assert context == ["message", "message", *kept, "function_call_output"]
        context = await context_of_next(engine, api.server, input=[{"id": call["id"]}, answer], tools=[TOOL])
        assert context == ["function_call", "function_call_output"], "its items can be referenced"
        assert (await api.call("DELETE", f"/responses/{begun['id']}"))[0] == 200
        for path in ("", "/input_items"):
            assert (await api.call("GET", f"/responses/{begun['id']}{path}"))[0] == 404


@ENDINGS
async def test_it_adds_nothing_to_its_conversation(end: Any, status: str) -> None:
    async with running() as (engine, api):
        body = {"items": [{"role": "user", "content": "before"}]}
        _, conversation = await api.call("POST", "/conversations", json=body)
        begun = await api.begin(input="second", conversation=conversation["id"])
        performance = await engine.next()
        performance.say("a")
        await written(api, begun["id"], 5)
        assert (await end(api, performance, begun["id"]))["status"] == status
        assert await texts(api, begun["id"]) == ["before", "second"]
        _, page = await api.call("GET", f"/conversations/{conversation['id']}/items")
        assert [item["content"][0]["text"] for item in page["data"]] == ["before"]
        context = await context_of_next(
            engine, api.server, input="second again", conversation=conversation["id"]
        )
        assert context == ["message", "message"]


async def test_it_can_be_compacted() -> None:
    async with running() as (engine, api):
        begun = await api.begin(input="to be kept")
        await engine.next()
        await api.cancel(begun["id"])
        compacting = asyncio.create_task(api.server.compact(model="puppet", previous_response_id=begun["id"]))
        performance = await engine.next()
        performance.say("a summary")
        performance.finish()
        status, window = await compacting
        assert (status, window["output"][0]["content"][0]["text"]) == (200, "to be kept")


async def test_a_run_that_is_cancelled_before_its_first_event_is_stored(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'slipring.db'}"
    async with running(store=store) as (_, api):
        begun = await api.begin(input="at once")
        await api.cancel(begun["id"])
    async with serve(store=store) as server:
        assert await texts(Api(server), begun["id"]) == ["at once"]
        status, _ = await server.post(input="more", previous_response_id=begun["id"])
        assert status == 200


async def test_hosted_calls_of_a_cancelled_response_are_part_of_its_context() -> None:
    engine = PuppetEngine()
    async with (
        serving(FakeServer(modern=True)) as fake,
        serve(engine, mcp=(registered(fake, headers=()),)) as server,
    ):
        api = Api(server)
        begun = await api.begin(tools=[hosted()])
        performance = await engine.next()
        performance.emit(CallStarted("function", "add", "fake"), CallArguments('{"a":1,"b":1}'), CallEnded())
        performance.finish()
        await engine.next()  # it reads the result
        cancelled = await api.cancel(begun["id"])
        assert [item["type"] for item in cancelled["output"]] == ["mcp_list_tools", "mcp_call"]
        posting = asyncio.create_task(
            server.post(input="go on", previous_response_id=begun["id"], tools=[hosted()])
        )
        performance = await engine.next()
        context = [item.type for item in performance.job.context()]
        assert context == ["message", "function_call", "function_call_output", "message"]
        performance.finish()
        assert (await posting)[0] == 200


@pytest.mark.parametrize("text", ["so bad", "harmless"])
async def test_an_input_that_is_being_checked_is_not_stored(text: str) -> None:
    engine, check = PuppetEngine(), Guard("guard")
    check.may_answer.clear()
    async with serve(engine, checks=(entry(),)) as server:
        api, store = Api(server), server.service.store
        begun = await api.begin(input=text)
        performance = await engine.next()
        await asyncio.wait_for(check.asked.wait(), 300)
        assert await store.runs.beginning("default", begun["id"]) is None
        status, error = await api.call("GET", f"/responses/{begun['id']}/input_items")
        assert (status, error["error"]["param"]) == (400, "response_id")
        check.may_answer.set()
        performance.say("an answer that is long enough to be released. " * 20)
        if text == "harmless":
            async with asyncio.timeout(300):
                while await store.runs.beginning("default", begun["id"]) is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert (await api.cancel(begun["id"]))["status"] == "cancelled"
            assert await texts(api, begun["id"]) == [text]
            return
        failed = await api.ended(begun["id"])
        assert failed["error"]["code"] == "invalid_prompt"
        assert (await api.call("GET", f"/responses/{begun['id']}/input_items"))[0] == 400
        status, error = await server.post(input="more", previous_response_id=begun["id"])
        assert (status, error["error"]["code"]) == (400, "previous_response_not_found")


async def test_a_response_whose_parent_was_deleted_is_not_stored() -> None:
    async with running() as (engine, api):
        posting = asyncio.create_task(api.server.post(input="first"))
        (await engine.next()).finish()
        _, first = await posting
        begun = await api.begin(previous_response_id=first["id"])
        await engine.next()
        assert (await api.call("DELETE", f"/responses/{first['id']}"))[0] == 200
        assert (await api.cancel(begun["id"]))["status"] == "cancelled"
        assert (await api.read(begun["id"]))["status"] == "cancelled"
        status, error = await api.call("GET", f"/responses/{begun['id']}/input_items")
        assert (status, error["error"]["param"]) == (400, "response_id")
