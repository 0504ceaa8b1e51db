"""The driver: one task per running turn, whatever the turn has to do, and how failures end it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from slipring.core.generation import CallArguments, CallStarted
from slipring.core.limits import Limits
from slipring.server.driver import Driver
from tests import wire
from tests.harness import WEATHER, PuppetEngine, serve
from tests.server.issuing import issue, serve_stored

GRAMMAR = {
    "type": "custom",
    "name": "pick",
    "format": {"type": "grammar", "syntax": "regex", "definition": "[ab]+"},
}


class CreatedTasks:
    """The names of the coroutines that tasks were created for in a driver or in a transport."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def create(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        code = getattr(coroutine, "cr_code", None)
        if code is not None and "/slipring/server/" in code.co_filename:
            self.names.append(coroutine.__qualname__)
        return asyncio.Task(coroutine, loop=loop, **options)


@pytest.fixture
async def created() -> Any:
    loop = asyncio.get_running_loop()
    tasks = CreatedTasks()
    loop.set_task_factory(tasks.create)
    yield tasks
    loop.set_task_factory(None)


RUN_TURN = f"{Driver.__name__}._run_turn"


async def test_a_stored_turn_on_a_socket_has_one_task(created: CreatedTasks) -> None:
    """It is checked, generated and saved."""
    async with serve() as server, server.connect() as socket:
        created.names.clear()
        await socket.response(input="hello", tools=[GRAMMAR], store=True)
        assert created.names == [RUN_TURN]


async def test_a_turn_that_is_loaded_has_one_task(tmp_path: Path, created: CreatedTasks) -> None:
    """Its key is checked, and its parent is read from the store."""
    async with serve_stored(tmp_path) as server:
        key = await issue(server)
        _, first = await server.post(key=key, input="one")
        async with server.connect(key=key) as socket:
            created.names.clear()
            await socket.response(input="two", previous_response_id=first["id"], tools=[GRAMMAR])
            assert [name for name in created.names if "Driver" in name] == [RUN_TURN]


async def test_deltas_create_no_tasks(created: CreatedTasks) -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        created.names.clear()
        await socket.create(input="hello", store=True)
        performance = await engine.next()
        for word in range(100):
            performance.say(f"word {word}")
        performance.finish()
        await socket.until("response.completed")
        assert created.names == [RUN_TURN]


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
async def test_a_post_has_one_task(stream: bool, created: CreatedTasks) -> None:
    async with serve() as server:
        await server.post(input="open the connection")
        created.names.clear()
        if stream:
            await server.stream(input="hello", store=True)
        else:
            await server.post(input="hello", store=True)
        assert created.names == [RUN_TURN]


async def test_each_turn_has_its_own_task(created: CreatedTasks) -> None:
    async with serve() as server, server.connect() as socket:
        created.names.clear()
        for lane in ("a", "b"):
            await socket.response(input="hello", stream_id=lane, store=True)
        assert created.names == [RUN_TURN] * 2


async def test_a_client_gets_the_last_event_before_its_turn_is_reported() -> None:
    async with serve() as server, server.connect() as socket:
        (client,) = server.service.clients
        unwritten: list[int] = []
        server.service.turn_observers.append(lambda _: unwritten.append(client.queued_bytes()))
        await socket.response(input="hello")
        await socket.response(input="hello", store=True)
        assert unwritten == [0, 0]


async def test_an_error_on_a_socket_creates_no_task(created: CreatedTasks) -> None:
    async with serve() as server, server.connect() as socket:
        created.names.clear()
        await socket.error(input="hello", model="nobody")
        assert created.names == []


async def test_a_failed_save_ends_its_turn_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve() as server, server.connect() as socket:

        async def fail(*arguments: Any, **options: Any) -> None:
            raise OSError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(server.service.store.responses, "save", fail)
            await socket.create(input="hello", store=True)
            (*_, failed) = await socket.until("response.failed")
            assert failed["response"]["error"]["code"] == "server_error"
        assert (await socket.response(input="again", store=True))["status"] == "completed"


async def test_a_rollout_that_fails_in_a_later_step_is_stored_and_continued() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        async with server.connect(headers={"OpenAI-Beta": "slipring_rollout=v1"}) as socket:
            await socket.create(input="hello", tools=[WEATHER], rollout=True)
            first = await engine.next()
            first.emit(CallStarted("function", "get_weather"), CallArguments("{}"))
            first.finish()
            done = (await socket.until("response.done"))[-1]
            output = {"call_id": done["required_input"][0]["call_id"], "output": "sun"}
            appended = [{"type": "function_call_output", **output}]
            await socket.send(type="response.append", response_id=done["response_id"], input=appended)
            second = await engine.next()
            second.say("hal")
            second.fail(RuntimeError("broken"))
            failed = (await socket.until("response.failed"))[-1]["response"]
        kinds = ["function_call", "function_call_output"]
        assert [item["type"] for item in failed["output"]] == kinds
        async with server.http.get(f"{server.url}/responses/{failed['id']}") as reply:
            assert wire.check_response(await reply.json()) == failed
        retry = asyncio.create_task(server.post(input=[], previous_response_id=failed["id"], tools=[WEATHER]))
        third = await engine.next()
        assert [item.type for item in third.job.input] == ["function_call_output"]
        third.say("sunny")
        third.finish()
        assert (await retry)[1]["status"] == "completed"


async def test_a_chain_that_exceeds_the_connections_memory_is_compressed_and_goes_on() -> None:
    limits = Limits(connection_cache_bytes=60_000, connection_compressed_bytes=400_000)
    engine = PuppetEngine()
    async with serve(engine, limits=limits) as server, server.connect() as socket:
        previous = None
        for number in range(6):
            await socket.create(input=f"{number} " * 8000, previous_response_id=previous, store=False)
            performance = await engine.next()
            performance.say("ok")
            performance.finish()
            previous = (await socket.until("response.completed"))[-1]["response"]["id"]
        assert len(list(performance.job.context())) == 11
        while server.service.scopes.process.compressions < 3:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
