"""The second tenant: a process that makes turns all the time, checks every answer and measures the latency.

    python -m tests.attack.victim URL KEY PAUSE MODEL…

It continues chains over WebSocket, SSE and plain POST, each in its own task, with a pause of this many
seconds between two turns. It opens new connections repeatedly, so that it notices an attack that locks out
new clients. A line on its standard input requests a report: a line of JSON with the findings since the last
one.
"""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp

_CHAIN = 12
"""Length of a chain, after which another begins on a new connection."""
_TOKENS = 16
_PATIENCE_S = 60.0
_TIMEOUT = aiohttp.ClientTimeout(total=_PATIENCE_S)
"""Time limit of one turn, and of opening a WebSocket."""
_RETRY_S = 0.2
_TIMER_S = 0.005
"""Like the pace of the simulated engine's events."""
_SHOWN = 300
_ENDS = ("response.completed", "response.incomplete", "response.failed", "error")

Json = dict[str, Any]


class Wrong(Exception):
    """An answer does not match the request."""


class Times:
    """Measures the wait for each event, since the previous one or since the request."""

    def __init__(self) -> None:
        self._waits_ms: list[float] = []
        self._since: dict[str, float] = {}
        """For each task, since when it waits for an event that is due soon."""

    def ask(self, task: str) -> None:
        self._since[task] = time.perf_counter()

    def event(self, task: str) -> None:
        now = time.perf_counter()
        since, self._since[task] = self._since.get(task, now), now
        self._waits_ms.append((now - since) * 1e3)

    def rest(self, task: str) -> None:
        self._since.pop(task, None)

    def cut(self) -> list[float]:
        """Return the waits since the last cut, including those that are still going on."""
        now = time.perf_counter()
        taken = self._waits_ms + [(now - since) * 1e3 for since in self._since.values()]
        self._waits_ms = []
        return taken


class Victim:
    """The tasks of the second tenant, and their findings."""

    def __init__(self, url: str, key: str, pause_s: float, models: list[str]) -> None:
        self._url = url
        self._pause_s = pause_s
        self._headers = {"Authorization": f"Bearer {key}"}
        self._models = models
        self._times = {model: Times() for model in models}
        self._faults: list[str] = []
        self._turns: Counter[str] = Counter()
        """Turns that began and ended since the last cut, by transport."""
        self._lags_ms: list[float] = []
        """How late timers were since the last cut: the part of all times that no server causes."""
        self._cut_at = 0.0
        self._numbers = 0

    async def live(self) -> None:
        first, last = self._models[0], self._models[-1]
        async with asyncio.TaskGroup() as tasks:
            for model in dict.fromkeys((first, last)):
                tasks.create_task(self._again(f"websocket {model}", model, self._socket_chain))
            tasks.create_task(self._again("sse", first, self._stream_chain))
            tasks.create_task(self._again("post", first, self._plain_chain))
            tasks.create_task(self._measure_lag())
            tasks.create_task(self._report())

    async def _again(self, task: str, model: str, chain: Callable[[str, str], Awaitable[None]]) -> None:
        while True:
            try:
                await chain(task, model)
            except Exception as error:  # any error kept the victim from its answer
                self._faults.append(f"{task}: {type(error).__name__} {error}"[:_SHOWN])
                await asyncio.sleep(_RETRY_S)
            finally:
                self._times[model].rest(task)

    async def _measure_lag(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(_TIMER_S)
            self._lags_ms.append((time.perf_counter() - began - _TIMER_S) * 1e3)

    async def _report(self) -> None:
        """Answer each line of standard input with a report; return at its end."""
        loop = asyncio.get_running_loop()
        asked: asyncio.Queue[bytes] = asyncio.Queue()
        loop.add_reader(0, lambda: asked.put_nowait(os.read(0, 4096)))
        while line := await asked.get():
            if line.startswith(b"look"):
                print(json.dumps(self._turns), flush=True)
                continue
            waits = {model: times.cut() for model, times in self._times.items()}
            report = {
                "waits_ms": waits,
                "lags_ms": self._lags_ms,
                "faults": self._faults,
                "turns": self._turns,
            }
            self._faults, self._turns, self._cut_at = [], Counter(), time.perf_counter()
            self._lags_ms = []
            print(json.dumps(report), flush=True)
        os._exit(0)

    # Chains.

    async def _socket_chain(self, task: str, model: str) -> None:
        times = self._times[model]
        times.ask(task)
        async with (
            aiohttp.ClientSession(headers=self._headers, timeout=_TIMEOUT) as http,
            http.ws_connect(f"{self._url}/responses", max_msg_size=0) as ws,
        ):
            chain = _Chain()
            for _ in range(_CHAIN):
                create = self._create(model, chain)
                began = time.perf_counter()
                times.ask(task)
                await ws.send_json({"type": "response.create", **create})

                async def events() -> AsyncIterator[Json]:
                    while True:
                        yield await ws.receive_json()

                async with asyncio.timeout(_PATIENCE_S):
                    chain.take(await self._follow(task, model, events()), create)
                await self._done(task, model, began)

    async def _stream_chain(self, task: str, model: str) -> None:
        times = self._times[model]
        async with aiohttp.ClientSession(headers=self._headers, timeout=_TIMEOUT) as http:
            chain = _Chain()
            for _ in range(_CHAIN):
                create = self._create(model, chain)
                began = time.perf_counter()
                times.ask(task)
                async with http.post(f"{self._url}/responses", json={**create, "stream": True}) as answer:
                    if answer.status != 200:
                        raise Wrong(f"{answer.status} {await answer.text()}")
                    chain.take(await self._follow(task, model, _events_of(answer)), create)
                await self._done(task, model, began)

    async def _plain_chain(self, task: str, model: str) -> None:
        chain = _Chain()
        for _ in range(_CHAIN):
            create = self._create(model, chain)
            began = time.perf_counter()
            async with (
                aiohttp.ClientSession(headers=self._headers, timeout=_TIMEOUT) as http,
                http.post(f"{self._url}/responses", json=create) as answer,
            ):
                response = await answer.json()
                if answer.status != 200:
                    raise Wrong(f"{answer.status} {response}")
                chain.take(response, create)
                async with http.get(f"{self._url}/responses/{response['id']}") as stored:
                    if (found := await stored.json()) != response:
                        raise Wrong(f"{response} was answered, but {found} is stored")
            await self._done(task, model, began)

    def _create(self, model: str, chain: "_Chain") -> Json:
        self._numbers += 1
        return {
            "model": model,
            "input": f"turn {self._numbers}",
            "max_output_tokens": _TOKENS,
            "previous_response_id": chain.id,
        }

    async def _done(self, task: str, model: str, began: float) -> None:
        """Count a turn that has ended, and pause before the next one."""
        if began >= self._cut_at:
            self._turns[task] += 1
        if self._pause_s:
            self._times[model].rest(task)
            await asyncio.sleep(self._pause_s)

    async def _follow(self, task: str, model: str, events: AsyncIterator[Json]) -> Json:
        """Read a stream of events; return its response, if the events are in order and match it."""
        times, text, number = self._times[model], "", 0
        async for event in events:
            if model == self._models[0] or (event["type"] == "response.output_text.delta" and text):
                times.event(task)
            else:
                times.ask(task)  # the time a real model takes to read the prompt is not due to an attack
            if event["type"] == "error" or event["sequence_number"] != number:
                raise Wrong(f"{number} events, and then {event}")
            number += 1
            if event["type"] == "response.output_text.delta":
                text += event["delta"]
            if event["type"] in _ENDS:
                times.rest(task)
                if text != _text_of(event["response"]):
                    raise Wrong(f"{text!r} was streamed, but the answer is {event['response']}")
                return dict(event["response"])
        raise Wrong(f"the events ended after {number}")


class _Chain:
    """Turns that continue each other."""

    def __init__(self) -> None:
        self.id: str | None = None
        self._tokens = 0

    def take(self, response: Json, create: Json) -> None:
        """Continue from a response, if it is a complete answer whose context has the whole history."""
        usage = response["usage"]
        if response["status"] not in ("completed", "incomplete") or not response["output"]:
            raise Wrong(f"no answer: {response}")
        if response["previous_response_id"] != create["previous_response_id"]:
            raise Wrong(f"it continues another response: {response}")
        if usage["input_tokens"] <= self._tokens:
            raise Wrong(f"{usage['input_tokens']} tokens of context, and {self._tokens} before")
        self.id = response["id"]
        self._tokens = usage["input_tokens"] + usage["output_tokens"] // 2


def _text_of(response: Json) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))


async def _events_of(answer: aiohttp.ClientResponse) -> AsyncIterator[Json]:
    async for line in answer.content:
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


if __name__ == "__main__":
    with asyncio.Runner() as runner:
        runner.run(Victim(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4:]).live())
