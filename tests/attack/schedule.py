"""Loops that take the KV cache of the engine: ever more of them, calls without an answer, tools that lie."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from tests.attack.limits import STORM_EVENT_MS
from tests.attack.server import VICTIM_KEY
from tests.attack.small_cache import KV_TOKENS
from tests.attack.sockets import Json, Socket
from tests.attack.stage import Registry, Stage

attack = Registry("schedule", engine="scheduled", event_ms=STORM_EVENT_MS)
_MODEL = "scheduled"
_SOCKETS = 6
_LONGEST_S = 15.0
"""A turn of the other tenant may wait so long, at most. One that waits for loops of its own tenant waits
for up to a minute."""
_TURNS = 6
_FULL = KV_TOKENS // 460
"""So many loops of 450 words fill the cache."""
_READ = {"type": "function", "name": "read", "parameters": {"type": "object"}, "strict": False}


def _create(said: str, words: int = 0, **fields: object) -> Json:
    asked = {"model": _MODEL, "input": f"{'word ' * words}{said}", "tools": [_READ], "store": False}
    return {**asked, "max_output_tokens": 40, **fields}


@asynccontextmanager
async def _sockets(stage: Stage, count: int = _SOCKETS) -> AsyncIterator[list[Socket]]:
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(count):
            opened.append(await stage.websocket())
            stack.callback(opened[-1].reset)
        yield opened


async def _victim_goes_on(stage: Stage) -> None:
    """Require that another tenant's loop, as large as its share, gets every turn within a bounded time."""
    socket = await stage.websocket(key=VICTIM_KEY)
    try:
        after, waits = None, []
        for turn in range(_TURNS):
            began = time.monotonic()
            asked = _create("go on", KV_TOKENS // 8 if turn == 0 else 20, previous_response_id=after)
            event = await stage.turn(socket, within_s=_LONGEST_S, **asked)
            waits.append(time.monotonic() - began)
            if event is None or event["type"] == "response.failed":
                stage.check(
                    False, f"turn {turn} of the other tenant: {str(event)[:300]} after {waits[-1]:.1f} s"
                )
                return
            after = event["response"]["id"]
        stage.note(f"turns of the other tenant took at most {max(waits):.1f} s")
    finally:
        socket.close()


async def _loop(stage: Stage, socket: Socket, words: int) -> bool:
    """Begin a loop that waits for a tool and is never continued. Returns whether the tool was called."""
    event = await stage.turn(socket, within_s=3.0, **_create("call read", words))
    return event is not None and event["type"] == "response.completed"


async def _fill(stage: Stage, sockets: list[Socket]) -> None:
    """Fill the cache with loops that wait for a tool."""
    called = 0
    while called < _FULL:
        served = await asyncio.gather(*(_loop(stage, socket, 450) for socket in sockets))
        called += sum(served)
        if not any(served):
            break
    stage.check(called >= _FULL, f"only {called} of {_FULL} loops of the attacker were served")


@attack()
async def more_and_more_loops(stage: Stage) -> None:
    """One tenant begins loop after loop, as many as it gets turns for: some hundred, more than fit the
    engine's cache. All of them pause for a tool. Another tenant's loop gets its share of the cache, meanwhile
    and afterwards."""
    async with _sockets(stage) as sockets:
        called = 0

        async def open_loops(socket: Socket) -> None:
            nonlocal called
            while True:
                called += await _loop(stage, socket, 60)

        opening = [asyncio.create_task(open_loops(socket)) for socket in sockets]
        await asyncio.wait(opening, timeout=30.0)
        await _victim_goes_on(stage)
        for task in opening:
            task.cancel()
        await asyncio.wait(opening)
        await _victim_goes_on(stage)
        stage.note(f"{called} loops were begun")
        stage.check(called > KV_TOKENS // 100, f"only {called} loops of the attacker were served")


@attack()
async def calls_without_an_end(stage: Stage) -> None:
    """Loops of one tenant that fill the cache never answer their calls, and further ones wait: another
    tenant's loop gets its share."""
    async with _sockets(stage) as sockets:
        await _fill(stage, sockets)
        waiting = [asyncio.create_task(_loop(stage, socket, 2500)) for socket in sockets]
        await _victim_goes_on(stage)
        await asyncio.gather(*waiting)


@attack()
async def tools_that_lie(stage: Stage) -> None:
    """A tenant answers a tool at once, many times, so that the schedule expects it to be quick; then its
    loops fill the cache and wait for that tool for ever: another tenant's loop gets its share."""
    async with _sockets(stage) as sockets:
        for _ in range(60):
            event = await stage.turn(sockets[0], **_create("call read"))
            stage.answered(event)
            if event is None or event["type"] != "response.completed":
                return
            calls = [
                item["call_id"] for item in event["response"]["output"] if item["type"] == "function_call"
            ]
            stage.check(calls, "the engine called no tool")
            sent = [{"type": "function_call_output", "call_id": id, "output": "done"} for id in calls]
            asked = {**_create(""), "input": sent, "previous_response_id": event["response"]["id"]}
            stage.answered(await stage.turn(sockets[0], **asked))
        await _fill(stage, sockets)
        await _victim_goes_on(stage)
