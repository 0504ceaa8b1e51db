"""Many clients at once in front of a server with a small KV cache: they continue, fork, compact and warm up
chains, leave at any moment, and meet failures. In the end, nothing runs, waits or is held."""

import asyncio
import gc
from collections.abc import Coroutine
from random import Random
from typing import Any, TypeVar

import pytest

from slipring.core.limits import Limits
from tests.chat_api import Chat
from tests.engines.fakes.server import Call, HangUp, Refuse, Say, Step, Stop
from tests.engines.fakes.vllm import FakeVllm
from tests.engines.fakes.vllm_sessions import FakeVllmWithSessions
from tests.harness import TERMINAL, WEATHER, Running, Socket, serve
from tests.messages_api import MessagesApi, Refused
from tests.server.raw import until

pytestmark = pytest.mark.usefixtures("compiled_here")

T = TypeVar("T")
LENIENT = {**WEATHER, "strict": False}
ENDS = (*TERMINAL, "error")
CLIENTS, VISITS, TURNS = 8, 3, 4


class Scripts:
    """Answers of a server, at random. Some wait until others have begun, and all end some time."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._resting: list[asyncio.Event] = []
        self.is_over = False

    def next(self) -> tuple[Step, ...]:
        kind = self._random.choice(("say", "say", "call", "rest", "rest", "refuse", "hang up", "cut"))
        if kind == "rest" and not self.is_over:
            rest = asyncio.Event()
            self._resting.append(rest)
            if len(self._resting) > 2:
                self._resting.pop(0).set()
            return Say(("a ", "b ", "c"), rest=rest), Stop()
        if kind == "call":
            return Call("get_weather", '{"city": "Rome"}'), Stop()
        if kind == "refuse":
            return (Refuse(self._random.choice((400, 429, 500, 503))),)
        if kind == "hang up":
            return (HangUp(),)
        if kind == "cut":
            return Say(("a ", "b ")), HangUp()
        return Say(("ok",)), Stop()

    def release(self) -> None:
        for rest in self._resting:
            rest.set()
        self._resting.clear()


class Visitor:
    """One client."""

    def __init__(self, server: Running, random: Random, name: int) -> None:
        self._server = server
        self._random = random
        self._key = f"key-{name % 3}"
        self.ended = 0

    async def run(self) -> None:
        for _ in range(VISITS):
            visit = self._random.choice((self._by_socket, self._by_socket, self._by_messages, self._by_chat))
            await visit()

    async def _by_socket(self) -> None:
        is_patient = self._random.random() < 0.5
        async with self._server.connect(key=self._key, abandoned=not is_patient) as socket:
            before: dict[str, Any] | None = None
            for turn in range(TURNS):
                fields = self._fields(before)
                if not is_patient and turn == TURNS - 1:
                    await self._leave(socket, fields)
                    return
                event = (await socket.turn(**fields))[-1]
                self.ended += 1
                before = event["response"] if event["type"] == "response.completed" else None

    async def _leave(self, socket: Socket, fields: dict[str, Any]) -> None:
        """Ask for an answer, and leave before its end, or while it is sent."""
        await socket.create(**fields)
        for _ in range(self._random.choice((0, 1, 2, 3))):
            if (await socket.receive())["type"] in ENDS:
                return

    def _fields(self, before: dict[str, Any] | None) -> dict[str, Any]:
        random = self._random
        sent: list[dict[str, Any]] = [{"role": "user", "content": "word " * random.choice((1, 20, 400))}]
        fields: dict[str, Any] = {"input": sent, "store": False, "tools": [LENIENT]}
        if before is not None:
            calls = [item["call_id"] for item in before["output"] if item["type"] == "function_call"]
            sent[:0] = [
                {"type": "function_call_output", "call_id": call_id, "output": "sunny"} for call_id in calls
            ]
            fields["previous_response_id"] = before["id"]
            fields["stream_id"] = random.choice(("main", "main", "fork"))
        if random.random() < 0.2:
            fields["generate"] = False
        if random.random() < 0.3:
            fields["prompt_cache_key"] = "shared"
        if random.random() < 0.3:
            fields["context_management"] = [{"type": "compaction", "compact_threshold": 1000}]
        return fields

    async def _by_messages(self) -> None:
        api, history = MessagesApi(self._server, key=self._key), [{"role": "user", "content": "hi"}]
        for turn in range(TURNS):
            try:
                answer = await self._perhaps_left(api.create(*history))
            except Refused:
                continue
            if answer is not None and answer["content"]:
                history += [{"role": "assistant", "content": answer["content"]}]
                history += [{"role": "user", "content": f"and {turn}"}]

    async def _by_chat(self) -> None:
        chat, history = Chat(self._server, key=self._key), [{"role": "user", "content": "hi"}]
        for turn in range(TURNS):
            asked = chat.post(*history, n=self._random.choice((1, 3)))
            status, answer = await self._perhaps_left(asked) or (0, {})
            if status == 200:
                history += [answer["choices"][0]["message"], {"role": "user", "content": f"and {turn}"}]

    async def _perhaps_left(self, asked: Coroutine[Any, Any, T]) -> T | None:
        """The answer; None if the client has left before it."""
        task = asyncio.create_task(asked)
        if self._random.random() < 0.3:
            await asyncio.wait([task], timeout=self._random.choice((0, 0.001, 0.01, 0.1)))
            if task.cancel():
                await asyncio.wait([task])
                return None
        answer = await task
        self.ended += 1
        return answer


@pytest.mark.parametrize("seed", [3])
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (FakeVllm, {"kv_tokens": 700}),
        (FakeVllm, {"kv_tokens": 2000, "max_jobs": 2, "max_waiting": 3}),
        (FakeVllm, {"kv_tokens": 100}),
        (FakeVllmWithSessions, {"kv_tokens": 1200}),
    ],
)
async def test_nothing_is_left(make: type[FakeVllm], options: dict[str, Any], seed: int) -> None:
    random = Random(seed)
    scripts = Scripts(random)

    class Fake(make):  # type: ignore[misc, valid-type]
        def next_script(self) -> tuple[Step, ...]:
            return scripts.next()

    fake = Fake()
    await fake.start()
    try:
        engine = fake.engine(retries=1, failures_to_close=1000, **options)
        limits = Limits(ping_interval_s=0, recognised_s=0, parked_s=0)
        async with serve(engine, limits=limits) as server:
            visitors = [Visitor(server, Random(f"{seed} {name}"), name) for name in range(CLIENTS)]
            tasks = [asyncio.create_task(visitor.run()) for visitor in visitors]
            pending = set(tasks)
            while pending:
                done, pending = await asyncio.wait(pending, timeout=0.05)
                scripts.release()
                for task in done:
                    task.result()
            assert all(visitor.ended for visitor in visitors)

            def is_left() -> bool:
                gc.collect()
                loops = engine.status().loops
                return bool(loops.running or loops.waiting or loops.held_tokens)

            await until(lambda: not is_left())
            assert (engine._admission.running, engine._admission.waiting) == (0, 0)
    finally:
        scripts.release()
        await fake.close()
