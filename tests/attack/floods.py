"""Floods: large numbers of requests that are harmless alone."""

import asyncio
import json
import os
import time
from contextlib import suppress

from tests.attack.limits import LARGE_EVENT_MS, MIB, STORM_EVENT_MS
from tests.attack.server import VICTIM_KEY
from tests.attack.sockets import GONE, PING, TEXT, Socket, connect, frame, request_head, upgrade
from tests.attack.stage import Registry, Stage

attack = Registry("floods")
_ROLLOUT = "OpenAI-Beta: slipring_rollout=v1"
_ENDS = ("response.completed", "response.failed", "response.incomplete")
_WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@attack(quick=True, event_ms=LARGE_EVENT_MS)
async def connect_and_close(stage: Stage) -> None:
    """1,500 connections are opened and reset at once, some during a request: nothing remains."""
    starts = [b"", b"GET", upgrade(stage.key)[:50], upgrade(stage.key), request_head("GET", "/models")]
    for number in range(1500):
        socket = await connect(stage.server)
        await socket.send(starts[number % len(starts)])
        if number % 2:
            socket.reset()
        else:
            socket.close()


@attack(quick=True)
async def pings(stage: Stage) -> None:
    """20,000 pings are sent on one WebSocket that is not read: other clients are served."""
    socket = await stage.websocket()
    data = frame(PING, b"x" * 125) * 1000
    try:
        async with asyncio.timeout(3):
            for _ in range(20):
                await socket.send(data)
    except GONE:
        stage.note("the sender was throttled")
    finally:
        socket.reset()


@attack()
async def unread_pings(stage: Stage) -> None:
    """Ten WebSockets send pings endlessly and read no pong: the pending data is bounded."""
    data = frame(PING, b"x" * 125) * 5000

    async def flood() -> None:
        socket = await stage.websocket()
        try:
            async with asyncio.timeout(4):
                while True:
                    await socket.send(data)
        except GONE:
            pass
        finally:
            socket.reset()

    await asyncio.gather(*(flood() for _ in range(10)))


@attack(peak_mib=1024, event_ms=STORM_EVENT_MS)
async def sockets_cut_at_once(stage: Stage) -> None:
    """3,000 WebSockets with a response each are dropped at once: that costs little CPU, and other clients are
    served."""
    count = min(3000, (os.sysconf("SC_OPEN_MAX") - 500) // 2)
    opened: list[Socket] = []

    async def one() -> None:
        socket = await stage.websocket()
        opened.append(socket)
        await socket.create(input="go", generate=False, store=False)
        await socket.until("response.completed")

    async with asyncio.timeout(50):
        for _ in range(count // 50):
            await asyncio.gather(*(one() for _ in range(50)))
    await asyncio.sleep(1)
    cpu, began = stage.server.cpu_s(), time.monotonic()
    for socket in opened:
        socket.reset()
    fell = await stage.descriptors_fall(200, 20)
    stage.check(fell, "the sockets are not released")
    await asyncio.sleep(0.5)
    spent = stage.server.cpu_s() - cpu
    stage.note(f"{len(opened)} sockets: {spent:.2f} s of CPU in {time.monotonic() - began:.1f} s")
    stage.check(spent < 1, f"{spent:.1f} s of CPU to part with {len(opened)} sockets")


@attack(quick=True)
async def guessed_keys(stage: Stage) -> None:
    """500 wrong keys are refused with 401, all alike and without repeating them, over HTTP and by upgrade."""
    seen = set()
    for number in range(500):
        key = f"sk-guess-{number:04d}" if number % 2 else f"{VICTIM_KEY[:-1]}{number % 10}x"
        data = (
            upgrade(key, "Connection: close")
            if number % 5 == 0
            else request_head("GET", "/models", "Connection: close", key=key)
        )
        answer = await stage.exchange(data)
        stage.refused(answer, (401,), code="invalid_api_key")
        if answer is not None:
            stage.check(key.encode() not in answer.body and key not in answer.head, "the key is repeated")
            seen.add(answer.body)
    stage.check(len(seen) == 1, f"{len(seen)} different refusals")


@attack(quick=True)
async def garbage(stage: Stage) -> None:
    """Random bytes on plain connections and in frames of WebSockets: those connections are refused or closed,
    and no others."""
    for _ in range(60):
        data = stage.random.randbytes(stage.random.randrange(1, 3000))
        socket = await connect(stage.server)
        with suppress(OSError):
            await socket.send(data + b"\r\n\r\n")
        socket.close()
    for _ in range(60):
        socket = await stage.websocket()
        data = stage.random.randbytes(stage.random.randrange(1, 3000))
        try:
            await socket.send(data if stage.random.random() < 0.5 else frame(TEXT, data))
            async with asyncio.timeout(0.05):
                await socket.receive()
        except GONE:
            pass
        socket.reset()


@attack(quick=True)
async def steers(stage: Stage) -> None:
    """100 steers at once to one response: those beyond the limit are returned, and the response continues."""
    socket = await stage.websocket()
    async with asyncio.timeout(20):
        await socket.create(input="go", store=False)
        created = await socket.until("response.created")
        for number in range(100):
            await socket.send_event(
                type="response.steer", previous_response_id=created["response"]["id"], input=f"steer {number}"
            )
        failed = 0
        while True:
            event = await socket.until(
                "response.steer.failed", "response.completed", "response.incomplete", "response.failed"
            )
            failed += event["type"] == "response.steer.failed"
            if event["type"] in ("error", "close"):
                stage.check(False, f"the connection broke: {str(event)[:200]}")
                break
            if event["type"] == "response.completed":
                break
    stage.note(f"{failed} of 100 steers returned")
    socket.close()


@attack(peak_mib=512)
async def large_steers(stage: Stage) -> None:
    """A hundred steers of 4 MiB each to a response on each of two WebSockets: memory is bounded."""
    text = "x" * (4 * MIB)

    async def flood() -> None:
        socket = await stage.websocket()
        try:
            async with asyncio.timeout(8):
                await socket.create(input="go", store=False)
                created = await socket.until("response.created")
                for _ in range(50):
                    await socket.send_event(
                        type="response.steer", previous_response_id=created["response"]["id"], input=text
                    )
        except GONE:
            pass
        finally:
            socket.reset()

    await asyncio.gather(flood(), flood())


@attack(peak_mib=512)
async def large_appends(stage: Stage) -> None:
    """Results of 4 MiB are appended to a rollout again and again: memory is bounded."""
    socket = await stage.websocket(_ROLLOUT)
    try:
        async with asyncio.timeout(20):
            await socket.create(
                input="go", tools=[_WEATHER], tool_choice="required", rollout=True, store=False
            )
            for number in range(40):
                done = await socket.until("response.done", *_ENDS)
                if done["type"] != "response.done":
                    stage.note(f"ended as {done['type']} after {number} appends")
                    break
                call = done["required_input"][0]["call_id"]
                result = {"type": "function_call_output", "call_id": call, "output": "x" * (4 * MIB)}
                for _ in range(3):  # the first is accepted; there is no open call for the others
                    await socket.send_event(
                        type="response.append", response_id=done["response_id"], input=[result]
                    )
    except GONE as error:
        stage.note(f"closed: {type(error).__name__}")
    finally:
        socket.reset()


@attack()
async def all_runs(stage: Stage) -> None:
    """One tenant begins background runs until it is refused with 429 or 503: another can still begin one."""
    most = int(stage.limit("max_runs"))
    body = {"input": "go", "background": True, "max_output_tokens": 2000}
    # Runs of the simulated engine are short: it takes many clients to keep the limit reached for a while.
    answers = await asyncio.gather(*(stage.post(body) for _ in range(3 * most)))
    begun = sum(answer is not None and answer.status == 200 for answer in answers)
    refused = [answer for answer in answers if answer is None or answer.status != 200]
    neighbour = await stage.post(body, key=VICTIM_KEY)
    stage.note(f"{begun} begun, {len(refused)} refused")
    stage.check(refused, f"none of {3 * most} runs was refused")
    for answer in refused[:3]:
        stage.refused(answer, (429, 503))
    served = neighbour is not None and neighbour.status == 200
    stage.check(served, f"the other tenant cannot begin a run: {neighbour and neighbour.body[:200]!r}")


@attack(peak_mib=512)
async def parked_memory(stage: Stage) -> None:
    """One tenant drops connections with more than all parked memory: a chain that another has parked is
    kept."""
    socket = await stage.websocket(key=VICTIM_KEY)
    event = await stage.turn(socket, input="remember this", store=False, max_output_tokens=4)
    socket.reset()
    parked = event["response"]["id"] if event else None
    await asyncio.sleep(0.3)
    for _ in range(12):
        flood = await stage.websocket()
        await stage.turn(flood, input="x" * (8 * MIB), store=False, max_output_tokens=1)
        flood.reset()
    await asyncio.sleep(0.3)
    socket = await stage.websocket(key=VICTIM_KEY)
    event = await stage.turn(
        socket, input="go on", previous_response_id=parked, store=False, max_output_tokens=4
    )
    found = event is not None and event["type"] in ("response.completed", "response.incomplete")
    stage.check(found, f"the other tenant's parked chain was evicted: {str(event)[:300]}")
    socket.close()


@attack(peak_mib=512, limits={"tenant_cache_bytes": 64 * MIB, "process_cache_bytes": 128 * MIB})
async def connection_memory(stage: Stage) -> None:
    """One tenant fills the memory for chains from many WebSockets: a chain of another is still continued."""
    socket = await stage.websocket(key=VICTIM_KEY)
    event = await stage.turn(socket, input="remember this", store=False, max_output_tokens=4)
    opened = []
    for _ in range(30):
        flood = await stage.websocket()
        opened.append(flood)
        await stage.turn(flood, input="x" * (6 * MIB), store=False, max_output_tokens=1)
    previous = event["response"]["id"] if event else None
    event = await stage.turn(
        socket, input="go on", previous_response_id=previous, store=False, max_output_tokens=4
    )
    found = event is not None and event["type"] in ("response.completed", "response.incomplete")
    stage.check(found, f"the other tenant's chain was evicted: {str(event)[:300]}")
    for flood in [*opened, socket]:
        flood.reset()


@attack(quick=True)
async def small_requests(stage: Stage) -> None:
    """600 requests that are refused come on 20 connections at once: each gets its answer."""

    async def client() -> None:
        socket = await connect(stage.server)
        try:
            async with asyncio.timeout(20):
                for _ in range(30):
                    await socket.send(request_head("GET", "/responses/resp_none", key=stage.key))
                    stage.refused(await socket.answer(), (404,))
        finally:
            socket.close()

    await asyncio.gather(*(client() for _ in range(20)))


@attack()
async def small_turns(stage: Stage) -> None:
    """Two WebSockets keep eight lanes each busy without a pause: the victim is served in time."""

    async def client() -> None:
        socket = await stage.websocket()
        end = time.monotonic() + 4
        for lane in range(8):
            await socket.create(input="go", stream_id=f"l{lane}", store=False)
        async with asyncio.timeout(20):
            while time.monotonic() < end:
                event = await socket.until("response.completed")
                if event["type"] != "response.completed":
                    stage.check(False, f"a turn failed: {str(event)[:200]}")
                    break
                await socket.create(input="go", stream_id=event.get("stream_id"), store=False)
        socket.reset()

    await asyncio.gather(client(), client())


@attack(quick=True)
async def others_ids(stage: Stage) -> None:
    """Ids of another tenant's response, conversation and run, used on every endpoint, are answered like ids
    that do not exist."""
    made = await stage.post({"input": "secret-of-the-victim"}, key=VICTIM_KEY)
    assert made is not None
    real = json.loads(made.body)["id"]
    for method, path in (
        ("GET", "/responses/{}"),
        ("DELETE", "/responses/{}"),
        ("POST", "/responses/{}/cancel"),
        ("GET", "/responses/{}/input_items"),
        ("GET", "/responses/{}?stream=true"),
    ):
        answers = []
        for response_id in (real, real[:-4] + "0000"):
            data = request_head(
                method, path.format(response_id), "Connection: close", "Content-Length: 0", key=stage.key
            )
            answer = await stage.exchange(data)
            answers.append(
                (answer.status, answer.body.replace(response_id.encode(), b"ID")) if answer else None
            )
        stage.check(answers[0] == answers[1], f"{method} {path} reveals that the response exists: {answers}")
    create = {"input": "go", "previous_response_id": real, "store": False}
    stage.refused(await stage.post(create), (400,), code="previous_response_not_found")
    found = await stage.get(f"/responses/{real}", key=VICTIM_KEY)
    stage.check(found is not None and found.status == 200, "the victim's response was deleted")
