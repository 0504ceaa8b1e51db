"""Answers that clients do not read, on every transport; and slow but healthy readers, which must be
served."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tests.attack.limits import MIB, SLACK_DESCRIPTORS
from tests.attack.sockets import GONE, Socket, connect, connections, json_lines, request_head, websockets
from tests.attack.stage import Registry, Stage

attack = Registry("unread", peak_mib=768, event_ms=1000)
_LARGE = "x" * (15 * MIB)
_PAUSE_S = 1.5
"""Below `send_timeout_s`, and longer than the second between two checks of deadlines."""
_PATIENT = {"header_timeout_s": 30, "body_timeout_s": 30, "send_timeout_s": 30}
"""As servers have them: on a busy machine, a healthy client may stand still for longer than attackers get."""
_ANSWERED_S = 60.0
"""How long a server may take until it has begun to answer all attackers."""


def _post(stage: Stage, body: bytes) -> bytes:
    return request_head("POST", "/responses", *json_lines(len(body)), key=stage.key) + body


async def _let_go(stage: Stage, before: int, opened: Sequence[Socket]) -> None:
    """Require that the server closes unread connections in time, once it has begun to answer on all that were
    opened: nothing is unread before, and a busy machine takes a while to read many large responses."""
    limit = stage.limit("send_timeout_s")
    await stage.comes_true(lambda: all(each.has_received for each in opened), _ANSWERED_S)
    fell = await stage.descriptors_fall(before + SLACK_DESCRIPTORS, 2 * limit)
    stage.check(
        fell, f"{stage.server.descriptors() - before} unread connections are open after {2 * limit:g} s"
    )


@asynccontextmanager
async def _held(sockets: list[Socket]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for socket in sockets:
            socket.reset()


async def _send_all(stage: Stage, data: bytes, count: int, *, times: int = 1) -> list[Socket]:
    """Open connections and send the same data on each, as far as the server accepts it."""
    opened: list[Socket] = []

    async def one() -> None:
        try:
            socket = await connect(stage.server, small=True)
        except OSError:
            return
        opened.append(socket)
        try:
            async with asyncio.timeout(10):
                for _ in range(times):
                    await socket.send(data)
        except GONE:
            pass

    for start in range(0, count, 10):
        await asyncio.gather(*(one() for _ in range(min(10, count - start))))
    return opened


@attack()
async def gets(stage: Stage) -> None:
    """60 GETs of a stored response of 15 MiB are left unread: pending data is bounded, and they are
    closed."""
    response = await stage.stored({"input": "go", "instructions": _LARGE})
    before = stage.server.descriptors()
    opened = await _send_all(stage, request_head("GET", f"/responses/{response}", key=stage.key), 60)
    async with _held(opened):
        await _let_go(stage, before, opened)


@attack()
async def posts(stage: Stage) -> None:
    """The answers of 30 POSTs with 15 MiB of instructions are left unread: bounded, and closed."""
    before = stage.server.descriptors()
    body = json.dumps({"input": "go", "instructions": _LARGE, "store": False}).encode()
    opened = await _send_all(stage, _post(stage, body), 30)
    async with _held(opened):
        await _let_go(stage, before, opened)


@attack()
async def streams(stage: Stage) -> None:
    """20 SSE streams whose events repeat 8 MiB of instructions are left unread: bounded, and closed."""
    before = stage.server.descriptors()
    create = {"input": "go", "instructions": _LARGE[: 8 * MIB], "store": False, "stream": True}
    opened = await _send_all(stage, _post(stage, json.dumps(create).encode()), 20)
    async with _held(opened):
        await _let_go(stage, before, opened)


@attack()
async def sockets(stage: Stage) -> None:
    """Twelve WebSockets with two lanes of 8 MiB of instructions each are left unread: bounded, and closed."""
    before = stage.server.descriptors()
    async with websockets(stage.server, stage.key, 12) as opened:
        for socket in opened:
            try:
                async with asyncio.timeout(10):
                    for lane in range(2):
                        await socket.create(
                            input="go", instructions=_LARGE[: 8 * MIB], stream_id=f"l{lane}", store=False
                        )
            except GONE:
                pass
        await _let_go(stage, before, opened)


@attack(peak_mib=1024)
async def followed_runs(stage: Stage) -> None:
    """A background run with 15 MiB of instructions is streamed by 20 clients that do not read: bounded, and
    closed."""
    answer = await stage.post({"input": "go", "instructions": _LARGE, "background": True})
    if answer is None or answer.status != 200:
        stage.check(False, f"a background run was refused: {answer and answer.body[:300]!r}")
        return
    path = f"/responses/{json.loads(answer.body)['id']}?stream=true"
    before = stage.server.descriptors()
    opened = await _send_all(stage, request_head("GET", path, key=stage.key), 20)
    async with _held(opened):
        await _let_go(stage, before, opened)


@attack()
async def input_items(stage: Stage) -> None:
    """30 lists of input items with 15 MiB are left unread: bounded, and closed."""
    response = await stage.stored({"input": _LARGE})
    before = stage.server.descriptors()
    path = f"/responses/{response}/input_items"
    opened = await _send_all(stage, request_head("GET", path, key=stage.key), 30)
    async with _held(opened):
        await _let_go(stage, before, opened)


@attack()
async def conversation_items(stage: Stage) -> None:
    """30 lists of a conversation's items with 15 MiB are left unread: bounded, and closed."""
    answer = await stage.post({"items": [{"role": "user", "content": _LARGE}]}, "/conversations")
    if answer is None or answer.status != 200:
        stage.check(False, f"a conversation was refused: {answer and answer.body[:300]!r}")
        return
    before = stage.server.descriptors()
    path = f"/conversations/{json.loads(answer.body)['id']}/items"
    opened = await _send_all(stage, request_head("GET", path, key=stage.key), 30)
    async with _held(opened):
        await _let_go(stage, before, opened)


@attack()
async def pipelined(stage: Stage) -> None:
    """100 GETs of a 15 MiB response are written to each of twelve connections: bounded, and closed."""
    response = await stage.stored({"input": "go", "instructions": _LARGE})
    before = stage.server.descriptors()
    opened = await _send_all(
        stage, request_head("GET", f"/responses/{response}", key=stage.key), 12, times=100
    )
    async with _held(opened):
        await _let_go(stage, before, opened)


@attack()
async def a_byte_a_second(stage: Stage) -> None:
    """Twelve readers of a 15 MiB response read one byte a second: closed as if they did not read."""
    response = await stage.stored({"input": "go", "instructions": _LARGE})
    before = stage.server.descriptors()
    opened = await _send_all(stage, request_head("GET", f"/responses/{response}", key=stage.key), 12)

    async def drip() -> None:
        while True:
            await asyncio.sleep(1)
            for socket in opened:
                try:
                    await socket.receive(1)
                except OSError:
                    continue

    dripping = asyncio.ensure_future(drip())
    async with _held(opened):
        try:
            await _let_go(stage, before, opened)
        finally:
            dripping.cancel()


@attack(quick=True, limits=_PATIENT)
async def slow_stream(stage: Stage) -> None:
    """A healthy client of an SSE stream with 8 MiB of instructions pauses before it reads: it gets all."""
    create = {"input": "go", "instructions": _LARGE[: 8 * MIB], "store": False, "stream": True}
    async with connections(stage.server, 1, small=True) as (socket,):
        await socket.send(_post(stage, json.dumps(create).encode()))
        await asyncio.sleep(_PAUSE_S)
        received = bytearray()
        try:
            async with asyncio.timeout(20):
                while b"data: [DONE]" not in received[-100:] and (chunk := await socket.receive()):
                    received += chunk
        except GONE as error:
            stage.check(False, f"disconnected: {type(error).__name__}")
        stage.check(
            b"response.completed" in received[-50_000_000:], f"disconnected after {len(received)} bytes"
        )


@attack(quick=True, limits=_PATIENT)
async def slow_socket(stage: Stage) -> None:
    """A healthy client of a new WebSocket pauses before it reads 8 MiB of instructions: it gets all of it."""
    async with websockets(stage.server, stage.key) as (socket,):
        await socket.create(input="go", instructions=_LARGE[: 8 * MIB], store=False)
        await asyncio.sleep(_PAUSE_S)
        try:
            async with asyncio.timeout(20):
                event = await socket.until("response.completed")
                stage.check(event["type"] == "response.completed", f"disconnected: {str(event)[:200]}")
        except GONE as error:
            stage.check(False, f"disconnected: {type(error).__name__}")


@attack(quick=True, limits=_PATIENT)
async def slow_get(stage: Stage) -> None:
    """A healthy client pauses before it reads the answers of a GET and a POST of 8 MiB: it gets all."""
    create = {"input": "go", "instructions": _LARGE[: 8 * MIB]}
    response = await stage.stored(create)
    async with connections(stage.server, 2, small=True) as opened:
        await opened[0].send(request_head("GET", f"/responses/{response}", key=stage.key))
        await opened[1].send(_post(stage, json.dumps(create).encode()))
        await asyncio.sleep(_PAUSE_S)
        for socket in opened:
            try:
                async with asyncio.timeout(20):
                    answer = await socket.answer()
                    stage.check(answer.status == 200 and json.loads(answer.body), "not the whole answer")
            except GONE as error:
                stage.check(False, f"disconnected: {type(error).__name__}")


@attack()
async def steady_slow_reader(stage: Stage) -> None:
    """A healthy client reads a 15 MiB response at 2 MiB a second, for longer than the deadline: it is
    served."""
    response = await stage.stored({"input": "go", "instructions": _LARGE})
    async with connections(stage.server, 1, small=True) as (socket,):
        await socket.send(request_head("GET", f"/responses/{response}", key=stage.key))
        received = 0
        try:
            async with asyncio.timeout(30):
                while received < len(_LARGE) and (chunk := await socket.receive()):
                    received += len(chunk)
                    await asyncio.sleep(len(chunk) / (2 * MIB))
        except GONE as error:
            stage.check(False, f"disconnected: {type(error).__name__}")
        stage.check(received >= len(_LARGE), f"disconnected after {received} of {len(_LARGE)} bytes")
