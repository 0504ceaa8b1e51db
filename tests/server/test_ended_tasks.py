"""A turn ends with its tasks: each is cancelled at every point where it waits, on every transport.

In a server, such a cancellation comes from something that the task waits for and another task has cancelled.
"""

import asyncio
import dataclasses
import json
import logging
from collections.abc import Callable, Coroutine, Generator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSMsgType

from slipring.config.tables import CheckEntry
from slipring.core.checks.verdicts import Subject
from slipring.core.generation import (
    Accepted,
    CallArguments,
    CallEnded,
    CallStarted,
    Capabilities,
    Emit,
    Finished,
    Job,
    Model,
    Text,
    deliver,
)
from slipring.core.limits import Limits
from slipring.engines.base import Engine, Level
from slipring.server.driver import Driver
from slipring.server.transports import websocket
from slipring.server.transports.websocket import text_head
from tests.api import Api
from tests.harness import TERMINAL, PuppetEngine, Running, read_sse, serve
from tests.mcp.fakes import FakeServer, serving
from tests.server.hosted_tools.running import OPERATOR, registered
from tests.server.hosted_tools.turns import TRANSPORTS, Json, server
from tests.server.issuing import stored
from tests.server.raw import connection_of, narrow, open_raw, until

MANAGED = [{"type": "compaction", "compact_threshold": 1000}]
KEY = {"Authorization": "Bearer test-key"}


def grammar(number: int) -> Json:
    """A tool whose grammar was not compiled before."""
    definition = {"type": "grammar", "syntax": "regex", "definition": f"[ab]+{number}"}
    return {"type": "custom", "name": "pick", "format": definition}


class Interruption:
    """Cancels a task of one method of drivers, at the nth point where any of them begins or waits."""

    def __init__(self, method: Callable[..., Any], at: int) -> None:
        self._name = method.__qualname__
        self._left = at
        self.is_done = False

    def create(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        if getattr(coroutine, "__qualname__", "") != self._name:
            return asyncio.Task(coroutine, loop=loop, **options)
        task = asyncio.Task(Watched(coroutine, self), loop=loop, **options)
        self.reach(task)
        return task

    def reach(self, task: asyncio.Task[Any] | None) -> None:
        assert task is not None
        self._left -= 1
        if self._left == -1:
            self.is_done = task.cancel()


class Watched(Coroutine[Any, Any, Any]):
    """A coroutine that reports each of its waits."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], interruption: Interruption) -> None:
        self._coroutine = coroutine
        self._interruption = interruption

    def send(self, value: Any) -> Any:
        awaited = self._coroutine.send(value)
        self._interruption.reach(asyncio.current_task())
        return awaited

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise NotImplementedError


class CallingEngine(Engine):
    """Summarizes if asked to, calls a tool if the user has spoken, and answers with a text otherwise."""

    name = "calling"
    level = Level.ITEMS

    def models(self) -> list[Model]:
        return [Model(name="calling", owner="tests", capabilities=Capabilities())]

    async def count(self, job: Job, enough: int | None = None) -> int:
        await asyncio.sleep(0)
        return 2000

    async def generate(self, job: Job, emit: Emit) -> None:
        await asyncio.sleep(0)
        await deliver(emit, [Accepted()])
        await asyncio.sleep(0)
        if job.input[-1].type == "message" and not job.offer.forbidden:
            called = CallStarted("function", "add", "fake")
            await deliver(emit, [called, CallArguments('{"a":1,"b":1}'), CallEnded()])
        else:
            await deliver(emit, [Text("word")])
        await asyncio.sleep(0)
        await deliver(emit, [Finished("stop", input_tokens=3, cached_tokens=0, output_tokens=2)])


may_flag = asyncio.Event()


async def flag_bad(subject: Subject) -> bool:
    await asyncio.sleep(0)
    if "bad" not in subject.text:
        return False
    await may_flag.wait()
    return True


def check() -> Callable[[Subject], Coroutine[Any, Any, bool]]:
    """The factory of the check of this module."""
    return flag_bad


CHECK = CheckEntry("check", f"python:{__name__}:check", action="block", mode="hold", on_error="closed")


def body(number: int) -> Json:
    return {"input": "hello", "tools": [server(), grammar(number)], "context_management": MANAGED}


@pytest.fixture(autouse=True)
def operator_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPERATOR_KEY", OPERATOR)


@pytest.fixture(autouse=True)
def expected_failures(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "slipring")


async def ending(running: Running, transport: str, **fields: Any) -> str:
    """How the response to a request ends: a status, or ``error``."""
    if transport == "websocket":
        async with running.connect() as socket:
            last = (await socket.turn(**fields))[-1]
            asyncio.get_running_loop().set_task_factory(None)
            assert (await socket.response(**fields))["status"] == "completed", "the lane goes on"
            (client,) = (
                each for each in running.service.clients if each.driver.origin.transport == transport
            )
            assert client.in_flight == 0
        return str(last["response"]["status"]) if last["type"] in TERMINAL else "error"
    if transport == "background":
        api = Api(running)
        status, begun = await api.call("POST", "/responses", json={**fields, "background": True})
        if status != 200:
            return "error"
        ended = await api.ended(begun["id"])
        # If the task was cancelled while the response was saved, the store decides once the lease is over:
        # the last event follows where the others broke off.
        *_, end, done, _ = (await api.stream(begun["id"])).split("\n\n")
        assert (json.loads(end.split("data: ")[1])["response"], done) == (ended, "data: [DONE]")
        return str(ended["status"])
    fields["stream"] = transport == "sse"
    async with running.http.post(f"{running.url}/responses", json=fields, headers=KEY) as answer:
        if answer.status != 200:
            return "error"
        response = read_sse(await answer.text())[-1]["response"] if fields["stream"] else await answer.json()
        return str(response["status"])


def holds_nothing(running: Running) -> bool:
    service = running.service
    return not service.clients and not service.requests.used_bytes


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("method", [Driver._run_turn, Driver._call_tool, Driver._inspect])
async def test_a_turn_ends_wherever_one_of_its_tasks_is_cancelled(
    tmp_path: Path, transport: str, method: Callable[..., Any]
) -> None:
    """It continues a stored response, and is loaded, listed, checked, weighed, compacted, inspected, made in
    two steps around a hosted call, and saved."""
    loop = asyncio.get_running_loop()
    endings: list[str] = []
    async with (
        serving(FakeServer(modern=True)) as fake,
        serve(
            CallingEngine(),
            limits=Limits(run_lease_s=3),
            store=stored(tmp_path),
            mcp=(registered(fake),),
            checks=(CHECK,),
        ) as running,
    ):
        _, first = await running.post(**body(-1))
        assert [item["type"] for item in first["output"]][-2:] == ["mcp_call", "message"]
        while True:
            number = len(endings)
            interruption = Interruption(method, number)
            loop.set_task_factory(interruption.create)
            try:
                ended = await ending(running, transport, previous_response_id=first["id"], **body(number))
            finally:
                loop.set_task_factory(None)
            await until(lambda: holds_nothing(running))
            if not interruption.is_done:
                break
            endings.append(ended)
    assert ended == "completed"
    assert set(endings) - {"completed"} <= {"failed", "error", "incomplete"}
    assert set(endings) & {"failed", "error"}


async def test_an_append_whose_check_is_cancelled_is_refused() -> None:
    search = {"type": "tool_search", "execution": "client"}
    loop, engine = asyncio.get_running_loop(), PuppetEngine()
    async with serve(engine) as running:
        for at in count():
            interruption = Interruption(Driver._compile_appended, at)
            async with running.connect(headers={"OpenAI-Beta": "slipring_rollout=v1"}) as socket:
                await socket.create(input="x", tools=[search], rollout=True, store=False)
                first = await engine.next()
                first.emit(CallStarted("tool_search", "tool_search"), CallArguments("{}"))
                first.finish()
                done = (await socket.until("response.done"))[-1]
                items = [{**done["required_input"][0], "tools": [grammar(at)]}]
                append = {"type": "response.append", "response_id": done["response_id"], "input": items}
                loop.set_task_factory(interruption.create)
                await socket.send(**append)
                taken = (await socket.until("response.append.failed", "response.output_item.done"))[-1]
                loop.set_task_factory(None)
                if interruption.is_done:
                    assert taken["type"] == "response.append.failed"
                    await socket.send(**append)
                second = await engine.next()
                second.finish()
                await socket.until("response.completed")
            if not interruption.is_done:
                break
    assert at > 1


async def test_a_chain_goes_on_whose_compression_is_cancelled() -> None:
    limits = Limits(connection_cache_bytes=60_000, connection_compressed_bytes=400_000)
    interruption = Interruption(Driver._compress, 1)
    async with serve(limits=limits) as running, running.connect() as socket:
        asyncio.get_running_loop().set_task_factory(interruption.create)
        previous = None
        for number in range(6):
            text = f"{number} " * 8000
            response = await socket.response(input=text, previous_response_id=previous, store=False)
            previous = response["id"]
        asyncio.get_running_loop().set_task_factory(None)
        await until(lambda: running.service.scopes.process.compressions > 0)
        assert interruption.is_done


async def test_a_check_that_blocks_one_lane_leaves_another_on_a_slow_socket_alone() -> None:
    engine = PuppetEngine()
    may_flag.clear()
    of_input = dataclasses.replace(CHECK, subjects=("message",))
    async with (
        serve(engine, checks=(of_input,), limits=Limits(send_buffer_bytes=1024)) as running,
        open_raw(running, small_buffers=True) as raw,
    ):
        narrow(running)
        client = connection_of(running)
        large = {"instructions": "x" * 10**6, "store": False}
        await raw.create(input="bad", stream_id="a", **large)
        await engine.next()
        await until(lambda: client.full)
        may_flag.set()
        await until(lambda: client.turns_ended == 1)
        await raw.create(input="hello", stream_id="b", store=False)
        performance = await engine.next()
        for _ in range(20):  # the verdict about the input may come between any two
            performance.say("word")
            await asyncio.sleep(0)
        performance.finish()
        last: dict[str, str] = {}
        while last.get("b") not in TERMINAL:
            event = await raw.receive_event()
            last[event["stream_id"]] = event["type"]
        assert last == {"a": "response.failed", "b": "response.completed"}
        assert client.in_flight == 0


async def test_a_socket_that_cannot_be_written_to_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client would otherwise wait for ever."""
    engine, is_broken = PuppetEngine(), asyncio.Event()

    def fail(size: int) -> bytes:
        if is_broken.is_set():
            raise RuntimeError("a fault of the library")
        return text_head(size)

    monkeypatch.setattr(websocket, "text_head", fail)
    async with serve(engine) as running:
        async with running.connect(abandoned=True) as socket:
            await socket.create(input="hello")
            performance = await engine.next()
            await socket.until("response.in_progress")
            is_broken.set()
            performance.say("word")
            assert (await socket.ws.receive(timeout=300)).type in (WSMsgType.CLOSED, WSMsgType.ERROR)
        await until(lambda: holds_nothing(running))
