"""Requests, handshakes and messages that are never completed."""

import asyncio
import json

from tests.attack.limits import MIB, SLACK_DESCRIPTORS
from tests.attack.sockets import (
    CONTINUATION,
    GONE,
    PING,
    TEXT,
    Deadline,
    Socket,
    connect,
    connections,
    frame,
    frame_head,
    json_lines,
    request_head,
    upgrade,
    websockets,
)
from tests.attack.stage import Registry, Stage

attack = Registry("unfinished")
_BODY = b'{"input":"' + b"x" * (15 * MIB)
_HEAD = json_lines(len(_BODY) + 2)


async def _let_go(stage: Stage, before: int, limit: str) -> None:
    """Require that the server closes connections without progress within the time of a limit."""
    seconds = stage.limit(limit)
    fell = await stage.descriptors_fall(before + SLACK_DESCRIPTORS, seconds)
    held = stage.server.descriptors() - before
    stage.check(fell, f"{held} connections are open after {limit} ({seconds:g})")


async def _send_unfinished(socket: Socket, data: bytes) -> None:
    try:
        async with asyncio.timeout(5):
            await socket.send(data)
    except GONE:
        pass


@attack(peak_mib=768)
async def bodies(stage: Stage) -> None:
    """60 bodies of 15 MiB stop two bytes before their end: memory is bounded, and they are closed."""
    before = stage.server.descriptors()
    data = request_head("POST", "/responses", *_HEAD, key=stage.key) + _BODY
    async with connections(stage.server, 60) as opened:
        for start in range(0, 60, 10):
            await asyncio.gather(*(_send_unfinished(each, data) for each in opened[start : start + 10]))
        await _let_go(stage, before, "body_timeout_s")


@attack(quick=True)
async def small_bodies(stage: Stage) -> None:
    """Twelve small bodies that stop before their end are closed when their deadline is over."""
    before = stage.server.descriptors()
    async with connections(stage.server, 12) as opened:
        for socket in opened:
            await socket.send(request_head("POST", "/responses", *json_lines(100), key=stage.key) + b"{")
        await _let_go(stage, before, "body_timeout_s")


@attack()
async def dripping_bodies(stage: Stage) -> None:
    """40 chunked bodies send a byte every half second: they are closed, because that is too slow."""
    before = stage.server.descriptors()
    head = request_head("POST", "/responses", "Transfer-Encoding: chunked", key=stage.key)
    async with connections(stage.server, 40) as opened:
        for socket in opened:
            await socket.send(head)
        await _drip(stage, opened, b"1\r\nx\r\n", before, "body_timeout_s")


@attack()
async def slow_headers(stage: Stage) -> None:
    """40 requests send a line of their head every half second: they are closed in time."""
    before = stage.server.descriptors()
    async with connections(stage.server, 40) as opened:
        for socket in opened:
            await socket.send(b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\n")
        await _drip(stage, opened, b"X-More: y\r\n", before, "header_timeout_s")


async def _drip(stage: Stage, opened: list[Socket], drop: bytes, before: int, limit: str) -> None:
    """Send a little data repeatedly until all connections are closed or the time is over."""
    wait = Deadline(3 * stage.limit(limit) + 4)
    while wait.left and stage.server.descriptors() > before + SLACK_DESCRIPTORS:
        for socket in opened:
            try:
                await socket.send(drop)
            except OSError:
                continue
        await asyncio.sleep(0.5)
    held = stage.server.descriptors() - before
    stage.check(held <= SLACK_DESCRIPTORS, f"{held} connections are open after {limit}")


@attack(quick=True)
async def silent(stage: Stage) -> None:
    """300 connections send nothing: they are closed in time."""
    before = stage.server.descriptors()
    async with connections(stage.server, 300):
        await _let_go(stage, before, "header_timeout_s")


@attack()
async def idle_keepalive(stage: Stage) -> None:
    """100 connections ask for /health once, without a key, and stay open: they are closed in time."""
    before = stage.server.descriptors()
    async with connections(stage.server, 100) as opened:
        for socket in opened:
            await socket.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await socket.answer()
        await _let_go(stage, before, "keepalive_timeout_s")


@attack(quick=True)
async def half_handshakes(stage: Stage) -> None:
    """100 upgrades to a WebSocket stop before the end of their head: they are closed in time."""
    before = stage.server.descriptors()
    async with connections(stage.server, 100) as opened:
        for socket in opened:
            await socket.send(upgrade(stage.key)[:-2])
        await _let_go(stage, before, "header_timeout_s")


@attack(peak_mib=768)
async def fragments(stage: Stage) -> None:
    """60 WebSockets send a message of 15 MiB in fragments that never end, with pings in between: memory is
    bounded, and connections with too much are closed."""
    before = stage.server.descriptors()
    piece = frame(CONTINUATION, b"x" * MIB, final=False) + frame(PING)
    data = frame(TEXT, b'{"type":"', final=False) + piece * 15
    async with websockets(stage.server, stage.key, 60) as opened:
        for start in range(0, 60, 10):
            await asyncio.gather(*(_send_unfinished(each, data) for each in opened[start : start + 10]))
        await _drip(stage, opened, frame(PING), before, "body_timeout_s")


@attack()
async def announced_frames(stage: Stage) -> None:
    """60 WebSockets announce a frame of 15 MiB and send nothing of it: they are closed, and no memory is
    allocated."""
    before = stage.server.descriptors()
    async with websockets(stage.server, stage.key, 60) as opened:
        for socket in opened:
            await socket.send(frame_head(TEXT, 15 * MIB) + b'{"type"')
        await _let_go(stage, before, "body_timeout_s")


@attack()
async def bodies_without_key(stage: Stage) -> None:
    """60 bodies of 15 MiB are sent without a key: each is refused with 401 before its body is read."""

    async def one() -> None:
        head = request_head("POST", "/responses", *_HEAD)
        answer = await stage.exchange(head + _BODY[:MIB], within_s=10)
        stage.refused(answer, (401,), code="invalid_api_key")

    for _ in range(6):
        await asyncio.gather(*(one() for _ in range(10)))


@attack(peak_mib=256)
async def body_to_every_endpoint(stage: Stage) -> None:
    """A body that never ends goes to each endpoint that takes one, and to some that take none: all are
    closed."""
    before = stage.server.descriptors()
    paths = [
        ("POST", path)
        for path in (
            "/responses",
            "/responses/compact",
            "/responses/input_tokens",
            "/conversations",
            "/nowhere",
        )
    ] + [("GET", "/models"), ("DELETE", "/responses/resp_0"), ("POST", "/responses/resp_0/cancel")]
    async with connections(stage.server, 3 * len(paths)) as opened:
        for place, socket in enumerate(opened):
            method, path = paths[place % len(paths)]
            await _send_unfinished(socket, request_head(method, path, *_HEAD, key=stage.key) + _BODY[:65536])
        seconds = stage.limit("body_timeout_s") + stage.limit("keepalive_timeout_s")
        fell = await stage.descriptors_fall(before + SLACK_DESCRIPTORS, seconds)
        stage.check(fell, f"{stage.server.descriptors() - before} connections are open")


@attack(descriptors=256, event_ms=4000)
async def few_descriptors(stage: Stage) -> None:
    """400 silent connections to a server that may open 256 files: the victim is served, the shortage is
    logged, /health answers, and the server recovers afterwards."""
    async with connections(stage.server, 400):
        await asyncio.sleep(2)
        health = await stage.exchange(b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 10)
        stage.check(health is not None and health.status == 200, "/health is not answered")
    stage.check("too few files" in stage.server.log(), "the shortage of descriptors is not logged")
    answer = await stage.post({"input": "go", "store": False})
    stage.check(answer is not None and answer.status == 200, "no turn is served afterwards")


@attack(limits={"max_connections": 100})
async def all_places_of_a_tenant(stage: Stage) -> None:
    """One tenant opens WebSockets to a server with 100 connections until it is refused with 429 or 503: the
    victim is still served."""
    opened: list[Socket] = []
    refusals = []
    try:
        for _ in range(140):
            socket = await connect(stage.server)
            opened.append(socket)
            await socket.send(upgrade(stage.key))
            async with asyncio.timeout(10):
                head = await socket.read_head()
            if " 101 " not in head.splitlines()[0]:
                refusals.append(head.split()[1])
        stage.note(f"{len(refusals)} of 140 refused")
        stage.check(refusals, "none was refused")
        stage.check(set(refusals) <= {"429", "503"}, f"refused with {set(refusals)}")
        await asyncio.sleep(1)
    except GONE:
        stage.note("closed without an answer")
    finally:
        for socket in opened:
            socket.reset()


@attack(limits={"max_connections": 100}, event_ms=4000)
async def all_places_without_key(stage: Stage) -> None:
    """150 connections without a key to a server with 100 connections: the victim is still served, perhaps
    after a wait."""
    async with connections(stage.server, 150):
        await asyncio.sleep(1.5)
        answer = await stage.post({"input": "go", "store": False})
        stage.check(answer is not None and answer.status == 200, "a client with a key is not served")


@attack(quick=True)
async def leaving_early(stage: Stage) -> None:
    """100 clients send a create and disconnect before the answer: nothing of them remains."""
    body = json.dumps({"input": "go", "store": False, "stream": True}).encode()
    data = request_head("POST", "/responses", *json_lines(len(body)), key=stage.key) + body
    for _ in range(100):
        socket = await connect(stage.server)
        await socket.send(data)
        socket.reset()


@attack()
async def slow_uploads(stage: Stage) -> None:
    """A healthy client sends a body, and another one a message, slowly and for longer than the deadline: both
    are served."""
    body = json.dumps({"input": "x" * (512 * 1024), "store": False}).encode()
    pause = 2 * stage.limit("body_timeout_s") / 16
    piece = len(body) // 16 + 1
    pieces = [body[start : start + piece] for start in range(0, len(body), piece)]

    async def over_http() -> None:
        async with connections(stage.server, 1) as (socket,):
            await socket.send(request_head("POST", "/responses", *json_lines(len(body)), key=stage.key))
            for each in pieces:
                await socket.send(each)
                await asyncio.sleep(pause)
            answer = await socket.answer()
            stage.check(answer.status == 200, f"a slow body is answered {answer.status}")

    async def over_socket() -> None:
        create = b'{"type":"response.create",' + body[1:]
        async with websockets(stage.server, stage.key) as (socket,):
            for start in range(0, len(create), piece):
                opcode, final = (CONTINUATION if start else TEXT), start + piece >= len(create)
                await socket.send_frame(opcode, create[start : start + piece], final=final)
                await asyncio.sleep(pause)
            event = await socket.until("response.completed")
            stage.check(event["type"] == "response.completed", f"a slow message: {str(event)[:200]}")

    results = await asyncio.gather(over_http(), over_socket(), return_exceptions=True)
    for result in results:
        stage.check(result is None, f"a slow client was disconnected: {result!r}")
