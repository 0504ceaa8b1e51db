"""Background responses: made without a connection, streamed and cancelled from any."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from slipring.base.errors import InvalidRequest, RateLimited, Unavailable
from slipring.core.generation import CallArguments, CallStarted, Text
from slipring.core.limits import Limits
from slipring.stores.runs import Run
from tests.api import Api
from tests.harness import PuppetEngine, serve
from tests.server.raw import until

KEY = {"Authorization": "Bearer test-key"}


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[tuple[PuppetEngine, Api]]:
    engine = PuppetEngine()
    async with serve(engine, **settings) as server:
        yield engine, Api(server)


async def written(api: Api, response_id: str, events: int) -> Run:
    """The run, once this many of its events are in the store."""
    store = api.server.service.store
    async with asyncio.timeout(300):
        while True:
            run: Run = await store.runs.read("default", response_id)
            if run.last_sequence + 1 >= events:
                return run
            await asyncio.sleep(0.01)


async def test_a_run_completes_without_a_connection() -> None:
    async with running() as (engine, api):
        begun = await api.begin(metadata={"a": "b"})
        performance = await engine.next()
        performance.say("to ", "the end")
        performance.finish()
        done = await api.ended(begun["id"])
        assert (done["status"], done["background"], done["metadata"]) == ("completed", True, {"a": "b"})
        assert done["output"][0]["content"][0]["text"] == "to the end"


async def test_a_completed_run_can_be_continued() -> None:
    async with running() as (engine, api):
        begun = await api.begin()
        performance = await engine.next()
        performance.say("one")
        performance.finish()
        await api.ended(begun["id"])
        answer = asyncio.create_task(api.server.post(input="more", previous_response_id=begun["id"]))
        follow_up = await engine.next()
        assert [item.type for item in follow_up.job.context()] == ["message"] * 3
        follow_up.finish()
        assert (await answer)[0] == 200


async def test_a_run_can_be_retrieved_while_it_is_made() -> None:
    async with running() as (engine, api):
        begun = await api.begin()
        performance = await engine.next()
        performance.say("a")
        await written(api, begun["id"], 6)
        assert (await api.read(begun["id"]))["status"] == "in_progress"
        performance.finish()
        assert (await api.ended(begun["id"]))["status"] == "completed"


async def test_events_can_be_streamed_again_from_any_number() -> None:
    async with running() as (engine, api):
        begun = await api.begin()
        performance = await engine.next()
        performance.say("a", "b", "c")
        performance.finish()
        await api.ended(begun["id"])
        events = await api.events(begun["id"])
        kinds = [event["type"] for event in events]
        assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
        assert kinds[-1] == "response.completed"
        for number in range(len(events)):
            assert await api.events(begun["id"], starting_after=number) == events[number + 1 :]


async def test_a_follower_gets_events_while_the_run_is_made() -> None:
    async with running() as (engine, api):
        begun = await api.begin()
        performance = await engine.next()
        following = asyncio.create_task(api.events(begun["id"]))
        performance.say("a", "b")
        await written(api, begun["id"], 7)
        assert not following.done()
        performance.finish()
        events = await asyncio.wait_for(following, 300)
        assert events[-1]["type"] == "response.completed"


async def test_the_request_itself_can_stream_the_run() -> None:
    async with running() as (engine, api):
        streaming = asyncio.create_task(api.server.stream(input="hello", background=True))
        performance = await engine.next()
        performance.say("a")
        performance.finish()
        events = await asyncio.wait_for(streaming, 300)
        assert [event["type"] for event in events][:2] == ["response.created", "response.queued"]
        assert events[-1]["response"]["status"] == "completed"


async def test_a_run_continues_after_its_stream_disconnects() -> None:
    async with running() as (engine, api):
        body = {"input": "hello", "background": True, "stream": True}
        async with api.server.http.post(f"{api.server.url}/responses", json=body, headers=KEY) as answer:
            first = await answer.content.readline()
            assert first == b"event: response.created\n"
            created = json.loads((await answer.content.readline()).removeprefix(b"data: "))
            performance = await engine.next()
        performance.say("still here")
        performance.finish()
        done = await api.ended(created["response"]["id"])
        assert done["status"] == "completed"
        assert not performance.stopped.is_set()


async def test_a_cancel_stops_the_engine_and_keeps_finished_items() -> None:
    async with running() as (engine, api):
        begun = await api.begin()
        performance = await engine.next()
        performance.emit(CallStarted("function", "f"), CallArguments("{}"), Text("unfinished"))
        await written(api, begun["id"], 8)
        cancelled = await api.cancel(begun["id"])
        assert cancelled["status"] == "cancelled"
        assert [item["type"] for item in cancelled["output"]] == ["function_call"]
        await asyncio.wait_for(performance.stopped.wait(), 300)
        assert await api.read(begun["id"]) == cancelled
        assert await api.cancel(begun["id"]) == cancelled
        events = await api.events(begun["id"])
        assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.incomplete", "cancelled")


async def test_a_cancel_of_a_completed_run_changes_nothing() -> None:
    async with running() as (engine, api):
        begun = await api.begin()
        (await engine.next()).finish()
        done = await api.ended(begun["id"])
        assert await api.cancel(begun["id"]) == done


async def test_only_background_responses_can_be_cancelled_or_streamed_again() -> None:
    async with serve() as server:
        api = Api(server)
        _, response = await server.post(input="hello")
        for method, path in (("POST", "/cancel"), ("GET", "?stream=true")):
            status, error = await api.call(method, f"/responses/{response['id']}{path}")
            assert (status, error["error"]["type"]) == (400, "invalid_request_error")
            assert "background" in error["error"]["message"]


async def test_a_failure_of_the_engine_fails_the_run() -> None:
    async with running() as (engine, api):
        begun = await api.begin()
        performance = await engine.next()
        performance.say("a")
        performance.fail(RuntimeError("secret"))
        failed = await api.ended(begun["id"])
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
        assert "secret" not in json.dumps(failed)
        assert (await api.events(begun["id"]))[-1]["type"] == "response.failed"


async def test_a_request_that_the_engine_rejects_fails_the_run() -> None:
    """The response was accepted before the engine saw the request."""
    async with running() as (engine, api):
        engine.accepts = False
        begun = await api.begin()
        (await engine.next()).fail(InvalidRequest("no such thing"))
        failed = await api.ended(begun["id"])
        assert (failed["status"], failed["error"]["code"]) == ("failed", "invalid_prompt")
        kinds = [event["type"] for event in await api.events(begun["id"])]
        assert kinds == ["response.created", "response.queued", "response.failed"]


async def test_a_truncated_answer_is_incomplete() -> None:
    async with running() as (engine, api):
        begun = await api.begin()
        performance = await engine.next()
        performance.say("a")
        performance.finish("max_output_tokens")
        done = await api.ended(begun["id"])
        assert (done["status"], done["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"store": False}, "store"),
        ({"generate": False}, "generate"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"input": 3}, "input"),
        ({"model": "unknown"}, "model"),
    ],
)
async def test_an_invalid_request_is_rejected_at_once(fields: dict[str, Any], param: str) -> None:
    async with serve() as server:
        status, error = await Api(server).call(
            "POST", "/responses", json={"input": "x", "background": True, **fields}
        )
        assert (status // 100, error["error"]["param"]) == (4, param)
        assert server.service.clients == set()


async def test_background_is_rejected_on_a_socket() -> None:
    async with serve() as server, server.connect() as socket:
        error = await socket.error(input="hello", background=True)
        assert (error["status"], error["error"]["param"]) == (400, "background")


async def test_concurrent_runs_are_limited() -> None:
    async with running(limits=Limits(max_runs=1)) as (engine, api):
        begun = await api.begin()
        status, error = await api.call("POST", "/responses", json={"input": "x", "background": True})
        assert (status, error["error"]["code"]) == (RateLimited.status, "rate_limit_exceeded")
        (await engine.next()).finish()
        await api.ended(begun["id"])
        await until(lambda: not api.server.service.clients)
        await api.begin()
        (await engine.next()).finish()


async def test_a_deleted_run_is_stopped_and_not_found() -> None:
    async with running() as (engine, api):
        begun = await api.begin()
        performance = await engine.next()
        status, answer = await api.call("DELETE", f"/responses/{begun['id']}")
        assert (status, answer) == (200, {"id": begun["id"], "object": "response", "deleted": True})
        await asyncio.wait_for(performance.stopped.wait(), 300)
        for method, path in (("GET", ""), ("POST", "/cancel"), ("DELETE", ""), ("GET", "/input_items")):
            status, _ = await api.call(method, f"/responses/{begun['id']}{path}")
            assert status == 404


async def test_a_run_whose_retention_is_over_is_not_found() -> None:
    """Before the store is pruned, too."""
    async with running() as (engine, api):
        ended, cancelled = await api.begin(), await api.begin()
        (await engine.next()).finish()
        await api.ended(ended["id"])
        await api.cancel(cancelled["id"])
        await until(lambda: not api.server.server.background._runs)
        long = await api.begin()
        expiry = api.server.service.store.runs._expiry
        clock = expiry._clock
        expiry._clock = lambda: clock() + 31 * 86_400
        paths = [("GET", ""), ("GET", "?stream=true"), ("GET", "/input_items"), ("POST", "/cancel")]
        for response_id in (ended["id"], cancelled["id"]):
            for method, path in (*paths, ("DELETE", "")):
                status, error = await api.call(method, f"/responses/{response_id}{path}")
                assert (status, error["error"]["code"]) == (404, "not_found"), (method, path)
            status, error = await api.server.post(input="more", previous_response_id=response_id)
            assert (status, error["error"]["code"]) == (400, "previous_response_not_found")
        assert (await api.read(long["id"]))["id"] == long["id"], "it is kept until it ends"
        assert (await api.cancel(long["id"]))["status"] == "cancelled"
        assert (await api.call("GET", f"/responses/{long['id']}"))[0] == 404


async def test_a_server_that_stops_lets_runs_finish() -> None:
    async with running() as (engine, api):
        begun = await api.begin()
        performance = await engine.next()
        stopping = asyncio.create_task(api.server.server.stop())
        await until(lambda: api.server.service.draining)
        performance.say("in time")
        performance.finish()
        await asyncio.wait_for(stopping, 300)
        assert begun["id"]


async def test_runs_that_exceed_the_drain_deadline_fail(tmp_path: Any) -> None:
    file = f"sqlite:{tmp_path / 'slipring.db'}"
    async with running(store=file, limits=Limits(drain_timeout_s=0.01)) as (engine, api):
        begun = await api.begin()
        await engine.next()
    async with serve(store=file) as server:
        failed = await Api(server).read(begun["id"])
        assert failed["status"] == "failed"
        assert (await Api(server).events(begun["id"]))[-1]["type"] == "response.failed"


async def test_a_run_that_produces_events_fast_can_be_cancelled() -> None:
    """The cancel does not have to catch up with its events."""
    async with running() as (engine, api):
        begun = await api.begin()
        performance = await engine.next()
        store = api.server.service.store
        seize = store.runs.seize

        async def slowly(run: Run, **claim: Any) -> Run | None:
            performance.say("more")
            await written(api, begun["id"], run.last_sequence + 2)
            return await seize(run, **claim)

        store.runs.seize = slowly
        performance.say("much")
        assert (await api.cancel(begun["id"]))["status"] == "cancelled"
        await asyncio.wait_for(performance.stopped.wait(), 300)


async def test_runs_that_are_being_opened_count() -> None:
    async with running(limits=Limits(max_runs=3)) as (engine, api):
        body = {"input": "x", "background": True}
        answers = await asyncio.gather(*(api.call("POST", "/responses", json=body) for _ in range(10)))
        assert sorted(status for status, _ in answers) == [200] * 3 + [429] * 7
        for _ in range(3):
            (await engine.next()).finish()


async def test_a_run_that_is_opened_during_a_stop_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(limits=Limits(drain_timeout_s=0.01)) as (engine, api):
        server = api.server.server
        runs = api.server.service.store.runs
        opening, go_on = asyncio.Event(), asyncio.Event()
        really_open = runs.open

        async def open_late(*given: Any, **more: Any) -> Any:
            opening.set()
            await go_on.wait()
            return await really_open(*given, **more)

        monkeypatch.setattr(runs, "open", open_late)
        posting = asyncio.create_task(api.call("POST", "/responses", json={"input": "x", "background": True}))
        await opening.wait()
        performance = await engine.next()
        stopping = asyncio.create_task(server.stop())
        await until(lambda: api.server.service.draining)
        go_on.set()
        await asyncio.wait_for(stopping, 300)
        await asyncio.wait([posting])
        assert performance.stopped.is_set()
        assert not server.background._runs


async def test_a_head_request_does_not_stream() -> None:
    async with running() as (engine, api):
        begun = await api.begin()
        url = f"{api.server.url}/responses/{begun['id']}?stream=true"
        async with api.server.http.head(url, headers=KEY) as answer:
            assert (answer.status, answer.content_type) == (200, "application/json")
        (await engine.next()).finish()
        await api.ended(begun["id"])


async def test_a_stream_is_aborted_if_the_store_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error cannot be sent within a stream; the client can ask for the rest."""
    async with running() as (engine, api):
        begun = await api.begin()
        performance = await engine.next()
        performance.say("a")
        await written(api, begun["id"], 5)
        monkeypatch.setattr(api.server.server.background, "find", lambda tenant, response_id: None)
        url = f"{api.server.url}/responses/{begun['id']}?stream=true"
        async with api.server.http.get(url, headers=KEY) as answer:
            assert await answer.content.readline() == b"event: response.created\n"

            async def lost(*given: Any, **more: Any) -> Any:
                raise Unavailable("gone")

            monkeypatch.setattr(api.server.service.store.runs, "read", lost)
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()
        monkeypatch.undo()
        performance.finish()
        await api.ended(begun["id"])


async def test_followers_are_disconnected_when_the_server_stops() -> None:
    async with running(limits=Limits(drain_timeout_s=0.05)) as (engine, api):
        begun = await api.begin()
        await engine.next()
        url = f"{api.server.url}/responses/{begun['id']}?stream=true"
        async with api.server.http.get(url, headers=KEY) as answer:
            await answer.content.readline()
            stopping = asyncio.create_task(api.server.server.stop())
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()
            await asyncio.wait_for(stopping, 300)


async def test_a_store_that_is_away_is_logged_once_for_a_run_and_tried_less_often(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(limits=Limits(run_lease_s=5.0)) as (engine, api):
        begun = await api.begin()
        runs = api.server.service.store.runs
        really_append, tries_left = runs.append, 4

        async def append(*given: Any, **more: Any) -> None:
            nonlocal tries_left
            if tries_left:
                tries_left -= 1
                waited.append(live._retry_s)
                raise Unavailable("gone")
            await really_append(*given, **more)

        waited: list[float] = []
        (live,) = api.server.server.background._runs.values()
        runs.append = append
        performance = await engine.next()
        performance.say("a")
        await until(lambda: not tries_left)
        performance.finish()
        done = await api.ended(begun["id"])
    assert done["output"][0]["content"][0]["text"] == "a"
    assert waited == [0.0, 0.1, 0.2, 0.4]
    assert live._retry_s == 0.0
    assert caplog.messages.count(f"cannot write events of run {begun['id']} yet: gone") == 1


async def test_the_engine_is_not_pulled_while_the_store_does_not_keep_up() -> None:
    limits = Limits(send_buffer_bytes=1000)
    async with running(limits=limits) as (engine, api):
        begun = await api.begin()
        runs = api.server.service.store.runs
        really_append, is_away = runs.append, True

        async def append(*given: Any, **more: Any) -> None:
            if is_away:
                raise Unavailable("gone")
            await really_append(*given, **more)

        runs.append = append
        performance = await engine.next()
        performance.say(*(["many words"] * 100))
        performance.finish()
        (live,) = api.server.server.background._runs.values()
        await until(lambda: live._is_full)
        left = performance.cues.qsize()
        assert left > 50
        is_away = False
        done = await api.ended(begun["id"])
        assert done["output"][0]["content"][0]["text"] == "many words" * 100


async def test_concurrent_runs_of_a_tenant_are_limited() -> None:
    keys = ("ours:our-key", "theirs:their-key")
    async with running(limits=Limits(tenant_runs=2), api_key=keys) as (engine, api):
        body = {"input": "x", "background": True}

        async def begin(key: str) -> tuple[int, Any]:
            url, headers = f"{api.server.url}/responses", {"Authorization": f"Bearer {key}"}
            async with api.server.http.post(url, json=body, headers=headers) as answer:
                return answer.status, await answer.json()

        assert [(await begin("our-key"))[0] for _ in range(2)] == [200, 200]
        status, refused = await begin("our-key")
        assert (status, refused["error"]["code"]) == (429, "rate_limit_exceeded")
        assert "This tenant has reached its limit" in refused["error"]["message"]
        assert (await begin("their-key"))[0] == 200
        for _ in range(3):
            (await engine.next()).finish()
        background = api.server.server.background
        await until(lambda: not background._runs)
        assert not background._running_of
        assert (await begin("our-key"))[0] == 200
        (await engine.next()).finish()


@pytest.mark.parametrize("buffer_bytes", [1, 100_000])
async def test_a_run_that_cannot_be_stored_ends(buffer_bytes: int) -> None:
    async with running(limits=Limits(send_buffer_bytes=buffer_bytes)) as (engine, api):
        runs = api.server.service.store.runs
        finished = asyncio.Event()

        async def open_never(*given: Any, **more: Any) -> None:
            await finished.wait()
            raise Unavailable("gone")

        runs.open = open_never
        body = {"input": "x", "background": True}
        posting = asyncio.create_task(api.call("POST", "/responses", json=body))
        performance = await engine.next()
        performance.finish()
        (exchange,) = api.server.service.clients
        await until(lambda: exchange.driver.sink._is_full or performance.cues.empty())
        finished.set()
        status, error = await posting
        assert (status, error["error"]["message"]) == (503, "gone")
        await until(lambda: not api.server.service.clients)
        await until(lambda: not api.server.server.background._running_of)
        assert api.server.service.requests.used_bytes == 0
        await until(lambda: not api.server.server.background._tasks)
